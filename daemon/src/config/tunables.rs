//! Keys of `[device.NAME]` that only one policy looks at: the elevators' and those of d2fq. Which there are and what
//! they may be is said beside the policies.

use super::policy::refuse;
use mqfq_blk::tunables::{KEYS, Tunable, tunable};
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_config::{ConfigError, Section};

/// It stands where an operating system has its elevator, with the device's queue below: its D is what the device takes.
pub fn is_elevator(kind: PolicyKind) -> bool {
    kind.has_depth() && KEYS.iter().any(|&(owner, _)| owner == kind)
}

/// The keys of the policy that there is; their ranges are the policies' own ([`tunable`]).
///
/// # Errors
/// A value out of range, or a key of another policy.
pub fn read(section: &Section<'_, '_>, options: &mut PolicyOptions) -> Result<(), ConfigError> {
    for (owner, keys) in KEYS {
        if owner != options.kind {
            refuse(section, keys, &format!("is no setting of policy {}, allowed with {owner}", options.kind))?;
            continue;
        }
        for key in keys {
            let Some(entry) = section.get(key) else { continue };
            let PolicyOptions { mq_deadline, kyber, bfq, d2fq, .. } = options;
            let found = tunable(key, mq_deadline, kyber, bfq, d2fq);
            match found.expect("every one of KEYS has a tunable") {
                Tunable::Time(ns, allowed_ns) => *ns = entry.duration_ns(allowed_ns)?,
                Tunable::Count(count, allowed) => *count = entry.number(allowed)?,
                Tunable::Size(bytes, allowed_bytes) => *bytes = entry.size(allowed_bytes)?,
                Tunable::Flag(flag) => *flag = entry.flag()?,
            }
        }
    }
    Ok(())
}
