//! The policies that do not ship: what the papers compare with, and what the kernel has.
//!
//! They enter by the seam of [`mqfq_sched::policy`]: each is a type with [`Policy`](mqfq_sched::policy::Policy) and
//! [`Registered`](mqfq_sched::policy::Registered), and [`REGISTRY`] has them beside those that ship.

/// The policy of a folder as a kind, `KIND`.
macro_rules! kind {
    ($policy:ident) => {
        #[doc = concat!("See [`", stringify!($policy), "`].")]
        pub const KIND: mqfq_sched::policy::PolicyKind = {
            static OTHER: mqfq_sched::policy::OtherPolicy = mqfq_sched::policy::OtherPolicy::of::<$policy>();
            mqfq_sched::policy::PolicyKind::Other(&OTHER)
        };
    };
}

pub mod bfq;
mod central;
pub mod d2fq;
pub mod kyber;
pub mod mq_deadline;
pub mod mqfq_serial;
pub mod offset_order;
pub mod sfqd;

pub use bfq::{Bfq, BfqOptions, KIND as BFQ};
pub use central::CentralQueue;
pub use d2fq::{D2fq, D2fqOptions, D2fqQueue, GlobalVtime, Gvt, KIND as D2FQ, Thresholds};
pub use kyber::{KIND as KYBER, Kyber, KyberDomain, KyberOptions, KyberQueue};
pub use mq_deadline::{KIND as MQ_DEADLINE, MqDeadline, MqDeadlineOptions};
pub use mqfq_serial::{KIND as MQFQ_SERIAL, MqfqSerial};
pub use sfqd::{KIND as SFQD, Sfqd};

use mqfq_sched::policy::{PolicyKind, Registry};

/// Policies that stage requests, and so need of a device no more than a queue.
pub const STAGED: [PolicyKind; 7] = [PolicyKind::None, MQ_DEADLINE, KYBER, BFQ, SFQD, MQFQ_SERIAL, PolicyKind::Mqfq];

/// All policies, the shipped ones included, in the order in which tables show them.
pub const ALL: [PolicyKind; 8] = [PolicyKind::None, MQ_DEADLINE, KYBER, BFQ, SFQD, MQFQ_SERIAL, PolicyKind::Mqfq, D2FQ];

/// Policies that the laboratory's programs can run.
pub const REGISTRY: Registry = Registry::new(&ALL);

#[cfg(all(test, not(mqfq_loom)))]
mod registry_tests {
    //! Properties of every policy.

    use crate::{ALL, BFQ, BfqOptions, D2FQ, D2fqOptions, KYBER, KyberOptions, MQ_DEADLINE, REGISTRY, STAGED};
    use mqfq_sched::policy::{OwnOptions, PolicyKind, PolicyOptions, Registry, Tunable, Tunables};
    use std::ops::RangeInclusive;

    #[test]
    fn names_read_back_and_wrong_ones_list_the_right_ones() {
        for kind in ALL {
            assert_eq!(REGISTRY.find(kind.name()), Ok(kind));
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(!kind.name().is_empty() && kind.name().chars().all(is_plain), "{kind}");
            assert!(!kind.about().summary.is_empty(), "{kind}");
        }
        let sentence = |registry: Registry| registry.find("cfq").unwrap_err().to_string();
        assert_eq!(sentence(Registry::PRODUCT), "unknown policy \"cfq\", allowed are none, mqfq");
        let all = ALL.map(PolicyKind::name).join(", ");
        assert!(all.starts_with("none, ") && all.contains(", kyber, bfq, "), "{all}");
        assert_eq!(sentence(REGISTRY), format!("unknown policy \"cfq\", allowed are {all}"));
    }

    #[test]
    fn every_key_of_a_policy_is_among_all_keys_once() {
        let all = REGISTRY.all_keys();
        for key in ALL.into_iter().flat_map(PolicyKind::keys) {
            assert_eq!(all.iter().filter(|name| **name == key.name).count(), 1, "{}", key.name);
        }
        assert_eq!(all[..2], ["read-expire", "write-expire"], "in the order of the policies");
    }

