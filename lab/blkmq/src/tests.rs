//! The maps; and the protocol of a shared queue in every order of its workers' steps.

use super::*;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Command, Device, DeviceInfo, QueueFull, Reaped};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use mqfq_policies::{D2FQ, MQFQ_SERIAL, SFQD};
use mqfq_sched::policy::{ClassWeights, PolicyKind, QueueClass};
use mqfq_sched::topology::Topology;

/// A device that completes a command when it is told to, oldest first.
struct SlowDevice {
    limits: QueueLimits,
    told: Arc<Mutex<Vec<Told>>>,
}

/// A queue of the device, seen from outside.
#[derive(Clone)]
struct Told {
    inside: Arc<Mutex<Inside>>,
    interrupt: Interrupt,
}

#[derive(Default)]
struct Inside {
    /// Given since.
    weights: Option<ClassWeights>,
    running: VecDeque<Command>,
    ended: VecDeque<Reaped>,
}

impl SlowDevice {
    fn new(queues_max: u32) -> SlowDevice {
        SlowDevice { limits: QueueLimits { queues_max, depth_max: 64 }, told: Arc::default() }
    }
}

impl Device for SlowDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            size_bytes: 1 << 20,
            block_bytes: 1,
            preferred_bytes: 4096,
            transfer_bytes_max: 1 << 20,
            volatile_cache: false,
            pages_align_bytes: 0,
        }
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(self.open_shared_queue(options)?)
    }
}

impl MultiQueue for SlowDevice {
    fn queue_limits(&self) -> QueueLimits {
        self.limits
    }

    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        let told = Told { inside: Arc::default(), interrupt: options.interrupt };
        self.told.lock().unwrap().push(told.clone());
        Ok(Box::new(SlowQueue { inside: told.inside, fresh: Vec::new(), depth: options.depth.into(), is_set: false }))
    }

    fn offers_class_queues(&self) -> bool {
        true
    }

    fn open_class_queues(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        let told = Told { inside: Arc::default(), interrupt: options.interrupt };
        self.told.lock().unwrap().push(told.clone());
        Ok(Box::new(SlowQueue { inside: told.inside, fresh: Vec::new(), depth: options.depth.into(), is_set: true }))
    }
}

struct SlowQueue {
    inside: Arc<Mutex<Inside>>,
    fresh: Vec<Command>,
    depth: usize,
    is_set: bool,
}

impl SlowQueue {
    /// Commands that count against the depth together with one of this class.
    fn beside(&self, class: QueueClass) -> usize {
        let inside = self.inside.lock().unwrap();
        let running = inside.running.iter().chain(&self.fresh).filter(|other| !self.is_set || other.class == class);
        running.count() + if self.is_set { 0 } else { inside.ended.len() }
    }
}

impl DeviceQueue for SlowQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        if self.beside(command.class) == self.depth {
            return Err(QueueFull(command));
        }
        let tags = self.depth * if self.is_set { 3 } else { 1 };
        assert!(usize::from(command.tag.0) < tags, "tag {} of a queue that has {tags}", command.tag.0);
        let inside = self.inside.lock().unwrap();
        assert!(inside.running.iter().chain(&self.fresh).all(|other| other.tag != command.tag), "a tag is out twice");
        drop(inside);
        self.fresh.push(command);
        Ok(())
    }

    fn ring_doorbell(&mut self, _now_ns: u64) {
        self.inside.lock().unwrap().running.extend(self.fresh.drain(..));
    }

    fn reap(&mut self, _now_ns: u64, out: &mut Vec<Reaped>) {
        out.extend(self.inside.lock().unwrap().ended.drain(..));
    }

    fn next_event_ns(&self) -> Option<u64> {
        // It interrupts.
        None
    }

    fn in_flight(&self) -> usize {
        let inside = self.inside.lock().unwrap();
        self.fresh.len() + inside.running.len() + inside.ended.len()
    }

    fn set_class_weights(&mut self, weights: ClassWeights, _now_ns: u64) -> bool {
        self.inside.lock().unwrap().weights = Some(weights);
        self.is_set
    }
}

