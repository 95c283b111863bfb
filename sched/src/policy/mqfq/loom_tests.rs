//! Model checks of the composed protocol: submit, pick and complete of two and three workers in every interleaving, in
//! the paper's form and in the relaxed one, with the real structures below. Each structure has its own models; these
//! are about what one operation does between them, and each names its race.
//!
//! Threads run their part and end, which is "asleep". Then the kicks that were sent are delivered, one worker at a
//! time, until there are none. Work left undone after that would never be done: I4 is broken.
//!
//! Run: `cargo xtask loom`

use super::*;
use crate::cost::Cost;
use crate::policy::PolicyKind;
use crate::sync::model::{Arc, Builder, thread};

const REQUEST: Cost = Cost(4096);

/// The paper's form, and the relaxed one with its default numbers for two queues.
#[derive(Clone, Copy, Debug)]
enum Form {
    Paper,
    Relaxed,
}

impl Form {
    fn of(self, options: PolicyOptions) -> PolicyOptions {
        match self {
            Form::Paper => options,
            Form::Relaxed => options.relaxed(2),
        }
    }
}

/// Runs `body` once per interleaving and form, as loom by itself orders loads and writes: with the orders that
/// `sync.rs` adds for the models of single structures, these did not end within eight minutes.
fn model(body: impl Fn(Form) + Sync + Send + Copy + 'static) {
    for form in [Form::Paper, Form::Relaxed] {
        // Shown if the model fails.
        println!("{form:?}");
        Builder::new().check(move || body(form));
    }
}

/// One worker between its steps: its queue, the tokens of what it has on the device, the kicks it has sent.
struct Worker {
    queue: MqfqQueue,
    on_device: Vec<(FlowId, DispatchToken)>,
    dispatched: usize,
    /// Start tags of what it dispatched.
    tags: Vec<VTime>,
    kicks: Vec<HctxId>,
}

impl Worker {
    /// A request of the worker's own flow.
    fn submit(&mut self, mqfq: &Mqfq) {
        self.submit_cost(mqfq, REQUEST);
    }

    fn submit_cost(&mut self, mqfq: &Mqfq, cost: Cost) {
        self.submit_of(mqfq, FlowId(u32::from(self.queue.hctx.0)), cost);
    }

    fn submit_of(&mut self, mqfq: &Mqfq, flow: FlowId, cost: Cost) {
        // The handle says what it costs, to `step_aside`.
        let entry = Entry::read(flow, cost, Handle(cost.0 as u32));
        let kicks = &mut self.kicks;
        mqfq.submit(&mut self.queue, entry, 0, &mut |hctx| kicks.push(hctx));
    }

    /// Picks once; false if there was nothing.
    fn pick(&mut self, mqfq: &Mqfq) -> bool {
        let kicks = &mut self.kicks;
        let lead = self.queue.stage.lead();
        match mqfq.pick(&mut self.queue, 0, &mut |hctx| kicks.push(hctx)) {
            Pick::Dispatch(grant) => {
                self.on_device.push((grant.flow, grant.token));
                self.dispatched += 1;
                self.tags.extend(lead);
                true
            }
            _ => false,
        }
    }

    fn run(&mut self, mqfq: &Mqfq) {
        while self.pick(mqfq) {}
    }

    /// The device finishes one request, if it has any. The worker must pick afterwards.
    fn complete(&mut self, mqfq: &Mqfq) {
        if let Some((flow, token)) = self.on_device.pop() {
            let kicks = &mut self.kicks;
            mqfq.complete(&mut self.queue, Done::read(flow, Handle(0)), token, 0, &mut |hctx| kicks.push(hctx));
        }
    }

    fn complete_and_run(&mut self, mqfq: &Mqfq) {
        self.complete(mqfq);
        self.run(mqfq);
    }

    /// The worker is away, and another empties its queue: what stood there, in order.
    fn step_aside(&mut self, mqfq: &Mqfq) -> Vec<(FlowId, Cost)> {
        let (kicks, mut left) = (&mut self.kicks, Vec::new());
        let each = |flow, Handle(cost)| {
            left.push((flow, Cost(cost.into())));
            Cost(cost.into())
        };
        mqfq.step_aside(&mut self.queue, each, &mut |hctx| kicks.push(hctx));
        left
    }

