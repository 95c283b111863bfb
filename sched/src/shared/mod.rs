//! State that the queues of a device share without a lock: virtual time, dispatch tokens, and which queue waits.

pub mod mindicator;
pub mod ready_set;
pub mod throttle_wheel;
pub mod token;
pub mod token_tree;
