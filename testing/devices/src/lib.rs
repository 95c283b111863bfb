//! Devices for tests of the block layer and of the crates above it. Never a dependency of a crate that ships.
//!
//! | file | answers |
//! |---|---|
//! | [`fault`] | which commands of a device fail, come late or get lost, and which bytes does a power cut take? |
//! | [`solo`] | what does a file device do without a worker? |

pub mod fault;
pub mod solo;
