//! Generated histories of a device: the C controllers of D and T say what those of `sched` say, to the last bit.

use mqfq_elevator_agreement::controllers::{Controller, Findings, WindowRule};
use mqfq_sched::depth::{self, Reason, Sample, class_of};
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::vtime::VSpan;
use mqfq_sched::window_rule;
use mqfq_testing::random::{Random, for_seeds};
use std::cell::{Cell, RefCell};

const SEEDS: u64 = 240;
const STEPS: u32 = 2000;

/// A device whose work grows with D up to its knee, and its load.
struct Device {
    sample: Sample,
    /// Units that keep it busy.
    knee: u64,
    /// Time per unit at the knee, ns.
    unit_ns: u64,
    sizes: [u32; 2],
    /// Units that the tenants have in the system.
    demand: u64,
    noise: u64,
}

impl Device {
    fn new(random: &mut Random) -> Device {
        let mut device = Device { sample: Sample::default(), knee: 1, unit_ns: 1, sizes: [1; 2], demand: 1, noise: 1 };
        device.sample.device_unit_ns = random.of(&[0, u64::MAX - 1_000_000]);
        device.change(random);
        device
    }

    fn change(&mut self, random: &mut Random) {
        self.knee = random.of(&[1, 4, 8, 33, 64, 129, 700]);
        self.unit_ns = random.between(200, 50_000);
        self.sizes = [1, random.of(&[1, 1, 2, 5, 32, 33, 300])];
        self.demand = random.of(&[1, 16, 64, 1000, 5000]);
        self.noise = random.of(&[1, 20, 200, 600]);
    }

    /// A batch of requests completes under this D.
    fn run(&mut self, random: &mut Random, depth: u32) {
        let sample = &mut self.sample;
        let requests = random.between(0, 60);
        let large = u64::from(self.sizes[1]);
        // With debt, whole requests go.
        let out = u64::from(depth).div_ceil(large) * large;
        let (out, waits) = (out.min(self.demand.max(large)), self.demand > out);
        let mut units = 0;
        for _ in 0..requests {
            let size = random.of(&self.sizes);
            let work = &mut sample.work[class_of(size)];
            work.units = work.units.wrapping_add(size.into());
            work.requests += 1;
            units += u64::from(size);
        }
        let at_knee_ns = (units * self.unit_ns) * self.knee.max(out) / out.max(1);
        let elapsed_ns = at_knee_ns * (1000 + random.below(self.noise)) / 1000 + random.below(2);
        sample.now_ns += elapsed_ns;
        sample.device_unit_ns = sample.device_unit_ns.wrapping_add(out * elapsed_ns);
        sample.system_unit_ns = sample.system_unit_ns.wrapping_add(self.demand.max(out) * elapsed_ns);
        if waits && !random.chance(10) {
            sample.waiting_ns += elapsed_ns;
        }
        sample.silence_ns = if random.chance(40) { elapsed_ns * 40 } else { elapsed_ns };
        sample.out_units = out;
    }
}

fn of_sched(controller: &depth::Controller) -> Findings {
    let state = controller.state();
    Findings {
        depth: state.depth,
        chosen: state.chosen,
        reason: state.reason.name(),
        step: state.step,
        epoch: controller.epoch(),
        chosen_ns: state.chosen_ns,
        phases: state.phases,
    }
}

#[test]
fn the_depth_is_that_of_sched_after_every_sample_of_any_history() {
    let (phases, changes, reasons) = (Cell::new(0), Cell::new(0), RefCell::new(Vec::new()));
    for_seeds(SEEDS, |random| {
        let (start, most) = random.of(&[(1, 65_535), (8, 65_535), (128, 65_535), (4096, 65_535), (64, 64), (3, 200)]);
        let (mut ours, mut theirs) = (Controller::new(start, most), depth::Controller::new(start, most));
        let mut device = Device::new(random);
        let mut depth = start;
        let changes_in = random.of(&[30, 100, 300, 700]);
        for _ in 0..STEPS {
            device.run(random, depth);
            if random.chance(changes_in) {
                device.change(random);
            }
            theirs.step(&device.sample);
            let found = ours.step(&device.sample);
            assert_eq!(found, of_sched(&theirs));
            changes.set(changes.get() + u64::from(found.depth != depth));
            depth = found.depth;
            if !reasons.borrow().contains(&found.reason) {
                reasons.borrow_mut().push(found.reason);
            }
        }
        phases.set(phases.get() + theirs.state().phases);
    });
    // The histories go where the controller decides something.
    let seen = [Reason::Start, Reason::Quiet, Reason::Searching, Reason::Found].map(Reason::name);
    assert!(seen.iter().all(|name| reasons.borrow().contains(name)), "{reasons:?}");
    let (phases, changes) = (phases.get(), changes.get());
    assert!(phases > 5000 && changes > 1000, "{phases} phases, {changes} changes");
}

#[test]
fn the_window_is_that_of_sched_after_every_step() {
    for_seeds(SEEDS, |random| {
        let window = VSpan::from_bytes(random.of(&[1u64, 16, 17, 64, 255, 4096]) << 10);
        let options = PolicyOptions { window, token_unit_bytes: Some(4096), ..PolicyOptions::new(PolicyKind::Mqfq) };
        let (mut ours, mut theirs) = (WindowRule::new(window.bytes()), window_rule::WindowRule::new(&options, 1));
        let (mut depth, mut waiting) = (128, 4);
        for _ in 0..STEPS {
            if random.chance(50) {
                depth = random.of(&[1, 7, 64, 129, 4096, 65_535]);
                let most = random.of(&[2, 8, 40, 1025]);
                waiting = random.below(most) as u32;
            }
            // The kernel ends requests one by one: its workers are never behind.
            let seen = window_rule::Seen { waiting, completed: 1, reaps: 1 };
            assert_eq!(ours.step(depth, waiting), theirs.step(depth, seen, 0).bytes());
        }
    });
}
