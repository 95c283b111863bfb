//! How do commands to a driver travel by the worker's ring?
//!
//! Each is an entry of 64 bytes, with 16 that the driver reads when it is submitted. While the driver has it, the
//! operation holds the file, and with it the memory that the driver may touch: a client may go before its commands end.

use super::{Operation, Ring};
use crate::command::{Command, CommandFile};
use io_uring::{opcode, squeue, types};
use std::sync::Arc;

pub(super) struct InFlight {
    /// `None`: its end is not reported.
    pub(super) client: Option<u32>,
    pub(super) user: u32,
    #[expect(dead_code, reason = "it is held, not looked at: the driver may touch its memory")]
    file: Arc<CommandFile>,
}

/// A client's command, and its entry.
pub(super) fn begun(client: u32, command: Command, user: u32) -> (Operation, squeue::Entry) {
    let (bytes, place) = command.parts();
    let entry = opcode::UringCmd16::new(types::Fd(command.file.descriptor()), command.operation)
        .cmd(bytes)
        .addr(place.map(u64::from))
        .build();
    (Operation::Command(InFlight { client: Some(client), user, file: command.file }), entry)
}

impl Ring {
    /// From now on the ends of this client's commands are not reported.
    pub(super) fn forget_commands(&mut self, client: u32) {
        for operation in self.operations.iter_mut().flatten() {
            if let Operation::Command(command) = operation {
                command.client = command.client.filter(|whose| *whose != client);
            }
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::ask::Ask;
    use crate::client::Event;
    use crate::edge::ask::HostEvent;
    use crate::worker::bell::Bell;
    use std::os::fd::OwnedFd;

    #[test]
    fn the_end_of_a_command_reaches_its_client_and_nobody_if_that_has_gone() {
        let bell = Bell::new().unwrap();
        let mut ring = Ring::new(bell.event()).unwrap();
        let (memory, _pages) = crate::foreign::tests::memory(8192);
        let null = Arc::new(OwnedFd::from(std::fs::File::open("/dev/zero").unwrap()));
        // SAFETY: this driver takes no commands, and ends each with an error.
        let file = unsafe { CommandFile::new(null, memory, 4096) };
        let command = |room| Command { file: file.clone(), operation: 7, head: [0; 8], room };
        ring.ask(1, Ask::Command { command: command(0), user: 10 });
        ring.ask(2, Ask::Command { command: command(1), user: 20 });
        assert_eq!(Arc::strong_count(&file), 3, "the ring holds it with each command");
        ring.cancel_waits(1);
        let (mut ended, mut events) = (Vec::new(), Vec::new());
        while ring.free.len() < ring.operations.len() {
            // The limit is for the day on which this fails.
            ring.enter_and_wait(Some(10_000_000_000)).unwrap();
            ring.collect(&mut ended);
            assert!(!ended.is_empty(), "a command is still in flight");
            events.extend(ended.drain(..).filter_map(|ended| ring.resolve(ended)));
        }
        let [HostEvent::Client { client: 2, event: Event::Commanded { user: 20, result } }] = events[..] else {
            panic!("{events:?}")
        };
        // The error comes from the file, which takes no commands, and not from the ring's own restrictions.
        assert!(result < 0 && result != -libc::EACCES, "{result}");
        assert_eq!(Arc::strong_count(&file), 1);
    }
}
