//! Each command ends once, with its status, at the model's own time, for any submissions and any times of a look.

use mqfq_nvme::arbitration::ArbitrationBurst;
use mqfq_nvme::command::Namespace;
use mqfq_nvme::media::MediaOptions;
use mqfq_nvme::presets::FLASH_460K;
use mqfq_nvme::{
    ArbClass, Arbitration, ArbitrationFeature, ArbitrationWeights, Controller, ControllerOptions, DatasetRange,
    HostQueuePair, Mechanism, QueuePairOptions, Status, SubmissionEntry,
};
use proptest::prelude::*;

const QUEUES: usize = 3;
const ENTRIES: u32 = 32;
const BLOCKS: u64 = 1 << 20;

/// The kind of one host command.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Read { slba: u64, blocks: u32 },
    Write { slba: u64, blocks: u32, fua: bool },
    WriteZeroes { blocks: u32 },
    Flush,
    Deallocate { slba: u64, blocks: u32 },
    Unknown { opcode: u8 },
}

impl Ask {
    fn expected(self) -> Status {
        // 2 MiB of 512-byte blocks.
        let transfer_blocks_max = 4096;
        match self {
            Ask::Read { blocks, .. } | Ask::Write { blocks, .. } if blocks > transfer_blocks_max => {
                Status::INVALID_FIELD
            }
            Ask::Read { slba, blocks } | Ask::Write { slba, blocks, .. } | Ask::Deallocate { slba, blocks }
                if slba + u64::from(blocks) > BLOCKS =>
            {
                Status::LBA_OUT_OF_RANGE
            }
            Ask::Unknown { .. } => Status::INVALID_OPCODE,
            _ => Status::SUCCESS,
        }
    }

    fn submit(self, controller: &mut Controller, host: &mut HostQueuePair, cid: u16) -> bool {
        let entry = match self {
            Ask::Read { slba, blocks } => SubmissionEntry::read(cid, slba, blocks, 0),
            Ask::Write { slba, blocks, fua } => SubmissionEntry::write(cid, slba, blocks, fua, 0),
            Ask::WriteZeroes { blocks } => SubmissionEntry::write_zeroes(cid, 0, blocks, true, false),
            Ask::Flush => SubmissionEntry::flush(cid),
            Ask::Deallocate { slba, blocks } => {
                return host.submit_deallocate(controller, cid, DatasetRange { slba, blocks }).is_ok();
            }
            Ask::Unknown { opcode } => SubmissionEntry::new(opcode, cid, 1),
        };
        host.submit(controller, entry).is_ok()
    }
}

fn ask() -> impl Strategy<Value = Ask> {
    // One in a few reaches over the end.
    let slba = || prop_oneof![3 => 0..BLOCKS - 4096, 1 => BLOCKS - 64..BLOCKS];
    prop_oneof![
        6 => (slba(), 1..512u32).prop_map(|(slba, blocks)| Ask::Read { slba, blocks }),
        3 => (slba(), 1..512u32, any::<bool>()).prop_map(|(slba, blocks, fua)| Ask::Write { slba, blocks, fua }),
        1 => (0..BLOCKS / 2, 4000..5000u32).prop_map(|(slba, blocks)| Ask::Read { slba, blocks }),
        1 => (1..65536u32).prop_map(|blocks| Ask::WriteZeroes { blocks }),
        1 => Just(Ask::Flush),
        1 => (slba(), 0..4096u32).prop_map(|(slba, blocks)| Ask::Deallocate { slba, blocks }),
        1 => (0x10..=0xffu8).prop_map(|opcode| Ask::Unknown { opcode }),
    ]
}

/// A burst of commands on one queue, so long after the one before.
fn bursts() -> impl Strategy<Value = Vec<(u64, usize, Vec<Ask>)>> {
    let burst = (0..40_000u64, 0..QUEUES, prop::collection::vec(ask(), 1..12));
    prop::collection::vec(burst, 1..30)
}

fn controller(inside_max: u16, seed: u64, burst: u8) -> (Controller, Vec<HostQueuePair>) {
    let whole = ControllerOptions::of(&FLASH_460K, BLOCKS * 512, QUEUES as u16, seed);
    let options = ControllerOptions {
        media: MediaOptions { inside_max, ..FLASH_460K.media },
        // Small enough for commands above it to be common here.
        namespace: Namespace { transfer_bytes_max: 2 << 20, ..whole.namespace },
        arbitration: Arbitration::Weighted,
        arbitration_burst: ArbitrationBurst::from_field(burst).unwrap(),
        ..whole
    };
    let mut controller = Controller::new(options);
    // Every other seed with weighted round robin, the queues in three neighbouring classes.
    if seed % 2 == 1 {
        controller.enable(Mechanism::Weighted, 0).unwrap();
    }
    let classes = [ArbClass::Urgent, ArbClass::High, ArbClass::Medium, ArbClass::Low];
    let class = |queue| classes[(queue + seed as usize / 2) % 4];
    let pair = |queue| QueuePairOptions { entries: ENTRIES, class: class(queue) };
    let hosts = (0..QUEUES).map(|queue| HostQueuePair::create(&mut controller, pair(queue)).unwrap()).collect();
    (controller, hosts)
}

/// The calls of `advance` between doorbells.
#[derive(Clone, Copy)]
enum Poll {
    /// A call at every event.
    AtEvents,
    /// A call every so many nanoseconds.
    Every(u64),
    /// No calls.
    Never,
}

