//! Devices for tests of the block layer and of the crates above it. Never a dependency of a crate that ships.
//!
//! | file | answers |
//! |---|---|
//! | [`fault`] | which commands of a device fail, come late or get lost, and which bytes does a power cut take? |
//! | [`faulty`] | and the same below queues that workers share |
//! | [`solo`] | what does a file device do without a worker, and a client with memory that its driver uses? |

pub mod fault;
pub mod faulty;
pub mod solo;
