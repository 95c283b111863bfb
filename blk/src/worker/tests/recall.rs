//! Which clients get back their waiting requests while a worker pauses, and which never do.

use super::*;
use std::sync::mpsc;

/// Submits `requests` requests at its start, and reports their ends.
struct Asker {
    requests: u64,
    takes_back: bool,
    is_paused: bool,
    ended: Rc<RefCell<Vec<Status>>>,
}

impl Asker {
    fn new(requests: u64, takes_back: bool) -> (Box<Asker>, Rc<RefCell<Vec<Status>>>) {
        let ended = Rc::default();
        (Box::new(Asker { requests, takes_back, is_paused: false, ended: Rc::clone(&ended) }), ended)
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

    fn completed(&mut self, _: &mut dyn Context, completion: Completion) {
        self.ended.borrow_mut().push(completion.status);
    }

    fn is_done(&self) -> bool {
        false
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