    /// The worker leaves for good: its queue is closed, another takes the place, and what is on the device gives its
    /// tokens back.
    fn close(&mut self, mqfq: &Mqfq) {
        let next = mqfq.open_queue(self.queue.hctx, 4);
        let (queue, kicks) = (core::mem::replace(&mut self.queue, next), &mut self.kicks);
        let mut kick = |hctx| kicks.push(hctx);
        mqfq.close(queue, |_, Handle(cost)| Cost(cost.into()), &mut kick);
        self.on_device.drain(..).for_each(|(_, token)| mqfq.give_back(self.queue.hctx, token, &mut kick));
    }

    /// The worker is back, and has not picked.
    fn come_back(&mut self, mqfq: &Mqfq, left: &[(FlowId, Cost)]) {
        left.iter().for_each(|&(flow, cost)| self.submit_of(mqfq, flow, cost));
    }
}

/// A scheduler and its workers, none of them running.
struct Rig {
    mqfq: Arc<Mqfq>,
    workers: Vec<Worker>,
}

impl Rig {
    fn new(form: Form, hctxs: usize, depth: u32, window: VSpan) -> Rig {
        Rig::with(hctxs, form.of(PolicyOptions { depth, window, ..PolicyOptions::new(PolicyKind::Mqfq) }))
    }

    fn with(hctxs: usize, options: PolicyOptions) -> Rig {
        Rig::of(hctxs, Mqfq::new(&options, &Topology::flat(hctxs), &vec![Weight::DEFAULT; hctxs]))
    }

    /// As [`Rig::new`], charged late, as where workers step aside.
    fn late(form: Form, hctxs: usize, depth: u32, window: VSpan) -> Rig {
        let options = form.of(PolicyOptions { depth, window, ..PolicyOptions::new(PolicyKind::Mqfq) });
        let mut mqfq = Mqfq::new(&options, &Topology::flat(hctxs), &vec![Weight::DEFAULT; hctxs]);
        mqfq.charge_late(false);
        Rig::of(hctxs, mqfq)
    }

    fn of(hctxs: usize, mqfq: Mqfq) -> Rig {
        let worker = |n: usize| Worker {
            queue: mqfq.open_queue(HctxId(n as u16), 4),
            on_device: Vec::new(),
            dispatched: 0,
            tags: Vec::new(),
            kicks: Vec::new(),
        };
        let workers = (0..hctxs).map(worker).collect();
        Rig { mqfq: Arc::new(mqfq), workers }
    }

    /// Worker 0 does `first` on one thread while worker 1 does `second` on another.
    fn race(
        &mut self,
        first: impl FnOnce(&Mqfq, &mut Worker) + Send + 'static,
        second: impl FnOnce(&Mqfq, &mut Worker) + Send + 'static,
    ) {
        let mut zero = self.workers.remove(0);
        let mut one = self.workers.remove(0);
        let mqfq = self.mqfq.clone();
        let other = thread::spawn(move || {
            second(&mqfq, &mut one);
            one
        });
        first(&self.mqfq, &mut zero);
        self.workers.insert(0, zero);
        self.workers.insert(1, other.join().unwrap());
    }

    /// Three workers do their parts on a thread each.
    fn race_of_three(
        &mut self,
        first: impl FnOnce(&Mqfq, &mut Worker) + Send + 'static,
        second: impl FnOnce(&Mqfq, &mut Worker) + Send + 'static,
        third: impl FnOnce(&Mqfq, &mut Worker) + Send + 'static,
    ) {
        let (mut two, mqfq) = (self.workers.remove(2), self.mqfq.clone());
        let other = thread::spawn(move || {
            third(&mqfq, &mut two);
            two
        });
        self.race(first, second);
        self.workers.insert(2, other.join().unwrap());
    }

    /// Lets one worker do something while no other moves.
    fn alone(&mut self, worker: usize, part: impl FnOnce(&Mqfq, &mut Worker)) {
        part(&self.mqfq, &mut self.workers[worker]);
    }

    /// Delivers kicks until there are none; the device does nothing meanwhile.
    fn settle(&mut self) {
        while let Some(hctx) = self.workers.iter_mut().find_map(|worker| worker.kicks.pop()) {
            self.workers[hctx.index()].run(&self.mqfq);
        }
    }

