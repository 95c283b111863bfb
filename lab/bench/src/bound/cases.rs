//! The named workloads of `mqfq-lab bench bound`: the table `cases.toml`, and machines drawn by chance.

use super::adversary::{Scene, Side, is_late};
use super::history::History;
use super::threads::{self, ThreadsPlan};
use super::workload::{self, Demand, DeviceOrder, End, FlowPlan, Late, Pace, Plan, Sizes, Windows};
use crate::contender::Form;
use mqfq_blk::random::Random;
use mqfq_policies::MQFQ_SERIAL;
use mqfq_sched::flow::TAG_GRAIN;
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::vtime::{VSpan, VTime};
use serde::Deserialize;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The forms in which each case is played: the paper's, and the one that ships.
pub const FORMS: [Form; 2] = [Form::Faithful, Form::AllThree];

/// Where a case's histories come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// By seeded chance.
    Generated(Plan),
    /// By hand.
    ByHand(PolicyOptions, Scene, [Side; 2]),
    /// By real threads: the seed does not determine it.
    Threads(ThreadsPlan),
    /// So many small machines, each with options, tenants and order of its own; and with costs that are known at the
    /// end.
    RandomMachines(PolicyKind, u64, Option<Late>),
}

/// A named workload.
#[derive(Clone, Debug)]
pub struct Case {
    /// Short name.
    pub name: String,
    /// Its load, in one line.
    pub description: String,
    /// Where its histories come from.
    pub source: Source,
}

/// A history and its options.
pub struct Played {
    /// The options.
    pub options: PolicyOptions,
    /// Hctxs of the machine.
    pub hctxs: usize,
    /// Requests of a flow, for each of its hctxs, that threads may have had half done at any moment.
    pub under_way: u32,
    /// Costs are known at the end.
    pub is_late: bool,
    /// Events of the flows.
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
            Ok::<Played, String>(Played {
                options: plan.options,
                hctxs,
                under_way: 0,
                is_late: plan.late.is_some(),
                history,
            })
        };
        match &self.source {
            Source::Generated(plan) => {
                let end = match plan.end {
                    End::Dispatches(dispatches) => End::Dispatches(dispatches * scale),
                    End::CompletedBytes(bytes) => End::CompletedBytes(bytes * scale),
                };
                let options = form.of(plan.options, plan.topology.iter().product());
                let options = if plan.late.is_some() { without_leases(options) } else { options };
                let plan = Plan { options, end, ..plan.clone() };
                look(&run(&plan, seed)?);
            }
            Source::ByHand(options, scene, sides) => {
                let is_late = is_late(sides);
                let options = form.of(*options, 2);
                let options = if is_late { without_leases(options) } else { options };
                let history = scene.play(&options, *sides, ROUNDS * scale).map_err(named)?;
                look(&Played { options, hctxs: 2, under_way: 0, is_late, history });
            }
            Source::Threads(plan) => {
                let options = form.of(plan.options, plan.workers);
                let plan = ThreadsPlan { options, dispatches: plan.dispatches * scale, ..plan.clone() };
                let history = threads::run(&plan, seed).map_err(named)?;
                let (options, hctxs, under_way) = (plan.options, plan.workers, threads::UNDER_WAY);
                look(&Played { options, hctxs, under_way, is_late: false, history });
            }
            Source::RandomMachines(kind, count, late) => {
                let mut random = Random::new(seed);
                for _ in 0..count * scale {
                    let mut plan = random_plan(&mut random, *kind);
                    let seed = random.next_u64();
                    if form != Form::Faithful {
                        relax_somehow(&mut Random::new(!seed), &mut plan.options);
                    }
                    if late.is_some() {
                        (plan.late, plan.options) = (*late, without_leases(plan.options));
                    }
                    look(&run(&plan, seed)?);
                }
            }
        }
        Ok(())
    }
}

/// A scheduler that charges late has no leases.
fn without_leases(options: PolicyOptions) -> PolicyOptions {
    PolicyOptions { lease: VSpan(0), ..options }
}

/// Rounds of a scene.
const ROUNDS: u64 = 12;

/// A row of the table.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Row {
    name: String,
    description: String,
    /// D.
    depth: u32,
    /// T.
    window_kib: u64,
    /// T begins as it is, which is the largest, and becomes a sixteenth of it at least.
    changes: bool,
    /// D counts units of so many bytes.
    unit_bytes: Option<u32>,
    /// Under `mqfq-serial`.
    serial: bool,
    /// Virtual time begins so long before its wrap.
    before_wrap: Option<u64>,
    /// By hand, with these two flows.
    scene: Option<Scene>,
    sides: Option<[Side; 2]>,
    /// By real threads: weight, bytes and hctxs of each flow.
    threads: Vec<(u64, u64, Vec<u16>)>,
    /// Otherwise generated: sockets, cores of each, hctxs of each core.
    topology: [usize; 3],
    /// Flows. The next four lists repeat over them.
    flows: usize,
    weights: Vec<u64>,
    /// Smallest and largest request.
    sizes: Vec<(u64, u64)>,
    on: Vec<On>,
    demand: Vec<Demand>,
    /// Each request has one of the two sizes.
    either: bool,
    device: DeviceOrder,
    device_queue_depth: Option<usize>,
    pace: Pace,
    dispatches: u64,
    /// Costs are wrong up to so many times, and corrected at the end.
    wrong_by: Option<u64>,
    /// Steps per request that is withdrawn.
    steps_per_withdrawal: Option<u64>,
    /// Steps until a worker goes away or comes back.
    steps_per_absence: Option<u64>,
}

