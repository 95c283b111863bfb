//! The loop on a host of the test's making: virtual time, no thread, no ring. Events while a worker sleeps are set
//! beforehand; a worker that sleeps with nothing left to come is told to stop.

use super::host::HostEvent;
use super::*;
use crate::ask::Ask;
use crate::buffer::Buffer;
use crate::client::{Context, DeviceIndex, Event};
use crate::device::null::NullDevice;
use crate::device::{Command, Device, DeviceQueue, QueueFull, QueueOptions, Reaped};
use crate::hctx::HwCtxOptions;
use crate::path_options::PathOptions;
use crate::request::{Op, Status, Submission};
use crate::stage::StageLimits;
use mqfq_sched::cost::CostModel;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::topology::Topology;
use mqfq_sched::wake::WakeWord;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

mod caps;
mod recall;

const LENGTH_BYTES: u32 = 4096;

/// A timer that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Alarm {
    at_ns: u64,
    client: u32,
    user: u32,
}

/// One sleep: for how long at most, and whether the policy held back staged requests.
pub(super) type Sleep = (Option<u64>, bool);

#[derive(Default)]
pub(super) struct VirtualHost {
    now_ns: u64,
    /// Time that passes at each look at the clock.
    look_ns: u64,
    bell: WakeWord,
    kicked: Vec<HctxId>,
    mail: VecDeque<Mail>,
    alarms: Vec<Alarm>,
    /// Alarms whose time came, by the index that their end names.
    rung: Vec<Option<Alarm>>,
    ended: Vec<Ended>,
    sleeps: Vec<Sleep>,
    /// Events of the next sleeps.
    nights: VecDeque<fn(&mut VirtualHost)>,
    /// Events in the middle of the next rounds of a turn, when ended operations were taken.
    rounds: VecDeque<fn(&mut VirtualHost)>,
    /// Requests that the loop said were submitted, dispatched and completed; turns.
    said: [usize; 4],
    spun_ns: u64,
    /// When it went into the kernel.
    entered_ns: Vec<u64>,
}

impl Host for VirtualHost {
    fn now_ns(&mut self) -> u64 {
        self.now_ns += self.look_ns;
        self.now_ns
    }

    fn kick(&mut self, hctx: HctxId) {
        self.kicked.push(hctx);
    }

    fn may_sleep(&mut self) -> bool {
        self.bell.may_sleep()
    }

    fn woke(&mut self) {
        self.bell.woke();
    }

    fn is_kicked(&mut self) -> bool {
        self.bell.is_kicked()
    }

    fn take_mail(&mut self) -> Option<Mail> {
        self.mail.pop_front()
    }

    fn collect(&mut self, ended: &mut Vec<Ended>) {
        ended.append(&mut self.ended);
    }

    fn resolve(&mut self, (name, _): Ended) -> Option<HostEvent> {
        let Alarm { client, user, .. } = self.rung[name as usize].take()?;
        Some(HostEvent::Client { client, event: Event::Timer { user } })
    }

    fn has_ended(&mut self) -> bool {
        !self.ended.is_empty()
    }

    fn enter(&mut self) -> std::io::Result<()> {
        let now_ns = self.now_ns;
        self.entered_ns.push(now_ns);
        self.alarms.sort();
        for alarm in self.alarms.extract_if(.., |alarm| alarm.at_ns <= now_ns) {
            self.ended.push((self.rung.len() as u64, 0));
            self.rung.push(Some(alarm));
        }
        Ok(())
    }

    fn enter_and_wait(&mut self, wait_ns: Option<u64>, is_held_back: bool) -> std::io::Result<()> {
        self.sleeps.push((wait_ns, is_held_back));
        let device_ns = wait_ns.map(|wait_ns| self.now_ns + wait_ns);
        let next_ns = self.alarms.iter().map(|alarm| alarm.at_ns).chain(device_ns).min();
        match (self.nights.pop_front(), next_ns) {
            (Some(night), _) => night(self),
            (None, Some(next_ns)) => self.now_ns = self.now_ns.max(next_ns),
            (None, None) => self.mail.push_back(Mail::Stop),
        }
        self.enter()
    }