    fn assert_nothing_staged(&self) {
        let staged: usize = self.workers.iter().map(|worker| self.mqfq.staged(&worker.queue)).sum();
        assert_eq!(
            staged,
            0,
            "{} tokens are free and requests are staged, yet everybody sleeps",
            self.mqfq.free_units()
        );
    }

    /// Delivers the kicks. After that nothing is staged (every model leaves a token for each request) and, once what is
    /// on the device has given its tokens back, all D are there (I1).
    fn finish(mut self) {
        self.settle();
        self.assert_nothing_staged();
        for worker in &mut self.workers {
            let on_device: i64 = worker.on_device.drain(..).map(|(_, token)| i64::from(token.into_units())).sum();
            // Straight back into the count that the check below reads.
            self.mqfq.tokens.release_root(DispatchToken::new(on_device as u32));
        }
        assert_eq!(self.mqfq.free_units(), i64::from(self.mqfq.options.depth), "tokens were lost or made");
    }
}

/// Virtual time of so many requests.
const fn requests(count: u64) -> VSpan {
    VSpan(count * VSpan::from_bytes(REQUEST.0).0)
}

/// T, with the coarsest quantum and the longest lease that it allows.
const fn halves(window: VSpan) -> WindowTerms {
    WindowTerms { window, quantum: VSpan(window.0 / 2), lease: VSpan(window.0 / 2) }
}

/// A scheduler whose T may be two requests and more, and is `window` now.
fn rig_of_windows(window: VSpan) -> Rig {
    let options = PolicyOptions { depth: 16, window_least: Some(requests(2)), ..PolicyOptions::new(PolicyKind::Mqfq) };
    Rig::with(2, options.with_terms(halves(window)))
}

const WIDE: VSpan = VSpan::from_bytes(1 << 20);
const NONE: VSpan = VSpan(0);

/// Race: A marks itself ready and looks for a token again, B gives its token back and looks for a ready queue again.
/// This is the wake-up that would be lost between mark and release.
/// Shown to fail without the fence in `ReadySet::mark` or the second acquire; and without the fence of the worker that
/// gives the token back: in `release_root` (paper's form), in `percolate` (relaxed form).
#[test]
fn loom_token_given_back_meets_the_queue_that_waits_for_it() {
    model(|form| {
        let mut rig = Rig::new(form, 2, 1, WIDE);
        let part = |mqfq: &Mqfq, worker: &mut Worker| {
            worker.submit(mqfq);
            worker.run(mqfq);
            worker.complete_and_run(mqfq);
        };
        rig.race(part, part);
        // The worker that did not get the token in its own time has been kicked.
        rig.finish();
    });
}

/// Race: A has given its only token to B and called it, and is about to wait until B has picked; B picks, and has no
/// use for the token any more.
/// Shown to fail without the fence in `ReadySet::answer`, and if `yields` does not look again after its mark.
#[test]
fn loom_a_queue_that_waits_for_the_one_it_called_meets_its_search() {
    model(|form| {
        let mut rig = Rig::new(form, 2, 1, WIDE);
        rig.alone(0, |mqfq, worker| {
            worker.submit(mqfq);
            worker.submit(mqfq);
            worker.run(mqfq);
        });
        // A mark that a turner left behind.
        rig.alone(1, |mqfq, worker| {
            mqfq.ready.set_shallow(worker.queue.hctx, true);
            mqfq.ready.mark(worker.queue.hctx);
            worker.queue.is_listed = true;
        });
        rig.alone(0, |mqfq, worker| worker.complete(mqfq));
        let is_called = rig.mqfq.ready.is_called(HctxId(1));
        assert_eq!(is_called, matches!(form, Form::Relaxed), "the paper's form gives its own queue the token");
        // The kick has come.
        rig.workers[0].kicks.clear();
        rig.race(|mqfq, worker| worker.run(mqfq), |mqfq, worker| worker.run(mqfq));
        rig.finish();
    });
}

