//! `mqfq-lab bench bound`, shorter: the bounds hold, a history that is unfair is caught, and the paper's Theorem 1
//! fails where it is known to fail.

use mqfq_bench::bound::adversary::{Scene, Side};
use mqfq_bench::bound::cases::{Case, Played, Source, cases};
use mqfq_bench::bound::history::{Event, History};
use mqfq_bench::bound::judge::Verdict;
use mqfq_bench::bound::limits::Limits;
use mqfq_bench::bound::workload::{self, Demand, DeviceOrder, End, FlowPlan, Late, Pace, Plan, Sizes};
use mqfq_bench::bound::{self, BoundOptions, limits_of, shares};
use mqfq_bench::contender::Form;
use mqfq_bench::options::defaults;
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::vtime::VSpan;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn mqfq(depth: u32, window_bytes: u64) -> PolicyOptions {
    PolicyOptions { depth, window: VSpan::from_bytes(window_bytes), ..PolicyOptions::new(PolicyKind::Mqfq) }
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case is called {name}"))
}

/// The case with histories of a few thousand dispatches, or a few dozen machines.
fn shortened(case: Case) -> Case {
    let source = match case.source {
        Source::Generated(plan) => Source::Generated(Plan { end: End::Dispatches(1_500), ..plan }),
        Source::Threads(plan) => Source::Threads(mqfq_bench::bound::threads::ThreadsPlan { dispatches: 2_000, ..plan }),
        Source::RandomMachines(kind, _, late) => Source::RandomMachines(kind, 30, late),
        by_hand @ Source::ByHand(..) => by_hand,
    };
    Case { source, ..case }
}

fn verdict(case: &Case, form: Form, seed: u64) -> Verdict {
    let mut verdict = Verdict::default();
    let look = |played: &Played| verdict.merge(&Verdict::of(&played.history, &limits_of(played)));
    case.play(form, seed, 1, look).expect("the scheduler does not stand still");
    verdict
}

