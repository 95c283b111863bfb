//! The names of the policies.

use super::{Descriptor, KeyText, POLICIES, PolicyKind};
use std::fmt;
use std::str::FromStr;

/// Number of policies that stage requests.
const STAGED_COUNT: usize = {
    let (mut count, mut at) = (0, 0);
    while at < POLICIES {
        count += !PolicyKind::ALL[at].is_direct() as usize;
        at += 1;
    }
    count
};

impl PolicyKind {
    /// Those that stage requests, and so need of a device no more than a queue.
    pub const STAGED: [PolicyKind; STAGED_COUNT] = {
        let mut staged = [PolicyKind::ALL[0]; STAGED_COUNT];
        let (mut count, mut at) = (0, 0);
        while at < POLICIES {
            if !PolicyKind::ALL[at].is_direct() {
                staged[count] = PolicyKind::ALL[at];
                count += 1;
            }
            at += 1;
        }
        staged
    };

    /// The name in configs and tables.
    pub const fn name(self) -> &'static str {
        self.about().name
    }

    /// It bounds the requests on the device: it has a D.
    pub const fn has_depth(self) -> bool {
        self.about().has_depth
    }

    /// Its D can be found by a controller while it runs ([`crate::depth`]).
    pub const fn tunes_depth(self) -> bool {
        self.about().tunes_depth
    }

    /// It has a T, and an exact and a relaxed form.
    pub const fn has_window(self) -> bool {
        self.about().has_window
    }

    /// Its flows can be in groups.
    pub const fn has_groups(self) -> bool {
        self.about().has_groups
    }

    /// It leaves arbitration to the device, whose queues then have classes: requests are not staged.
    pub const fn is_direct(self) -> bool {
        self.about().is_direct
    }

    /// It has virtual time, and gives flows shares by their weights.
    pub const fn is_fair(self) -> bool {
        self.about().is_fair
    }

    /// It stands where an operating system has its elevator, with the device's queue below: its D is the depth of the
    /// device's queue unless it is set.
    pub const fn is_elevator(self) -> bool {
        self.about().is_elevator
    }

    /// The policy that a config may name for devices that lack what this one needs, if it needs anything.
    pub const fn fallback(self) -> Option<PolicyKind> {
        self.about().fallback
    }

    /// The names of all keys that only some policies have in a config, each once, in the order of the policies.
    pub fn all_keys() -> Vec<&'static str> {
        let mut all = Vec::new();
        for KeyText { name, .. } in PolicyKind::ALL.into_iter().flat_map(PolicyKind::keys) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }

    /// The names of the policies of which `is_one` holds, in alphabetical order, for a message: `a`, `a and b`,
    /// `a, b and c`.
    pub fn names(is_one: impl Fn(PolicyKind) -> bool) -> String {
        let mut names: Vec<&str> =
            PolicyKind::ALL.into_iter().filter(|&kind| is_one(kind)).map(PolicyKind::name).collect();
        names.sort_unstable();
        match names.split_last() {
            Some((last, [])) => (*last).to_string(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => "no policy".to_string(),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no policy's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy(pub String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown policy {:?}, allowed are {}", self.0, PolicyKind::ALL.map(PolicyKind::name).join(", "))
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

const _: () = {
    let mut at = 0;
    while at < POLICIES {
        let Descriptor { has_depth, has_window, is_direct, is_elevator, fallback, .. } = *PolicyKind::ALL[at].about();
        assert!(!is_direct || !has_depth && !has_window, "a direct policy has nothing that waits for a token");
        assert!(!is_elevator || has_depth, "an elevator's depth is that of the device's queue");
        if let Some(other) = fallback {
            assert!(!other.is_direct(), "a fallback needs nothing of a device");
        }
        at += 1;
    }
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_wrong_ones_list_the_right_ones() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(!kind.name().is_empty() && kind.name().chars().all(is_plain), "{kind}");
            assert!(!kind.about().summary.is_empty(), "{kind}");
        }
        let error = "cfq".parse::<PolicyKind>().unwrap_err().to_string();
        let names = error.strip_prefix("unknown policy \"cfq\", allowed are ").unwrap();
        assert!(names.split(", ").eq(PolicyKind::ALL.map(PolicyKind::name)), "{error}");
        assert!(names.starts_with("none, ") && names.contains(", mqfq-serial, mqfq"), "{error}");
    }

    #[test]
    fn every_key_of_a_policy_is_among_all_keys_once() {
        let all = PolicyKind::all_keys();
        for key in PolicyKind::ALL.into_iter().flat_map(PolicyKind::keys) {
            assert_eq!(all.iter().filter(|name| **name == key.name).count(), 1, "{}", key.name);
        }
        assert_eq!(all[..2], ["read-expire", "write-expire"], "in the order of the policies");
    }

    #[test]
    fn a_message_names_policies_by_the_alphabet() {
        assert_eq!(PolicyKind::names(PolicyKind::has_window), "mqfq and mqfq-serial");
        assert_eq!(PolicyKind::names(|kind| kind == PolicyKind::Bfq), "bfq");
        let three = [PolicyKind::Kyber, PolicyKind::Bfq, PolicyKind::MqDeadline];
        assert_eq!(PolicyKind::names(|kind| three.contains(&kind)), "bfq, kyber and mq-deadline");
    }

    #[test]
    fn staged_policies_are_all_but_the_direct_ones() {
        assert!(PolicyKind::STAGED.into_iter().eq(PolicyKind::ALL.into_iter().filter(|kind| !kind.is_direct())));
    }
}
