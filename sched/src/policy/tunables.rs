//! Settings of one policy alone: a struct in the policy's folder, and a table of the keys that set its fields.
//!
//! The reader of a config and the reader of a scenario go through these tables, and so do the tables of the docs: no
//! list of a policy's keys stands anywhere else.

use super::{PolicyError, PolicyKind};
use std::ops::RangeInclusive;

/// Longest time that most of them take, ns: an hour.
pub const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// Largest number that any of them takes.
pub const COUNT_MAX: u32 = 65_535;

/// A tunable by its key: where its value goes, and which values are allowed.
#[derive(PartialEq, Eq, Debug)]
pub enum Tunable<'a> {
    /// A time, ns.
    Time(&'a mut u64, RangeInclusive<u64>),
    /// A plain number, and its range.
    Count(&'a mut u32, RangeInclusive<u32>),
    /// A size, bytes.
    Size(&'a mut u64, RangeInclusive<u64>),
    /// On or off.
    Flag(&'a mut bool),
}

impl Tunable<'_> {
    /// Sets it to what the reader of its kind makes of the allowed range.
    ///
    /// # Errors
    /// What the reader answers; the value is then as it was.
    pub fn set<E>(
        self,
        time_ns: impl FnOnce(RangeInclusive<u64>) -> Result<u64, E>,
        size_bytes: impl FnOnce(RangeInclusive<u64>) -> Result<u64, E>,
        count: impl FnOnce(RangeInclusive<u32>) -> Result<u32, E>,
        flag: impl FnOnce() -> Result<bool, E>,
    ) -> Result<(), E> {
        match self {
            Tunable::Time(value, allowed) => *value = time_ns(allowed)?,
            Tunable::Size(value, allowed) => *value = size_bytes(allowed)?,
            Tunable::Count(value, allowed) => *value = count(allowed)?,
            Tunable::Flag(value) => *value = flag()?,
        }
        Ok(())
    }
}

/// What a table says of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyText {
    /// Its name in configs.
    pub name: &'static str,
    /// What it sets, in Markdown, without a full stop.
    pub meaning: &'static str,
}

/// A key of the options `O`.
pub struct Key<O> {
    /// Its name and meaning.
    pub text: KeyText,
    /// What it sets.
    pub at: fn(&mut O) -> Tunable<'_>,
}

impl<O> Key<O> {
    /// The key `name`, which sets what `at` answers.
    pub const fn new(name: &'static str, meaning: &'static str, at: fn(&mut O) -> Tunable<'_>) -> Key<O> {
        Key { text: KeyText { name, meaning }, at }
    }
}

/// The options of one policy alone.
pub trait Tunables: Copy + Eq + std::fmt::Debug + Send + Sync + 'static {
    /// As the policy is known with.
    const DEFAULT: Self;

    /// What a server runs with unless its config says otherwise.
    const SHIPPED: Self = Self::DEFAULT;

    /// What a config can set.
    const KEYS: &'static [Key<Self>];

    /// What a program can set and a config cannot; it is checked like the others.
    const FIXED: &'static [Key<Self>] = &[];
}

/// The options of a policy without any.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NoOptions;

impl Tunables for NoOptions {
    const DEFAULT: NoOptions = NoOptions;
    const KEYS: &'static [Key<NoOptions>] = &[];
}

/// The keys of a policy's options.
pub(super) fn texts<O: Tunables>() -> Vec<KeyText> {
    O::KEYS.iter().map(|key| key.text).collect()
}

/// What `key` sets, if it is one of theirs.
pub(super) fn tunable<'a, O: Tunables>(own: &'a mut O, key: &str) -> Option<Tunable<'a>> {
    O::KEYS.iter().find(|one| one.text.name == key).map(|one| (one.at)(own))
}

/// Checks every field of a policy's options.
///
/// # Errors
/// The first field that is out of range.
pub(super) fn validate<O: Tunables>(kind: PolicyKind, own: &O) -> Result<(), PolicyError> {
    let mut own = *own;
    for key in O::KEYS.iter().chain(O::FIXED) {
        let (value, unit, least, most) = match (key.at)(&mut own) {
            Tunable::Time(value, allowed) => (*value, " ns", *allowed.start(), *allowed.end()),
            Tunable::Size(value, allowed) => (*value, " bytes", *allowed.start(), *allowed.end()),
            Tunable::Count(value, allowed) => {
                (u64::from(*value), "", u64::from(*allowed.start()), u64::from(*allowed.end()))
            }
            Tunable::Flag(_) => continue,
        };
        if value < least || value > most {
            return Err(PolicyError::TunableOutOfRange { kind, name: key.text.name, value, unit, least, most });
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::policy::PolicyOptions;

    #[test]
    fn every_key_is_a_tunable_and_its_range_is_the_one_that_is_validated() {
        for kind in PolicyKind::ALL {
            for KeyText { name, meaning } in kind.keys() {
                assert!(!meaning.is_empty() && !meaning.ends_with('.'), "{kind} {name}");
                let refused = |past: fn(&RangeInclusive<u64>) -> Option<u64>| {
                    let mut options = PolicyOptions::new(kind);
                    match options.own.tunable(kind, name).expect("it is a key") {
                        Tunable::Time(value, allowed) | Tunable::Size(value, allowed) => *value = past(&allowed)?,
                        Tunable::Count(value, allowed) => {
                            *value = past(&(u64::from(*allowed.start())..=u64::from(*allowed.end())))? as u32;
                        }
                        Tunable::Flag(_) => return None,
                    }
                    Some(options.validate())
                };
                for (past, is_allowed) in [
                    ((|range| Some(*range.start())) as fn(&RangeInclusive<u64>) -> Option<u64>, true),
                    (|range| Some(*range.end()), true),
                    (|range| range.start().checked_sub(1), false),
                    (|range| Some(range.end() + 1), false),
                ] {
                    let Some(validated) = refused(past) else { continue };
                    assert_eq!(validated.is_ok(), is_allowed, "{kind} {name}: {validated:?}");
                }
            }
        }
    }

    #[test]
    fn no_key_stands_twice_and_each_sets_a_field_of_its_own() {
        for kind in PolicyKind::ALL {
            let keys = kind.keys();
            for (at, key) in keys.iter().enumerate() {
                assert!(keys[..at].iter().all(|other| other.name != key.name), "{kind} {}", key.name);
                let mut own = crate::policy::OwnOptions::DEFAULT;
                match own.tunable(kind, key.name).expect("it is a key") {
                    Tunable::Time(value, _) | Tunable::Size(value, _) => *value ^= 1,
                    Tunable::Count(value, _) => *value ^= 1,
                    Tunable::Flag(value) => *value = !*value,
                }
                // Taken back by every other key, it would be the default again.
                assert_ne!(own, crate::policy::OwnOptions::DEFAULT, "{kind} {}", key.name);
                for other in keys.iter().filter(|other| other.name != key.name) {
                    let (mut set, mut plain) = (own, crate::policy::OwnOptions::DEFAULT);
                    assert_eq!(set.tunable(kind, other.name), plain.tunable(kind, other.name), "{kind} {}", other.name);
                }
            }
            assert_eq!(crate::policy::OwnOptions::DEFAULT.clone().tunable(kind, "no-such-key"), None);
        }
    }

    #[test]
    fn what_ships_is_allowed() {
        assert_eq!(crate::policy::OwnOptions::DEFAULT.validate(), Ok(()));
        for kind in PolicyKind::ALL {
            assert_eq!(crate::policy::OwnOptions::shipped(kind).validate(), Ok(()), "{kind}");
        }
    }
}