/// Race: A takes a place in the wheel while B dispatches the last request that held virtual time back. Shown to fail
/// without the fence in `throttle`; without `advance` after a dispatch; and, with 4 preemptions, if a search drops the
/// searcher's own mark.
#[test]
fn loom_queue_that_throttles_itself_meets_the_last_dispatch_of_the_slowest() {
    model(|form| {
        let mut rig = Rig::new(form, 2, 3, NONE);
        rig.alone(1, |mqfq, worker| worker.submit(mqfq));
        rig.alone(0, |mqfq, worker| {
            worker.submit(mqfq);
            worker.submit(mqfq);
            assert!(worker.pick(mqfq), "its first request starts at virtual time");
        });
        // A's second request starts a request's length ahead, T = 0.
        rig.race(|mqfq, worker| worker.run(mqfq), |mqfq, worker| worker.run(mqfq));
        rig.finish();
    });
}

/// Race: both queues that hold virtual time back go at once; each may find it still held back by the other. A third one
/// waits for the later of the two to move it.
/// Shown to fail if `advance` follows only a publish and not a depart.
#[test]
fn loom_two_slowest_queues_leave_together() {
    model(|form| {
        let mut rig = Rig::new(form, 3, 4, NONE);
        rig.alone(0, |mqfq, worker| worker.submit(mqfq));
        rig.alone(1, |mqfq, worker| worker.submit(mqfq));
        rig.alone(2, |mqfq, worker| {
            worker.submit(mqfq);
            worker.submit(mqfq);
            worker.run(mqfq);
            assert_eq!((worker.dispatched, mqfq.staged(&worker.queue)), (1, 1), "its second request is throttled");
        });
        rig.race(|mqfq, worker| worker.run(mqfq), |mqfq, worker| worker.run(mqfq));
        rig.finish();
    });
}

/// Race: B turns the wheel, marks the throttled C ready and finds no token at the root, while A gives one back and
/// finds no queue ready. Shown to fail without the fence in `ReadySet::mark` or the one in `release_root`.
#[test]
fn loom_queue_taken_out_of_the_wheel_meets_a_token_given_back() {
    model(|form| {
        let mut rig = Rig::new(form, 3, 2, NONE);
        rig.alone(1, |mqfq, worker| worker.submit(mqfq));
        rig.alone(2, |mqfq, worker| {
            worker.submit(mqfq);
            worker.submit(mqfq);
            worker.run(mqfq);
            worker.complete_and_run(mqfq);
            assert_eq!(mqfq.staged(&worker.queue), 1, "its second request is throttled");
        });
        rig.alone(0, |mqfq, worker| {
            worker.submit(mqfq);
            worker.run(mqfq);
        });
        assert_eq!(rig.mqfq.free_units(), 1, "one token is left, for B");
        rig.race(|mqfq, worker| worker.complete_and_run(mqfq), |mqfq, worker| worker.run(mqfq));
        rig.finish();
    });
}

/// Race: A completes and sends its token toward B, while B uses its own token for its last request, completes that too
/// and falls idle. C waits for a token.
/// Shown to fail if a claimed queue is not kicked.
#[test]
fn loom_token_sent_to_a_queue_that_falls_idle_is_passed_on() {
    model(|form| {
        let mut rig = Rig::new(form, 3, 2, WIDE);
        for (n, requests) in [(0, 1), (1, 2), (2, 1)] {
            rig.alone(n, |mqfq, worker| {
                (0..requests).for_each(|_| worker.submit(mqfq));
                worker.run(mqfq);
            });
        }
        assert_eq!(rig.mqfq.free_units(), 0);
        rig.race(
            |mqfq, worker| worker.complete_and_run(mqfq),
            |mqfq, worker| {
                worker.complete_and_run(mqfq);
                worker.complete_and_run(mqfq);
            },
        );
        rig.finish();
    });
}

/// Race: A has two tokens at its leaf and use for one; it percolates the other while B looks for one, finds none and
/// marks itself.
/// Shown to fail if `rest` does not percolate, or does not search, or is left out before Idle; and without the fence in
/// `percolate`.
#[test]
fn loom_token_left_at_a_leaf_meets_the_queue_that_waits_for_it() {
    model(|form| {
        let mut rig = Rig::new(form, 2, 2, WIDE);
        rig.alone(0, |mqfq, worker| {
            (0..3).for_each(|_| worker.submit(mqfq));
            worker.run(mqfq);
            assert_eq!((worker.dispatched, mqfq.free_units()), (2, 0));
            worker.complete(mqfq);
            worker.complete(mqfq);
        });
        rig.race(
            |mqfq, worker| worker.run(mqfq),
            |mqfq, worker| {
                worker.submit(mqfq);
                worker.run(mqfq);
            },
        );
        rig.finish();
    });
}