#[test]
fn i6_no_named_case_breaks_a_bound_over_any_interval() {
    for case in cases().into_iter().map(shortened) {
        // A thousand flows are half a million pairs: in release, by the command.
        if matches!(&case.source, Source::Generated(plan) if plan.flows.len() > 100) {
            continue;
        }
        for (form, seed) in [(Form::Faithful, 0), (Form::AllThree, 1)] {
            let verdict = verdict(&case, form, seed);
            assert_eq!(verdict.broken(), [""; 0], "{}, {form:?}, seed {seed}: {verdict:?}", case.name);
            assert!(verdict.intervals > 0, "{}: no two flows were ever backlogged together", case.name);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_histories() {
    for name in ["closed loops", "come and go", "random machines"] {
        let case = shortened(case(name));
        let verdict = |seed| verdict(&case, Form::AllThree, seed);
        assert_eq!(verdict(7), verdict(7));
        assert_ne!(verdict(7), verdict(8));
    }
}

#[test]
fn the_bounds_are_nearly_reached() {
    // One KiB of dispatched service beyond what these come to would be a breach: the bounds cannot be much smaller.
    let dispatched = verdict(&case("ahead, then behind"), Form::Faithful, 1).dispatched.expect("two flows");
    assert_eq!(dispatched.limit_bytes - dispatched.unfairness_bytes, 1.0, "all but the byte for the grain of tags");
    let tight = verdict(&case("device full of each, D=1024"), Form::Faithful, 1).tight.expect("two flows");
    assert!(tight.value() > 0.998, "{tight:?}");
}

#[test]
fn theorem_1_does_not_hold_for_completed_service() {
    // D = 1, T = 0, equal weights. f has two requests of 1 MiB and more, the first goes: virtual time, the smallest
    // start tag that waits, is now 1 MiB. m's first request, of 512 bytes, arrives there too: the tags are level, and
    // of two hctxs either may be asked first. f's is. From m's arrival on f completes 2 MiB and m nothing. Theorem 1
    // says 1 MiB + 512 bytes. In SFQ virtual time is the start tag of the request in service, 0, and m would go first.
    let side = |bytes| Side { weight: 100, bytes, last_bytes: bytes, announced: None };
    let history = Scene::LevelWithTheNext.play(&mqfq(1, 0), [side(MIB), side(512)], 1).unwrap();
    let verdict = Verdict::of(&history, &Limits::new(&mqfq(1, 0), &history.flows));
    let theorem_1 = verdict.theorem_1.expect("D is 1");
    assert!(theorem_1.is_exceeded());
    assert_eq!((theorem_1.unfairness_bytes, theorem_1.limit_bytes), (2.0 * MIB as f64, (MIB + 512 + 1) as f64));
    // The theorem's claim about service dispatched, and the bounds of ours and of Theorem 2, hold.
    assert_eq!(verdict.broken(), [""; 0]);
    // It is about ties in no way: with a window, f may go first also if it starts later.
    let history = Scene::LevelWithTheNext.play(&mqfq(1, 4 * KIB), [side(MIB), side(512)], 1).unwrap();
    let verdict = Verdict::of(&history, &Limits::new(&mqfq(1, 4 * KIB), &history.flows));
    assert!(verdict.theorem_1.expect("D is 1").is_exceeded());
}

#[test]
fn leases_need_their_term() {
    // Histories of queues that lease, against the bounds of queues that do not.
    let Source::RandomMachines(kind, ..) = case("random machines").source else { panic!("random machines") };
    let case = Case { source: Source::RandomMachines(kind, 300, None), ..case("random machines") };
    let (mut with, mut without) = (Verdict::default(), Verdict::default());
    let look = |played: &Played| {
        let exact = PolicyOptions { lease: VSpan(0), ..played.options };
        with.merge(&Verdict::of(&played.history, &limits_of(played)));
        without.merge(&Verdict::of(&played.history, &Limits::new(&exact, &played.history.flows)));
    };
    case.play(Form::AllThree, 1, 1, look).unwrap();
    assert_eq!(with.broken(), [""; 0]);
    assert_eq!(without.broken(), ["the bound on service dispatched"]);
}

#[test]
fn costs_known_at_the_end_need_their_term() {
    // D = 64: in each direction 64 KiB on each place of the device but one, which the scheduler took for a byte.
    let with = verdict(&case("device full of each, late"), Form::AllThree, 1).dispatched.expect("two flows");
    assert_eq!(with.unfairness_bytes, (2 * 63 * 64 * KIB) as f64);
    case("device full of each, late")
        .play(Form::AllThree, 1, 1, |played| {
            let exact = Verdict::of(&played.history, &Limits::new(&played.options, &played.history.flows));
            assert_eq!(exact.broken(), ["the bound on service dispatched"]);
        })
        .unwrap();
}

#[test]
fn a_correction_or_a_withdrawal_that_is_forgotten_is_noticed() {
    let flow = |hctx, bytes| FlowPlan {
        weight: 100,
        sizes: Sizes::One(bytes),
        hctxs: vec![hctx],
        demand: Demand::Saturated(3),
    };
    let wrong = Late { wrong_by: 8, steps_per_withdrawal: None, steps_per_absence: None, is_told: true };
    let withdrawn = Late { wrong_by: 1, steps_per_withdrawal: Some(3), ..wrong };
    for late in [wrong, withdrawn] {
        let broken = |is_told| {
            let options = mqfq(4, 64 * KIB);
            let plan = Plan {
                options,
                topology: [1, 2, 1],
                // The second flow loses more by withdrawals.
                flows: vec![flow(0, 4 * KIB), flow(1, 16 * KIB)],
                device: DeviceOrder::Oldest,
                device_queue_depth: None,
                windows: None,
                late: Some(Late { is_told, ..late }),
                pace: Pace::Random,
                end: End::Dispatches(2_000),
            };
            let history = workload::run(&plan, 1).unwrap();
            Verdict::of(&history, &Limits::new(&options, &history.flows).charged_late()).broken()
        };
        assert_eq!(broken(true), [""; 0], "{late:?}");
        assert_eq!(broken(false)[..2], ["the bound on service dispatched", "the tight bound"], "{late:?}");
    }
}

#[test]
fn one_request_dispatched_too_early_is_noticed() {
    // Where one flow has got all that the bound allows and the other is next, the two dispatches change places.
    let Source::ByHand(options, scene, sides) = case("ahead, then behind").source else { panic!("made by hand") };
    let mut history = scene.play(&options, sides, 4).unwrap();
    let judge = |history: &History| Verdict::of(history, &Limits::new(&options, &history.flows)).broken();
    assert_eq!(judge(&history), [""; 0]);
    let dispatches: Vec<(usize, u32)> = history
        .events
        .iter()
        .enumerate()
        .filter_map(|(at, event)| match event {
            Event::Dispatched { flow, .. } => Some((at, *flow)),
            _ => None,
        })
        .collect();
    // The third change of hands: before it, a flow ran from T behind to T ahead.
    let mut changes = dispatches.windows(2).filter(|pair| pair[0].1 != pair[1].1);
    let first_of_next = changes.nth(1).expect("four rounds")[1];
    let later = dispatches.iter().rev().find(|(_, flow)| *flow != first_of_next.1).expect("both are dispatched");
    history.events.swap(first_of_next.0, later.0);
    assert_eq!(judge(&history), ["the bound on service dispatched"]);
}

#[test]
fn a_scheduler_that_is_unfair_is_noticed() {
    // `none` serves 4 MiB against 512 bytes in turn. The bounds are those of D = 4 and T = 64 KiB.
    let options = mqfq(4, 64 * KIB);
    let flow = |hctx, bytes| FlowPlan {
        weight: 100,
        sizes: Sizes::One(bytes),
        hctxs: vec![hctx],
        demand: Demand::Saturated(3),
    };
    let plan = Plan {
        options: PolicyOptions { kind: PolicyKind::None, ..options },
        topology: [1, 2, 1],
        flows: vec![flow(0, 512), flow(1, 4 * MIB)],
        device: DeviceOrder::Oldest,
        device_queue_depth: Some(2),
        windows: None,
        late: None,
        pace: Pace::Random,
        end: End::Dispatches(2_000),
    };
    let history = workload::run(&plan, 1).unwrap();
    let verdict = Verdict::of(&history, &Limits::new(&options, &history.flows));
    assert_eq!(verdict.broken(), ["the bound on service dispatched", "the tight bound", "Theorem 2"]);
}

#[test]
fn saturated_flows_share_a_second_by_weight() {
    // Two flows each; the whole list is the command's.
    for case in shares::cases().into_iter().take(4) {
        // A tenth of the second: ten times the deviation is allowed.
        let end = End::CompletedBytes(shares::WARM_UP_BYTES + shares::BYTES_PER_S / 10);
        let tenth = Plan { end, ..case.in_form(Form::AllThree) };
        let deviation = shares::measure(&tenth, PolicyKind::Mqfq, 1).unwrap().largest();
        assert!(deviation <= 10.0 * bound::SHARES_TOLERANCE, "{}: {deviation}", case.name);
        if case.name == "weights 1:3" {
            let none = shares::measure(&tenth, PolicyKind::None, 1).unwrap().largest();
            assert!(none > 0.5, "weights mean nothing to none, which is off by {none}");
        }
    }
}

#[test]
fn the_command_reports_each_case_and_draws_it() {
    let folder = std::env::temp_dir().join(format!("mqfq-bench-{}-bound", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let options = BoundOptions { out: Some(folder.clone()), case: Some("device full of each".into()), ..defaults() };
    let report = bound::measure(&options).unwrap();
    let picture = std::fs::read_to_string(report.svg_path.as_deref().expect("a folder was named")).unwrap();
    std::fs::remove_dir_all(&folder).expect("ours");
    assert!(picture.contains("device full of each, D=1024") && picture.contains("no two points may lie farther apart"));
    assert_eq!(report.broken(), [""; 0]);

    let json = serde_json::to_value(&report).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5 * 2, "five cases in two forms");
    for row in rows {
        assert!(row["case"].as_str().unwrap().starts_with("device full of each"));
        assert!(row["intervals"].as_u64().unwrap() > 1000);
        for share in ["largest_share_of_bound", "largest_share_of_tight_bound", "largest_share_of_dispatch_bound"] {
            assert!((0.0..=1.0).contains(&row[share].as_f64().unwrap()), "{share}: {row}");
        }
        assert!(row["largest_share_of_theorem_1"].is_null(), "D is not 1");
    }
    assert_eq!(json["seed"], 1);

    let nothing = BoundOptions { case: Some("no such".into()), ..options };
    assert_eq!(bound::measure(&nothing).unwrap_err(), "no case begins with \"no such\"");
}