fn map(layout: QueueLayout, topology: &Topology, queues_max: u32) -> Result<QueueMap, String> {
    QueueMap::new(&layout, topology, &SlowDevice::new(queues_max), 8)
}

fn hardware(map: &QueueMap) -> Vec<usize> {
    (0..map.workers()).map(|worker| map.hardware_of(HctxId(worker as u16))).collect()
}

#[test]
fn each_spread_gives_its_queues() {
    let topology = Topology::new(2, 3, 1);
    let queues = |software, hardware| {
        let map = map(QueueLayout::mq(software, hardware), &topology, 64).unwrap();
        (map.software_queues(), map.hardware_queues(), map.is_private())
    };
    assert_eq!(queues(Spread::PerCore, Spread::PerCore), (6, 6, true));
    assert_eq!(queues(Spread::PerCore, Spread::PerSocket), (6, 2, false));
    assert_eq!(queues(Spread::PerSocket, Spread::PerCore), (2, 6, false));
    assert_eq!(queues(Spread::Single, Spread::Single), (1, 1, false));
    let sq = map(QueueLayout::SQ, &Topology::flat(1), 64).unwrap();
    assert!(!sq.is_private(), "one lock, even for one worker");
    assert!(map(QueueLayout::RAW, &topology, 64).unwrap().is_private());
}

#[test]
fn a_device_with_fewer_queues_is_shared_and_a_number_that_is_not_there_is_refused() {
    let topology = Topology::new(2, 2, 1);
    let two = map(QueueLayout::default(), &topology, 2).unwrap();
    assert_eq!((two.is_private(), hardware(&two)), (false, vec![0, 0, 1, 1]));
    let asked = QueueLayout { hardware: HardwareQueues::Count(3), ..QueueLayout::default() };
    assert_eq!(hardware(&map(asked, &topology, 64).unwrap()).len(), 4);
    assert_eq!(
        map(asked, &topology, 2).unwrap_err(),
        "3 hardware queues are out of range, allowed is 1 to 2 with 4 workers on a device of 2 queues"
    );
    assert_eq!(
        map(QueueLayout::RAW, &topology, 2).unwrap_err(),
        "block layer raw needs a hardware queue for each of 4 workers, and the device has 2"
    );
    assert_eq!(
        QueueMap::new(&QueueLayout::default(), &topology, &SlowDevice::new(4), 65).unwrap_err(),
        "a queue depth of 65 is more than the device has, allowed is 1 to 64"
    );
}

#[test]
fn as_many_queues_as_there_are_can_be_asked_for() {
    let topology = Topology::new(2, 2, 1);
    let asked = |count| QueueLayout { hardware: HardwareQueues::Count(count), ..QueueLayout::default() };
    let queues = |count, most| map(asked(count), &topology, most).map(|map| map.hardware_queues()).ok();
    assert_eq!([queues(4, 64), queues(5, 64), queues(2, 2), queues(1, 2)], [Some(4), None, Some(2), Some(1)]);
    let raw = |most| map(QueueLayout::RAW, &topology, most).map(|map| map.hardware_queues()).ok();
    assert_eq!([raw(3), raw(4), raw(5)], [None, Some(4), Some(4)]);
}

#[test]
fn hardware_queues_are_a_spread_or_a_number_from_one_on() {
    let read = |text: &str| text.parse::<HardwareQueues>().ok();
    for spread in Spread::ALL {
        assert_eq!(read(spread.name()), Some(HardwareQueues::Spread(spread)));
    }
    assert_eq!(["1", "65535"].map(read), [1, 65535].map(|count| Some(HardwareQueues::Count(count))));
    assert_eq!(["0", "65536", "", "-1", "per-cor"].map(read), [None; 5]);
}

