//! The end of an operation that a worker has asked of its surroundings.

use super::client::Event;

/// An operation that ended, as the host names it, and its result. [`Host::resolve`](crate::worker::host::Host::resolve)
/// says what it means.
pub type Ended = (u64, i32);

/// Meaning of an operation's end to the loop.
#[derive(Debug)]
pub enum HostEvent {
    /// A client's operation or timer ended.
    Client {
        /// The client, as given when the operation was asked for.
        client: u32,
        /// The event.
        event: Event,
    },
    /// A device queue's operation ended.
    Device {
        /// Index of the device.
        device: u16,
        /// The device queue's name for it.
        user: u32,
        /// Result as the kernel states it.
        result: i32,
    },
    /// The worker was kicked.
    Bell,
}