    fn spin_hint(&mut self) {
        self.now_ns += 1_000;
    }

    fn spun(&mut self, ns: u64) {
        self.spun_ns += ns;
    }

    fn ask(&mut self, client: u32, ask: Ask) {
        let Ask::Timer { at_ns, user } = ask else { unreachable!("clients here ask for timers alone") };
        self.alarms.push(Alarm { at_ns, client, user });
    }

    fn cancel_waits(&mut self, client: u32) {
        self.alarms.retain(|alarm| alarm.client != client);
        self.rung.iter_mut().for_each(|alarm| *alarm = alarm.filter(|alarm| alarm.client != client));
    }

    fn submitted(&mut self) {
        self.said[0] += 1;
    }

    fn dispatched(&mut self, count: usize) {
        self.said[1] += count;
    }

    fn completed(&mut self, count: usize) {
        self.said[2] += count;
        if let Some(round) = self.rounds.pop_front() {
            round(self);
        }
    }

    fn turned(&mut self) {
        self.said[3] += 1;
    }
}

/// Calls that clients saw, with their times.
type Log = Rc<RefCell<Vec<(u64, Saw)>>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Saw {
    Completed { cookie: u64, queued_ns: u64, device_ns: u64 },
    Timer { user: u32 },
    Room,
    Drain,
    Dropped,
}

/// Submits its requests and asks for its timers at the start, records the calls, and is done when it is told to be.
struct Witness {
    requests: u64,
    timers: Vec<(u64, u32)>,
    log: Log,
    in_flight: u64,
    /// With this timer it is done.
    last_timer: u32,
    is_done: bool,
}

impl Witness {
    fn new(requests: u64, timers: &[(u64, u32)], log: &Log) -> Box<Witness> {
        let (timers, log) = (timers.to_vec(), log.clone());
        Box::new(Witness { requests, timers, log, in_flight: 0, last_timer: u32::MAX, is_done: false })
    }

    fn saw(&self, context: &dyn Context, saw: Saw) {
        self.log.borrow_mut().push((context.now_ns(), saw));
    }

    fn submit(&mut self, context: &mut dyn Context) {
        while self.requests > 0 {
            let submission = Submission {
                flow: FlowId(0),
                op: Op::Read,
                offset_bytes: 0,
                length_bytes: LENGTH_BYTES,
                fua: false,
                buffer: Some(Buffer::new(LENGTH_BYTES as usize)),
                cookie: self.requests,
            };
            if context.submit(DeviceIndex(0), submission).is_err() {
                return;
            }
            self.requests -= 1;
            self.in_flight += 1;
        }
    }
}

impl Client for Witness {
    fn start(&mut self, context: &mut dyn Context) {
        self.submit(context);
        self.timers.iter().for_each(|&(at_ns, user)| context.timer(at_ns, user));
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        let Event::Timer { user } = event else { unreachable!("it asked for timers only, not for {event:?}") };
        self.saw(context, Saw::Timer { user });
        self.is_done |= user == self.last_timer;
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let Completion { cookie, queued_ns, device_ns, status, .. } = completion;
        assert_eq!(status, Status::Ok);
        self.in_flight -= 1;
        self.saw(context, Saw::Completed { cookie, queued_ns, device_ns });
    }

    fn turn_end(&mut self, _: &mut dyn Context) {}

    fn room(&mut self, context: &mut dyn Context) {
        self.saw(context, Saw::Room);
        self.submit(context);
    }

    fn drain(&mut self, context: &mut dyn Context) {
        self.saw(context, Saw::Drain);
        self.is_done = true;
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.log.borrow_mut().push((0, Saw::Dropped));
    }
}

