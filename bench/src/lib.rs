//! What `mqfq bench` and `mqfq demo` run, and the structures that ours are compared with.
//!
//! | file | noun |
//! |---|---|
//! | [`load`] | closed-loop load: what a tenant asks for, and what was counted |
//! | [`load_nbd`], [`nbd_client`], [`nbd_wire`] | the load over real NBD sockets |
//! | [`load_inside`] | the load inside the workers |
//! | [`harness`] | an engine with tenants attached |
//! | [`phases`] | each tenant alone, then all together |
//! | [`contender`] | whose cost is measured: each policy in each of its forms |
//! | [`structures`] | MQFQ's shared structures alone, beside the ones that they are compared with |
//! | [`transfers`] | the lines that whole policies move |
//! | [`simulate`](mod@simulate) | scenarios through the simulator, several at once |
//! | [`blkmq`], [`d2fq`], [`demo`], [`fairness`], [`bound`], [`nbd_record`], [`elevators`], [`file`](mod@file), [`kernel`], [`overhead`], [`scale`], [`schedulers`], [`structures`], [`transfers`], [`validate`] | the commands |
//! | [`report`], [`table`], [`plot`] | JSON, text, picture |
//!
//! bench/README.md says for each command what it shows and what would make it lie.

pub mod blkmq;
pub mod bound;
pub mod contender;
mod cpu_time;
pub mod d2fq;
pub mod demo;
pub mod drive;
pub mod elevators;
pub mod fairness;
pub mod file;
mod fio;
pub mod harness;
pub mod kernel;
pub mod load;
pub mod load_inside;
pub mod load_nbd;
pub mod machine;
pub mod model;
pub mod nbd_client;
pub mod nbd_record;
pub mod nbd_wire;
pub mod overhead;
pub mod phases;
pub mod plot;
pub mod progress;
pub mod report;
pub mod scale;
pub mod schedulers;
mod scratch;
pub mod simulate;
pub mod structures;
pub mod table;
pub mod transfers;
pub mod validate;
