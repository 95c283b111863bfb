//! The keys that each section may have, and the policies that a config may name.

use super::model::{DeviceConfig, ServerConfig, TenantConfig};
use super::other::{LABORATORY_KEYS, LABORATORY_SERVER_KEYS, OtherKeys, OtherKind};
use super::{caps, goal, policy, poll, trust};
use mqfq_blk::Registry;
use mqfq_config::{ConfigError, Section};
use mqfq_front::FRONT_ENDS;
use std::sync::{LazyLock, OnceLock};

/// Policies, devices and keys of a program.
pub struct Additions {
    /// Policies that a config may name, those that ship among them.
    pub policies: Registry,
    /// Kinds of device beside those that ship.
    pub kinds: &'static [OtherKind],
    /// Keys of `[server]` beside those that ship.
    pub server: OtherKeys<ServerConfig>,
    /// Keys of `[device.NAME]` beside those that ship.
    pub device: OtherKeys<DeviceConfig>,
    /// Keys of `[tenant.NAME]` beside those that ship.
    pub tenant: OtherKeys<TenantConfig>,
}

impl Additions {
    /// These policies and nothing else.
    pub const fn policies(policies: Registry) -> Additions {
        Additions { policies, kinds: &[], server: OtherKeys::NONE, device: OtherKeys::NONE, tenant: OtherKeys::NONE }
    }
}

/// A kind of device and its own keys.
#[derive(Clone, Copy)]
pub(super) struct KindKeys {
    /// Value of `kind`.
    pub(super) name: &'static str,
    /// Keys of `[device.NAME]` that not all kinds have, `kind` among them.
    pub(super) keys: &'static [&'static str],
    /// Keys of `[device.NAME.expert]` that not all kinds have.
    pub(super) expert: &'static [&'static str],
}

/// Kinds of device that ship.
const KINDS: [KindKeys; 5] = [
    KindKeys { name: "null", keys: &["kind", "size"], expert: &[] },
    KindKeys { name: "memory", keys: &["kind", "size"], expert: &[] },
    KindKeys { name: "file", keys: &["kind", "path", "size", "on-failure"], expert: &["direct"] },
    KindKeys { name: "pool", keys: &["kind", "folders", "on-failure"], expert: &["direct"] },
    KindKeys { name: "model", keys: &["kind", "preset", "size"], expert: &["slowed"] },
];

/// Keys of `[device.NAME]` that all kinds have.
const DEVICE_KEYS: [&str; 6] = ["policy", "timeout", goal::FLOOR, "cost", "profile", "expert"];

/// Keys of `[device.NAME.expert]` that all kinds have.
const EXPERT_KEYS: [&str; 5] = ["depth", "window", "split", "queue-depth", "retries"];

/// Policies and kinds of device that a config may name, and with them the keys of `[device.NAME]` and of its `expert`
/// per kind: its own, then the common ones.
pub(super) struct Known {
    pub(super) additions: Additions,
    pub(super) kinds: Vec<KindKeys>,
    pub(super) device_keys: Vec<Vec<&'static str>>,
    pub(super) expert_keys: Vec<Vec<&'static str>>,
    pub(super) server_keys: Vec<&'static str>,
    pub(super) tenant_keys: Vec<&'static str>,
}

/// Sentence about a key that this program has not.
const OF_LABORATORY: &str = "is a key of cargo lab serve alone";

impl Known {
    pub(super) fn new(additions: Additions) -> Known {
        let (registry, other) = (additions.policies, additions.device.keys);
        let added = additions.kinds.iter().map(|&OtherKind { name, keys, expert, .. }| KindKeys { name, keys, expert });
        let kinds: Vec<KindKeys> = KINDS.into_iter().chain(added).collect();
        let keys = |kind: &KindKeys| {
            [kind.keys, &DEVICE_KEYS[..], policy::keys(registry), &registry.all_keys()[..], other].concat()
        };
        let device_keys = kinds.iter().map(keys).collect();
        let expert_keys = kinds.iter().map(|kind| [&EXPERT_KEYS[..], kind.expert].concat()).collect();
        let server_keys = [&SERVER_KEYS[..], additions.server.keys].concat();
        let tenant_keys = [&TENANT_KEYS[..], additions.tenant.keys].concat();
        Known { additions, kinds, device_keys, expert_keys, server_keys, tenant_keys }
    }