#[test]
fn a_set_is_three_queues_and_neighbours_share_one() {
    let sets = |workers, layout: QueueLayout, queues| {
        QueueMap::of_sets(&layout, &Topology::flat(workers), &SlowDevice::new(queues), 8)
    };
    let default = QueueLayout::default();
    let own = sets(4, default, 12).unwrap();
    assert!(own.is_private() && own.is_of_sets());
    // D2FQ's second machine: 24 cores, 32 queues.
    let shared = sets(24, default, 32).unwrap();
    assert_eq!((shared.hardware_queues(), shared.is_private()), (10, false));
    let of = hardware(&shared);
    assert!(of.is_sorted(), "neighbours share: {of:?}");
    assert!((0..10).all(|set| (2..=3).contains(&of.iter().filter(|&&other| other == set).count())), "{of:?}");
    // As there: three cores to a set.
    let groups = QueueLayout { hardware: HardwareQueues::Count(8), ..default };
    assert_eq!(hardware(&sets(24, groups, 32).unwrap()), (0..24).map(|worker| worker / 3).collect::<Vec<_>>());
    assert_eq!(hardware(&sets(3, default, 3).unwrap()), [0, 0, 0]);
}

#[test]
fn sets_that_are_not_there_are_refused() {
    let sets = |layout: QueueLayout, queues, depth| {
        QueueMap::of_sets(&layout, &Topology::flat(64), &SlowDevice::new(queues), depth).unwrap_err()
    };
    let asked = QueueLayout { hardware: HardwareQueues::Count(40), ..QueueLayout::default() };
    assert_eq!(
        sets(asked, 32, 8),
        "40 queue sets are out of range, allowed is 1 to 10 with 64 workers on a device of 32 queues, three to a set"
    );
    let default = QueueLayout::default();
    assert_eq!(sets(default, 2, 8), "a queue set is 3 queues, one of each class, and the device has 2");
    assert_eq!(sets(default, 32, 65), "a queue depth of 65 is too deep for each queue of a set, allowed is 1 to 64");
    let deep = SlowDevice { limits: QueueLimits::UNLIMITED, ..SlowDevice::new(0) };
    assert_eq!(
        QueueMap::of_sets(&default, &Topology::flat(1), &deep, 21_846).unwrap_err(),
        "a queue depth of 21846 is too deep for each queue of a set, allowed is 1 to 21845"
    );
    for layout in [QueueLayout::SQ, QueueLayout::mq(Spread::Single, Spread::PerCore)] {
        assert!(sets(layout, 32, 8).ends_with("allowed is a software queue per core"));
    }
}

#[test]
fn only_a_policy_without_a_staging_of_its_own_goes_over_shared_software_queues() {
    let single = QueueLayout::mq(Spread::Single, Spread::PerCore);
    assert!(single.check_policy(PolicyKind::None).is_ok());
    assert!(QueueLayout::mq(Spread::PerCore, Spread::Single).check_policy(PolicyKind::Mqfq).is_ok());
    let what = "a single software queue is one queue for all workers";
    assert_eq!(
        single.check_policy(PolicyKind::Mqfq).unwrap_err(),
        format!("{what}, and policy mqfq stages requests per worker: allowed is policy none")
    );
    assert!(QueueLayout::SQ.check_policy(SFQD).is_err());
    assert!(QueueLayout::RAW.check_policy(MQFQ_SERIAL).is_err());
    assert_eq!(
        single.check_policy(D2FQ).unwrap_err(),
        format!("{what}, and policy d2fq fills class queues of each worker's own: allowed is policy none")
    );
    let low_latency = QueueLayout { layer: BlockLayer::LowLatency, ..QueueLayout::default() };
    assert!(low_latency.check_policy(D2FQ).is_ok());
    assert!(
        low_latency
            .check_policy(PolicyKind::None)
            .unwrap_err()
            .contains("needs a policy that stages nothing, and none does")
    );
}

/// Workers in front of ports, in whatever order they are told to go: each step is one call of a port, as a context
/// makes it. A worker that has nothing to do sleeps, and only a kick or what its port says of time wakes it.
struct World {
    ports: Vec<Box<dyn DeviceQueue>>,
    device: Vec<Told>,
    workers: Vec<WorkerState>,
    kicks: Arc<Mutex<Vec<HctxId>>>,
}

#[derive(Default)]
struct WorkerState {
    left: Vec<u16>,
    refused: Option<Command>,
    /// 0 offer, 1 doorbell, 2 reap and perhaps sleep.
    step: u8,
    asleep: bool,
    completed: Vec<u16>,
    moved: bool,
}

