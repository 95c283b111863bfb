//! The scheduler's keys of `[device.NAME]` and its `expert`: which policy, D, T; and treatment
//! of requests besides: `timeout`, `split` and `retries`.
//!
//! Quantum, lease and parts of D follow from T, D and the number of workers, which is known only once the whole config
//! and the machine were looked at. So this keeps what was written, and [`PolicyConfig::options`] makes the scheduler's
//! options of it.

use super::cost::Profile;
use super::other::OtherOptions;
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::split::Split;
use mqfq_blk::{OwnOptions, PolicyKind, PolicyOptions, Registry, Tunable, VSpan, WINDOW_LEAST};
use mqfq_config::{ConfigError, Entry, Owner, Section, read_owned};
use std::ops::RangeInclusive;

/// Keys of the scheduler that only some registries have a use for.
pub fn keys(registry: Registry) -> &'static [&'static str] {
    if falls_back(registry) { &["without-wrr"] } else { &[] }
}

fn falls_back(registry: Registry) -> bool {
    registry.kinds().iter().any(|kind| kind.fallback().is_some())
}

/// Policies that the laboratory's server has and this one has not.
const LABORATORY: [&str; 6] = ["mq-deadline", "kyber", "bfq", "sfqd", "mqfq-serial", "d2fq"];

/// Value of `depth` besides a number, and of `window` besides a size.
const AUTO: &str = "auto";

/// Value of `without-wrr` besides the name of the policy's fallback, and the default.
const REFUSE: &str = "refuse";

/// - `policy`: default mqfq.
/// - `depth` of `expert`: D, 1..=65535 units, or `"auto"`: found while the device runs, where the policy can change it.
///   Default `"auto"` there, from the knee of the device's [`Profile`] on if it has one; of the elevators,
///   `queue-depth`. A unit is 4 KiB of cost where D can be found, so that a D means the same found and set; else a
///   request.
/// - `window` of `expert`: T, in bytes at the default weight, 0 to 1 TiB, or `"auto"`, the default: found while the
///   device runs.
/// - Keys that only one policy has: [`PolicyKind::keys`].
/// - `without-wrr`: treatment of a policy that needs weighted round robin on a device where it has no effect:
///   `"refuse"` (default) or the name of its [`PolicyKind::fallback`], whose keys are then allowed and are for it.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicyConfig {
    wanted: Chosen,
    /// The policy of a device that lacks what `wanted` needs.
    fallback: Option<Chosen>,
}

/// One policy's settings.
#[derive(Clone, PartialEq, Debug)]
struct Chosen {
    /// All settings but those that follow the number of workers.
    written: PolicyOptions,
    /// Settings by keys that do not ship. `None`: [`PolicyOptions::relaxed`], where the policy has a window.
    other: Option<OtherOptions>,
}

impl PolicyConfig {
    /// The settings in the section of a device with so deep a device queue per worker, and with this profile.
    ///
    /// # Errors
    /// A value out of range, or a key that the policy does not have.
    pub fn read(
        device: &Section<'_, '_>,
        expert: &Section<'_, '_>,
        queue_depth: u16,
        profile: Option<&Profile>,
        registry: Registry,
    ) -> Result<PolicyConfig, ConfigError> {
        let kind = match device.get("policy") {
            Some(entry) => {
                let names = registry.names();
                if let Ok(name) = entry.text("")
                    && LABORATORY.contains(&&*name)
                    && !names.contains(&&*name)
                {
                    let why = format!(
                        "{name:?} is a policy of the laboratory: cargo lab serve, allowed here are {}",
                        names.join(", ")
                    );
                    return Err(entry.place().error(why));
                }
                registry.find(&entry.choice(&names)?).expect("a choice of all names")
            }
            None => PolicyKind::Mqfq,
        };
        let without_wrr = if falls_back(registry) { device.get("without-wrr") } else { None };
        let fallback = match (without_wrr, kind.fallback()) {
            (Some(entry), Some(fallback)) => {
                (entry.choice(&[REFUSE, fallback.name()])? == fallback.name()).then_some(fallback)
            }
            (Some(entry), None) => {
                let allowed = registry.which(|kind| kind.fallback().is_some());
                return Err(entry.place().error(format!("is no setting of policy {kind}, allowed with {allowed}")));
            }
            (None, _) => None,
        };
        let mut own = PolicyOptions { own: OwnOptions::shipped(kind), ..PolicyOptions::new(kind) };
        own_keys(device, &mut own, registry)?;
        let Some(fallback) = fallback else {
            let wanted = Chosen::read(expert, own, queue_depth, profile, registry)?;
            return Ok(PolicyConfig { wanted, fallback: None });
        };
        let fallback = PolicyOptions { own: OwnOptions::shipped(fallback), ..PolicyOptions::new(fallback) };
        let fallback = Chosen::read(expert, fallback, queue_depth, profile, registry)?;
        Ok(PolicyConfig { wanted: Chosen { written: own, other: None }, fallback: Some(fallback) })
    }

    /// The scheduler's options for so many workers.
    pub fn options(&self, workers: usize) -> PolicyOptions {
        self.wanted.options(workers)
    }

    /// Options of the policy's fallback, for a device that lacks what the policy needs.
    pub fn fallback(&self, workers: usize) -> Option<PolicyOptions> {
        self.fallback.as_ref().map(|fallback| fallback.options(workers))
    }

