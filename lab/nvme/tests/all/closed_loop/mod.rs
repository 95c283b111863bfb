//! Tenants that keep a fixed number of reads outstanding, in virtual time: what fio does, without a clock.

use mqfq_nvme::presets::BLOCK_BYTES;
use mqfq_nvme::{ArbClass, Controller, ControllerOptions, HostQueuePair, QueueId, QueuePairOptions, SubmissionEntry};

/// One tenant: so many queues, each with so many reads outstanding.
#[derive(Clone, Copy)]
pub struct Reader {
    pub queues: usize,
    pub depth: u16,
    pub bytes: u32,
}

/// A tenant's service.
#[derive(Clone, Copy, Default, Debug)]
pub struct Got {
    pub commands: u64,
    pub bytes_per_s: f64,
    pub latency_ns: f64,
}

struct Queue {
    host: HostQueuePair,
    reader: usize,
    submitted_ns: Vec<u64>,
}

/// Runs the readers together for `duration_ns` of virtual time.
pub fn run(options: ControllerOptions, readers: &[Reader], duration_ns: u64) -> Vec<Got> {
    run_on(Controller::new(options), readers, &vec![ArbClass::default(); readers.len()], duration_ns)
}

/// Runs the readers on a controller without queues, with the class of each reader's queues.
pub fn run_on(mut controller: Controller, readers: &[Reader], classes: &[ArbClass], duration_ns: u64) -> Vec<Got> {
    let mut queues = Vec::new();
    for (reader, &Reader { queues: count, depth, bytes }) in readers.iter().enumerate() {
        for _ in 0..count {
            let pair = QueuePairOptions { entries: u32::from(depth) + 1, class: classes[reader] };
            let mut host = HostQueuePair::create(&mut controller, pair).expect("room for all queues");
            for cid in 0..depth {
                host.submit(&mut controller, read(cid, bytes)).expect("a ring of depth + 1 entries");
            }
            queues.push(Queue { host, reader, submitted_ns: vec![0; depth as usize] });
        }
    }
    for queue in &mut queues {
        queue.host.ring(&mut controller, 0);
    }
    let mut got = vec![Got::default(); readers.len()];
    let mut news = Vec::<QueueId>::new();
    while let Some(now_ns) = controller.next_event_ns().filter(|&now_ns| now_ns <= duration_ns) {
        controller.advance(now_ns);
        controller.take_interrupts(|id| news.push(id));
        for id in news.drain(..) {
            let Queue { host, reader, submitted_ns } = &mut queues[id.0 as usize - 1];
            while let Some(completion) = host.poll(&mut controller) {
                assert!(completion.status.is_success());
                got[*reader].commands += 1;
                got[*reader].latency_ns += (completion.posted_ns - submitted_ns[completion.cid as usize]) as f64;
                submitted_ns[completion.cid as usize] = now_ns;
                let again = read(completion.cid, readers[*reader].bytes);
                host.submit(&mut controller, again).expect("the completion freed a slot");
            }
            host.ring_completions(&mut controller, now_ns);
            host.ring(&mut controller, now_ns);
        }
    }
    for (got, reader) in got.iter_mut().zip(readers) {
        got.bytes_per_s = got.commands as f64 * f64::from(reader.bytes) / (duration_ns as f64 / 1e9);
        got.latency_ns /= got.commands.max(1) as f64;
    }
    got
}

fn read(cid: u16, bytes: u32) -> SubmissionEntry {
    SubmissionEntry::read(cid, 0, bytes / BLOCK_BYTES, u64::from(cid))
}
