//! A CPU scenario's TOML. docs/lab/scenarios.md has every key.
//!
//! Each refusal is one sentence with file, line, key, what is wrong and what is allowed.

use super::body::Waiting;
use super::profiles::{self, Parameters};
use super::scenario::{Costs, Pin, Program, Scenario};
use super::schedulers::{self, SchedulerKind};
use mqfq_config::{ConfigError, Section, Source};
use mqfq_cpu::scheduler::Machine;

/// Longest time of anything, ns: an hour.
const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// Most threads of one scenario.
const THREADS_MAX: u64 = 1 << 20;

/// Keys of `[machine]`; those from `costs` on are what things cost.
const MACHINE_KEYS: &[&str] = &[
    "cores",
    "sockets",
    "costs",
    "context-switch",
    "migration",
    "migration-other-socket",
    "double-lock",
    "scan",
    "wake",
    "interrupt",
];

/// Keys of a `[program.NAME]`.
const PROGRAM_KEYS: &[&str] = &["profile", "threads", "weight", "pin", "compute", "critical", "wait", "hand-off"];

const WAIT: &str = "\"block\", \"spin\", or \"spin \" and a duration (\"spin 10us\")";

/// The scenario says that it is one of CPU time, with the top-level key `kind`.
pub fn is_cpu(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("kind"))
}

impl Scenario {
    /// Reads `text`; `file` is its name.
    ///
    /// # Errors
    /// A key that is unknown, missing, of the wrong type, out of range or in contradiction to another.
    pub fn parse(file: &str, text: &str) -> Result<Scenario, ConfigError> {
        let source = Source::new(file, text);
        let root = source.parse()?;
        let root = Section::root(&source, root.get_ref(), &["kind", "run", "machine", "scheduler", "program"])?;
        root.require("kind", "cpu")?.choice(&["cpu"])?;
        let scheduler = schedulers::parse(&root)?;
        let (machine, costs) = machine(&root, &scheduler)?;
        let mut scenario = Scenario {
            machine,
            costs,
            scheduler,
            programs: Vec::new(),
            seed: 1,
            warm_up_ns: 200_000_000,
            measured_ns: 1_000_000_000,
            start_spread_ns: 10_000_000,
            window_ns: None,
        };
        run(&root, &mut scenario)?;
        let mut threads = 0;
        for (name, section) in root.named_tables("program")? {
            let place = section.place().clone();
            let program = program(name, section, &scenario.machine)?;
            let (own, cores) = (program.body.threads(), scenario.machine.cores());
            if scenario.scheduler.is_pinned() && own as usize > cores {
                return Err(place.error(format!(
                    "{own} threads are more than the machine's {cores} cores, of which {} gives each its own, allowed is \
                     1 to {cores}",
                    scenario.scheduler.name()
                )));
            }
            threads += u64::from(program.body.threads());
            if threads > THREADS_MAX {
                return Err(
                    place.error(format!("with this program there are {threads} threads, allowed are {THREADS_MAX}"))
                );
            }
            scenario.programs.push(program);
        }
        if scenario.programs.is_empty() {
            return Err(root.place().error("no [program.NAME] section, at least one is needed"));
        }
        Ok(scenario)
    }
}

/// `[run]`.
fn run(root: &Section<'_, '_>, scenario: &mut Scenario) -> Result<(), ConfigError> {
    let Some(run) = root.get("run") else { return Ok(()) };
    let run = run.table(&["seed", "warm-up", "measured", "start-spread", "window"])?;
    if let Some(seed) = run.get("seed") {
        scenario.seed = seed.number(0..=i64::MAX as u64)?;
    }
    if let Some(time) = run.get("warm-up") {
        scenario.warm_up_ns = time.duration_ns(0..=TIME_MAX_NS)?;
    }
    if let Some(time) = run.get("measured") {
        scenario.measured_ns = time.duration_ns(1_000..=TIME_MAX_NS)?;
    }
    if let Some(time) = run.get("start-spread") {
        scenario.start_spread_ns = time.duration_ns(0..=TIME_MAX_NS)?;
    }
    if let Some(window) = run.get("window") {
        let allowed = "two durations, the first one shorter ([\"100ms\", \"120ms\"])";
        let times = window.items(allowed)?;
        let times: Vec<u64> =
            times.iter().map(|time| time.duration_ns(0..=TIME_MAX_NS)).collect::<Result<_, ConfigError>>()?;
        match times[..] {
            [from_ns, to_ns] if from_ns < to_ns => scenario.window_ns = Some((from_ns, to_ns)),
            _ => return Err(window.place().error(format!("this is no stretch of time, allowed is {allowed}"))),
        }
    }
    Ok(())
}