/// Asks for `timers` timers at one time, and submits a request at each.
struct Ticker {
    timers: u32,
    in_flight: u32,
}

impl Client for Ticker {
    mqfq_testing::ignores!(turn_end, room, drain);

    fn start(&mut self, context: &mut dyn Context) {
        (0..self.timers).for_each(|user| context.timer(1000, user));
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        let Event::Timer { user } = event else { unreachable!("it asked for timers only, not for {event:?}") };
        let submission = Submission {
            flow: FlowId(0),
            op: Op::Read,
            offset_bytes: 0,
            length_bytes: LENGTH_BYTES,
            fua: false,
            buffer: Some(Buffer::new(LENGTH_BYTES as usize)),
            cookie: user.into(),
        };
        context.submit(DeviceIndex(0), submission).expect("within the bound");
        self.in_flight += 1;
    }

    fn completed(&mut self, _: &mut dyn Context, completion: Completion) {
        assert_eq!(completion.status, Status::Ok);
        self.in_flight -= 1;
    }

    fn is_done(&self) -> bool {
        false
    }
}

/// A queue that completes each command `latency_ns` after its doorbell.
struct Slow {
    latency_ns: u64,
    rung_ns: Vec<(u64, Command)>,
    submitted: Vec<Command>,
}

impl DeviceQueue for Slow {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        self.submitted.push(command);
        Ok(())
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        self.rung_ns.extend(self.submitted.drain(..).map(|command| (now_ns, command)));
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        for (_, command) in self.rung_ns.extract_if(.., |(rung_ns, _)| *rung_ns + self.latency_ns <= now_ns) {
            out.push(command.ended(Status::Ok));
        }
    }

    fn next_event_ns(&self) -> Option<u64> {
        self.rung_ns.iter().map(|(rung_ns, _)| rung_ns + self.latency_ns).min()
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.rung_ns.len()
    }
}

/// Workers of one policy with D = 1 on a device of this latency; 0: the null device.
fn workers(count: u16, latency_ns: u64, requests_max: u32) -> Vec<Worker<VirtualHost>> {
    workers_with(count, latency_ns, requests_max, 1, PathOptions::default())
}

/// Workers with this D and path.
fn workers_with(
    count: u16,
    latency_ns: u64,
    requests_max: u32,
    depth: u32,
    path: PathOptions,
) -> Vec<Worker<VirtualHost>> {
    let options = PolicyOptions { depth, ..PolicyOptions::new(PolicyKind::Mqfq) };
    let topology = Topology::flat(usize::from(count));
    let policy = Arc::new(AnyPolicy::new(&options, &topology, &[Weight::DEFAULT]).unwrap());
    let null = NullDevice::new(1 << 20);
    let worker = |index| {
        let options = QueueOptions {
            hctx: HctxId(index),
            depth: 64,
            #[cfg(feature = "uring")]
            ring: None,
            interrupt: Arc::new(|hctx| panic!("{hctx:?} interrupted by a device that has nothing to say")),
        };
        let hctx = HwCtx::new(HwCtxOptions {
            id: HctxId(index),
            policy: policy.clone(),
            device: if latency_ns == 0 {
                null.open_queue(options).unwrap()
            } else {
                Box::new(Slow { latency_ns, rung_ns: Vec::new(), submitted: Vec::new() })
            },
            queue_depth: 64,
            limits: vec![StageLimits { requests_max, bytes_max: 1 << 20 }],
            cost: CostModel::FLAT,
            path,
        });
        Worker::new(VirtualHost::default(), vec![hctx], vec![null.info()], WorkerOptions::default())
    };
    (0..count).map(worker).collect()
}

fn worker(latency_ns: u64, requests_max: u32) -> Worker<VirtualHost> {
    workers(1, latency_ns, requests_max).remove(0)
}