impl World {
    fn new(layout: QueueLayout, workers: usize, each: u16, depth: u16) -> World {
        let device = SlowDevice::new(64);
        let map = QueueMap::new(&layout, &Topology::flat(workers), &device, depth).unwrap();
        World::of(&device, map, each, depth)
    }

    fn of_sets(sets: u32, workers: usize, each: u16, depth: u16) -> World {
        let device = SlowDevice::new(3 * sets);
        let layout = QueueLayout::default();
        let map = QueueMap::of_sets(&layout, &Topology::flat(workers), &device, depth).unwrap();
        World::of(&device, map, each, depth)
    }

    fn of(device: &SlowDevice, map: QueueMap, each: u16, depth: u16) -> World {
        let workers = map.workers();
        let kicks: Arc<Mutex<Vec<HctxId>>> = Arc::default();
        let ring = kicks.clone();
        let interrupt: Interrupt = Arc::new(move |hctx| ring.lock().unwrap().push(hctx));
        let queues = DeviceQueues::open(device, map, depth, interrupt).unwrap();
        let ports =
            (0..workers).map(|worker| queues.port(HctxId(worker as u16), depth).expect("it is shared")).collect();
        let state = || WorkerState { left: (0..each).collect(), ..WorkerState::default() };
        let told = device.told.lock().unwrap().clone();
        World { ports, device: told, workers: (0..workers).map(|_| state()).collect(), kicks }
    }

    /// The actors: workers, then the device's queues.
    fn actors(&self) -> usize {
        self.workers.len() + self.device.len()
    }

    /// One step of one actor; false if it has none to make.
    fn step(&mut self, actor: usize) -> bool {
        let moved = match actor.checked_sub(self.workers.len()) {
            Some(queue) => self.device_step(queue),
            None => !self.workers[actor].asleep && self.worker_step(actor),
        };
        for hctx in std::mem::take(&mut *self.kicks.lock().unwrap()) {
            // W1: a kick makes a turn that begins after it.
            let worker = &mut self.workers[hctx.index()];
            worker.asleep = false;
            worker.moved = true;
        }
        moved
    }

    fn device_step(&mut self, queue: usize) -> bool {
        let Told { inside, interrupt } = &self.device[queue];
        let mut queue = inside.lock().unwrap();
        let Some(command) = queue.running.pop_front() else { return false };
        queue.ended.push_back(command.ended(Status::Ok));
        drop(queue);
        interrupt(HctxId(0));
        true
    }

    fn worker_step(&mut self, worker: usize) -> bool {
        let (port, state) = (&mut self.ports[worker], &mut self.workers[worker]);
        match state.step {
            0 => {
                let next = state.refused.take().or_else(|| state.left.pop().map(|tag| command(worker, tag)));
                match next.map(|command| port.submit(command)) {
                    Some(Err(QueueFull(command))) => state.refused = Some(command),
                    Some(Ok(())) => state.moved = true,
                    None => {}
                }
            }
            1 => port.ring_doorbell(0),
            _ => {
                let mut out = Vec::new();
                port.reap(0, &mut out);
                for Reaped { tag, buffer, .. } in &out {
                    let bytes = buffer.as_ref().expect("its buffer comes back").as_slice();
                    assert_eq!((usize::from(bytes[0]), u16::from(bytes[1])), (worker, tag.0), "another's completion");
                    state.completed.push(tag.0);
                }
                let may_sleep = !std::mem::take(&mut state.moved) && out.is_empty();
                state.asleep = may_sleep && port.next_event_ns().is_none();
            }
        }
        state.step = (state.step + 1) % 3;
        true
    }

    /// Lets all actors go on until none can, and looks whether all is done.
    fn finish(mut self, each: u16, history: &[usize]) {
        while (0..self.actors()).filter(|&actor| self.step(actor)).count() > 0 {}
        for (number, worker) in self.workers.iter_mut().enumerate() {
            worker.completed.sort_unstable();
            let expected: Vec<u16> = (0..each).collect();
            assert_eq!(
                worker.completed, expected,
                "worker {number} after {history:?}: lost, doubled, or asleep for ever"
            );
            assert_eq!(self.ports[number].in_flight(), 0);
        }
    }
}

