//! What `mqfq bench` and `mqfq demo` run, and the structures that ours are compared with.

pub mod load;
pub mod load_nbd;
pub mod nbd_client;
pub mod nbd_wire;
