//! A ring beside the kernel's.

use super::*;
use crate::worker::bell::Bell;
use std::io::Write;
use std::os::fd::AsFd;

/// Collects events until no operation is in flight any more.
fn events(ring: &mut Ring) -> Vec<HostEvent> {
    let (mut ended, mut events) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        // The limit is for the day on which this fails.
        ring.enter_and_wait(Some(10_000_000_000)).unwrap();
        ring.collect(&mut ended);
        events.extend(ended.drain(..).filter_map(|ended| ring.resolve(ended)));
        if ring.free.len() == ring.operations.len() {
            return events;
        }
    }
    panic!("an operation is still in flight: {events:?}");
}

#[test]
fn a_ring_that_is_gone_keeps_no_file_open() {
    // A writer to a pipe is told EPIPE as soon as the last reader has closed it.
    let bell = Bell::new().unwrap();
    let (reader, mut writer) = io::pipe().unwrap();
    let mut ring = Ring::new(bell.event()).unwrap();
    assert!(ring.device_ring(1).register(reader.as_fd()).is_some(), "the kernel is too old to say anything");
    ring.enter().unwrap();
    drop(reader);
    writer.write_all(b"the ring reads").unwrap();
    drop(ring);
    assert_eq!(writer.write_all(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn registered_files_have_places_of_their_own_and_one_that_left_is_closed() {
    let bell = Bell::new().unwrap();
    let mut ring = Ring::new(bell.event()).unwrap();
    let door = ring.device_ring(1);
    let pipes: Vec<_> = (0..3).map(|_| io::pipe().unwrap()).collect();
    let places: Vec<u32> = pipes.iter().map(|(reader, _)| door.register(reader.as_fd()).unwrap()).collect();
    assert_eq!(places, [0, 1, 2]);
    let mut writers: Vec<_> = pipes.into_iter().map(|(_, writer)| writer).collect();
    door.unregister(1);
    ring.enter().unwrap();
    // Some kernels close it on a thread of their own, and the last reader's end is an event at the writer.
    let mut waited = libc::pollfd { fd: writers[1].as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one structure, which lives through the call.
    assert_eq!(unsafe { libc::poll(&raw mut waited, 1, -1) }, 1);
    assert_eq!(writers[1].write_all(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert!(writers[0].write_all(b"x").is_ok() && writers[2].write_all(b"x").is_ok());
    assert_eq!(door.register(writers[0].as_fd()), Some(1), "its place is free");
    drop(ring);
    assert_eq!(door.register(writers[0].as_fd()), None, "a queue may outlive its ring");
    door.unregister(1);
}

#[test]
fn cancelled_timers_leave_the_kernel_and_those_of_others_do_not() {
    let bell = Bell::new().unwrap();
    let mut ring = Ring::new(bell.event()).unwrap();
    let hour = Duration::from_secs(3600);
    ring.timer(1, hour, 10);
    ring.timer(2, Duration::from_millis(1), 20);
    ring.enter().unwrap();
    // One that the kernel has, and one that it has not seen yet.
    ring.timer(1, hour, 11);
    ring.cancel_waits(1);
    let events = events(&mut ring);
    assert!(matches!(events[..], [HostEvent::Client { client: 2, event: Event::Timer { user: 20 } }]), "{events:?}");
}

#[test]
fn a_timer_that_is_due_ends_without_the_kernel_before_any_sleep_and_is_cancelled_like_others() {
    let bell = Bell::new().unwrap();
    let mut ring = Ring::new(bell.event()).unwrap();
    ring.enter().unwrap();
    for (client, user) in [(1, 10), (2, 20), (1, 11), (2, 21)] {
        ring.timer(client, Duration::ZERO, user);
    }
    assert!(ring.uring.submission().is_empty(), "nothing is asked of the kernel");
    assert!(ring.has_ended());
    ring.cancel_waits(1);
    // Without a limit, and nothing else will come.
    ring.enter_and_wait(None).unwrap();
    let mut ended = Vec::new();
    ring.collect(&mut ended);
    assert_eq!(ended.len(), 4);
    let resolved = ended.drain(..).filter_map(|ended| ring.resolve(ended));
    let users: Vec<u32> = resolved
        .map(|event| match event {
            HostEvent::Client { client: 2, event: Event::Timer { user } } => user,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(users, [20, 21]);
    assert!(!ring.has_ended());
    assert_eq!(ring.free.len(), ring.operations.len());
}