/// Race: A takes a start tag at a virtual time that B moves on before A has published its request. The lead comes late
/// and low; virtual time does not go back for it, and no queue is left waiting for virtual time to come by. Shown to
/// fail, with 3 preemptions, if a search drops the searcher's own mark.
#[test]
fn loom_late_low_lead_holds_nobody_up() {
    model(|form| {
        let mut rig = Rig::new(form, 2, 4, NONE);
        rig.alone(1, |mqfq, worker| {
            worker.submit(mqfq);
            worker.submit(mqfq);
        });
        rig.race(
            |mqfq, worker| {
                worker.submit(mqfq);
                worker.run(mqfq);
            },
            |mqfq, worker| {
                let before = mqfq.global_vtime();
                worker.run(mqfq);
                assert!(!mqfq.global_vtime().is_before(before));
            },
        );
        rig.finish();
    });
}

/// Race: A borrows for a request of two units while B gives back one unit and wants it again. The debt is paid once, by
/// the first to come, and neither waits for the other's half.
#[test]
fn loom_borrower_meets_the_payer() {
    model(|form| {
        let options = PolicyOptions { token_unit_bytes: Some(4096), ..PolicyOptions::new(PolicyKind::Mqfq) };
        let mut rig = Rig::with(2, form.of(PolicyOptions { depth: 2, window: WIDE, ..options }));
        rig.alone(1, |mqfq, worker| {
            worker.submit(mqfq);
            worker.run(mqfq);
        });
        rig.race(
            |mqfq, worker| {
                worker.submit_cost(mqfq, Cost(8192));
                worker.run(mqfq);
            },
            |mqfq, worker| {
                worker.submit(mqfq);
                worker.complete_and_run(mqfq);
            },
        );
        rig.settle();
        // A's two units may be all there are: B's second request then waits for them.
        rig.alone(0, |mqfq, worker| worker.complete_and_run(mqfq));
        rig.finish();
    });
}

/// Race: in the relaxed form A's completed tokens stay at its leaf; A sleeps with requests staged that it may not
/// dispatch yet, while B, which needs a token, finds none and marks itself. Virtual time moves with A's last dispatch
/// only. Shown to fail if `rest` does not percolate, and without the fence in `percolate`.
#[test]
fn loom_tokens_kept_by_a_queue_that_is_throttled_meet_the_queue_that_waits() {
    model(|form| {
        let mut rig = Rig::new(form, 2, 1, NONE);
        rig.alone(1, |mqfq, worker| worker.submit(mqfq));
        rig.alone(0, |mqfq, worker| {
            worker.submit(mqfq);
            worker.submit(mqfq);
            worker.run(mqfq);
            assert_eq!((worker.dispatched, mqfq.free_units()), (1, 0));
        });
        // A's second request starts a request's length ahead, T = 0: B, whose request comes first, must get the token.
        rig.race(|mqfq, worker| worker.complete_and_run(mqfq), |mqfq, worker| worker.run(mqfq));
        rig.settle();
        for worker in [1, 0] {
            rig.alone(worker, |mqfq, worker| worker.complete_and_run(mqfq));
            rig.settle();
        }
        rig.finish();
    });
}

/// Race: A takes tokens for all that it has staged, B needs one of them and finds the root empty. What A does not use
/// before it sleeps goes back.
/// Shown to fail if `rest` does not percolate or does not search.
#[test]
fn loom_a_batch_of_tokens_beside_a_queue_that_needs_one() {
    model(|form| {
        let mut rig = Rig::new(form, 2, 2, WIDE);
        rig.alone(0, |mqfq, worker| (0..2).for_each(|_| worker.submit(mqfq)));
        rig.alone(1, |mqfq, worker| worker.submit(mqfq));
        rig.race(
            |mqfq, worker| {
                // Takes one or two; the completed one is kept, or passed on.
                worker.pick(mqfq);
                worker.complete(mqfq);
                worker.run(mqfq);
                worker.complete_and_run(mqfq);
            },
            |mqfq, worker| worker.run(mqfq),
        );
        rig.finish();
    });
}

