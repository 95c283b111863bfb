//! Which policy does a scenario name, and with which settings?

use super::scenario::Scenario;
use mqfq_config::{ConfigError, Section};
use mqfq_cpu::cfs::{CfsOptions, Order};
use mqfq_cpu::gleaner::GleanerOptions;
use mqfq_cpu::ideal::IdealOptions;
use mqfq_cpu::kinds::{Base, Extension};
use mqfq_cpu::pmqfq::PmqfqOptions;
use mqfq_cpu::relaxed_co::RelaxedCoOptions;
use mqfq_cpu::scheduler::Scheduler;
use mqfq_cpu::xen_credit::XenCreditOptions;
use std::sync::LazyLock;

/// The policies with their options.
pub use mqfq_cpu::kinds::Kind as SchedulerKind;

/// Longest time of anything, ns: an hour.
const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// Keys that belong together, and the schedulers that have them.
type Group = (&'static [&'static str], &'static str);

const CFS: Group = (
    &[
        "latency",
        "min-granularity",
        "wakeup-granularity",
        "sleeper-credit",
        "wake-affine",
        "balance",
        "imbalance",
        "cache-hot",
        "preempted-stays",
    ],
    "cfs, eevdf and kvm, and what is built on them",
);
const EEVDF: Group = (&["base-slice"], "eevdf, and what is built on it");
const XEN: Group = (&["slice", "accounting", "boost"], "xen-credit, and what is built on it");
const PER_CORE: Group = (&["tick"], "all but ideal, sfqd, min-sfqd and fsfqd");
const PMQFQ: Group =
    (&["window", "margin", "scan-max", "migrate", "switch", "trade", "arrive", "lag"], "pmqfq and pmqfq-printed");
const RELAXED_CO: Group = (&["skew-limit", "check"], "relaxed-co");
const GLEANER: Group = (&["interval", "fine", "busy"], "gleaner");
const CENTRAL: Group = (&["quantum"], "ideal, sfqd, min-sfqd and fsfqd");
const IDEAL: Group = (&["min-slice"], "ideal");

const GROUPS: &[Group] = &[CFS, EEVDF, XEN, PER_CORE, PMQFQ, RELAXED_CO, GLEANER, CENTRAL, IDEAL];

/// Keys of `[scheduler]`: `kind`, and those of all groups.
pub static KEYS: LazyLock<Vec<&str>> =
    LazyLock::new(|| std::iter::once("kind").chain(GROUPS.iter().flat_map(|(keys, _)| keys.iter().copied())).collect());

/// The scenario's policy.
///
/// # Errors
/// One sentence.
pub fn make(scenario: &Scenario) -> Result<Box<dyn Scheduler>, String> {
    scenario.scheduler.make(&scenario.machine, &scenario.tasks())
}

/// Reads `[scheduler]`.
///
/// # Errors
/// A key that is unknown, of the wrong type, out of range, or no setting of the kind.
pub fn parse(root: &Section<'_, '_>) -> Result<SchedulerKind, ConfigError> {
    let names = SchedulerKind::NAMES;
    let section = root.require("scheduler", "a table with a kind")?.table(&KEYS)?;
    let name = section.require("kind", &names.join(", "))?.choice(names)?;
    let mut kind = SchedulerKind::of(&name).expect("a choice of its names");
    let settings = Settings { section: &section };
    let has: Vec<Group> = groups_of(&kind);
    for (keys, with) in GROUPS.iter().filter(|group| !has.contains(group)) {
        if let Some(entry) = keys.iter().find_map(|key| section.get(key)) {
            return Err(entry.place().error(format!("is no setting of {name}, allowed with {with}")));
        }
    }
    let checked = match &mut kind {
        SchedulerKind::PerCore(extension, base) => {
            let base = match base {
                Base::Cfs(options) | Base::Eevdf(options) | Base::Kvm(options) => settings.cfs(options)?,
                Base::XenCredit(options) => settings.xen(options)?,
            };
            let extension = match extension {
                Extension::Plain | Extension::Pin => Ok(()),
                Extension::Pmqfq(options) => settings.pmqfq(options)?,
                Extension::RelaxedCo(options) => settings.relaxed_co(options)?,
                Extension::Gleaner(options) => settings.gleaner(options)?,
            };
            base.and(extension)
        }
        SchedulerKind::Ideal(options) => settings.ideal(options)?,
        SchedulerKind::FairQueue(_, quantum_ns) => {
            settings.time("quantum", quantum_ns, 1)?;
            Ok(())
        }
    };
    checked.map_err(|why| section.place().error(why))?;
    Ok(kind)
}