fn seen(log: &Log) -> Vec<Saw> {
    log.borrow_mut().drain(..).map(|(_, saw)| saw).collect()
}

#[test]
fn requests_go_to_the_device_and_back_and_then_the_worker_sleeps() {
    let mut worker = worker(0, 16);
    let log = Log::default();
    worker.adopt(Witness::new(10, &[], &log));
    worker.work();
    let cookies = seen(&log).into_iter().map(|saw| match saw {
        Saw::Completed { cookie, .. } => cookie,
        other => panic!("{other:?}"),
    });
    assert!(cookies.eq((1..=10).rev()), "each once, in the order of a flow");
    assert_eq!(worker.host().said[..3], [10, 10, 10]);
    assert_eq!(worker.host().sleeps, [(None, false)], "once, until something comes");
    assert_eq!(worker.hctxs()[0].stats().dispatched, 10);
    let (host, hctxs) = worker.into_parts();
    // D = 1: one request a round, four rounds a turn; then one turn that finds nothing, and the one of the stop.
    assert_eq!((host.said[3], hctxs[0].admitted()), (4, 0));
}

#[test]
fn a_worker_sleeps_until_its_device_has_something() {
    let mut worker = worker(70_000, 16);
    let log = Log::default();
    worker.adopt(Witness::new(2, &[], &log));
    worker.work();
    let first = Saw::Completed { cookie: 2, queued_ns: 0, device_ns: 70_000 };
    let second = Saw::Completed { cookie: 1, queued_ns: 70_000, device_ns: 70_000 };
    assert_eq!(*log.borrow(), [(70_000, first), (140_000, second)]);
    // The second waits for a token, which is a reason to spin first; the sleep is shorter by that.
    let spun_ns = crate::client::POLL_NS_MIN + 1_000;
    assert_eq!(worker.host().sleeps, [(Some(70_000 - spun_ns), true), (Some(70_000), false), (None, false)]);
    assert_eq!(worker.host().spun_ns, spun_ns);
}

#[test]
fn a_worker_that_goes_round_until_its_device_has_something_says_that_it_spun() {
    let mut worker = worker(70_000, 16);
    (worker.core.options.spin_ns, worker.core.host.look_ns) = (100_000, 1_000);
    worker.adopt(Witness::new(2, &[], &Log::default()));
    worker.work();
    assert_eq!(worker.host().sleeps, [(None, false)], "not before the end of the second");
    // Two times 70 us, less the turns that gave or took a request.
    let spun_ns = worker.host().spun_ns;
    assert!((130_000..140_000).contains(&spun_ns), "{spun_ns}");
}

#[test]
fn a_worker_without_a_token_spins_then_sleeps_and_is_kicked_by_the_one_that_had_it() {
    let mut both = workers(2, 1_000_000, 16);
    let log = Log::default();
    let spun_ns = crate::client::POLL_NS_MIN;
    both.iter_mut().for_each(|worker| worker.adopt(Witness::new(1, &[], &log)));
    assert!(!both[0].turn(), "its only request is on the device");

    // The kick comes in its sleep: the night after it found that it may.
    both[1].core.host.nights.push_back(|host| assert!(host.bell.kick(), "it sleeps, so it is to be rung"));
    let busy = both[1].turn();
    both[1].enter(busy);
    assert!(both[1].core.host.now_ns >= spun_ns, "it spun for as long as its patience lasts");
    assert!(both[1].host().entered_ns[0] < spun_ns, "what was asked for was on its way before");
    assert_eq!(both[1].host().sleeps, [(None, true)], "and slept, knowing that the policy holds it back");
    assert_eq!(both[1].hctxs()[0].in_flight(), 0, "D = 1, and that is the other's");

    both[0].core.host.now_ns = 1_000_000;
    both[0].turn();
    assert_eq!(both[0].host().kicked, [HctxId(1)]);
    both[1].turn();
    assert_eq!(both[1].hctxs()[0].in_flight(), 1);
    assert_eq!(both[1].host().said[..3], [1, 1, 0]);
}