fn command(worker: usize, tag: u16) -> Command {
    let mut buffer = Buffer::new(2);
    buffer.as_mut_slice()[..2].copy_from_slice(&[worker as u8, tag as u8]);
    // Queues that are no sets do not look at the class.
    Command { class: QueueClass::ALL[usize::from(tag) % 3], ..Command::new(Tag(tag), Op::Read, 0, 2, Some(buffer)) }
}

/// Runs every order of the first `length` steps.
fn in_every_order(layout: QueueLayout, workers: usize, each: u16, depth: u16, length: usize) {
    in_every_order_of(|| World::new(layout, workers, each, depth), each, length);
}

fn in_every_order_of(world: impl Fn() -> World, each: u16, length: usize) {
    let actors = world().actors();
    let mut history = vec![0; length];
    let mut runs = 0;
    let new = world;
    loop {
        let mut world = new();
        // Steps after one that does nothing are found in another history.
        let idle = history.iter().position(|&actor| !world.step(actor));
        if idle.is_none() {
            world.finish(each, &history);
            runs += 1;
        }
        // The next history: what follows the idle step makes no difference.
        let last = idle.unwrap_or(length - 1);
        history[last + 1..].fill(0);
        let Some(at) = (0..=last).rev().find(|&at| history[at] + 1 < actors) else { break };
        history[at] += 1;
        history[at + 1..].fill(0);
    }
    assert!(runs > 100, "only {runs} orders were tried");
}

const SHARED_HARDWARE: QueueLayout = QueueLayout::mq(Spread::PerCore, Spread::Single);

#[test]
fn two_workers_and_one_tag_lose_nothing_in_any_order() {
    in_every_order(SHARED_HARDWARE, 2, 2, 1, 12);
}

#[test]
fn three_workers_and_two_tags_lose_nothing_in_any_order() {
    in_every_order(SHARED_HARDWARE, 3, 2, 2, 8);
}

#[test]
fn spare_tags_lose_nothing_in_any_order() {
    // Enough tags for spares, and then fewer than are wanted.
    in_every_order(SHARED_HARDWARE, 2, 3, 5, 9);
    in_every_order(SHARED_HARDWARE, 2, 4, 6, 8);
}

#[test]
fn a_worker_that_would_wait_takes_what_others_have_to_spare() {
    let mut world = World::new(SHARED_HARDWARE, 2, 12, 10);
    // The first takes one of ten tags and one to spare (eight are left for all workers' spares), and gets it back to
    // spare.
    world.ports[0].submit(command(0, 0)).unwrap();
    world.ports[0].ring_doorbell(0);
    world.device_step(0);
    world.ports[0].reap(0, &mut Vec::new());
    let taken = (0..10).filter(|&tag| world.ports[1].submit(command(1, tag)).is_ok()).count();
    assert_eq!(taken, 10, "all of them, the spare ones too");
    assert!(world.ports[0].submit(command(0, 1)).is_err(), "and none is left");
}

#[test]
fn a_shared_software_queue_loses_nothing_in_any_order() {
    in_every_order(QueueLayout::mq(Spread::Single, Spread::Single), 2, 2, 2, 10);
    in_every_order(QueueLayout::mq(Spread::Single, Spread::PerCore), 2, 2, 2, 10);
}

#[test]
fn one_lock_loses_nothing_in_any_order() {
    in_every_order(QueueLayout::SQ, 2, 2, 2, 10);
}

