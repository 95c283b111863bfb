//! The named workloads of `mqfq-lab bench bound`.

use super::adversary::{Scene, Side};
use super::history::History;
use super::threads::{self, ThreadsPlan};
use super::workload::{self, Demand, DeviceOrder, End, FlowPlan, Pace, Plan, Sizes, Windows};
use crate::contender::Form;
use mqfq_nvme::random::Random;
use mqfq_sched::flow::TAG_GRAIN;
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::vtime::{VSpan, VTime};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The forms in which each case is played: the paper's, and the one that ships.
pub const FORMS: [Form; 2] = [Form::Faithful, Form::AllThree];

/// The sizes that the project promises to serve well: 512 B to 4 MiB.
const ALL_SIZES: Sizes = Sizes::Between(512, 4 * MIB);

/// Where a case's histories come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// By seeded chance.
    Generated(Plan),
    /// By hand.
    ByHand(PolicyOptions, Scene, [Side; 2]),
    /// By real threads: the seed does not determine it.
    Threads(ThreadsPlan),
    /// So many small machines, each with options, tenants and order of its own.
    RandomMachines(PolicyKind, u64),
}

/// A named workload.
#[derive(Clone, Debug)]
pub struct Case {
    /// Short name.
    pub name: &'static str,
    /// Who does what.
    pub description: &'static str,
    /// Where its histories come from.
    pub source: Source,
}

/// A history, and the options under which it came about.
pub struct Played {
    /// The options.
    pub options: PolicyOptions,
    /// Hctxs of the machine.
    pub hctxs: usize,
    /// Requests of a flow, for each of its hctxs, that threads may have had half done at any moment.
    pub under_way: u32,
    /// What happened.
    pub history: History,
}

impl Case {
    /// Makes the case's histories in one form, one after the other, and shows each to `look`. `scale` multiplies their
    /// length or number.
    ///
    /// # Errors
    /// One sentence: the scheduler stands still.
    pub fn play(&self, form: Form, seed: u64, scale: u64, mut look: impl FnMut(&Played)) -> Result<(), String> {
        let named = |error: String| format!("case {} with seed {seed}: {error}", self.name);
        let run = |plan: &Plan, seed: u64| {
            let history = workload::run(plan, seed).map_err(named)?;
            let hctxs = plan.topology.iter().product();
            Ok::<Played, String>(Played { options: plan.options, hctxs, under_way: 0, history })
        };
        match &self.source {
            Source::Generated(plan) => {
                let end = match plan.end {
                    End::Dispatches(dispatches) => End::Dispatches(dispatches * scale),
                    End::CompletedBytes(bytes) => End::CompletedBytes(bytes * scale),
                };
                let options = form.of(plan.options, plan.topology.iter().product());
                let plan = Plan { options, end, ..plan.clone() };
                look(&run(&plan, seed)?);
            }
            Source::ByHand(options, scene, sides) => {
                let options = form.of(*options, 2);
                let history = scene.play(&options, *sides, ROUNDS * scale).map_err(named)?;
                look(&Played { options, hctxs: 2, under_way: 0, history });
            }
            Source::Threads(plan) => {
                let options = form.of(plan.options, plan.workers);
                let plan = ThreadsPlan { options, dispatches: plan.dispatches * scale, ..plan.clone() };
                let history = threads::run(&plan, seed).map_err(named)?;
                let (options, hctxs, under_way) = (plan.options, plan.workers, threads::UNDER_WAY);
                look(&Played { options, hctxs, under_way, history });
            }
            Source::RandomMachines(kind, count) => {
                let mut random = Random::new(seed);
                for _ in 0..count * scale {
                    let mut plan = random_plan(&mut random, *kind);
                    let seed = random.next_u64();
                    if form != Form::Faithful {
                        relax_somehow(&mut Random::new(!seed), &mut plan.options);
                    }
                    look(&run(&plan, seed)?);
                }
            }
        }
        Ok(())
    }
}

/// Dispatches of a generated case.
const DISPATCHES: u64 = 200_000;

/// Rounds of a scene.
const ROUNDS: u64 = 12;

fn mqfq(depth: u32, window_bytes: u64) -> PolicyOptions {
    PolicyOptions { depth, window: VSpan::from_bytes(window_bytes), ..PolicyOptions::new(PolicyKind::Mqfq) }
}