/// Race: one flow on two queues: A takes of its virtual time for its second request (in the relaxed form by a new
/// lease) while B dispatches the flow's last request there and gives back what it had leased. I8; and the flow's next
/// request starts after all that went before (F2).
/// Shown to fail, in the relaxed form, if `put_back` looks whether it is the last on the axis and then stores.
#[test]
fn loom_one_flow_on_two_queues_takes_and_gives_back() {
    model(|form| {
        // A window of two requests: the relaxed form's lease is half a request.
        let mut rig = Rig::new(form, 2, 6, VSpan::from_bytes(8192));
        for n in [0, 1] {
            rig.alone(n, |mqfq, worker| worker.submit_of(mqfq, FlowId(0), REQUEST));
        }
        rig.alone(1, |mqfq, worker| worker.submit_of(mqfq, FlowId(0), Cost(512)));
        rig.race(
            |mqfq, worker| {
                let before = mqfq.global_vtime();
                worker.submit_of(mqfq, FlowId(0), Cost(512));
                worker.run(mqfq);
                assert!(!mqfq.global_vtime().is_before(before), "I8");
            },
            |mqfq, worker| worker.run(mqfq),
        );
        rig.settle();
        rig.alone(1, |mqfq, worker| {
            worker.submit_of(mqfq, FlowId(0), REQUEST);
            worker.run(mqfq);
        });
        let mut tags: Vec<VTime> =
            rig.workers.iter_mut().flat_map(|worker| core::mem::take(&mut worker.tags)).collect();
        let last = tags.pop().expect("worker 1 dispatched");
        assert!(tags.iter().all(|tag| tag.is_before(last)), "F2: {last:?} after {tags:?}");
        rig.finish();
    });
}

/// Three workers: A and B give tokens back while C looks for one, finds none, and goes to sleep; D = 2.
/// Shown to fail without the fence in `ReadySet::mark` or the one in `release_root` (in the relaxed form: in
/// `percolate`).
#[test]
fn loom_of_three_two_complete_beside_one_that_waits() {
    model(|form| {
        let mut rig = Rig::new(form, 3, 2, WIDE);
        for n in [0, 1] {
            rig.alone(n, |mqfq, worker| {
                worker.submit(mqfq);
                worker.run(mqfq);
            });
        }
        rig.alone(2, |mqfq, worker| worker.submit(mqfq));
        assert_eq!(rig.mqfq.free_units(), 0);
        rig.race_of_three(
            |mqfq, worker| worker.complete_and_run(mqfq),
            |mqfq, worker| worker.complete_and_run(mqfq),
            |mqfq, worker| worker.run(mqfq),
        );
        rig.finish();
    });
}

/// Three workers: A and B, the slowest, dispatch their last requests while C throttles itself.
/// Shown to fail without the fence in `throttle`; and if `advance` follows only a publish and not a depart.
#[test]
fn loom_of_three_two_slowest_leave_beside_one_that_throttles_itself() {
    model(|form| {
        let mut rig = Rig::new(form, 3, 4, NONE);
        for n in [0, 1] {
            rig.alone(n, |mqfq, worker| worker.submit(mqfq));
        }
        rig.alone(2, |mqfq, worker| {
            worker.submit(mqfq);
            worker.submit(mqfq);
            assert!(worker.pick(mqfq), "its first request starts at virtual time");
        });
        rig.race_of_three(
            |mqfq, worker| worker.run(mqfq),
            |mqfq, worker| worker.run(mqfq),
            |mqfq, worker| worker.run(mqfq),
        );
        rig.finish();
    });
}

/// Three workers, one token: A gives it back, B and C want it.
/// Shown to fail if a claimed queue is not kicked.
#[test]
fn loom_of_three_one_token_goes_round() {
    model(|form| {
        let mut rig = Rig::new(form, 3, 1, WIDE);
        rig.alone(0, |mqfq, worker| {
            worker.submit(mqfq);
            worker.run(mqfq);
        });
        for n in [1, 2] {
            rig.alone(n, |mqfq, worker| worker.submit(mqfq));
        }
        rig.race_of_three(
            |mqfq, worker| worker.complete_and_run(mqfq),
            |mqfq, worker| worker.run(mqfq),
            |mqfq, worker| worker.run(mqfq),
        );
        // The one of the two that got it first gives it to the other.
        rig.settle();
        for n in [1, 2] {
            rig.alone(n, |mqfq, worker| worker.complete_and_run(mqfq));
            rig.settle();
        }
        rig.finish();
    });
}

