//! Exports that lack bytes, for now: which, why, and when they get them.
//!
//! ```text
//!   an export comes or grows ─▶ claim ─▶ ready ───────────────────────▶ record ─▶ offered
//!                                 │                                       ▲
//!                                 ├─▶ erase ─▶ record ─▶ eraser ─▶ done ──┘
//!                                 └─▶ waits: requests are left there, another erase, the record, keep-data
//! ```
//! The record ([`crate::ownership`]) is on disk before the step behind it, each time. An export that waits has the
//! bytes that it had, or is offered nowhere if it had none.
//!
//! [`Reconciler::look`] finds ended requests and erases: each change looks first, and a thread during an erase.

use super::erase::{Eraser, Job, State};
use super::*;
use crate::ownership::{Claim, Ownership, Verdict, key_for};
use mqfq_config::size;
use mqfq_config::text::shown;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};

/// Longest that a change waits for its erases, so that short ones are over when it is in force.
const ERASE_WAIT: Duration = Duration::from_secs(1);

/// Between two looks at an erase that a change waits for.
const ERASE_LOOK: Duration = Duration::from_millis(1);

/// Looks at most, where time stands still between them.
const LOOKS_MAX: u32 = 64;

/// An export that lacks bytes.
pub(super) struct Withheld {
    /// Bytes that it has meanwhile, from its beginning; 0: it is offered nowhere.
    pub(super) had: u64,
    pub(super) why: Why,
}

/// Why an export lacks bytes.
pub(super) enum Why {
    /// A device has not ended requests there, or another export's erase goes on there.
    Left,
    /// The bytes are being erased.
    Erasing { job: Arc<Job>, ranges: Vec<Range<u64>> },
    /// The bytes could not be erased.
    Failed,
    /// The record could not be written, for this reason.
    Unrecorded(String),
    /// `keep-data` must say whether the bytes of this tenant are kept.
    Asked(String),
}

/// The sentence about an export that lacks bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lack {
    /// A sentence without the export's name.
    pub sentence: String,
    /// Progress of an erase: bytes that are zeroes, and all that are to be.
    pub erased: Option<(u64, u64)>,
}

/// Takes exports that cannot be offered as they are out of their tables, before any client has them, at the start of a
/// server with `plan`. Returns them, and how many bytes each has meanwhile.
pub fn withhold(
    ownership: &mut Ownership,
    key_of: KeyOf,
    (plan, exports): (&Plan, &Exports),
    tables: &[(ExportAddress, Arc<ExportTable>)],
) -> Vec<(Slot, u64, Verdict)> {
    let claims: Vec<Claim<'_>> = plan.exports.iter().map(|(slot, _)| claim(plan, key_of, slot, 0)).collect();
    let verdicts = ownership.start(&claims);
    let mut withheld = Vec::new();
    for ((slot, claim), verdict) in plan.exports.iter().map(|(slot, _)| slot).zip(claims).zip(verdicts) {
        let had = verdict.good_until(claim.range.end) - claim.range.start;
        if verdict == Verdict::Ready {
            continue;
        }
        match had {
            0 => tables.iter().for_each(|(_, table)| table.take(&plan.exports[slot].name)),
            _ => exports[&slot].state.resize(had),
        }
        withheld.push((slot, had, verdict));
    }
    withheld
}

/// The claim of an export of a plan that `had` so many bytes.
fn claim(plan: &Plan, key_of: KeyOf, slot: Slot, had: u64) -> Claim<'_> {
    let export = &plan.exports[slot];
    let device = &plan.devices[export.device];
    claim_of(export, device, key_of, had, &device.flows[export.flow].tenant)
}

/// The claim of a tenant's export that `had` so many bytes of a device.
pub(super) fn claim_of<'t>(
    export: &ExportPlan,
    device: &DevicePlan,
    key_of: KeyOf,
    had: u64,
    tenant: &'t str,
) -> Claim<'t> {
    Claim {
        device: key_for(key_of, device, export),
        range: export.offset_bytes + had..export.offset_bytes + export.size_bytes,
        tenant,
        is_shared: export.is_shared,
        keep_data: export.keep_data,
        is_grown: had > 0,
    }
}