#[test]
fn a_worker_that_was_kicked_since_it_looked_does_not_sleep() {
    let mut worker = worker(0, 16);
    let busy = worker.turn();
    assert!(!worker.core.host.bell.kick(), "it runs: nobody needs to ring");
    worker.enter(busy);
    assert_eq!(worker.host().sleeps, []);
    worker.turn();
    worker.enter(false);
    assert_eq!(worker.host().sleeps.len(), 1, "the kick is spent");
}

#[test]
fn a_refused_client_is_told_of_room() {
    let mut worker = worker(0, 1);
    let log = Log::default();
    worker.adopt(Witness::new(3, &[], &log));
    worker.work();
    let rooms = seen(&log).into_iter().filter(|saw| *saw == Saw::Room).count();
    assert!(rooms >= 2, "{rooms}");
    assert_eq!(worker.host().said[1..3], [3, 3]);
}

#[test]
fn clients_of_one_flow_that_were_refused_take_turns() {
    // One request may be staged. Cookies up to 4 are the first client's, the others the second's, which asks for more
    // without end.
    let mut worker = worker(0, 1);
    let log = Log::default();
    [4, 104].into_iter().for_each(|requests| worker.adopt(Witness::new(requests, &[], &log)));
    worker.work();
    let cookies: Vec<u64> = seen(&log)
        .into_iter()
        .filter_map(|saw| if let Saw::Completed { cookie, .. } = saw { Some(cookie) } else { None })
        .collect();
    let firsts: Vec<usize> = (0..cookies.len()).filter(|&at| cookies[at] <= 4).collect();
    assert_eq!(cookies.len(), 108);
    // The first was refused first, so the second place is its as well; then each has one.
    assert_eq!(firsts[..4], [0, 1, 3, 5], "{:?}", &cookies[..10]);
}

#[test]
fn so_many_calls_gather_before_the_device_is_told_and_no_more() {
    // Twelve calls in one turn, each with a request.
    for (plug, doorbells) in [(1, 12), (2, 6), (3, 4), (5, 3), (12, 1), (32, 1)] {
        let path = PathOptions { plug, ..PathOptions::default() };
        let mut worker = workers_with(1, 70_000, 64, 64, path).remove(0);
        worker.adopt(Box::new(Ticker { timers: 12, in_flight: 0 }));
        worker.work();
        let stats = worker.hctxs()[0].stats();
        assert_eq!((stats.dispatched, stats.doorbells), (12, doorbells), "{plug} calls");
    }
}

#[test]
fn each_device_is_run_until_nothing_moves_whatever_the_others_say() {
    // D = 1, so each round moves one request of the first device, and none of the second.
    let log = Log::default();
    let [first, second] = [(); 2].map(|()| worker(0, 16).into_parts().1.remove(0));
    let infos = vec![NullDevice::new(1 << 20).info(); 2];
    let mut both = Worker::new(VirtualHost::default(), vec![first, second], infos, WorkerOptions::default());
    both.adopt(Witness::new(10, &[], &log));
    both.work();
    assert_eq!(seen(&log).len(), 10);
    assert_eq!(both.host().sleeps, [(None, false)], "and then it sleeps");
}

#[test]
fn timers_come_in_the_order_of_their_times_and_never_early() {
    let mut worker = worker(0, 16);
    let log = Log::default();
    worker.adopt(Witness::new(0, &[(5_000, 50), (2_000, 20), (0, 0), (5_000, 51)], &log));
    worker.work();
    let timer = |user| Saw::Timer { user };
    assert_eq!(*log.borrow(), [(0, timer(0)), (2_000, timer(20)), (5_000, timer(50)), (5_000, timer(51))]);
}

/// The turn and the time of each of its timers: three at one time, and one that the last of them asks for.
struct Clocks(Rc<RefCell<Vec<(u64, u64)>>>);

