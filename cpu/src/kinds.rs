//! Which schedulers are there, by name?
//!
//! ```text
//!   cfs  eevdf  kvm  xen-credit          bases: a queue per core
//!   pmqfq-  pmqfq-printed-               extensions, each on any base: pmqfq-cfs, pmqfq-kvm, pmqfq-xen, pin-cfs, ...
//!   pin-  relaxed-co-  gleaner-
//!   ideal  sfqd  min-sfqd  fsfqd         one queue for all cores
//! ```

use crate::cfs::{Cfs, CfsOptions};
use crate::fair_queue::{FairQueue, FairQueueKind};
use crate::gleaner::{Gleaner, GleanerOptions};
use crate::ideal::{Ideal, IdealOptions};
use crate::pin;
use crate::pmqfq::{Pmqfq, PmqfqOptions};
use crate::relaxed_co::{RelaxedCo, RelaxedCoOptions};
use crate::run_queues::RunQueues;
use crate::scheduler::{Machine, Scheduler, Tasks};
use crate::xen_credit::{XenCredit, XenCreditOptions};

/// A scheduler with a queue per core, and its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Linux's CFS.
    Cfs(CfsOptions),
    /// Linux's EEVDF, on CFS's queues.
    Eevdf(CfsOptions),
    /// CFS for virtual CPUs, which cannot move at once.
    Kvm(CfsOptions),
    /// Xen's credit scheduler.
    XenCredit(XenCreditOptions),
}

/// An extension of a base, and its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extension {
    /// The base alone.
    Plain,
    /// The practical P-MQFQ.
    Pmqfq(PmqfqOptions),
    /// Each thread of a program on a core of its own.
    Pin,
    /// Relaxed co-scheduling.
    RelaxedCo(RelaxedCoOptions),
    /// Consolidation.
    Gleaner(GleanerOptions),
}

/// Any scheduler, and its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A queue per core.
    PerCore(Extension, Base),
    /// P-MQFQ as its paper defines it.
    Ideal(IdealOptions),
    /// SFQ(D), Min-SFQ(D) or FSFQ(D) of P-MQFQ's section 2.4, and its quantum in ns.
    FairQueue(FairQueueKind, u64),
}

/// CFS's latency: the slice of a thread on a core that no other wants.
const QUANTUM_NS: u64 = 6_000_000;

impl Kind {
    /// All names.
    pub const NAMES: &[&str] = &[
        "cfs",
        "eevdf",
        "kvm",
        "xen-credit",
        "pmqfq-cfs",
        "pmqfq-eevdf",
        "pmqfq-kvm",
        "pmqfq-xen",
        "pmqfq-printed-cfs",
        "pmqfq-printed-eevdf",
        "pmqfq-printed-kvm",
        "pmqfq-printed-xen",
        "pin-cfs",
        "pin-eevdf",
        "pin-kvm",
        "pin-xen",
        "relaxed-co-cfs",
        "relaxed-co-eevdf",
        "relaxed-co-kvm",
        "relaxed-co-xen",
        "gleaner-cfs",
        "gleaner-eevdf",
        "gleaner-kvm",
        "gleaner-xen",
        "ideal",
        "sfqd",
        "min-sfqd",
        "fsfqd",
    ];

    /// The scheduler of this name with its paper's options.
    ///
    /// # Errors
    /// One sentence, which lists what is allowed.
    pub fn parse(name: &str) -> Result<Kind, String> {
        Kind::of(name).ok_or_else(|| format!("scheduler {name:?}, allowed are {}", Kind::NAMES.join(", ")))
    }

    /// The scheduler of this name, if there is one.
    pub fn of(name: &str) -> Option<Kind> {
        if !Kind::NAMES.contains(&name) {
            return None;
        }
        let fair = |kind| Some(Kind::FairQueue(kind, QUANTUM_NS));
        match name {
            "ideal" => return Some(Kind::Ideal(IdealOptions::default())),
            "sfqd" => return fair(FairQueueKind::SfqD),
            "min-sfqd" => return fair(FairQueueKind::MinSfqD),
            "fsfqd" => return fair(FairQueueKind::FsfqD),
            _ => {}
        }
        let (extension, base) = match name.rsplit_once('-') {
            Some((extension, base @ ("cfs" | "eevdf" | "kvm" | "xen"))) => (extension, base),
            _ => ("", name),
        };
        let base = match base {
            "cfs" => Base::Cfs(CfsOptions::new()),
            "eevdf" => Base::Eevdf(CfsOptions::eevdf()),
            "kvm" => Base::Kvm(CfsOptions::kvm()),
            _ => Base::XenCredit(XenCreditOptions::new()),
        };
        let pmqfq = if matches!(base, Base::XenCredit(_)) { PmqfqOptions::xen() } else { PmqfqOptions::new() };
        let extension = match extension {
            "" => Extension::Plain,
            "pmqfq" => Extension::Pmqfq(pmqfq),
            "pmqfq-printed" => Extension::Pmqfq(pmqfq.printed()),
            "pin" => Extension::Pin,
            "relaxed-co" => Extension::RelaxedCo(RelaxedCoOptions::new()),
            "gleaner" => Extension::Gleaner(GleanerOptions::new()),
            _ => return None,
        };
        Some(Kind::PerCore(extension, base))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        let (extension, base) = match self {
            Kind::Ideal(_) => return "ideal",
            Kind::FairQueue(FairQueueKind::SfqD, _) => return "sfqd",
            Kind::FairQueue(FairQueueKind::MinSfqD, _) => return "min-sfqd",
            Kind::FairQueue(FairQueueKind::FsfqD, _) => return "fsfqd",
            Kind::PerCore(extension, base) => (extension, base),
        };
        let extension = match extension {
            Extension::Plain => "",
            Extension::Pmqfq(options) if options.arrive || options.trade => "pmqfq-",
            Extension::Pmqfq(_) => "pmqfq-printed-",
            Extension::Pin => "pin-",
            Extension::RelaxedCo(_) => "relaxed-co-",
            Extension::Gleaner(_) => "gleaner-",
        };
        let base = match base {
            Base::Cfs(_) => "cfs",
            Base::Eevdf(_) => "eevdf",
            Base::Kvm(_) => "kvm",
            Base::XenCredit(_) if extension.is_empty() => "xen-credit",
            Base::XenCredit(_) => "xen",
        };
        let is_it = |name: &&&str| name.strip_prefix(extension) == Some(base);
        Kind::NAMES.iter().find(is_it).expect("each extension is there on each base")
    }

