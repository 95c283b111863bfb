//! The scheduler's keys of `[device.NAME]`: which policy, D, T, and the form of `mqfq`.
//!
//! The relaxed form's defaults depend on the number of workers, which is known only once the whole config and the
//! machine were looked at. So this keeps what was written, and [`PolicyConfig::options`] makes the scheduler's options
//! of it. Written values are checked here, where their places are known; the defaults need no check.

use super::cost::Profile;
use mqfq_blk::{OwnOptions, PolicyKind, PolicyOptions, Registry, Tunable, VSpan, WINDOW_LEAST};
use mqfq_config::form::{ByHand, FORM_KEYS, FORMS, FormBounds};
use mqfq_config::{ConfigError, Entry, Owner, Section, read_owned};

/// Keys of the scheduler that do not belong to one policy.
const KEYS: [&str; 9] =
    ["policy", "depth", "window", "token-unit", "form", "quantum", "lease", "token-batch", "token-share"];

/// Keys of the scheduler, with those that only some registries have a use for.
pub fn keys(registry: Registry) -> Vec<&'static str> {
    [&KEYS[..], if falls_back(registry) { &["without-wrr"] } else { &[] }].concat()
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
/// - `depth`: D, 1..=65535 units, or `"auto"`: found while the device runs, where the policy can change it. Default
///   `"auto"` there, from the knee of the device's [`Profile`] on if it has one; of the elevators, `queue-depth`.
/// - `window`: T, in bytes at the default weight, 0 to 1 TiB, or `"auto"`: found while the device runs, in the relaxed
///   form and where neither `quantum` nor `lease` is set. Default `"auto"` there; else 64 KiB.
/// - `token-unit`: `"request"` (each request takes one unit of depth) or a size, 512 to 1 GiB (a request takes one unit
///   per that many bytes of its cost). Default 4 KiB where D can be found, so that a D means the same found and set;
///   else `"request"`.
/// - `form`: `"relaxed"` (default) or `"exact"`, as the paper has it. Only with `mqfq` and `mqfq-serial`, and the
///   numbers of [`ByHand`] only in the relaxed form.
/// - Keys that only one policy has: [`PolicyKind::keys`].
/// - `without-wrr`: treatment of a policy that needs weighted round robin on a device where it has no effect:
///   `"refuse"` (default) or the name of its [`PolicyKind::fallback`], whose keys are then allowed and are for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicyConfig {
    wanted: Chosen,
    /// The policy of a device that lacks what `wanted` needs.
    fallback: Option<Chosen>,
}

/// One policy's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Chosen {
    /// All settings but the relaxed form's numbers.
    exact: PolicyOptions,
    /// Values set by hand; the rest is [`PolicyOptions::relaxed`] for T and the number of workers. `None`: exact form.
    relaxed: Option<ByHand>,
}

impl PolicyConfig {
    /// The settings in the section of a device with so deep a device queue per worker, and with this profile.
    ///
    /// # Errors
    /// A value out of range, or a key that the policy or the form does not have.
    pub fn read(
        device: &Section<'_, '_>,
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
            return Ok(PolicyConfig {
                wanted: Chosen::read(device, own, queue_depth, profile, registry)?,
                fallback: None,
            });
        };
        let fallback = PolicyOptions { own: OwnOptions::shipped(fallback), ..PolicyOptions::new(fallback) };
        let fallback = Chosen::read(device, fallback, queue_depth, profile, registry)?;
        Ok(PolicyConfig { wanted: Chosen { exact: own, relaxed: None }, fallback: Some(fallback) })
    }

    /// The scheduler's options for so many workers.
    pub fn options(&self, workers: usize) -> PolicyOptions {
        self.wanted.options(workers)
    }

    /// Options of the policy's fallback, for a device that lacks what the policy needs.
    pub fn fallback(&self, workers: usize) -> Option<PolicyOptions> {
        self.fallback.map(|fallback| fallback.options(workers))
    }

    /// The form's name, if the device runs with `kind`; `None` for a policy that has but one.
    pub fn form(&self, kind: PolicyKind) -> Option<&'static str> {
        let both = [Some(self.wanted), self.fallback];
        let running = both.into_iter().flatten().find(|chosen| chosen.exact.kind == kind)?;
        kind.has_window().then_some(if running.relaxed.is_some() { FORMS[0] } else { FORMS[1] })
    }
}

impl Chosen {
    /// D, T and the form, for a policy whose own settings are known.
    fn read(
        device: &Section<'_, '_>,
        own: PolicyOptions,
        queue_depth: u16,
        profile: Option<&Profile>,
        registry: Registry,
    ) -> Result<Chosen, ConfigError> {
        let (kind, mut exact) = (own.kind, own);
        let number = match device.get("depth") {
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
        exact.depth_auto = number.is_none() && kind.tunes_depth();
        if kind.tunes_depth() {
            exact.token_unit_bytes = Some(PolicyOptions::AUTO_TOKEN_UNIT_BYTES);
        }
        let window = device.get("window");
        let in_bytes = |entry: &Entry<'_, '_>| entry.size_or(AUTO, 0..=PolicyOptions::WINDOW_MAX.bytes());
        let window_bytes = window.as_ref().map(in_bytes).transpose()?.flatten();
        exact.window = window_bytes.map_or(exact.window, VSpan::from_bytes);
        let wants_auto = window.filter(|_| window_bytes.is_none());
        if let Some(unit) = device.get("token-unit") {
            exact.token_unit_bytes = match unit.text("").as_deref() {
                Ok("request") => None,
                _ => Some(unit.size(512..=1 << 30)? as u32),
            };
        }
        if let Some(number) = number {
            exact.depth = number;
        } else if kind.is_elevator() {
            exact.depth = queue_depth.into();
        } else if let Some(profile) = profile.filter(|_| exact.depth_auto) {
            exact.depth = profile.depth_start(exact.token_unit_bytes);
        }
        if !kind.has_window() {
            let allowed = registry.which(PolicyKind::has_window);
            device.refuse(&FORM_KEYS, &format!("is no setting of policy {kind}, allowed with {allowed}"))?;
            if let Some(entry) = wants_auto {
                let why = format!("{AUTO:?} is no setting of policy {kind}, allowed with {allowed}");
                return Err(entry.place().error(why));
            }
            return Ok(Chosen { exact, relaxed: None });
        }
        let (token_batch_max, token_share_max) = (PolicyOptions::TOKEN_BATCH_MAX, PolicyOptions::DEPTH_MAX);
        let bounds = FormBounds { token_batch_max, token_share_max };
        let relaxed = ByHand::read(device, exact.window.bytes(), wants_auto.as_ref(), bounds)?;
        if window_bytes.is_none() && relaxed.is_some_and(|relaxed| relaxed.follows_window()) {
            exact.window_least = Some(WINDOW_LEAST);
        }
        Ok(Chosen { exact, relaxed })
    }

    fn options(&self, workers: usize) -> PolicyOptions {
        let Some(by_hand) = self.relaxed else { return self.exact };
        let relaxed = self.exact.relaxed(workers);
        PolicyOptions {
            quantum: by_hand.quantum_bytes.map_or(relaxed.quantum, VSpan::from_bytes),
            lease: by_hand.lease_bytes.map_or(relaxed.lease, VSpan::from_bytes),
            token_batch: by_hand.token_batch.unwrap_or(relaxed.token_batch),
            token_share: by_hand.token_share.unwrap_or(relaxed.token_share),
            tokens_follow_depth: relaxed.tokens_follow_depth && by_hand.follows_depth(),
            ..relaxed
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