#[test]
fn a_tag_that_comes_free_goes_to_who_has_waited_longest() {
    let mut world = World::new(SHARED_HARDWARE, 3, 8, 1);
    let submit = |world: &mut World, worker: usize, tag| world.ports[worker].submit(command(worker, tag)).is_ok();
    assert!(submit(&mut world, 0, 0));
    world.ports[0].ring_doorbell(0);
    assert!(!submit(&mut world, 2, 0) && !submit(&mut world, 1, 0), "in this order");
    let reaped_by = |world: &mut World, worker: usize| {
        world.device_step(0);
        let mut out = Vec::new();
        world.ports[worker].reap(0, &mut out);
        (out.len(), std::mem::take(&mut *world.kicks.lock().unwrap()).last().map(|hctx| hctx.0))
    };
    assert_eq!(reaped_by(&mut world, 0), (1, Some(2)));
    assert!(!submit(&mut world, 0, 1), "it is kept for 2");
    assert!(!submit(&mut world, 1, 0), "and 1 comes after 2");
    assert!(submit(&mut world, 2, 0));
    world.ports[2].ring_doorbell(0);
    assert_eq!(reaped_by(&mut world, 2), (1, Some(1)));
}

#[test]
fn an_end_of_an_earlier_use_of_a_tag_is_nobodys() {
    let mut world = World::new(SHARED_HARDWARE, 2, 8, 1);
    let ends = |world: &mut World, worker: usize, again: bool| {
        let Told { inside, .. } = &world.device[0];
        let mut queue = inside.lock().unwrap();
        let first = queue.running.pop_front().unwrap();
        let (tag, generation) = (first.tag, first.generation);
        queue.ended.push_back(first.ended(Status::Ok));
        if again {
            queue.ended.push_back(Reaped { generation, ..Command::new(tag, Op::Flush, 0, 0, None).ended(Status::Io) });
        }
        drop(queue);
        (world.device[0].interrupt)(HctxId(0));
        let mut out = Vec::new();
        world.ports[worker].reap(0, &mut out);
        out.iter().map(|reaped| (reaped.tag, reaped.generation, reaped.status)).collect::<Vec<_>>()
    };
    for (worker, generation) in [(0, 1), (1, 7), (0, 3)] {
        world.ports[worker].submit(Command { generation, ..command(worker, 5) }).unwrap();
        world.ports[worker].ring_doorbell(0);
        assert_eq!(ends(&mut world, worker, true), [(Tag(5), generation, Status::Ok)], "once, under its own names");
    }
}

#[test]
fn a_worker_that_goes_away_leaves_its_tag_to_the_next() {
    let mut world = World::new(SHARED_HARDWARE, 3, 8, 1);
    world.ports[0].submit(command(0, 0)).unwrap();
    world.ports[0].ring_doorbell(0);
    assert!(world.ports[1].submit(command(1, 0)).is_err() && world.ports[2].submit(command(2, 0)).is_err());
    world.device_step(0);
    world.ports[0].reap(0, &mut Vec::new());
    world.kicks.lock().unwrap().clear();
    drop(world.ports.remove(1));
    assert_eq!(*world.kicks.lock().unwrap(), [HctxId(2)]);
    assert!(world.ports[1].submit(command(2, 0)).is_ok());
}

#[test]
fn a_worker_that_goes_away_while_it_waits_is_passed_over() {
    let mut world = World::new(SHARED_HARDWARE, 4, 8, 1);
    world.ports[0].submit(command(0, 0)).unwrap();
    world.ports[0].ring_doorbell(0);
    // 1, 2 and 3 wait, in this order; 2 goes.
    assert!((1..4).all(|worker| world.ports[worker].submit(command(worker, 0)).is_err()));
    drop(world.ports.remove(2));
    let next = |world: &mut World, at: usize| {
        world.device_step(0);
        world.kicks.lock().unwrap().clear();
        world.ports[at].reap(0, &mut Vec::new());
        world.kicks.lock().unwrap().last().copied()
    };
    assert_eq!(next(&mut world, 0), Some(HctxId(1)));
    world.ports[1].submit(command(1, 0)).unwrap();
    world.ports[1].ring_doorbell(0);
    assert_eq!(next(&mut world, 1), Some(HctxId(3)));
    assert!(world.ports[2].submit(command(3, 0)).is_ok());
}

