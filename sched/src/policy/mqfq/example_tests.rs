//! The worked examples of `mod.rs`, run.

use super::*;
use crate::policy::PolicyKind;

const A: FlowId = FlowId(0);
const B: FlowId = FlowId(1);
const REQUEST_BYTES: u64 = 4096;
const REQUESTS: u32 = 8;

/// The rows of the one table in `text` that begins with this head, cell by cell.
fn rows<'a>(text: &'a str, prefix: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let table = lines.skip_while(|line| !line.starts_with("| worker |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// A point of virtual time as the tables write it.
fn kib(units: u64) -> String {
    format!("{:.2}", units as f64 / VSpan::from_bytes(1024).0 as f64)
}

/// The policy, its two queues, and the queues that were kicked.
struct Scene {
    policy: Mqfq,
    queues: [MqfqQueue; 2],
    kicked: Vec<HctxId>,
}

impl Scene {
    fn new() -> Scene {
        let options =
            PolicyOptions { depth: 8, window: VSpan::from_bytes(5 << 10), ..PolicyOptions::new(PolicyKind::Mqfq) };
        let weights = [Weight::new(100).unwrap(), Weight::new(300).unwrap()];
        let policy = Mqfq::new(&options, &Topology::flat(2), &weights);
        let mut queues = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), REQUESTS as usize));
        for number in 0..REQUESTS {
            for (flow, queue) in [A, B].into_iter().zip(&mut queues) {
                let entry = Entry::read(flow, Cost(REQUEST_BYTES), Handle(number));
                policy.submit(queue, entry, 0, &mut |_| ());
            }
        }
        Scene { policy, queues, kicked: Vec::new() }
    }

    fn pick(&mut self, worker: usize) -> Pick {
        self.policy.pick(&mut self.queues[worker], 0, &mut |hctx| self.kicked.push(hctx))
    }

    /// A row of the table: the worker picks and says what came of it.
    fn turn(&mut self, worker: usize, granted: &mut Vec<Grant>) -> Vec<String> {
        let now = self.policy.global_vtime();
        let lead = self.queues[worker].stage.lead().expect("requests wait throughout the example");
        let result = match self.pick(worker) {
            Pick::Dispatch(grant) => {
                granted.push(grant);
                format!("dispatch {}", granted.len())
            }
            Pick::Throttled => "throttled".into(),
            Pick::NoToken => "no token".into(),
            other => panic!("no turn of the example ends in {other:?}"),
        };
        let worker = ["A", "B"][worker].to_string();
        let window_end = now.plus(self.policy.options.window);
        vec![worker, kib(now.raw()), kib(lead.raw()), kib(window_end.raw()), result]
    }
}

#[test]
fn the_worked_example_of_a_window_that_changes() {
    let kib = |kib: u64| VSpan::from_bytes(kib << 10);
    let (depth, window_least) = (200, Some(kib(16)));
    let options = PolicyOptions { depth, window: kib(256), window_least, ..PolicyOptions::new(PolicyKind::Mqfq) };
    let policy = Mqfq::new(&options, &Topology::flat(2), &[Weight::DEFAULT; 2]);
    let mut queues = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), 100));
    for number in 0..100 {
        for (flow, queue) in [A, B].into_iter().zip(&mut queues) {
            policy.submit(queue, Entry::read(flow, Cost(REQUEST_BYTES), Handle(number)), 0, &mut |_| ());
        }
    }
    let mut dispatched = |worker: usize| match policy.pick(&mut queues[worker], 0, &mut |_| ()) {
        Pick::Dispatch(grant) => grant.token.into_units() == 1,
        _ => false,
    };
    // Until it is throttled.
    assert_eq!((0..100).take_while(|_| dispatched(0)).count(), 65, "of f");
    policy.set_window(&options.terms_of(kib(16), 2));
    assert!(!dispatched(0));
    let of_m =
        (1..100).find(|_| dispatched(1) && policy.wheel.is_due(VTime::ZERO.plus(kib(260)), policy.global_vtime()));
    assert_eq!((of_m, policy.global_vtime()), (Some(61), VTime::ZERO.plus(kib(244))));
    assert!(dispatched(0), "f's next");
}

#[test]
fn the_worked_example_at_the_head_of_this_file() {
    let mut scene = Scene::new();
    let mut granted = Vec::new();
    let happened: Vec<Vec<String>> = (0..12).map(|turn| scene.turn(turn % 2, &mut granted)).collect();
    let file = rows(include_str!("mod.rs"), "//! ");
    assert_eq!(file, happened, "the table at the head of mod.rs");

    // The end of A's first read, and the queue that has its token then.
    scene.kicked.clear();
    let first = granted.remove(0);
    let Scene { policy, queues, kicked } = &mut scene;
    policy.complete(&mut queues[0], Done::read(A, first.handle), first.token, 0, &mut |hctx| kicked.push(hctx));
    assert_eq!(scene.pick(0), Pick::Throttled);
    assert_eq!(scene.kicked, [HctxId(1)]);
    let turn = scene.turn(1, &mut granted);
    assert_eq!(turn, ["B", "6.67", "6.67", "11.67", "dispatch 8"], "the seven others are still on the device");
    for grant in granted {
        grant.token.into_units();
    }
}
