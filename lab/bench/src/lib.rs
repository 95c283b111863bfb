//! Measurements of `mqfq-lab bench`, and the structures that ours are compared with.
//!
//! | file | noun |
//! |---|---|
//! | [`contender`] | whose cost is measured: each policy in each of its forms |
//! | [`structures`] | MQFQ's shared structures alone, beside the ones that they are compared with |
//! | [`transfers`] | the lines that whole policies move |
//! | [`simulate`](mod@simulate) | scenarios through the simulator, several at once |
//! | [`clients`], [`fairness`], [`bound`], [`intake`], [`kernel`], [`library`], [`overhead`], [`scale`], [`schedulers`], [`structures`], [`transfers`], [`validate`] | the commands of `bench` |
//! | [`day`], [`price`], [`hostile`] | a server under many tenants, changes and hostile clients |
//! | [`options`] | options that several commands read alike |
//! | [`rounds`] | order of the measurements, and summary of the values |
//! | [`shell`] | how results are printed, drawn and recorded |
//!
//! Loads and harness are those of `mqfq-demo`; tables and pictures those of `mqfq-report`. README.md beside this crate
//! says for each command what it shows and what would make it lie.

#[cfg(feature = "whole")]
pub mod bound;
#[cfg(feature = "whole")]
pub mod clients;
pub mod contender;
#[cfg(feature = "whole")]
pub mod day;
#[cfg(feature = "whole")]
pub mod fairness;
#[cfg(feature = "whole")]
mod fio;
#[cfg(feature = "whole")]
pub mod hostile;
#[cfg(feature = "whole")]
pub mod intake;
#[cfg(feature = "whole")]
pub mod kernel;
#[cfg(feature = "whole")]
pub mod library;
pub mod machine;
#[cfg(feature = "whole")]
pub mod model;
pub mod options;
pub mod overhead;
#[cfg(feature = "whole")]
pub mod price;
pub mod rounds;
#[cfg(feature = "whole")]
pub mod scale;
#[cfg(feature = "whole")]
pub mod scenario;
pub mod schedulers;
pub mod shell;
#[cfg(feature = "whole")]
pub mod simulate;
#[cfg(feature = "whole")]
pub mod structures;
#[cfg(feature = "whole")]
pub mod transfers;
#[cfg(feature = "whole")]
pub mod validate;