/// `count` flows of weight 100, of which flow n submits at hctx `n mod hctxs` only.
fn flows(count: usize, hctxs: usize, sizes: Sizes, demand: Demand) -> Vec<FlowPlan> {
    (0..count).map(|n| FlowPlan { weight: 100, sizes, hctxs: vec![(n % hctxs) as u16], demand }).collect()
}

fn on_every_hctx(mut flows: Vec<FlowPlan>, hctxs: usize) -> Vec<FlowPlan> {
    for flow in &mut flows {
        flow.hctxs = (0..hctxs as u16).collect();
    }
    flows
}

fn weighted(mut flows: Vec<FlowPlan>, weights: &[u64]) -> Vec<FlowPlan> {
    for (flow, weight) in flows.iter_mut().zip(weights.iter().cycle()) {
        flow.weight = *weight;
    }
    flows
}

/// Flow n has the size n of the list, which repeats.
fn sized(mut flows: Vec<FlowPlan>, sizes: &[u64]) -> Vec<FlowPlan> {
    for (flow, bytes) in flows.iter_mut().zip(sizes.iter().cycle()) {
        flow.sizes = Sizes::One(*bytes);
    }
    flows
}

/// What most generated cases share: workers in any order, a device in any order, 200,000 dispatches.
fn plan(options: PolicyOptions, topology: [usize; 3], flows: Vec<FlowPlan>) -> Plan {
    Plan {
        options,
        topology,
        flows,
        device: DeviceOrder::Random,
        device_queue_depth: None,
        pace: Pace::Random,
        windows: None,
        end: End::Dispatches(DISPATCHES),
    }
}

/// The same with a T that begins as it is, which is the largest, and becomes a sixteenth of it at least.
fn that_changes(plan: Plan) -> Plan {
    let least = VSpan(plan.options.window.0 / 16);
    let options = PolicyOptions { window_least: Some(least), ..plan.options };
    Plan { options, windows: Some(Windows { least, doublings: 4, steps: 300 }), ..plan }
}

/// All cases, in the order in which they are shown.
pub fn cases() -> Vec<Case> {
    let mut cases = by_hand();
    cases.extend(few_flows());
    cases.extend(many_flows());
    cases.extend(threads());
    for (name, kind) in [("random machines", PolicyKind::Mqfq), ("random machines, serial", PolicyKind::MqfqSerial)] {
        let description = "small machines with options, flows and orders drawn by chance; also close to the wrap";
        cases.push(Case { name, description, source: Source::RandomMachines(kind, 1500) });
    }
    cases
}

fn by_hand() -> Vec<Case> {
    let side = |weight, bytes| Side { weight, bytes, last_bytes: bytes };
    let case = |name, description, options, scene, sides| Case {
        name,
        description,
        source: Source::ByHand(options, scene, sides),
    };
    let units = |options: PolicyOptions| PolicyOptions { token_unit_bytes: Some(4096), ..options };
    let equal = [side(100, 64 * KIB); 2];
    vec![
        case(
            "ahead, then behind",
            "by hand: one runs until it is throttled, then the other; T of 1 MiB",
            mqfq(64, MIB),
            Scene::AheadThenBehind,
            [side(100, 64 * KIB), side(300, 192 * KIB)],
        ),
        case(
            "ahead, then behind, 1:10000",
            "by hand: the same with weights 1 and 10000",
            mqfq(64, 64 * KIB),
            Scene::AheadThenBehind,
            [side(1, 512), side(10_000, 4 * MIB)],
        ),
        case(
            "device full of each, D=64",
            "by hand: the device holds D of the one, then D of the other; T of 0",
            mqfq(64, 0),
            Scene::DeviceFullOfEach,
            equal,
        ),
        case(
            "device full of each, T=1 MiB",
            "by hand: the same with a window",
            mqfq(64, MIB),
            Scene::DeviceFullOfEach,
            equal,
        ),
        case(
            "device full of each, D=1024",
            "by hand: the same with D of 1024",
            mqfq(1024, 64 * KIB),
            Scene::DeviceFullOfEach,
            equal,
        ),
        case(
            "device full of each, units",
            "by hand: D of 1024 units of 4 KiB, filled up by a request of 256 KiB",
            units(mqfq(1024, 0)),
            Scene::DeviceFullOfEach,
            [Side { weight: 100, bytes: 4 * KIB, last_bytes: 256 * KIB }; 2],
        ),
        case(
            "one request on the device",
            "by hand: D of 1, T of 0, equal requests",
            mqfq(1, 0),
            Scene::DeviceFullOfEach,
            equal,
        ),
        case(
            "level with the next",
            "by hand: D of 1, T of 0; a request arrives while a large one of the other is on the device",
            mqfq(1, 0),
            Scene::LevelWithTheNext,
            [side(100, MIB), side(100, 512)],
        ),
    ]
}