    #[test]
    fn a_message_names_policies_by_the_alphabet() {
        assert_eq!(REGISTRY.which(PolicyKind::has_window), "mqfq and mqfq-serial");
        assert_eq!(Registry::PRODUCT.which(PolicyKind::has_window), "mqfq");
        assert_eq!(Registry::PRODUCT.which(PolicyKind::is_direct), "no policy");
        let three = [KYBER, BFQ, MQ_DEADLINE];
        assert_eq!(REGISTRY.which(|kind| three.contains(&kind)), "bfq, kyber and mq-deadline");
    }

    #[test]
    fn staged_policies_are_all_but_the_direct_ones() {
        assert!(STAGED.into_iter().eq(ALL.into_iter().filter(|kind| !kind.is_direct())));
    }

    #[test]
    fn every_key_is_a_tunable_and_its_range_is_the_one_that_is_validated() {
        type Past = fn(&RangeInclusive<u64>) -> Option<u64>;
        for (kind, key) in ALL.into_iter().flat_map(|kind| kind.keys().into_iter().map(move |key| (kind, key))) {
            assert!(!key.meaning.is_empty() && !key.meaning.ends_with('.'), "{kind} {}", key.name);
            let validated = |past: Past| {
                let mut options = PolicyOptions::new(kind);
                let set = |tunable: Tunable<'_>| {
                    match tunable {
                        Tunable::Time(value, allowed) | Tunable::Size(value, allowed) => *value = past(&allowed)?,
                        Tunable::Count(value, allowed) => {
                            *value = past(&(u64::from(*allowed.start())..=u64::from(*allowed.end())))? as u32;
                        }
                        Tunable::Flag(_) => return None,
                    }
                    Some(())
                };
                options.own.tune(kind, key.name, set).expect("it is a key").map(|()| options.validate())
            };
            let cases: [(Past, bool); 4] = [
                (|range| Some(*range.start()), true),
                (|range| Some(*range.end()), true),
                (|range| range.start().checked_sub(1), false),
                (|range| Some(range.end() + 1), false),
            ];
            for (past, is_allowed) in cases {
                let Some(validated) = validated(past) else { continue };
                assert_eq!(validated.is_ok(), is_allowed, "{kind} {}: {validated:?}", key.name);
            }
        }
    }

    #[test]
    fn no_key_stands_twice_and_each_sets_a_field_of_its_own() {
        let number = |own: &mut OwnOptions, kind, key, flip: u64| {
            let set = |tunable: Tunable<'_>| match tunable {
                Tunable::Time(value, _) | Tunable::Size(value, _) => {
                    *value ^= flip;
                    *value
                }
                Tunable::Count(value, _) => {
                    *value ^= flip as u32;
                    u64::from(*value)
                }
                Tunable::Flag(value) => {
                    *value ^= flip != 0;
                    u64::from(*value)
                }
            };
            own.tune(kind, key, set).expect("it is a key")
        };
        for kind in ALL {
            let keys = kind.keys();
            for (at, key) in keys.iter().enumerate() {
                assert!(keys[..at].iter().all(|other| other.name != key.name), "{kind} {}", key.name);
                let (mut own, mut plain) = (OwnOptions::DEFAULT, OwnOptions::DEFAULT);
                let set = number(&mut own, kind, key.name, 1);
                assert_ne!(own, plain, "{kind} {}", key.name);
                assert_eq!(number(&mut own, kind, key.name, 0), set, "{kind} {}", key.name);
                for other in keys.iter().filter(|other| other.name != key.name) {
                    let [own, plain] = [&mut own, &mut plain].map(|own| number(own, kind, other.name, 0));
                    assert_eq!(own, plain, "{kind} {} {}", key.name, other.name);
                }
            }
            assert_eq!({ OwnOptions::DEFAULT }.tune(kind, "no-such-key", |_| ()), None);
        }
    }

    #[test]
    fn options_read_back_and_another_policy_looks_at_none_of_them() {
        fn reads_back<O: Tunables>(own: O) {
            assert_eq!(OwnOptions::of(&own).get::<O>(), own);
        }
        let bfq = BfqOptions { max_budget_bytes: 1 << 20, strict_guarantees: true, ..BfqOptions::DEFAULT };
        reads_back(bfq);
        reads_back(KyberOptions { other_depth: 3, write_latency_ns: 7, ..KyberOptions::DEFAULT });
        reads_back(D2fqOptions::SHIPPED);
        assert_eq!(OwnOptions::of(&bfq).get::<KyberOptions>(), KyberOptions::DEFAULT);
        assert_eq!(OwnOptions::of(&BfqOptions::DEFAULT), OwnOptions::DEFAULT);
    }

    #[test]
    fn what_ships_is_allowed() {
        for kind in ALL {
            for own in [OwnOptions::DEFAULT, OwnOptions::shipped(kind)] {
                assert_eq!(PolicyOptions { own, ..PolicyOptions::new(kind) }.validate(), Ok(()), "{kind}");
            }
        }
        assert_ne!(OwnOptions::shipped(D2FQ), OwnOptions::DEFAULT);
    }
}

