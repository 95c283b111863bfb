//! No memory: whichever piece the core is refused, it says so by an error number and gives back what it had.

use mqfq_elevator_agreement::{World, is_refusing, largest_piece_bytes, make_lanes, pieces_held, refuse_memory};
use mqfq_sched::flow::Weight;
use mqfq_sched::vtime::VSpan;

const ENOMEM: i32 = -12;
const E2BIG: i32 = -7;

/// Pieces that the core asks for, of any number of queues: its two arrays, and those of its four structures.
const LEAST_PIECES: u64 = 6;

fn open(hctxs: usize) -> Result<World, i32> {
    let sockets: Vec<u16> = (0..hctxs).map(|hctx| (hctx % 2) as u16).collect();
    World::try_new(&sockets, 8, VSpan::from_bytes(64 << 10), &[Weight::new(100).expect("in range")])
}

#[test]
fn whichever_piece_is_refused_there_is_an_error_and_nothing_is_left() {
    for hctxs in [1, 2, 8, 17, 64, 65, 1024] {
        let mut refused = 0;
        for nth in 1.. {
            refuse_memory(nth);
            let opened = open(hctxs);
            if is_refusing() {
                refuse_memory(0);
                assert!(opened.is_ok(), "{hctxs} queues, and all memory that was asked for");
                break;
            }
            let error = opened.err().unwrap_or_else(|| panic!("{hctxs} queues came up without piece {nth}"));
            // The harness asks for a piece before the core and for some after it, and has no error number.
            assert!(error == ENOMEM || error == 0, "{hctxs} queues, piece {nth}: error {error}");
            refused += u64::from(error == ENOMEM);
            assert_eq!(pieces_held(), 0, "{hctxs} queues, piece {nth}");
        }
        assert!(refused >= LEAST_PIECES, "{hctxs} queues: only {refused} pieces were the core's");
        assert_eq!(pieces_held(), 0, "{hctxs} queues, when it was closed");
    }
}

#[test]
fn no_queue_and_too_many_are_an_error_before_any_memory_of_the_core() {
    for hctxs in [0, 1025, 65_536] {
        assert_eq!(open(hctxs).err(), Some(E2BIG), "{hctxs} queues");
        assert_eq!(pieces_held(), 0, "{hctxs} queues");
    }
}

/// A cgroup's first request may not wait for memory, and only small pieces are free at any time.
#[test]
fn a_flows_lanes_come_in_pieces_of_a_page_or_not_at_all() {
    for hctxs in [1, 8, 17, 64, 65, 512, 1024] {
        for nth in 1.. {
            refuse_memory(nth);
            let error = make_lanes(hctxs);
            assert_eq!(pieces_held(), 0, "{hctxs} queues, piece {nth}");
            if is_refusing() {
                assert_eq!(error, 0, "{hctxs} queues, and all memory that was asked for");
                assert!(nth > u64::from(hctxs) / 64, "{hctxs} queues in {nth} pieces");
                // The table of the lanes has a pointer for each queue.
                assert!(largest_piece_bytes() <= 4096.max(8 * u64::from(hctxs)), "{hctxs} queues");
                break;
            }
            assert_eq!(error, ENOMEM, "{hctxs} queues, piece {nth}");
        }
    }
    refuse_memory(0);
}