/// Hctxs of flow n.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum On {
    /// Hctx n, modulo their number.
    One,
    /// Hctx n and another one.
    Two,
    All,
}

impl Default for Row {
    fn default() -> Row {
        Row {
            name: String::new(),
            description: String::new(),
            depth: 64,
            window_kib: 64,
            changes: false,
            unit_bytes: None,
            serial: false,
            before_wrap: None,
            scene: None,
            sides: None,
            threads: Vec::new(),
            topology: [1, 4, 1],
            flows: 0,
            weights: vec![100],
            // The sizes that the project promises to serve well.
            sizes: vec![(512, 4 * MIB)],
            on: vec![On::One],
            demand: vec![Demand::Saturated(3)],
            either: false,
            device: DeviceOrder::Random,
            device_queue_depth: None,
            pace: Pace::Random,
            dispatches: 200_000,
            wrong_by: None,
            steps_per_withdrawal: None,
            steps_per_absence: None,
        }
    }
}

impl Row {
    fn case(self) -> Case {
        let kind = if self.serial { MQFQ_SERIAL } else { PolicyKind::Mqfq };
        let window = VSpan::from_bytes(self.window_kib * KIB);
        let least = self.changes.then_some(VSpan(window.0 / 16));
        let plain = PolicyOptions::new(kind);
        let options = PolicyOptions {
            depth: self.depth,
            window,
            window_least: least.or(plain.window_least),
            token_unit_bytes: self.unit_bytes.or(plain.token_unit_bytes),
            start: self.before_wrap.map_or(plain.start, |ahead| VTime::from_raw(u64::MAX - ahead)),
            ..plain
        };
        let source = match (self.scene.zip(self.sides), self.threads.is_empty()) {
            (Some((scene, sides)), _) => Source::ByHand(options, scene, sides),
            (None, false) => {
                Source::Threads(ThreadsPlan { options, workers: 4, flows: self.threads, dispatches: 100_000 })
            }
            (None, true) => Source::Generated(Plan {
                options,
                topology: self.topology,
                flows: (0..self.flows).map(|n| self.flow(n)).collect(),
                device: self.device,
                device_queue_depth: self.device_queue_depth,
                pace: self.pace,
                windows: least.map(|least| Windows { least, doublings: 4, steps: 300 }),
                late: self.late(),
                end: End::Dispatches(self.dispatches),
            }),
        };
        Case { name: self.name, description: self.description, source }
    }

    fn late(&self) -> Option<Late> {
        let Row { wrong_by, steps_per_withdrawal, steps_per_absence, .. } = *self;
        let is_late = wrong_by.or(steps_per_withdrawal).or(steps_per_absence).is_some();
        let wrong_by = wrong_by.unwrap_or(1);
        is_late.then_some(Late { wrong_by, steps_per_withdrawal, steps_per_absence, is_told: true })
    }

    fn flow(&self, n: usize) -> FlowPlan {
        fn of<T: Copy>(list: &[T], n: usize) -> T {
            list[n % list.len()]
        }
        let hctxs: usize = self.topology.iter().product();
        let one = (n % hctxs) as u16;
        FlowPlan {
            weight: of(&self.weights, n),
            sizes: match of(&self.sizes, n) {
                (least, most) if least == most => Sizes::One(least),
                (least, most) if self.either => Sizes::Of(vec![least, most].leak()),
                (least, most) => Sizes::Between(least, most),
            },
            hctxs: match of(&self.on, n) {
                On::One => vec![one],
                On::Two => vec![one, ((n + 1 + n / hctxs % (hctxs - 1)) % hctxs) as u16],
                On::All => (0..hctxs as u16).collect(),
            },
            demand: of(&self.demand, n),
        }
    }
}

/// All cases, in the order in which they are shown.
///
/// # Panics
/// Never: a test reads the table.
pub fn cases() -> Vec<Case> {
    #[derive(Deserialize)]
    struct Rows {
        case: Vec<Row>,
    }
    let rows: Rows = toml::from_str(include_str!("cases.toml")).expect("the table is in order");
    let mut cases: Vec<Case> = rows.case.into_iter().map(Row::case).collect();
    let (steps_per_withdrawal, steps_per_absence) = (Some(10), Some(40));
    let late = Some(Late { wrong_by: 8, steps_per_withdrawal, steps_per_absence, is_told: true });
    for (name, kind, late) in [
        ("random machines", PolicyKind::Mqfq, None),
        ("random machines, serial", MQFQ_SERIAL, None),
        ("random machines, late", PolicyKind::Mqfq, late),
    ] {
        let description = match late {
            None => "small machines with options, flows and orders drawn by chance; also close to the wrap",
            Some(_) => "the same with costs wrong up to 8 times, withdrawals, and workers that come and go",
        };
        let source = Source::RandomMachines(kind, 1500, late);
        cases.push(Case { name: name.into(), description: description.into(), source });
    }
    cases
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
                    Sizes::Between(512, 4 * MIB),
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
        late: None,
        end: End::Dispatches(400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_one_kind_of_case() {
        let all = cases();
        let count = |is: fn(&Source) -> bool| all.iter().filter(|case| is(&case.source)).count();
        assert_eq!(count(|source| matches!(source, Source::ByHand(..))), 9);
        assert_eq!(count(|source| matches!(source, Source::Threads(_))), 2);
        assert!(all.iter().all(|case| !matches!(&case.source, Source::Generated(plan) if plan.flows.len() < 2)));
    }
}