/// Race: A goes on while B shortens T to less than the quantum that both leaves are rounded by. Both leads are three
/// requests ahead, both leaves show 0, and so does virtual time: with T of two requests no queue may go before a leaf
/// is rounded anew. Shown to fail if `throttle` leaves a leaf as it is; if it does not look at the leaf again once it
/// has a place; and without the fence in the wheel's `throttle` or the one in its `set_window`.
#[test]
fn loom_a_queue_that_picks_beside_a_shorter_window_shows_its_lead_anew() {
    Builder::new().check(|| {
        let mut rig = rig_of_windows(requests(8));
        for n in [0, 1] {
            rig.alone(n, |mqfq, worker| {
                (0..4).for_each(|_| worker.submit(mqfq));
                assert!((0..3).all(|_| worker.pick(mqfq)), "within eight requests of virtual time");
            });
        }
        assert_eq!(rig.mqfq.global_vtime(), VTime::ZERO);
        rig.race(
            |mqfq, worker| worker.run(mqfq),
            |mqfq, worker| {
                mqfq.set_window(&halves(requests(2)));
                worker.run(mqfq);
            },
        );
        rig.finish();
    });
}

/// Race: A throttles itself for a short T while B, whose own request holds virtual time and whose device queue is full,
/// makes T long. A may go now, tokens are free, and no worker will move virtual time. Shown to fail if the setter
/// empties no bucket; if the wheel's `throttle` does not look at T again; and without either fence.
#[test]
fn loom_a_queue_that_throttles_itself_beside_a_longer_window_goes() {
    Builder::new().check(|| {
        let mut rig = rig_of_windows(requests(2));
        rig.alone(1, |mqfq, worker| worker.submit(mqfq));
        rig.alone(0, |mqfq, worker| {
            (0..4).for_each(|_| worker.submit(mqfq));
            assert!((0..3).all(|_| worker.pick(mqfq)), "within two requests of virtual time");
        });
        rig.race(
            |mqfq, worker| worker.run(mqfq),
            |mqfq, worker| {
                mqfq.set_window(&halves(requests(8)));
                let kicks = &mut worker.kicks;
                mqfq.pause(&mut worker.queue, &mut |hctx| kicks.push(hctx));
            },
        );
        rig.settle();
        assert_eq!(rig.mqfq.staged(&rig.workers[0].queue), 0, "its last request is three ahead, of eight");
        rig.alone(1, |mqfq, worker| worker.run(mqfq));
        rig.finish();
    });
}

const LARGE: Cost = Cost(4 * REQUEST.0);

/// Its first starts at virtual time, which lay between the two points, and its second behind the first.
fn assert_neither_credit_nor_debt(tags: &[VTime], before: VTime, after: VTime) {
    let [first, second] = tags else { panic!("two, once each: {tags:?}") };
    assert!(!first.is_before(before), "credit: {first:?} before {before:?}");
    assert!(!after.is_before(*first), "debt: {first:?} after {after:?}");
    assert_eq!(*second, first.plus(VSpan::from_bytes(LARGE.0)), "credit for what was charged before");
}

/// Race: A is ahead and throttles itself while B, which holds virtual time and whose worker is away, is set aside.
/// Virtual time goes on. B comes back at it.
/// Shown to fail if `step_aside` does not announce, and if `take_back` gives nothing back.
#[test]
fn loom_a_queue_that_throttles_itself_beside_one_that_steps_aside_goes() {
    model(|form| {
        let mut rig = Rig::late(form, 2, 4, NONE);
        rig.alone(1, |mqfq, worker| (0..2).for_each(|_| worker.submit_cost(mqfq, LARGE)));
        rig.alone(0, |mqfq, worker| {
            worker.submit(mqfq);
            worker.submit(mqfq);
            assert!(worker.pick(mqfq), "its first request starts at virtual time");
        });
        rig.race(
            |mqfq, worker| worker.run(mqfq),
            |mqfq, worker| assert_eq!(worker.step_aside(mqfq), [(FlowId(1), LARGE); 2]),
        );
        rig.settle();
        rig.assert_nothing_staged();
        let now = rig.mqfq.global_vtime();
        assert_eq!(now, VTime::ZERO.plus(requests(1)), "of A alone");
        rig.alone(1, |mqfq, worker| {
            worker.come_back(mqfq, &[(FlowId(1), LARGE); 2]);
            worker.run(mqfq);
            assert_neither_credit_nor_debt(&worker.tags, now, now);
        });
        rig.finish();
    });
}

