//! Block status, and zeroes that must be fast: what the client hears of what the device said.

use super::*;

fn extents(extents: &[[u32; 2]]) -> Vec<u8> {
    let numbers = extents.iter().flatten().flat_map(|number| number.to_be_bytes());
    [0, 0, 0, 1].into_iter().chain(numbers).collect()
}

fn status(peer: &mut Peer<Connection>, flags: u16, offset_bytes: u64, length_bytes: u32) -> (u64, u16, Vec<u8>) {
    let mut all = chunks(&peer.ask(&header(Command::BlockStatus, flags, 3, offset_bytes, length_bytes)));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn block_status_tells_extents_and_of_a_device_that_does_not_say_data() {
    let mut peer = structured();
    peer.ask(&write(1, 10, b"hello"));
    assert_eq!(status(&mut peer, 0, 0, 1024), (3, 5, extents(&[[512, 0], [512, 3]])));
    assert_eq!(status(&mut peer, request::REQ_ONE, 0, 1024), (3, 5, extents(&[[512, 0]])));
    assert_eq!(status(&mut peer, 0, 600, 1024), (3, 5, extents(&[[1024, 3]])));
    for unknown in [Status::Unsupported, Status::Recalled] {
        peer.status = unknown;
        assert_eq!(status(&mut peer, 0, 600, 1024), (3, 5, extents(&[[1024, 0]])), "{unknown:?}");
    }
    peer.status = Status::Io;
    let (cookie, kind, error) = status(&mut peer, 0, 0, 512);
    assert_eq!((cookie, kind, &error[..4]), (3, 0x8001, &5_u32.to_be_bytes()[..]));
    let ProtocolPhase::Transmitting(transmission) = &mut peer.client.phase else { panic!("the handshake is over") };
    assert_eq!(transmission.under_way(), (0, 0), "each gave its memory back");
}

#[test]
fn block_status_waits_for_memory_as_a_read_does() {
    let memory = crate::memory::ServerMemory::new(crate::memory::MemoryLimits { server_bytes: 8192, tenants: 1 });
    let memory = memory.tenant(8192);
    let mut other = crate::memory::Account::new(memory.clone(), 1 << 30);
    other.take(8192).unwrap();
    let mut peer = large::structured_of(memory, NbdOptions::default());
    peer.executes = false;
    let ask = |cookie| header(Command::BlockStatus, 0, cookie, 0, 512);
    peer.say(&[ask(1), ask(2)].concat());
    assert_eq!(peer.fake.staged.len(), 1, "one is always to be had");
    other.give(8192);
    peer.executes = true;
    peer.pass_ns(MEMORY_RETRY_NS);
    peer.run();
    assert_eq!(errors(&peer.read), [(1, 0), (2, 0)]);
}

#[test]
fn zeroes_that_would_be_slow_are_not_supported_in_any_length() {
    let mut peer = structured();
    let zero = |flags, length_bytes| header(Command::WriteZeroes, flags, 1, 0, length_bytes);
    assert_eq!(errors(&peer.ask(&zero(request::FAST_ZERO, SIZE as u32))), [(1, 0)]);
    assert_eq!(peer.fake.executed, [(Op::FastZeroes { may_unmap: true }, SIZE as u64, SIZE as u32, false)]);
    peer.status = Status::Unsupported;
    for length_bytes in [512, SIZE as u32] {
        assert_eq!(errors(&peer.ask(&zero(request::FAST_ZERO, length_bytes))), [(1, 95)]);
    }
    assert_eq!(errors(&peer.ask(&zero(0, 512))), [(1, 22)]);
}