    /// Options of the policy that `depth` and `window` are for, but those that follow the number of workers.
    pub fn written(&self) -> PolicyOptions {
        self.fallback.as_ref().unwrap_or(&self.wanted).written
    }

    /// Sets options of the policy of [`PolicyConfig::written`] by keys that do not ship.
    pub fn set_other(&mut self, other: OtherOptions) {
        self.fallback.as_mut().unwrap_or(&mut self.wanted).other = Some(other);
    }
}

impl Chosen {
    /// D and T, for a policy whose own settings are known.
    fn read(
        expert: &Section<'_, '_>,
        own: PolicyOptions,
        queue_depth: u16,
        profile: Option<&Profile>,
        registry: Registry,
    ) -> Result<Chosen, ConfigError> {
        let (kind, mut written) = (own.kind, own);
        let number = match expert.get("depth") {
            Some(entry) => {
                let number = entry.number_or(AUTO, 1..=PolicyOptions::DEPTH_MAX)?;
                if number.is_none() && !kind.tunes_depth() {
                    let allowed = registry.which(PolicyKind::tunes_depth);
                    let why = format!("{AUTO:?} is no setting of policy {kind}, allowed with {allowed}");
                    return Err(entry.place().error(why));
                }
                number
            }
            None => None,
        };
        written.depth_auto = number.is_none() && kind.tunes_depth();
        if kind.tunes_depth() {
            written.token_unit_bytes = Some(PolicyOptions::AUTO_TOKEN_UNIT_BYTES);
        }
        if let Some(number) = number {
            written.depth = number;
        } else if kind.is_elevator() {
            written.depth = queue_depth.into();
        } else if let Some(profile) = profile.filter(|_| written.depth_auto) {
            written.depth = profile.knee_units;
        }
        let window = expert.get("window");
        let in_bytes = |entry: &Entry<'_, '_>| entry.size_or(AUTO, 0..=PolicyOptions::WINDOW_MAX.bytes());
        let window_bytes = window.as_ref().map(in_bytes).transpose()?.flatten();
        written.window = window_bytes.map_or(written.window, VSpan::from_bytes);
        if kind.has_window() {
            written.window_least = window_bytes.is_none().then_some(WINDOW_LEAST);
        } else if let Some(entry) = window.filter(|_| window_bytes.is_none()) {
            let allowed = registry.which(PolicyKind::has_window);
            let why = format!("{AUTO:?} is no setting of policy {kind}, allowed with {allowed}");
            return Err(entry.place().error(why));
        }
        Ok(Chosen { written, other: None })
    }

    fn options(&self, workers: usize) -> PolicyOptions {
        match &self.other {
            Some(other) => (other.make)(self.written, workers),
            None if self.written.kind.has_window() => self.written.relaxed(workers),
            None => self.written,
        }
    }
}

/// The keys that only some policies have; their ranges are the policies' own.
fn own_keys(device: &Section<'_, '_>, options: &mut PolicyOptions, registry: Registry) -> Result<(), ConfigError> {
    let PolicyOptions { kind, own, .. } = options;
    let owner = |kind: PolicyKind| Owner { name: kind.name(), keys: kind.keys().iter().map(|key| key.name).collect() };
    let owners: Vec<Owner> = registry.kinds().iter().map(|kind| owner(*kind)).collect();
    read_owned(device, "policy", kind.name(), &owners, |key, entry| {
        let set = |tunable: Tunable<'_>| {
            tunable.set(|ns| entry.duration_ns(ns), |bytes| entry.size(bytes), |n| entry.number(n), || entry.flag())
        };
        own.tune(*kind, key, set).expect("it is one of its keys")
    })
}

/// A timeout under a millisecond would abort every slow request; a client does not wait longer than a day, and `"off"`
/// says so.
const TIMEOUT_NS: RangeInclusive<u64> = 1_000_000..=86_400_000_000_000;

const TIMEOUT_ALLOWED: &str = "\"off\" or a duration like \"30s\"";

/// - `split`: large reads and writes go to the device in parts: `"auto"` (default), `"off"`, or a size, 4 KiB to 1 MiB.
/// - `timeout`: a command that takes longer is aborted, `"1ms"` to `"86400s"`, or `"off"`. Default `"30s"`.
/// - `retries`: times that a request goes to the device again after resets, 0..=255. Default 5.
///
/// # Errors
/// An unknown name, or a number out of range.
pub fn read_path(device: &Section<'_, '_>, expert: &Section<'_, '_>) -> Result<PathOptions, ConfigError> {
    let mut path = PathOptions { split: Split::Auto, ..PathOptions::default() };
    if let Some(entry) = expert.get("split") {
        let (range, step) = Split::SIZES;
        path.split = entry.size_or_one_of(&Split::WORDS, range, step, Split::of_size)?;
    }
    if let Some(entry) = device.get("timeout") {
        path.timeout_ns = match entry.text(TIMEOUT_ALLOWED)?.as_str() {
            "off" | "0" => 0,
            _ => entry.duration_ns(TIMEOUT_NS)?,
        };
    }
    if let Some(entry) = expert.get("retries") {
        path.retries = entry.number(0..=u8::MAX)?;
    }
    Ok(path)
}