/// Race: A gives its token to B, which waits for it, while B, whose worker is away, is set aside. C waits, too.
/// Shown to fail if `rest` does not search.
#[test]
fn loom_a_token_sent_to_a_queue_that_steps_aside_is_passed_on() {
    model(|form| {
        let mut rig = Rig::late(form, 3, 1, WIDE);
        for n in 0..3 {
            rig.alone(n, |mqfq, worker| {
                worker.submit(mqfq);
                worker.run(mqfq);
            });
        }
        assert_eq!(rig.mqfq.free_units(), 0);
        rig.race(
            |mqfq, worker| worker.complete_and_run(mqfq),
            |mqfq, worker| assert_eq!(worker.step_aside(mqfq), [(FlowId(1), REQUEST)]),
        );
        rig.settle();
        rig.assert_nothing_staged();
        assert_eq!(rig.workers.iter().map(|worker| worker.dispatched).collect::<Vec<_>>(), [1, 0, 1]);
        rig.alone(2, |mqfq, worker| worker.complete_and_run(mqfq));
        rig.settle();
        rig.alone(1, |mqfq, worker| {
            worker.come_back(mqfq, &[(FlowId(1), REQUEST)]);
            worker.run(mqfq);
            assert_eq!(worker.dispatched, 1);
        });
        rig.finish();
    });
}

/// Race: B is back and submits again what had stood aside while A dispatches and moves virtual time.
/// Shown to fail if `take_back` gives nothing back.
#[test]
fn loom_a_queue_that_comes_back_beside_a_dispatch_starts_at_virtual_time() {
    model(|form| {
        let mut rig = Rig::late(form, 2, 5, NONE);
        rig.alone(1, |mqfq, worker| {
            (0..2).for_each(|_| worker.submit_cost(mqfq, LARGE));
            worker.step_aside(mqfq);
        });
        rig.alone(0, |mqfq, worker| (0..2).for_each(|_| worker.submit(mqfq)));
        let before = rig.mqfq.global_vtime();
        rig.race(
            |mqfq, worker| assert!(worker.pick(mqfq)),
            |mqfq, worker| worker.come_back(mqfq, &[(FlowId(1), LARGE); 2]),
        );
        for n in [1, 0] {
            rig.alone(n, |mqfq, worker| worker.run(mqfq));
        }
        rig.settle();
        rig.assert_nothing_staged();
        // A's second request starts a request's length later, and virtual time came no farther.
        assert_neither_credit_nor_debt(&rig.workers[1].tags, before, VTime::ZERO.plus(requests(1)));
        rig.finish();
    });
}

/// Race: A's queue is closed with a request staged, and what it has on the device gives its token back, while B finds
/// no token and marks itself.
/// Shown to fail if `give_back` does not search, and if `close` leaves what is staged.
#[test]
fn loom_a_token_of_a_closed_queue_meets_the_queue_that_waits_for_it() {
    model(|form| {
        let mut rig = Rig::late(form, 2, 1, NONE);
        rig.alone(0, |mqfq, worker| {
            worker.submit(mqfq);
            worker.submit(mqfq);
            worker.run(mqfq);
        });
        rig.alone(1, |mqfq, worker| (0..2).for_each(|_| worker.submit(mqfq)));
        rig.race(|mqfq, worker| worker.close(mqfq), |mqfq, worker| worker.run(mqfq));
        rig.settle();
        rig.alone(1, |mqfq, worker| worker.complete_and_run(mqfq));
        assert_eq!(rig.workers[1].dispatched, 2);
        rig.finish();
    });
}
