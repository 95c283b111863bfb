//! Which clients get back their waiting requests while a worker pauses, and which never do.

use super::*;
use crate::stats::FlowStats;
use std::sync::mpsc;

/// Submits `requests` requests at its start, and reports their ends.
struct Asker {
    requests: u64,
    takes_back: bool,
    is_paused: bool,
    /// It goes away at its first end.
    goes: bool,
    ended: Rc<RefCell<Vec<Status>>>,
}

impl Asker {
    fn new(requests: u64, takes_back: bool) -> (Box<Asker>, Rc<RefCell<Vec<Status>>>) {
        let ended = Rc::default();
        (Box::new(Asker { requests, takes_back, is_paused: false, goes: false, ended: Rc::clone(&ended) }), ended)
    }
}

impl Client for Asker {
    mqfq_testing::ignores!(turn_end, room, drain);

    fn start(&mut self, context: &mut dyn Context) {
        for cookie in 0..self.requests {
            let submission = Submission {
                flow: FlowId(0),
                op: Op::Flush,
                offset_bytes: 0,
                length_bytes: 0,
                fua: false,
                buffer: None,
                cookie,
            };
            assert!(context.submit(DeviceIndex(0), submission).is_ok(), "within the bound");
        }
    }

    fn event(&mut self, _: &mut dyn Context, event: Event) {
        unreachable!("it asked for nothing: {event:?}")
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        if self.goes && self.ended.borrow().is_empty() {
            context.withdraw();
        }
        self.ended.borrow_mut().push(completion.status);
    }

    fn is_done(&self) -> bool {
        self.goes && !self.ended.borrow().is_empty()
    }

    fn pause(&mut self, _: &mut dyn Context) {
        self.is_paused = true;
    }

    fn is_paused(&self) -> bool {
        self.is_paused
    }

    fn takes_back(&self) -> bool {
        self.takes_back
    }
}

const LATENCY_NS: u64 = 1_000_000;

/// Turns, and lets time pass, until the worker is quiet.
fn turn_until_quiet(worker: &mut Worker<VirtualHost>, quiet: &mpsc::Receiver<()>) {
    for _ in 0..100 {
        worker.turn();
        if quiet.try_recv().is_ok() {
            return;
        }
        worker.core.host.now_ns += LATENCY_NS;
    }
    panic!("it is not quiet");
}

#[test]
fn what_waits_is_given_back_where_all_take_it_and_ends_where_one_does_not() {
    for takes_back in [true, false] {
        let mut worker = worker(LATENCY_NS, 16);
        let (first, of_first) = Asker::new(4, true);
        let (second, of_second) = Asker::new(0, takes_back);
        worker.adopt(first);
        worker.adopt(second);
        worker.turn();
        let (sender, quiet) = mpsc::channel();
        worker.pause(true, sender);
        turn_until_quiet(&mut worker, &quiet);
        // D = 1: one is on the device.
        let given_back = of_first.borrow().iter().filter(|status| **status == Status::Recalled).count();
        assert_eq!((given_back, of_first.borrow().len()), (if takes_back { 3 } else { 0 }, 4));
        assert!(of_second.borrow().is_empty());
    }
}

#[test]
fn a_newcomer_that_takes_nothing_back_is_given_nothing_back() {
    for takes_back in [true, false] {
        let mut worker = worker(LATENCY_NS, 16);
        let (first, of_first) = Asker::new(4, true);
        worker.adopt(first);
        worker.turn();
        let (sender, quiet) = mpsc::channel();
        worker.pause(true, sender);
        // Another worker had let it in before the pause.
        let (newcomer, of_newcomer) = Asker::new(2, takes_back);
        worker.adopt(newcomer);
        turn_until_quiet(&mut worker, &quiet);
        assert_eq!(of_first.borrow().len(), 4);
        let expected = if takes_back { Status::Recalled } else { Status::Ok };
        assert_eq!(*of_newcomer.borrow(), [expected; 2]);
    }
}

#[test]
fn what_waits_of_a_client_that_has_gone_ends_at_once_uncharged_and_others_go_on() {
    // Also while the context is frozen for another policy.
    for is_frozen in [false, true] {
        let mut worker = worker(LATENCY_NS, 16);
        let (mut gone, of_gone) = Asker::new(5, true);
        gone.goes = true;
        let (other, of_other) = Asker::new(2, true);
        worker.adopt(gone);
        worker.adopt(other);
        worker.turn();
        if is_frozen {
            let now_ns = worker.core.now_ns;
            worker.core.hctxs[0].freeze(now_ns);
            let (late, of_late) = Asker::new(1, true);
            worker.adopt(late);
            assert!(of_late.borrow().is_empty());
        }
        worker.core.host.now_ns += LATENCY_NS;
        // D = 1: one was on the device, and the next one is when the first has ended.
        assert!(worker.turn(), "a turn follows, for those behind");
        let expected = [Status::Ok, Status::Recalled, Status::Recalled, Status::Recalled, Status::Ok];
        assert_eq!(*of_gone.borrow(), expected[..4]);
        let late = usize::from(is_frozen);
        assert_eq!((worker.core.hctxs[0].admitted(), worker.clients.len()), (3 + late, 2 + late));
        let mut flow = FlowStats::default();
        worker.core.hctxs[0].counters().flow(FlowId(0)).expect("it has completed something").read(&mut flow, false);
        assert_eq!((flow.completed.iter().sum::<u64>(), flow.cost), (1, 4096));
        for _ in 0..4 {
            worker.core.host.now_ns += LATENCY_NS;
            worker.turn();
        }
        assert_eq!(*of_gone.borrow(), expected);
        assert!(worker.clients[0].client.is_none(), "it is dropped with its last request");
        assert_eq!(*of_other.borrow(), [Status::Ok; 2]);
    }
}

#[test]
fn what_waits_outside_of_a_policy_is_withdrawn_as_well() {
    let mut worker = worker(LATENCY_NS, 16);
    worker.core.hctxs[0].freeze(0);
    let (gone, of_gone) = Asker::new(3, true);
    let (other, of_other) = Asker::new(1, true);
    worker.adopt(gone);
    worker.adopt(other);
    worker.core.withdrawing.push(0);
    worker.turn();
    assert_eq!(*of_gone.borrow(), [Status::Recalled; 3]);
    worker.core.hctxs[0].thaw(None, 0, &mut |_: HctxId| {});
    for _ in 0..3 {
        worker.core.host.now_ns += LATENCY_NS;
        worker.turn();
    }
    assert_eq!(*of_other.borrow(), [Status::Ok]);
}