#[cfg(all(test, mqfq_loom))]
mod sleeper_model {
    //! A model of two workers around any policy: one passes on its token while the other falls asleep on its wake word,
    //! as the workers of `blk` do. Work left undone when both have ended would never be done.

    use mqfq_sched::cost::Cost;
    use mqfq_sched::flow::FlowId;
    use mqfq_sched::policy::{Done, Entry, Grant, Handle, Pick, Policy, PolicyKind, PolicyOptions};
    use mqfq_sched::sync::model::{Arc, thread};
    use mqfq_sched::topology::HctxId;
    use mqfq_sched::wake::WakeWord;

    /// One token, and a window that holds no flow back.
    pub fn options(kind: PolicyKind) -> PolicyOptions {
        PolicyOptions { depth: 1, ..PolicyOptions::new(kind) }
    }

    fn submit<P: Policy>(policy: &P, queue: &mut P::Queue, flow: u32) {
        let entry = Entry::read(FlowId(flow), Cost(4096), Handle(flow));
        policy.submit(queue, entry, 0, &mut |_| panic!("nobody waits for a submit"));
    }

    /// Worker 0 has the token and gives it back; worker 1 has a request, finds no token, and sleeps unless it is
    /// kicked.
    pub fn one_token_passes_to_a_worker_that_falls_asleep<P: Policy + 'static>(policy: P)
    where
        P::Queue: 'static,
    {
        let policy = Arc::new(policy);
        let mut queues = [0, 1].map(|n| policy.open_queue(HctxId(n), 2));
        submit(&*policy, &mut queues[0], 0);
        let Pick::Dispatch(Grant { flow, token, .. }) = policy.pick(&mut queues[0], 0, &mut |_| ()) else {
            panic!("a token is free");
        };
        let [mut zero, mut one] = queues;
        submit(&*policy, &mut one, 1);
        let word = Arc::new(WakeWord::default());
        let (their_policy, their_word) = (policy.clone(), word.clone());
        let completing = thread::spawn(move || {
            let mut rings = 0;
            let mut kick = |hctx: HctxId| {
                assert_eq!(hctx, HctxId(1));
                rings += u32::from(their_word.kick());
            };
            their_policy.complete(&mut zero, Done::read(flow, Handle(0)), token, 0, &mut kick);
            assert_eq!(their_policy.pick(&mut zero, 0, &mut kick), Pick::Idle);
            rings
        });
        // A turn of worker 1, again for as long as it may not sleep.
        let turn = |queue: &mut P::Queue| match policy.pick(queue, 0, &mut |_| panic!("nobody else waits")) {
            Pick::Dispatch(grant) => Some(grant),
            _ => None,
        };
        let mut granted = turn(&mut one);
        while granted.is_none() && !word.may_sleep() {
            granted = turn(&mut one);
        }
        let rings = completing.join().unwrap();
        if granted.is_none() {
            assert_eq!(rings, 1, "the token is free, worker 1 sleeps, and nobody rings");
            word.woke();
            granted = turn(&mut one);
        }
        let Some(Grant { flow, token, .. }) = granted else { panic!("a token is free, and worker 1 got none") };
        policy.complete(&mut one, Done::read(flow, Handle(0)), token, 0, &mut |_| panic!("no request waits"));
        assert_eq!(policy.staged(&one), 0);
    }
}