    /// Refuses keys of `[server]` that the laboratory alone has.
    ///
    /// # Errors
    /// The first such key.
    pub(super) fn refuse_of_laboratory(&self, server: &Section<'_, '_>) -> Result<(), ConfigError> {
        let is_known = |key: &&str| self.server_keys.contains(key);
        let of_lab: Vec<&'static str> = LABORATORY_SERVER_KEYS.into_iter().filter(|key| !is_known(key)).collect();
        server.refuse(&of_lab, OF_LABORATORY)
    }

    /// Refuses keys of a device that stand elsewhere, and says where.
    ///
    /// # Errors
    /// The first such key.
    pub(super) fn refuse_moved(&self, device: &Section<'_, '_>, expert: &Section<'_, '_>) -> Result<(), ConfigError> {
        let is_known = |key: &&str| self.device_keys.iter().flatten().any(|known| known == key);
        let of_lab: Vec<&'static str> = LABORATORY_KEYS.into_iter().filter(|key| !is_known(key)).collect();
        [device, expert].iter().try_for_each(|section| section.refuse(&of_lab, OF_LABORATORY))?;
        let of_expert: Vec<&'static str> = self.expert_keys.concat();
        device.refuse(&of_expert, &format!("now stands in [{}]", expert.place().key()))
    }
}

/// The known keys, policies and kinds, see [`extend`].
static KNOWN: OnceLock<Known> = OnceLock::new();

/// Unit tests read configs of the laboratory as well.
const BY_DEFAULT: Registry = {
    #[cfg(not(test))]
    let registry = Registry::PRODUCT;
    #[cfg(test)]
    let registry = mqfq_policies::REGISTRY;
    registry
};

pub(super) fn known() -> &'static Known {
    KNOWN.get_or_init(|| Known::new(Additions::policies(BY_DEFAULT)))
}

/// A config may name these policies and kinds of device, in the whole process. The first call counts, and it comes
/// before any config is read.
pub fn extend(additions: Additions) {
    let names = additions.policies.names();
    let known = KNOWN.get_or_init(|| Known::new(additions));
    assert_eq!(known.additions.policies.names(), names, "a process has one registry");
}

/// The keys of a section; for a device, those of all its kinds.
pub fn keys(kind: mqfq_control::Kind) -> Vec<&'static str> {
    use mqfq_control::Kind;
    match kind {
        Kind::Device => {
            let mut keys = Vec::new();
            known().device_keys.iter().flatten().for_each(|key| {
                if !keys.contains(key) {
                    keys.push(*key)
                }
            });
            keys
        }
        Kind::Group => mqfq_config::groups::KEYS.to_vec(),
        Kind::Tenant => known().tenant_keys.clone(),
        Kind::Export => EXPORT_KEYS.clone(),
    }
}

/// Keys of `[server]`.
const SERVER_KEYS: [&str; 14] = [
    "workers",
    "pin",
    "connections",
    "socket-mode",
    "handshake-s",
    "stall-s",
    "drain-s",
    "memory",
    "connection-memory",
    "upgrade",
    "sandbox",
    "paths",
    "user",
    "group",
];

/// Keys of `[tenant.NAME]`.
const TENANT_KEYS: [&str; 9] = [
    "weight",
    "group",
    goal::LATENCY,
    "staged-requests",
    "staged-bytes",
    "memory",
    caps::MAX_IOPS,
    caps::MAX_BYTES_PER_S,
    trust::IDENTITY,
];

/// Keys of `[export.NAME]`, with the front ends' in the middle.
pub(super) static EXPORT_KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let front_ends = FRONT_ENDS.iter().flat_map(|front_end| {
        std::iter::once(front_end.name()).chain(front_end.manners().iter().map(|manner| manner.key))
    });
    let before = ["device", "tenant", "weight", "path", "offset", "size"].into_iter();
    before
        .chain(front_ends)
        .chain(["read-only", "shared", "keep-data", "description", "payload-max", poll::POLL])
        .chain(caps::KEYS)
        .chain(trust::EXPORT_KEYS)
        .collect()
});
