//! mqfq
fn main() {}