impl Reconciler {
    pub(super) fn ownership(&self) -> MutexGuard<'_, Ownership> {
        self.runtime.ownership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses claims that ownership cannot meet, or only with `keep-data`.
    ///
    /// # Errors
    /// One sentence, with the place.
    pub(super) fn refuse_claims(&self, new: &Difference) -> Result<(), String> {
        for (slot, export) in &new.exports {
            let Some(export) = export else { continue };
            let before = self.plan.exports.get(*slot);
            let had = before.map_or(0, |before| before.size_bytes);
            if had >= export.size_bytes {
                continue;
            }
            let device = new.device(&self.plan, export.device);
            let tenant = &new.flow(&self.plan, export.device, export.flow).tenant;
            if let Some(old) = self.names.exports.get(&export.name).filter(|_| before.is_none()) {
                let old = &self.plan.exports[*old];
                let tenant_before = &self.plan.devices[old.device].flows[old.flow].tenant;
                let is_here = old.device == export.device
                    && old.offset_bytes < export.offset_bytes + export.size_bytes
                    && export.offset_bytes < old.offset_bytes + old.size_bytes;
                if is_here && tenant_before != tenant && export.keep_data.is_none() {
                    return Err(export.place.error(asked(tenant_before, tenant)).to_string());
                }
            }
            let is_read_only = device.read_only || export.path.is_some() && export.read_only;
            if is_read_only
                && let Verdict::Erase(..) =
                    self.ownership().verdict(&claim_of(export, device, self.runtime.key_of, had, tenant))
            {
                let device = &device.config.name;
                let sentence = format!(
                    "it has bytes of another tenant, or of none, and device {device} is open to be read alone, so they \
                     cannot be erased: allowed is keep-data = true, which shows them"
                );
                return Err(export.place.error(sentence).to_string());
            }
        }
        Ok(())
    }

    /// Begins with the exports withheld at the start.
    pub(super) fn begin(&mut self, withheld: Vec<(Slot, u64, Verdict)>) {
        if withheld.is_empty() {
            return;
        }
        let mut claims = Vec::new();
        for (slot, had, verdict) in withheld {
            match verdict {
                Verdict::Ask(_, whose) => {
                    let export = &self.plan.exports[slot];
                    let tenant = &self.plan.devices[export.device].flows[export.flow].tenant;
                    let sentence = export.place.error(asked(&whose, tenant)).to_string();
                    self.runtime.output.note(&format!("{sentence}; until then it is not offered"));
                    self.waiting.insert(slot, Withheld { had, why: Why::Asked(whose) });
                }
                _ => claims.push((slot, had)),
            }
        }
        self.claim(claims);
    }

    /// Exports of the plan that had so many bytes get the rest, now or later.
    pub(super) fn claim(&mut self, claims: Vec<(Slot, u64)>) {
        let (mut ready, mut erases) = (Vec::new(), Vec::new());
        for (slot, had) in claims {
            let export = &self.plan.exports[slot];
            let claim = claim(&self.plan, self.runtime.key_of, slot, had);
            if self.pending_io.is_in_the_way(export, had) || self.is_erased_by_another(slot, &claim.range) {
                self.withhold(slot, had, Why::Left);
                continue;
            }
            let verdict = self.ownership().verdict(&claim);
            match verdict {
                Verdict::Ready | Verdict::Ask(..) => {
                    self.ownership().hold(&claim);
                    ready.push((slot, had));
                }
                Verdict::Erase(ranges, whose) => {
                    let device = claim.device.as_ref();
                    ranges.iter().for_each(|range| self.ownership().give_up(device, range));
                    // The job is in the way of other erases from now on.
                    let job = Job::new(&ranges);
                    self.withhold(slot, had, Why::Erasing { job, ranges });
                    erases.push((slot, whose));
                }
            }
        }
        let committed = self.ownership().commit();
        if let Err(why) = committed {
            for (slot, had) in &ready {
                let claim = claim(&self.plan, self.runtime.key_of, *slot, *had);
                self.ownership().release(claim.device.as_ref(), &claim.range);
            }
            let hads = erases.iter().map(|(slot, _)| (*slot, self.waiting[slot].had));
            for (slot, had) in hads.chain(ready).collect::<Vec<_>>() {
                self.tell_withheld(slot, &why);
                self.withhold(slot, had, Why::Unrecorded(why.clone()));
            }
            return;
        }
        for (slot, had) in ready {
            self.waiting.remove(&slot);
            if had > 0 {
                self.runtime.exports[&slot].state.resize(self.plan.exports[slot].size_bytes);
            }
        }
        erases.into_iter().for_each(|(slot, whose)| self.erase(slot, whose.as_deref()));
    }