fn groups_of(kind: &SchedulerKind) -> Vec<Group> {
    let (extension, base) = match kind {
        SchedulerKind::Ideal(_) => return vec![CENTRAL, IDEAL],
        SchedulerKind::FairQueue(..) => return vec![CENTRAL],
        SchedulerKind::PerCore(extension, base) => (extension, base),
    };
    let of_base: &[Group] = match base {
        Base::Cfs(_) | Base::Kvm(_) => &[CFS],
        Base::Eevdf(_) => &[CFS, EEVDF],
        Base::XenCredit(_) => &[XEN],
    };
    let of_extension = match extension {
        Extension::Plain | Extension::Pin => None,
        Extension::Pmqfq(_) => Some(PMQFQ),
        Extension::RelaxedCo(_) => Some(RELAXED_CO),
        Extension::Gleaner(_) => Some(GLEANER),
    };
    std::iter::once(PER_CORE).chain(of_base.iter().copied()).chain(of_extension).collect()
}

/// Result of a check of the options themselves.
type Checked = Result<(), String>;

/// The table, read into options.
struct Settings<'a, 'b, 'c> {
    section: &'a Section<'b, 'c>,
}

impl Settings<'_, '_, '_> {
    fn time(&self, key: &'static str, ns: &mut u64, least: u64) -> Result<(), ConfigError> {
        if let Some(entry) = self.section.get(key) {
            *ns = entry.duration_ns(least..=TIME_MAX_NS)?;
        }
        Ok(())
    }

    fn flag(&self, key: &'static str, flag: &mut bool) -> Result<(), ConfigError> {
        if let Some(entry) = self.section.get(key) {
            *flag = entry.flag()?;
        }
        Ok(())
    }

    fn cfs(&self, options: &mut CfsOptions) -> Result<Checked, ConfigError> {
        self.time("latency", &mut options.latency_ns, 1)?;
        self.time("min-granularity", &mut options.min_granularity_ns, 0)?;
        self.time("wakeup-granularity", &mut options.wakeup_granularity_ns, 0)?;
        self.time("tick", &mut options.tick_ns, 1_000)?;
        self.time("sleeper-credit", &mut options.sleeper_credit_ns, 0)?;
        self.time("balance", &mut options.balance_ns, 1_000)?;
        self.time("cache-hot", &mut options.cache_hot_ns, 0)?;
        self.time("preempted-stays", &mut options.preempted_stays_ns, 0)?;
        self.flag("wake-affine", &mut options.wake_affine)?;
        if let Order::Deadline { base_slice_ns } = &mut options.order {
            self.time("base-slice", base_slice_ns, 1_000)?;
        }
        if let Some(entry) = self.section.get("imbalance") {
            options.imbalance_percent = entry.number(100..=10_000)?;
        }
        Ok(options.check())
    }

    fn xen(&self, options: &mut XenCreditOptions) -> Result<Checked, ConfigError> {
        self.time("slice", &mut options.slice_ns, 1_000)?;
        self.time("tick", &mut options.tick_ns, 1_000)?;
        self.time("accounting", &mut options.accounting_ns, 1_000)?;
        self.flag("boost", &mut options.boost)?;
        Ok(options.check())
    }

    fn pmqfq(&self, options: &mut PmqfqOptions) -> Result<Checked, ConfigError> {
        self.time("window", &mut options.window_ns, 1)?;
        self.time("margin", &mut options.margin_ns, 0)?;
        self.time("lag", &mut options.lag_ns, 0)?;
        self.flag("migrate", &mut options.migrate)?;
        self.flag("switch", &mut options.switch)?;
        self.flag("trade", &mut options.trade)?;
        self.flag("arrive", &mut options.arrive)?;
        if let Some(entry) = self.section.get("scan-max") {
            options.scan_max = entry.number(0..=u16::MAX)?;
        }
        Ok(options.check())
    }

    fn relaxed_co(&self, options: &mut RelaxedCoOptions) -> Result<Checked, ConfigError> {
        self.time("skew-limit", &mut options.skew_limit_ns, 1)?;
        self.time("check", &mut options.check_ns, 1_000)?;
        Ok(options.check())
    }

    fn gleaner(&self, options: &mut GleanerOptions) -> Result<Checked, ConfigError> {
        self.time("interval", &mut options.interval_ns, 1_000)?;
        self.time("fine", &mut options.fine_ns, 0)?;
        if let Some(entry) = self.section.get("busy") {
            options.busy_percent = entry.number(1..=100)?;
        }
        Ok(options.check())
    }

    fn ideal(&self, options: &mut IdealOptions) -> Result<Checked, ConfigError> {
        self.time("quantum", &mut options.quantum_ns, 1)?;
        self.time("min-slice", &mut options.min_slice_ns, 0)?;
        let IdealOptions { quantum_ns, min_slice_ns, .. } = *options;
        Ok(if min_slice_ns > quantum_ns {
            Err(format!("min-slice is {min_slice_ns} ns, allowed is at most quantum, {quantum_ns} ns"))
        } else {
            Ok(())
        })
    }
}