fn few_flows() -> Vec<Case> {
    let case = |name, description, plan| Case { name, description, source: Source::Generated(plan) };
    let small = Sizes::One(4 * KIB);
    let saturated = Demand::Saturated(3);
    let own = |count| flows(count, count, small, saturated);
    let mixed = |count, hctxs| flows(count, hctxs, ALL_SIZES, saturated);
    let units = |depth, unit| PolicyOptions { token_unit_bytes: Some(unit), ..mqfq(depth, 64 * KIB) };
    vec![
        case(
            "two flows",
            "4 KiB each on its own hctx; D of 64, T of 64 KiB",
            plan(mqfq(64, 64 * KIB), [1, 2, 1], own(2)),
        ),
        case("two flows, D=1, T=0", "the same, strictly in order", plan(mqfq(1, 0), [1, 2, 1], own(2))),
        case(
            "512 B against 4 MiB",
            "smallest against largest requests",
            plan(mqfq(64, 64 * KIB), [1, 2, 1], sized(own(2), &[512, 4 * MIB])),
        ),
        case("weights 1:10000", "4 KiB each", plan(mqfq(64, 64 * KIB), [1, 2, 1], weighted(own(2), &[1, 10_000]))),
        case(
            "weights 1:10000, T=0",
            "512 B of the light one against 4 MiB of the heavy one",
            plan(mqfq(8, 0), [1, 2, 1], sized(weighted(own(2), &[1, 10_000]), &[512, 4 * MIB])),
        ),
        case(
            "mixed sizes",
            "8 flows, each with 512 B to 4 MiB, weights 1 to 10000",
            plan(mqfq(64, 64 * KIB), [1, 4, 2], weighted(mixed(8, 8), &[1, 10, 100, 100, 300, 1000, 10_000])),
        ),
        case("one queue", "8 flows of mixed sizes on one hctx", plan(mqfq(64, 64 * KIB), [1, 1, 1], mixed(8, 1))),
        case(
            "every queue",
            "4 flows of mixed sizes, each on all of 16 hctxs of two sockets",
            plan(mqfq(64, 64 * KIB), [2, 4, 2], on_every_hctx(mixed(4, 16), 16)),
        ),
        case(
            "one queue against every queue",
            "4 KiB on one hctx against 4 KiB on 16",
            plan(mqfq(64, 64 * KIB), [2, 4, 2], {
                let mut flows = on_every_hctx(own(2), 16);
                flows[0].hctxs.truncate(1);
                flows
            }),
        ),
        case(
            "T=0, every queue",
            "strictly in order across two sockets",
            plan(mqfq(16, 0), [2, 2, 2], on_every_hctx(mixed(4, 8), 8)),
        ),
        case(
            "T that changes",
            "8 flows of mixed sizes; T is 16 KiB to 256 KiB and becomes another after about 300 steps",
            that_changes(plan(mqfq(64, 256 * KIB), [1, 4, 2], weighted(mixed(8, 8), &[100, 300, 1000]))),
        ),
        case(
            "T that changes, every queue",
            "the same with 4 flows on all of 16 hctxs of two sockets, which also lease",
            that_changes(plan(mqfq(256, 256 * KIB), [2, 4, 2], on_every_hctx(mixed(4, 16), 16))),
        ),
        case("T=16 MiB", "a window of many requests", plan(mqfq(64, 16 * MIB), [1, 4, 1], mixed(4, 4))),
        case("D=1024", "a device that takes a thousand", plan(mqfq(1024, 64 * KIB), [2, 4, 1], mixed(8, 8))),
        case("token units", "units of 4 KiB, D of 256 units", plan(units(256, 4096), [1, 4, 1], mixed(8, 4))),
        case(
            "token units, larger than D",
            "units of 512 B, D of 64 units: most requests take all of them",
            plan(units(64, 512), [1, 4, 1], mixed(8, 4)),
        ),
        case(
            "bursts",
            "8 flows that ask for up to 200 requests at once, then for nothing",
            plan(mqfq(64, 64 * KIB), [1, 4, 1], {
                flows(8, 4, ALL_SIZES, Demand::Bursts { requests_max: 200, steps: 800 })
            }),
        ),
        case(
            "come and go",
            "8 flows that are backlogged for a while and away for a while",
            plan(mqfq(64, 256 * KIB), [1, 4, 1], {
                let demand = Demand::ComesAndGoes { waiting: 4, steps: 500 };
                weighted(flows(8, 4, ALL_SIZES, demand), &[1, 100, 10_000])
            }),
        ),
        case(
            "closed loops",
            "depths of 1 to 32 under way: flows that are backlogged for moments only",
            plan(mqfq(16, 64 * KIB), [1, 4, 1], {
                let depths = [1, 2, 8, 32, 1, 2, 8, 32].into_iter();
                let mut flows = flows(8, 4, Sizes::Of(&[4 * KIB, 16 * KIB]), saturated);
                flows.iter_mut().zip(depths).for_each(|(flow, depth)| flow.demand = Demand::ClosedLoop(depth));
                on_every_hctx(flows, 4)
            }),
        ),
        case(
            "newest first",
            "a device that lets its oldest requests wait",
            Plan { device: DeviceOrder::Newest, ..plan(mqfq(64, 64 * KIB), [1, 4, 1], mixed(8, 4)) },
        ),
        case(
            "smallest first",
            "a device that lets its largest requests wait",
            Plan { device: DeviceOrder::Smallest, ..plan(mqfq(64, 64 * KIB), [1, 4, 1], mixed(8, 4)) },
        ),
        case(
            "one flow held back",
            "a device that finishes one flow's requests last",
            Plan { device: DeviceOrder::FlowZeroLast, ..plan(mqfq(64, 0), [1, 4, 1], own(4)) },
        ),
        case(
            "lazy workers",
            "half of the workers almost never get a turn",
            Plan { pace: Pace::Lazy, ..plan(mqfq(64, MIB), [1, 4, 1], own(4)) },
        ),
        case(
            "prompt workers, in order",
            "whoever is kicked runs at once, and the device works in order",
            Plan {
                pace: Pace::Prompt,
                device: DeviceOrder::Oldest,
                ..plan(mqfq(64, 64 * KIB), [2, 2, 1], mixed(8, 4))
            },
        ),
        case(
            "short device queues",
            "a device queue of 3 for each hctx, so that workers pause",
            Plan { device_queue_depth: Some(3), ..plan(mqfq(64, 64 * KIB), [1, 4, 1], mixed(8, 4)) },
        ),
        case(
            "virtual time wraps",
            "a flow of weight 1 with requests of 4 MiB, and a start just before the wrap",
            plan(
                PolicyOptions { start: VTime::from_raw(u64::MAX - (1 << 40)), ..mqfq(64, 64 * KIB) },
                [1, 4, 1],
                weighted(mixed(4, 4), &[1, 2, 100, 10_000]),
            ),
        ),
        case(
            "mixed sizes, serial",
            "the case mixed sizes under mqfq-serial",
            plan(
                PolicyOptions { kind: PolicyKind::MqfqSerial, ..mqfq(64, 64 * KIB) },
                [1, 4, 2],
                weighted(mixed(8, 8), &[1, 10, 100, 100, 300, 1000, 10_000]),
            ),
        ),
    ]
}