    fn withhold(&mut self, slot: Slot, had: u64, why: Why) {
        if had > 0 {
            self.runtime.exports[&slot].state.resize(had);
        }
        self.waiting.insert(slot, Withheld { had, why });
    }

    fn tell_withheld(&self, slot: Slot, why: &str) {
        let name = shown(&self.plan.exports[slot].name);
        self.runtime.output.note(&format!("export {name} waits for its bytes: {why}"));
    }

    /// The eraser of an export begins.
    fn erase(&self, slot: Slot, whose: Option<&str>) {
        let Some(Withheld { why: Why::Erasing { job, ranges }, .. }) = self.waiting.get(&slot) else { return };
        let (plan, export) = (&self.plan, &self.runtime.exports[&slot]);
        let device = &plan.devices[plan.exports[slot].device].config.name;
        let whose = whose.map_or(String::new(), |whose| format!(" that tenant {} had", shown(whose)));
        let (bytes, name) = (size::display(job.total_bytes), shown(&export.name));
        let erased = format!("export {name}: {bytes} of device {device}{whose} are erased before it is offered");
        self.runtime.output.note(&erased);
        let eraser = Eraser::new(job.clone(), export.device, export.flow, export.id.number(), ranges);
        self.engine.attach(Box::new(move || Box::new(eraser)));
    }

    /// An erase for another export goes on in `range`.
    fn is_erased_by_another(&self, slot: Slot, range: &Range<u64>) -> bool {
        let device = self.plan.exports[slot].device;
        self.waiting.iter().any(|(other, withheld)| match &withheld.why {
            Why::Erasing { ranges, .. } => {
                *other != slot
                    && self.plan.exports.get(*other).is_some_and(|other| other.device == device)
                    && ranges.iter().any(|other| other.start < range.end && range.start < other.end)
            }
            _ => false,
        })
    }

    /// Stops the erase of an export, which has `had` bytes from now on and whose clients know it: no request of the
    /// erase is left either, or the bytes have no owner until it has ended.
    pub(super) fn stop_erase(&mut self, slot: Slot, withheld: Withheld, grace: Duration) {
        let Why::Erasing { job, ranges } = withheld.why else { return };
        job.cancel();
        let export = &self.plan.exports[slot];
        let (device, name) = (export.device, export.name.clone());
        for Range { start, end } in ranges {
            if self.engine.await_end(device.place(), Remains::Bytes(start, end), grace).is_err() {
                self.pending_io.bytes(&self.engine, device, start..end, &name);
            }
        }
    }

