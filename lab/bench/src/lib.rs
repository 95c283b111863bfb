//! What `mqfq-lab bench` runs, and the structures that ours are compared with.
//!
//! | file | noun |
//! |---|---|
//! | [`contender`] | whose cost is measured: each policy in each of its forms |
//! | [`structures`] | MQFQ's shared structures alone, beside the ones that they are compared with |
//! | [`transfers`] | the lines that whole policies move |
//! | [`simulate`](mod@simulate) | scenarios through the simulator, several at once |
//! | [`attach`], [`blkmq`], [`d2fq`], [`fairness`], [`bound`], [`nbd_record`], [`elevators`], [`file`](mod@file), [`intake`], [`kernel`], [`overhead`], [`scale`], [`schedulers`], [`structures`], [`transfers`], [`validate`] | the commands |
//! | [`report`] | what fairness reports |
//! | [`options`] | options that several commands read alike |
//! | [`rounds`] | who is measured when, and what is said of the values |
//! | [`shell`] | how results are printed, drawn and recorded |
//!
//! Loads and harness are those of `mqfq-demo`; tables and pictures those of `mqfq-report`. README.md beside this crate
//! says for each command what it shows and what would make it lie.

pub mod attach;
pub mod blkmq;
pub mod bound;
pub mod contender;
mod cpu_time;
pub mod d2fq;
pub mod elevators;
pub mod fairness;
pub mod file;
mod fio;
pub mod intake;
pub mod kernel;
pub mod machine;
pub mod model;
pub mod nbd_record;
pub mod options;
pub mod overhead;
pub mod report;
pub mod rounds;
pub mod scale;
pub mod scenario;
pub mod schedulers;
pub mod shell;
pub mod simulate;
pub mod structures;
pub mod transfers;
pub mod validate;