#[test]
fn a_depth_that_the_device_has_is_taken_and_one_more_is_refused() {
    // 64 deep is all that it has.
    let device = SlowDevice::new(6);
    let topology = Topology::flat(2);
    for (depth, fits) in [(1, true), (64, true), (65, false)] {
        assert_eq!(QueueMap::new(&QueueLayout::default(), &topology, &device, depth).is_ok(), fits, "{depth}");
        assert_eq!(QueueMap::of_sets(&QueueLayout::default(), &topology, &device, depth).is_ok(), fits, "{depth}");
    }
    let map = QueueMap::new(&QueueLayout::default(), &topology, &device, 1).unwrap();
    assert_eq!(
        [0, 1].map(|worker| (map.software_of(HctxId(worker)), map.hardware_of(HctxId(worker)))),
        [(0, 0), (1, 1)]
    );
}

#[test]
fn workers_that_share_a_set_lose_nothing_in_any_order() {
    // One tag of each class, and four commands of three classes each: each class waits for tags by itself.
    in_every_order_of(|| World::of_sets(1, 2, 4, 1), 4, 9);
    in_every_order_of(|| World::of_sets(1, 3, 4, 1), 4, 7);
    // Two sets for three workers.
    in_every_order_of(|| World::of_sets(2, 3, 3, 1), 3, 8);
}

#[test]
fn a_class_without_tags_keeps_no_other_class_waiting() {
    let mut world = World::of_sets(1, 3, 8, 2);
    let give = |world: &mut World, worker: usize, tags: &[u16]| {
        tags.iter().for_each(|&tag| world.ports[worker].submit(command(worker, tag)).unwrap());
        world.ports[worker].ring_doorbell(0);
    };
    let running = |world: &World| {
        let inside = world.device[0].inside.lock().unwrap();
        QueueClass::ALL.map(|class| inside.running.iter().filter(|command| command.class == class).count())
    };
    let (high, low) = ([0, 3], [2, 5, 8, 11]);
    give(&mut world, 0, &low);
    give(&mut world, 1, &low);
    assert_eq!(running(&world), [0, 0, 2], "six wait for a tag of theirs");
    give(&mut world, 2, &high);
    give(&mut world, 1, &[1]);
    assert_eq!(running(&world), [2, 1, 2], "the others pass them");
    // Everything but the low class ends, a few times over; the low class still holds back only its own.
    for round in 0..5 {
        let ended = {
            let mut inside = world.device[0].inside.lock().unwrap();
            let all = std::mem::take(&mut inside.running);
            let (low, others): (VecDeque<_>, VecDeque<_>) =
                all.into_iter().partition(|command| command.class == QueueClass::Low);
            inside.running = low;
            let count = others.len();
            inside.ended.extend(others.into_iter().map(|command| command.ended(Status::Ok)));
            count
        };
        assert!(ended >= 2, "round {round}");
        (world.device[0].interrupt)(HctxId(0));
        let mut out = Vec::new();
        world.ports[2].reap(0, &mut out);
        assert_eq!(out.len(), 2, "round {round}: both of worker 2");
        give(&mut world, 2, &high);
        assert_eq!(running(&world)[0], 2, "round {round}: at once");
    }
    // And each that waited is dispatched in its turn, the first worker's first.
    let mut whose = Vec::new();
    while running(&world)[2] > 0 {
        let ended = {
            let mut inside = world.device[0].inside.lock().unwrap();
            let at = inside.running.iter().position(|command| command.class == QueueClass::Low).unwrap();
            inside.running.remove(at).unwrap()
        };
        whose.push(ended.buffer.as_ref().unwrap().as_slice()[0]);
        world.device[0].inside.lock().unwrap().ended.push_back(ended.ended(Status::Ok));
        (world.device[0].interrupt)(HctxId(0));
        world.ports[2].reap(0, &mut Vec::new());
    }
    assert_eq!(whose, [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn weights_of_the_classes_reach_the_device_over_a_shared_set() {
    let mut world = World::of_sets(1, 2, 1, 1);
    let weights = ClassWeights { high: 16, medium: 4, low: 1 };
    assert!(world.ports[1].set_class_weights(weights, 0));
    assert_eq!(world.device[0].inside.lock().unwrap().weights, Some(weights));
    let mut plain = World::new(SHARED_HARDWARE, 2, 1, 1);
    assert!(!plain.ports[0].set_class_weights(weights, 0), "no sets");
}