impl Client for Clocks {
    mqfq_testing::ignores!(completed, turn_end, room, drain);

    fn start(&mut self, context: &mut dyn Context) {
        (0..3).for_each(|user| context.timer(1_000, user));
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        self.0.borrow_mut().push((context.turn(), context.now_ns()));
        if matches!(event, Event::Timer { user: 2 }) {
            context.timer(context.now_ns(), 3);
        }
    }

    fn is_done(&self) -> bool {
        false
    }
}

#[test]
fn timers_that_end_together_come_in_one_turn_although_time_goes_on() {
    let mut worker = worker(0, 16);
    worker.core.host.look_ns = 10;
    let seen = Rc::<RefCell<Vec<_>>>::default();
    worker.adopt(Box::new(Clocks(seen.clone())));
    worker.work();
    let seen = seen.take();
    let [first, second, third, next] = seen[..] else { panic!("{seen:?}") };
    assert!(first.1 < second.1 && second.1 < third.1, "{first:?} {second:?} {third:?}");
    assert_eq!([second.0, third.0, next.0], [first.0, first.0, first.0 + 1]);
}

#[test]
fn a_client_that_is_done_is_not_kept_by_its_timers_and_nobody_else_gets_them() {
    let mut worker = worker(0, 16);
    let log = Log::default();
    let mut first = Witness::new(0, &[(1_000, 1), (1_000, 2), (60_000_000_000, 3)], &log);
    first.last_timer = 1;
    worker.adopt(first);
    worker.turn();
    worker.core.host.now_ns = 1_000;
    worker.enter(true);
    worker.turn();
    // Both timers of this moment had ended when the first of them made the client done.
    assert_eq!(seen(&log), [Saw::Timer { user: 1 }, Saw::Timer { user: 2 }, Saw::Dropped]);
    worker.adopt(Witness::new(0, &[(70_000_000_000, 7)], &log));
    assert_eq!(worker.clients.len(), 1, "the number is given to the next");
    worker.work();
    assert_eq!(*log.borrow(), [(70_000_000_000, Saw::Timer { user: 7 })]);
}

#[test]
fn a_timer_that_ended_beside_the_end_of_its_client_is_not_the_next_ones() {
    let mut worker = worker(0, 16);
    let log = Log::default();
    let mut first = Witness::new(0, &[(1_000, 1), (2_000, 2)], &log);
    first.last_timer = 1;
    worker.adopt(first);
    worker.core.host.now_ns = 1_000;
    worker.enter(true);
    worker.core.host.rounds.push_back(|host| {
        host.now_ns = 2_000;
        host.enter().unwrap();
    });
    worker.turn();
    assert_eq!(worker.host().ended.len(), 1, "it is there, and not taken");
    assert_eq!(seen(&log), [Saw::Timer { user: 1 }, Saw::Dropped]);
    worker.adopt(Witness::new(0, &[], &log));
    worker.work();
    assert_eq!(seen(&log), []);
}

#[test]
fn a_drain_ends_each_client_and_is_reported_and_no_other_is_taken() {
    let mut worker = worker(0, 16);
    let log = Log::default();
    let (sender, drained) = mpsc::channel();
    worker.adopt(Witness::new(2, &[(60_000_000_000, 1)], &log));
    worker.core.host.mail.push_back(Mail::Drain(sender));
    worker.core.host.mail.push_back(Mail::Attach(Box::new(|| unreachable!("the worker drains"))));
    worker.turn();
    assert_eq!(drained.try_recv(), Ok(()));
    let seen = seen(&log);
    assert_eq!((seen.first(), seen.last(), seen.len()), (Some(&Saw::Drain), Some(&Saw::Dropped), 4));
    worker.adopt(Witness::new(1, &[], &log));
    assert_eq!(*log.borrow(), [(0, Saw::Dropped)]);
}