/// `[machine]`.
fn machine(root: &Section<'_, '_>, scheduler: &SchedulerKind) -> Result<(Machine, Costs), ConfigError> {
    let section = root.require("machine", "a table with cores")?.table(MACHINE_KEYS)?;
    let cores = section.require("cores", &format!("1 to {}", Machine::CORES_MAX))?.number(1..=Machine::CORES_MAX)?;
    let sockets = section.get("sockets").map_or(Ok(1), |sockets| sockets.number(1..=Machine::CORES_MAX))?;
    let machine = Machine::new(cores, sockets).map_err(|why| section.place().inside("sockets").error(why))?;
    let costs = match section.get("costs") {
        Some(entry) => Some(entry.choice(&["native", "virtual", "none"])?),
        None => None,
    };
    let mut costs = match costs.as_deref() {
        Some("none") => Costs::NONE,
        Some("native") => Costs::NATIVE,
        Some(_) => Costs::VIRTUAL,
        None if scheduler.is_virtual() => Costs::VIRTUAL,
        None => Costs::NATIVE,
    };
    for (key, cost) in [
        ("context-switch", &mut costs.context_switch_ns),
        ("migration", &mut costs.migration_ns),
        ("migration-other-socket", &mut costs.migration_other_socket_ns),
        ("double-lock", &mut costs.double_lock_ns),
        ("scan", &mut costs.scan_ns),
        ("wake", &mut costs.wake_ns),
        ("interrupt", &mut costs.interrupt_ns),
    ] {
        if let Some(entry) = section.get(key) {
            *cost = entry.duration_ns(0..=1_000_000_000)?;
        }
    }
    Ok((machine, costs))
}