/// Runs a history and returns (queue, cid, status, posted_ns) of all completions, by queue in the order of the ring.
/// The host reads completions once, at the end of each burst, whatever `poll` is, so that it does the same in each.
fn history(bursts: &[(u64, usize, Vec<Ask>)], poll: Poll, seed: u64) -> Vec<Vec<(u16, Status, u64)>> {
    let (mut controller, mut hosts) = controller(8, seed, (seed % 8) as u8);
    let mut ended = vec![Vec::new(); QUEUES];
    let mut free: Vec<Vec<u16>> = vec![(0..ENTRIES as u16).collect(); QUEUES];
    let mut now_ns = 0;
    let ends = bursts.iter().map(|(gap_ns, queue, asks)| (*gap_ns, *queue, &asks[..]));
    // Two long silences at the end: the first drains what had room in the completion rings, the second the rest.
    for (turn, (gap_ns, queue, asks)) in ends.chain([(1 << 40, 0, &[][..]), (1 << 40, 1, &[])]).enumerate() {
        let until_ns = now_ns + gap_ns;
        match poll {
            Poll::AtEvents => {
                while let Some(at_ns) = controller.next_event_ns().filter(|&at_ns| at_ns <= until_ns) {
                    controller.advance(at_ns);
                }
            }
            Poll::Every(step_ns) if gap_ns < 1 << 40 => {
                (now_ns..until_ns).step_by(step_ns as usize).for_each(|at_ns| controller.advance(at_ns));
            }
            Poll::Every(_) | Poll::Never => {}
        }
        now_ns = until_ns;
        controller.advance(now_ns);
        for (queue, host) in hosts.iter_mut().enumerate() {
            while let Some(completion) = host.poll(&mut controller) {
                ended[queue].push((completion.cid, completion.status, completion.posted_ns));
                free[queue].push(completion.cid);
            }
            host.ring_completions(&mut controller, now_ns);
        }
        // Other weights in every third burst; the same ones in each run of the history.
        if turn % 3 == 2 {
            let [high, medium, low] = [turn, turn / 3, 1].map(|weight| weight as u16);
            let (burst, weights) = (ArbitrationBurst::ONE, ArbitrationWeights::new(high, medium.max(1), low).unwrap());
            let dword = ArbitrationFeature { burst, weights }.to_dword();
            controller.set_features(ArbitrationFeature::ID, dword, false, now_ns).unwrap();
        }
        for &ask in asks {
            let Some(cid) = free[queue].pop() else { break };
            if !ask.submit(&mut controller, &mut hosts[queue], cid) {
                free[queue].push(cid);
                break;
            }
        }
        hosts[queue].ring(&mut controller, now_ns);
    }
    assert_eq!(controller.next_event_ns(), None, "commands are left inside");
    ended
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// C1: a poll that comes late changes nothing.
    #[test]
    fn late_polls_give_the_same_completions_at_the_same_times(
        bursts in bursts(),
        seed in any::<u64>(),
        step_ns in 1_000..30_000u64,
    ) {
        let late = history(&bursts, Poll::Never, seed);
        prop_assert_eq!(&late, &history(&bursts, Poll::AtEvents, seed));
        prop_assert_eq!(&late, &history(&bursts, Poll::Every(step_ns), seed));
    }

    /// C2: exactly once, with the right status; and never more inside than allowed (C4).
    #[test]
    fn every_command_ends_once_with_its_status(
        asks in prop::collection::vec((0..QUEUES, ask()), 1..200),
        seed in any::<u64>(),
        inside_max in 1..20u16,
        burst in 0..=7u8,
        consume_every in 1..40usize,
    ) {
        let (mut controller, mut hosts) = controller(inside_max, seed, burst);
        let mut waiting: Vec<Vec<Option<Status>>> = vec![vec![None; ENTRIES as usize]; QUEUES];
        let mut left = asks.into_iter().peekable();
        let (mut now_ns, mut turn, mut outstanding) = (0, 0, 0u32);
        while left.peek().is_some() || outstanding > 0 {
            turn += 1;
            prop_assert!(turn < 100_000, "{outstanding} commands stand still");
            // Submit as long as the next one's queue has an identifier and a slot.
            while let Some(&(queue, ask)) = left.peek() {
                let Some(cid) = waiting[queue].iter().position(Option::is_none) else { break };
                if !ask.submit(&mut controller, &mut hosts[queue], cid as u16) {
                    break;
                }
                hosts[queue].ring(&mut controller, now_ns);
                waiting[queue][cid] = Some(ask.expected());
                outstanding += 1;
                left.next();
            }
            prop_assert!(controller.inside() <= inside_max as usize);
            if let Some(at_ns) = controller.next_event_ns() {
                now_ns = at_ns;
                controller.advance(now_ns);
                if turn % consume_every != 0 {
                    continue;
                }
            }
            for (queue, host) in hosts.iter_mut().enumerate() {
                while let Some(completion) = host.poll(&mut controller) {
                    let expected = waiting[queue][completion.cid as usize].take();
                    prop_assert_eq!(expected, Some(completion.status), "queue {} cid {}", queue, completion.cid);
                    outstanding -= 1;
                }
                host.ring_completions(&mut controller, now_ns);
            }
        }
        controller.advance(now_ns + 1_000_000_000);
        for host in &mut hosts {
            prop_assert_eq!(host.poll(&mut controller), None);
        }
        prop_assert_eq!(controller.inside(), 0);
    }
}
