//! Whose cost is measured: each policy under the name that tables give it.
//!
//! `none` is first, because the others are read as differences to it. `mqfq` is the form that `mqfq serve` runs.

use mqfq_blk::{PolicyKind, PolicyOptions, VSpan};

/// A policy in one of its forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contender {
    /// Its name in reports.
    pub label: &'static str,
    /// Which policy.
    pub kind: PolicyKind,
    /// In which form.
    pub form: Form,
}

/// How closely a policy follows its paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As published.
    Faithful,
}

impl Form {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Faithful => "faithful",
        }
    }
}

/// What does not schedule: the others cost so much more than this.
pub const NONE: Contender = Contender { label: "none", kind: PolicyKind::None, form: Form::Faithful };

/// What ships.
pub const MQFQ: Contender = Contender { label: "mqfq", kind: PolicyKind::Mqfq, form: Form::Faithful };

/// The same under one lock.
pub const MQFQ_SERIAL: Contender =
    Contender { label: "mqfq-serial", kind: PolicyKind::MqfqSerial, form: Form::Faithful };

/// All of them, in the order in which tables show them.
pub const CONTENDERS: [Contender; 4] =
    [NONE, Contender { label: "sfqd", kind: PolicyKind::Sfqd, form: Form::Faithful }, MQFQ_SERIAL, MQFQ];

impl Contender {
    /// Its options for D = `depth` and T = `window_bytes` on `hctxs` queues.
    pub fn options(&self, depth: u32, window_bytes: u64, _hctxs: usize) -> PolicyOptions {
        let options = PolicyOptions { depth, window: VSpan::from_bytes(window_bytes), ..PolicyOptions::new(self.kind) };
        match self.form {
            Form::Faithful => options,
        }
    }

    /// It has a D.
    pub fn has_depth(&self) -> bool {
        self.kind != PolicyKind::None
    }

    /// It has a T.
    pub fn has_window(&self) -> bool {
        matches!(self.kind, PolicyKind::Mqfq | PolicyKind::MqfqSerial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_there_and_no_label_twice() {
        for kind in PolicyKind::ALL {
            assert!(CONTENDERS.iter().any(|contender| contender.kind == kind), "{kind} is not measured");
        }
        for (at, contender) in CONTENDERS.iter().enumerate() {
            assert!(CONTENDERS[..at].iter().all(|other| other.label != contender.label), "{contender:?}");
        }
        assert_eq!(CONTENDERS[0], NONE, "differences are to the first");
    }

    #[test]
    fn the_settings_arrive() {
        for contender in CONTENDERS {
            let options = contender.options(7, 4096, 2);
            assert_eq!((options.kind, options.depth, options.window.bytes()), (contender.kind, 7, 4096));
            assert_eq!(options.validate(), Ok(()));
        }
    }
}