    /// Does it schedule virtual CPUs?
    pub fn is_virtual(&self) -> bool {
        matches!(self, Kind::PerCore(_, Base::Kvm(_) | Base::XenCredit(_)))
    }

    /// Does each thread of a program have a core of its own?
    pub fn is_pinned(&self) -> bool {
        matches!(self, Kind::PerCore(Extension::Pin, _))
    }

    /// The scheduler.
    ///
    /// # Errors
    /// The scheduler refuses its options or the tasks: one sentence.
    pub fn make(&self, machine: &Machine, tasks: &Tasks) -> Result<Box<dyn Scheduler>, String> {
        match self {
            Kind::Ideal(options) => Ok(Box::new(Ideal::new(machine, tasks, *options)?)),
            Kind::FairQueue(kind, quantum_ns) => Ok(Box::new(FairQueue::new(machine, tasks, *kind, *quantum_ns)?)),
            Kind::PerCore(extension, base) => {
                let pinned;
                let tasks = match extension {
                    Extension::Pin => {
                        pinned = pin::one_per_core(machine, tasks)?;
                        &pinned
                    }
                    _ => tasks,
                };
                match base {
                    Base::Cfs(options) | Base::Eevdf(options) | Base::Kvm(options) => {
                        extension.over(Cfs::new(machine, tasks, *options)?, tasks)
                    }
                    Base::XenCredit(options) => extension.over(XenCredit::new(machine, tasks, *options)?, tasks),
                }
            }
        }
    }
}

impl Extension {
    fn over<B: RunQueues + 'static>(&self, base: B, tasks: &Tasks) -> Result<Box<dyn Scheduler>, String> {
        Ok(match self {
            // Pinned are the tasks.
            Extension::Plain | Extension::Pin => Box::new(base),
            Extension::Pmqfq(options) => Box::new(Pmqfq::new(base, tasks, *options)?),
            Extension::RelaxedCo(options) => Box::new(RelaxedCo::new(base, tasks, *options)?),
            Extension::Gleaner(options) => Box::new(Gleaner::new(base, tasks, *options)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_hand::ByHand;

    const MS: u64 = 1_000_000;

    #[test]
    fn every_name_is_a_scheduler_of_that_name_that_runs_two_programs() {
        let machine = Machine::new(4, 2).unwrap();
        let mut tasks = Tasks::default();
        for _ in 0..2 {
            let program = tasks.add_program(Tasks::WEIGHT_DEFAULT);
            for _ in 0..4 {
                tasks.add_thread(program, None);
            }
        }
        for name in Kind::NAMES {
            let kind = Kind::parse(name).unwrap();
            assert_eq!(kind.name(), *name);
            let mut by_hand = ByHand::new(kind.make(&machine, &tasks).unwrap(), &machine, &tasks);
            let threads: Vec<_> = tasks.all_programs().flat_map(|program| tasks.threads_of(program).to_vec()).collect();
            threads.iter().for_each(|thread| by_hand.wake(*thread));
            by_hand.run_to(600 * MS);
            let got: u64 = threads[..4].iter().map(|thread| by_hand.ran_ns(*thread)).sum();
            assert!((1_100 * MS..=1_300 * MS).contains(&got), "{name}: {got} of 1200 ms");
        }
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_those_that_are() {
        let refusal = Kind::parse("pmqfq-bsd").unwrap_err();
        assert!(
            refusal.starts_with("scheduler \"pmqfq-bsd\", allowed are cfs, eevdf, kvm, xen-credit, pmqfq-cfs,"),
            "{refusal}"
        );
        assert!(["", "xen", "pin", "cfs-cfs", "pmqfq-ideal"].iter().all(|name| Kind::of(name).is_none()));
    }

    #[test]
    fn pins_beyond_the_cores_are_refused_in_a_sentence() {
        let machine = Machine::new(2, 1).unwrap();
        let mut tasks = Tasks::default();
        let program = tasks.add_program(1);
        for _ in 0..3 {
            tasks.add_thread(program, None);
        }
        let refusal = Kind::parse("pin-kvm").unwrap().make(&machine, &tasks).err().unwrap();
        assert!(refusal.starts_with("program 0 has 3 threads to pin"), "{refusal}");
    }
}