fn many_flows() -> Vec<Case> {
    let case = |name, description, plan| Case { name, description, source: Source::Generated(plan) };
    let weights = [1, 10, 100, 100, 100, 300, 1000, 10_000];
    // Each event touches a thousand pairs.
    let thousand = |plan: Plan| Plan { end: End::Dispatches(DISPATCHES / 4), ..plan };
    vec![
        case(
            "100 flows",
            "mixed sizes and weights on 16 hctxs of two sockets",
            plan(mqfq(64, 256 * KIB), [2, 8, 1], {
                weighted(flows(100, 16, ALL_SIZES, Demand::Saturated(3)), &weights)
            }),
        ),
        case(
            "1000 flows",
            "4 KiB each, on 16 hctxs of two sockets",
            thousand(plan(mqfq(64, 64 * KIB), [2, 8, 1], {
                flows(1000, 16, Sizes::One(4 * KIB), Demand::Saturated(2))
            })),
        ),
        case(
            "1000 flows that come and go",
            "mixed sizes and weights, each on two of 16 hctxs",
            thousand(plan(mqfq(256, MIB), [2, 4, 2], {
                let demand = Demand::ComesAndGoes { waiting: 2, steps: 20_000 };
                let mut flows = weighted(flows(1000, 16, ALL_SIZES, demand), &weights);
                for (n, flow) in flows.iter_mut().enumerate() {
                    flow.hctxs.push(((n + 1 + n / 16 % 15) % 16) as u16);
                }
                flows
            })),
        ),
    ]
}

