//! Whose cost is measured: each policy under the name that tables give it.
//!
//! `none` is first, because the others are read as differences to it. `mqfq` is the form that ships, `mqfq-serial` the
//! same under one lock, `mqfq-faithful` the paper's form. On request there is also each relaxation alone, because what
//! one of them gains over the faithful form is what it pays for its term in the bound; and the paper's form under one
//! lock.

use mqfq_blk::{PolicyKind, PolicyOptions, VSpan};

/// A policy in one of its forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contender {
    /// Its name in reports.
    pub label: &'static str,
    /// Policy.
    pub kind: PolicyKind,
    /// Form.
    pub form: Form,
}

/// How closely a policy follows its paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As published.
    Faithful,
    /// With quantised leaves only.
    Quantum,
    /// With leased finish tags only.
    Lease,
    /// With batched tokens only.
    Batch,
    /// With all three.
    AllThree,
}

impl Form {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Faithful => "faithful",
            Form::Quantum => "quantum",
            Form::Lease => "lease",
            Form::Batch => "batch",
            Form::AllThree => "relaxed",
        }
    }

    /// The paper's form of some options, brought into this one for `hctxs` queues.
    pub const fn of(self, faithful: PolicyOptions, hctxs: usize) -> PolicyOptions {
        let relaxed = faithful.relaxed(hctxs);
        match self {
            Form::Faithful => faithful,
            Form::Quantum => PolicyOptions { quantum: relaxed.quantum, ..faithful },
            Form::Lease => PolicyOptions { lease: relaxed.lease, ..faithful },
            Form::Batch => {
                PolicyOptions { token_batch: relaxed.token_batch, token_share: relaxed.token_share, ..faithful }
            }
            Form::AllThree => relaxed,
        }
    }
}

const fn contender(label: &'static str, kind: PolicyKind, form: Form) -> Contender {
    Contender { label, kind, form }
}

/// No scheduler: the costs of the others are measured against this.
pub const NONE: Contender = contender("none", PolicyKind::None, Form::Faithful);

/// SFQ(D).
pub const SFQD: Contender = contender("sfqd", mqfq_policies::SFQD, Form::Faithful);

/// The product's MQFQ under one lock.
pub const MQFQ_SERIAL: Contender = contender("mqfq-serial", mqfq_policies::MQFQ_SERIAL, Form::AllThree);

/// MQFQ as the paper describes it.
pub const MQFQ_FAITHFUL: Contender = contender("mqfq-faithful", PolicyKind::Mqfq, Form::Faithful);

/// The product's MQFQ.
pub const MQFQ: Contender = contender("mqfq", PolicyKind::Mqfq, Form::AllThree);

/// Number of [`CONTENDERS`].
const COUNT: usize = mqfq_policies::STAGED.len() + 1;

/// Contenders that are always measured, in the order in which tables show policies: each policy that stages requests,
/// in the product's form, and before `mqfq` its paper's form.
pub const CONTENDERS: [Contender; COUNT] = {
    let mut all = [NONE; COUNT];
    let (mut count, mut at) = (0, 0);
    while at < mqfq_policies::STAGED.len() {
        let kind = mqfq_policies::STAGED[at];
        if matches!(kind, PolicyKind::Mqfq) {
            all[count] = MQFQ_FAITHFUL;
            count += 1;
        }
        let form = if kind.has_window() { Form::AllThree } else { Form::Faithful };
        all[count] = contender(kind.name(), kind, form);
        count += 1;
        at += 1;
    }
    all
};

/// [`CONTENDERS`], and with `relaxations` each relaxation alone, and the paper's form under the lock.
pub fn contenders(relaxations: bool) -> Vec<Contender> {
    let mut contenders = CONTENDERS.to_vec();
    if relaxations {
        contenders.extend([
            contender("mqfq-quantum", PolicyKind::Mqfq, Form::Quantum),
            contender("mqfq-lease", PolicyKind::Mqfq, Form::Lease),
            contender("mqfq-batch", PolicyKind::Mqfq, Form::Batch),
            contender("mqfq-serial-faithful", mqfq_policies::MQFQ_SERIAL, Form::Faithful),
        ]);
    }
    contenders
}

impl Contender {
    /// Its options for D = `depth` and T = `window_bytes` on `hctxs` queues.
    pub fn options(&self, depth: u32, window_bytes: u64, hctxs: usize) -> PolicyOptions {
        let faithful =
            PolicyOptions { depth, window: VSpan::from_bytes(window_bytes), ..PolicyOptions::new(self.kind) };
        self.form.of(faithful, hctxs)
    }

    /// It has a D.
    pub fn has_depth(&self) -> bool {
        self.kind.has_depth()
    }

    /// It has a T.
    pub fn has_window(&self) -> bool {
        self.kind.has_window()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_there_and_no_label_twice() {
        let all = contenders(true);
        for kind in mqfq_policies::STAGED {
            assert!(CONTENDERS.iter().any(|contender| contender.kind == kind), "{kind} is not measured");
        }
        for (at, contender) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.label != contender.label), "{contender:?}");
        }
        assert_eq!(all[0], NONE, "differences are to the first");
        for known in [SFQD, MQFQ_SERIAL, MQFQ_FAITHFUL, MQFQ] {
            assert!(CONTENDERS.contains(&known), "{known:?}");
        }
        assert_eq!(contenders(false), CONTENDERS);
    }

    #[test]
    fn the_settings_arrive() {
        for contender in contenders(true) {
            for window_bytes in [0, 4096, 64 << 10] {
                let options = contender.options(7, window_bytes, 2);
                assert_eq!((options.kind, options.depth, options.window.bytes()), (contender.kind, 7, window_bytes));
                assert_eq!(options.validate(), Ok(()), "{contender:?}");
            }
        }
    }

    #[test]
    fn a_form_is_what_it_says() {
        let relaxed_parts = |form| {
            let PolicyOptions { quantum, lease, token_batch, .. } =
                contender("", PolicyKind::Mqfq, form).options(64, 64 << 10, 2);
            [quantum != VSpan(0), lease != VSpan(0), token_batch > 1]
        };
        assert_eq!(relaxed_parts(Form::Faithful), [false; 3]);
        assert_eq!(relaxed_parts(Form::Quantum), [true, false, false]);
        assert_eq!(relaxed_parts(Form::Lease), [false, true, false]);
        assert_eq!(relaxed_parts(Form::Batch), [false, false, true]);
        assert_eq!(relaxed_parts(Form::AllThree), [true; 3]);
    }
}
