//! Devices for tests of the block layer and of the crates above it. Never a dependency of a crate that ships.
//!
//! | file | answers |
//! |---|---|
//! | [`fault`] | which commands of a device fail, come late or get lost, and which bytes does a power cut take? |
//! | [`faulty`] | and the same below queues that workers share |
//! | [`rooms`] | what does a driver's client do with memory that the driver reads and writes? |
//! | [`solo`] | what does a file device do without a worker? |

pub mod fault;
pub mod faulty;
pub mod solo;