fn threads() -> Vec<Case> {
    let case = |name, description, options, flows| Case {
        name,
        description,
        source: Source::Threads(ThreadsPlan { options, workers: 4, flows, dispatches: 100_000 }),
    };
    let every = || (0..4).collect::<Vec<u16>>();
    vec![
        case(
            "threads, own queues",
            "4 real threads, a flow of 4 KiB, 16 KiB, 64 KiB on each; weights 1:3",
            mqfq(16, 256 * KIB),
            [4, 16, 64, 4].iter().zip(0..).map(|(kib, n)| (100 + 200 * (n % 2), kib * KIB, vec![n as u16])).collect(),
        ),
        case(
            "threads, every queue",
            "4 real threads, 3 flows on all of them",
            mqfq(16, 64 * KIB),
            vec![(100, 4 * KIB, every()), (100, 64 * KIB, every()), (1000, 16 * KIB, every())],
        ),
    ]
}

/// A relaxed form that is allowed, and not the one that T would suggest.
fn relax_somehow(random: &mut Random, options: &mut PolicyOptions) {
    let half = options.window.0 / 2;
    if half > 0 {
        // 1, 2, 4 and so on up to T/2.
        options.quantum = VSpan(1 << random.below(u64::from(half.ilog2()) + 1));
        options.lease = VSpan(random.below(half + 1) / TAG_GRAIN.0 * TAG_GRAIN.0);
    }
    options.token_batch = 1 + random.below(64) as u32;
    options.token_share = random.below(8) as u32;
}

/// A small machine, a few flows and options, none of them usual.
fn random_plan(random: &mut Random, kind: PolicyKind) -> Plan {
    fn any<T: Copy>(random: &mut Random, items: &[T]) -> T {
        items[random.below(items.len() as u64) as usize]
    }
    let topology = any(random, &[[1, 1, 1], [1, 2, 1], [2, 1, 2], [2, 2, 2], [1, 11, 1]]);
    let hctxs: usize = topology.iter().product();
    let mut flows = Vec::new();
    for _ in 0..2 + random.below(5) {
        let mut own: Vec<u16> = (0..hctxs as u16).filter(|_| random.below(2) == 0).collect();
        if own.is_empty() {
            own.push(random.below(hctxs as u64) as u16);
        }
        let steps = 10 + random.below(200);
        flows.push(FlowPlan {
            weight: any(random, &[1, 7, 50, 100, 100, 300, 10_000]),
            sizes: any(
                random,
                &[
                    Sizes::One(512),
                    Sizes::One(4 * KIB),
                    Sizes::One(20_001),
                    Sizes::One(64 * KIB),
                    Sizes::Of(&[1, 4096, 4097]),
                    ALL_SIZES,
                ],
            ),
            hctxs: own,
            demand: any(
                random,
                &[
                    Demand::Saturated(1),
                    Demand::Saturated(3),
                    Demand::ComesAndGoes { waiting: 2, steps },
                    Demand::Bursts { requests_max: 20, steps },
                    Demand::ClosedLoop(4),
                ],
            ),
        });
    }
    let window = any(random, &[0, 1, 100, 4 * KIB * 1024, 64 * KIB * 1024, MIB * 1024]);
    Plan {
        options: PolicyOptions {
            depth: any(random, &[1, 1, 2, 3, 16, 40]),
            window: VSpan(window),
            token_unit_bytes: any(random, &[None, None, Some(4096), Some(512)]),
            start: VTime::from_raw(any(random, &[0, u64::MAX, u64::MAX - (1 << 32), (1 << 63) - (1 << 30), 12_345])),
            ..PolicyOptions::new(kind)
        },
        topology,
        flows,
        device: any(
            random,
            &[
                DeviceOrder::Oldest,
                DeviceOrder::Random,
                DeviceOrder::Newest,
                DeviceOrder::Smallest,
                DeviceOrder::FlowZeroLast,
            ],
        ),
        device_queue_depth: any(random, &[None, None, Some(1), Some(3)]),
        pace: any(random, &[Pace::Prompt, Pace::Random, Pace::Random, Pace::Lazy]),
        windows: None,
        end: End::Dispatches(400),
    }
}