/// A `[program.NAME]`.
fn program(name: String, section: Section<'_, '_>, machine: &Machine) -> Result<Program, ConfigError> {
    let section = section.with_allowed(PROGRAM_KEYS)?;
    let names: Vec<&str> = profiles::ALL.iter().map(|profile| profile.name).collect();
    let profile = section.require("profile", &names.join(", "))?.choice(&names)?;
    let profile = profiles::find(&profile).expect("a choice of all names");
    let threads_max = THREADS_MAX as u32;
    let threads = match section.get("threads") {
        Some(entry) => entry.number(profile.threads_min..=threads_max)?,
        None => (machine.cores() as u32).max(profile.threads_min),
    };
    let weight =
        section.get("weight").map_or(Ok(Program::WEIGHT_DEFAULT), |weight| weight.number(1..=Program::WEIGHT_MAX))?;
    let pin = match section.get("pin") {
        Some(entry) if entry.choice(&["none", "one-to-one"])? == "one-to-one" => {
            let cores = machine.cores();
            if threads as usize > cores {
                return Err(entry.place().error(format!(
                    "{threads} pinned threads are more than the machine's {cores} cores, allowed is 1 to {cores}"
                )));
            }
            Pin::OneToOne
        }
        _ => Pin::Nowhere,
    };
    let time = |key: &'static str| section.get(key).map(|entry| entry.duration_ns(1..=TIME_MAX_NS)).transpose();
    let parameters = Parameters { threads, compute_ns: time("compute")?, critical_ns: time("critical")? };
    let mut body = profile.body(parameters);
    if let Some(entry) = section.get("wait") {
        let text = entry.text(WAIT)?;
        let wrong = || entry.place().error(format!("\"{text}\" is not known, allowed are {WAIT}"));
        body.waiting = Waiting::parse(&text).ok_or_else(wrong)?;
    }
    if let Some(entry) = section.get("hand-off") {
        body.hand_off = entry.flag()?;
    }
    body.check().map_err(|why| section.place().error(why))?;
    Ok(Program { name, body, weight, pin })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_cpu::kinds::Base;

    /// Page that describes the keys.
    const PAGE: &str = include_str!("../../../../docs/lab/scenarios.md");

    const GOOD: &str = r#"kind = "cpu"

[machine]
cores = 4

[scheduler]
kind = "cfs"

[program.app]
profile = "streamcluster"
"#;

    fn parse(text: &str) -> Result<Scenario, String> {
        Scenario::parse("s.toml", text).map_err(|error| error.to_string())
    }

    fn refusal(old: &str, new: &str) -> String {
        assert_eq!(GOOD.matches(old).count(), 1, "{old:?} stands in GOOD once");
        parse(&GOOD.replace(old, new)).expect_err("this scenario must be refused")
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let scenario = parse(GOOD).unwrap();
        assert_eq!((scenario.machine.cores(), scenario.machine.sockets()), (4, 1));
        assert_eq!(scenario.costs, Costs::NATIVE);
        assert_eq!(scenario.scheduler, SchedulerKind::of("cfs").unwrap());
        assert_eq!((scenario.seed, scenario.warm_up_ns, scenario.measured_ns), (1, 200_000_000, 1_000_000_000));
        let app = &scenario.programs[0];
        assert_eq!((app.name.as_str(), app.weight, app.pin, app.body.threads()), ("app", 100, Pin::Nowhere, 4));
        let kvm = parse(&GOOD.replace("cfs", "kvm")).unwrap();
        assert_eq!(kvm.costs, Costs::VIRTUAL, "its threads are virtual CPUs");
    }

    #[test]
    fn what_is_written_is_read() {
        let text = r#"kind = "cpu"
[run]
seed = 7
warm-up = "1ms"
measured = "2ms"
start-spread = "3us"
window = ["4us", "5us"]
[machine]
cores = 24
sockets = 2
costs = "none"
wake = "9us"
[scheduler]
kind = "kvm"
latency = "24ms"
wake-affine = false
imbalance = 110
preempted-stays = "2ms"
[program.a]
profile = "mutex-loop"
threads = 3
weight = 200
pin = "one-to-one"
wait = "spin 10us"
hand-off = true
compute = "50us"
[program.b]
profile = "hog"
"#;
        let scenario = parse(text).unwrap();
        assert_eq!((scenario.seed, scenario.warm_up_ns, scenario.measured_ns), (7, 1_000_000, 2_000_000));
        assert_eq!((scenario.start_spread_ns, scenario.window_ns), (3_000, Some((4_000, 5_000))));
        assert_eq!(scenario.costs, Costs { wake_ns: 9_000, ..Costs::NONE });
        let SchedulerKind::PerCore(_, Base::Kvm(options)) = &scenario.scheduler else {
            panic!("{:?}", scenario.scheduler)
        };
        assert_eq!((options.latency_ns, options.preempted_stays_ns), (24_000_000, 2_000_000));
        assert_eq!((options.wake_affine, options.imbalance_percent), (false, 110));
        let a = &scenario.programs[0];
        assert_eq!((a.weight, a.pin, a.body.threads(), a.body.hand_off), (200, Pin::OneToOne, 3, true));
        assert_eq!(a.body.waiting, Waiting::SpinThenBlock(10_000));
        assert_eq!(scenario.programs[1].body.threads(), 24, "as many as cores");
    }

    #[test]
    fn what_cannot_be_is_refused_in_a_sentence() {
        for (old, new, refused) in [
            ("kind = \"cpu\"", "kind = \"gpu\"", "s.toml:1: kind: \"gpu\" is not known, allowed are cpu"),
            ("cores = 4", "cores = 0", "s.toml:4: machine.cores: 0 is out of range, allowed is 1 to 4096"),
            (
                "cores = 4",
                "cores = 4\nsockets = 3",
                "s.toml:3: machine.sockets: 4 cores on 3 sockets, allowed is a number of sockets that divides the cores evenly",
            ),
            (
                "\"cfs\"",
                "\"bfs\"",
                "s.toml:7: scheduler.kind: \"bfs\" is not known, allowed are cfs, eevdf, kvm, xen-credit, pmqfq-cfs, pmqfq-eevdf, pmqfq-kvm, pmqfq-xen, pmqfq-printed-cfs, pmqfq-printed-eevdf, pmqfq-printed-kvm, pmqfq-printed-xen, pin-cfs, pin-eevdf, pin-kvm, pin-xen, relaxed-co-cfs, relaxed-co-eevdf, relaxed-co-kvm, relaxed-co-xen, gleaner-cfs, gleaner-eevdf, gleaner-kvm, gleaner-xen, ideal, sfqd, min-sfqd, fsfqd",
            ),
            (
                "\"cfs\"",
                "\"pmqfq-cfs\"\nskew-limit = \"3ms\"",
                "s.toml:8: scheduler.skew-limit: is no setting of pmqfq-cfs, allowed with relaxed-co",
            ),
            (
                "\"cfs\"",
                "\"pmqfq-cfs\"\nmargin = \"3ms\"",
                "s.toml:6: scheduler: margin is 3000000 ns, allowed is less than window, 3000000 ns: no queue advances by more",
            ),
            (
                "\"cfs\"",
                "\"ideal\"\ntick = \"3ms\"",
                "s.toml:8: scheduler.tick: is no setting of ideal, allowed with all but ideal, sfqd, min-sfqd and fsfqd",
            ),
            (
                "\"cfs\"",
                "\"ideal\"\nmin-slice = \"7ms\"",
                "s.toml:6: scheduler: min-slice is 7000000 ns, allowed is at most quantum, 6000000 ns",
            ),
            (
                "\"cfs\"",
                "\"cfs\"\nslice = \"30ms\"",
                "s.toml:8: scheduler.slice: is no setting of cfs, allowed with xen-credit, and what is built on it",
            ),
            (
                "\"cfs\"",
                "\"xen-credit\"\nlatency = \"6ms\"",
                "s.toml:8: scheduler.latency: is no setting of xen-credit, allowed with cfs, eevdf and kvm, and what is built on them",
            ),
            (
                "\"cfs\"",
                "\"cfs\"\nmin-granularity = \"7ms\"",
                "s.toml:6: scheduler: min-granularity is 7000000 ns, allowed is at most latency, 6000000 ns",
            ),
            (
                "\"streamcluster\"",
                "\"sc\"",
                "s.toml:10: program.app.profile: \"sc\" is not known, allowed are hog, ep, streamcluster, dedup, blackscholes, bodytrack, canneal, facesim, ferret, fluidanimate, raytrace, swaptions, vips, x264, bt, cg, ft, is, lu, mg, sp, ua, critical-loop, mutex-loop, barrier-loop",
            ),
            (
                "\"streamcluster\"",
                "\"hog\"\nweight = 0",
                "s.toml:11: program.app.weight: 0 is out of range, allowed is 1 to 10000",
            ),
            (
                "\"streamcluster\"",
                "\"hog\"\nthreads = 0",
                "s.toml:11: program.app.threads: 0 is out of range, allowed is 1 to 1048576",
            ),
            (
                "\"streamcluster\"",
                "\"dedup\"\nthreads = 4",
                "s.toml:11: program.app.threads: 4 is out of range, allowed is 5 to 1048576",
            ),
            (
                "\"streamcluster\"",
                "\"hog\"\nthreads = 5\npin = \"one-to-one\"",
                "s.toml:12: program.app.pin: 5 pinned threads are more than the machine's 4 cores, allowed is 1 to 4",
            ),
            (
                "kind = \"cfs\"",
                "kind = \"pin-cfs\"\n[program.hogs]\nprofile = \"hog\"\nthreads = 5",
                "s.toml:8: program.hogs: 5 threads are more than the machine's 4 cores, of which pin-cfs gives each its own, allowed is 1 to 4",
            ),
            (
                "\"streamcluster\"",
                "\"hog\"\nwait = \"sleep\"",
                "s.toml:11: program.app.wait: \"sleep\" is not known, allowed are \"block\", \"spin\", or \"spin \" and a duration (\"spin 10us\")",
            ),
            (
                "[program.app]\nprofile = \"streamcluster\"\n",
                "",
                "s.toml:1: no [program.NAME] section, at least one is needed",
            ),
            (
                "[machine]",
                "[run]\nwindow = [\"2ms\", \"1ms\"]\n[machine]",
                "s.toml:4: run.window: this is no stretch of time, allowed is two durations, the first one shorter ([\"100ms\", \"120ms\"])",
            ),
        ] {
            assert_eq!(refusal(old, new), refused);
        }
    }

    #[test]
    fn a_scenario_says_which_kind_it_is() {
        assert!(is_cpu(GOOD));
        assert!(!is_cpu("[run]\nseed = 1\n"));
    }

    #[test]
    fn every_key_is_in_the_page() {
        let run = ["start-spread", "window"];
        for key in MACHINE_KEYS.iter().chain(&*schedulers::KEYS).chain(PROGRAM_KEYS).chain(&run) {
            assert!(PAGE.contains(&format!("`{key}`")), "{key}");
        }
        // A scheduler over a base stands there once for all bases.
        let over_any_base = |name: &str| {
            let base = ["-cfs", "-eevdf", "-kvm", "-xen"].iter().find_map(|base| name.strip_suffix(base));
            base.is_some_and(|above| PAGE.contains(&format!("`{above}-BASE`")))
        };
        for name in profiles::ALL.iter().map(|profile| profile.name).chain(SchedulerKind::NAMES.iter().copied()) {
            assert!(PAGE.contains(&format!("`{name}`")) || over_any_base(name), "{name}");
        }
    }
}