    /// Offers bytes whose requests or erases have ended since the last look. `retries`: failed steps are tried again.
    pub(super) fn look_again(&mut self, retries: bool) {
        for slot in self.pending_io.behind() {
            let is_planned = self.catch_up(slot).is_ok();
            self.pending_io.follow(slot, is_planned);
        }
        self.pending_io.look(&self.engine);
        self.close_those_without_requests();
        if self.waiting.is_empty() {
            return;
        }
        let (mut claims, mut erased, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for (slot, withheld) in &self.waiting {
            match &withheld.why {
                Why::Left => claims.push((*slot, withheld.had)),
                Why::Failed | Why::Unrecorded(_) if retries => claims.push((*slot, withheld.had)),
                Why::Erasing { job, .. } => match job.state() {
                    State::Runs => {}
                    State::Done => erased.push((*slot, withheld.had, job.total_bytes)),
                    State::Failed => failed.push(*slot),
                    State::Gone => claims.push((*slot, withheld.had)),
                },
                Why::Failed | Why::Unrecorded(_) | Why::Asked(_) => {}
            }
        }
        if claims.is_empty() && erased.is_empty() && failed.is_empty() {
            return;
        }
        for slot in failed {
            let name = shown(&self.plan.exports[slot].name);
            let again = "its bytes could not be erased, so it does not get them; the next change or reload tries again";
            self.runtime.output.note(&format!("export {name}: {again}"));
            self.waiting.get_mut(&slot).expect("it was looked at").why = Why::Failed;
        }
        for (slot, had, bytes) in erased {
            let claim = claim(&self.plan, self.runtime.key_of, slot, had);
            // They become its tenant's; the claim then makes them the export's.
            let mut ownership = self.ownership();
            ownership.hold(&claim);
            ownership.release(claim.device.as_ref(), &claim.range);
            drop(ownership);
            let name = shown(&self.plan.exports[slot].name);
            self.runtime.output.note(&format!("export {name}: {} are erased", size::display(bytes)));
            self.waiting.get_mut(&slot).expect("it was looked at").why = Why::Left;
            claims.push((slot, had));
        }
        let slots: Vec<Slot> = claims.iter().map(|(slot, _)| *slot).collect();
        self.claim(claims);
        self.offer(slots.into_iter().map(|slot| (slot, None)));
    }

    /// Offers bytes that have become free since the last change, without another one.
    pub fn look(&mut self) {
        self.look_again(false);
    }

    /// An erase goes on.
    pub fn is_erasing(&self) -> bool {
        self.waiting.values().any(|withheld| matches!(withheld.why, Why::Erasing { .. }))
    }

    /// Some export lacks bytes.
    pub fn is_withholding(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Waits a little for erases, so that most are over when a change is in force.
    pub(super) fn await_erases(&mut self) {
        let end = Instant::now() + ERASE_WAIT;
        let looks = if self.engine.is_stepped() { LOOKS_MAX } else { u32::MAX };
        for _ in 0..looks {
            let running = self.waiting.iter().find_map(|(slot, withheld)| match &withheld.why {
                Why::Erasing { job, ranges } if job.state() == State::Runs => Some((*slot, ranges[0].clone())),
                _ => None,
            });
            let Some((slot, range)) = running else { break };
            if Instant::now() >= end {
                break;
            }
            let device = self.plan.exports[slot].device.place();
            // Where workers are stepped, this steps them.
            let ended = self.engine.await_end(device, Remains::Bytes(range.start, range.end), ERASE_WAIT);
            if ended.is_err() {
                break;
            }
            if !self.engine.is_stepped() {
                std::thread::park_timeout(ERASE_LOOK);
            }
        }
        self.look_again(false);
    }

    /// The bytes that an export lacks, and why.
    pub fn lack(&self, slot: Slot) -> Option<Lack> {
        let Withheld { had, why } = self.waiting.get(&slot)?;
        let has = if *had == 0 { "it is not offered".to_owned() } else { format!("it has {}", size::display(*had)) };
        let export = &self.plan.exports[slot];
        let (why, erased) = match why {
            Why::Left => ("its device has not ended what was asked there".to_owned(), None),
            Why::Erasing { job, .. } => {
                let (done, all) = (job.done_bytes(), job.total_bytes);
                let percent = done.saturating_mul(100) / all.max(1);
                (format!("its bytes are erased first, {percent}% of {}", size::display(all)), Some((done, all)))
            }
            Why::Failed => ("its bytes could not be erased, the next change tries again".to_owned(), None),
            Why::Unrecorded(why) => (why.clone(), None),
            Why::Asked(whose) => (asked(whose, &self.plan.devices[export.device].flows[export.flow].tenant), None),
        };
        Some(Lack { sentence: format!("{has}: {why}"), erased })
    }
}

/// A sentence: bytes of one tenant are to be another's, and which key decides about them.
fn asked(before: &str, tenant: &str) -> String {
    let (before, tenant) = (shown(before), shown(tenant));
    format!(
        "its bytes are tenant {before}'s and it is tenant {tenant}'s: allowed are keep-data = false, which erases them, \
         and keep-data = true, which shows them to {tenant}"
    )
}
