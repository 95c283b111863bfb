//! Model checks of waiting for a token, with what wakes the worker that waits.
//!
//! Run: `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p mqfq-policies --release --lib loom`.

use super::*;
use crate::sleeper_model::{one_token_passes_to_a_worker_that_falls_asleep, options};
use crate::{KYBER, KyberOptions};
use mqfq_sched::policy::OwnOptions;
use mqfq_sched::sync::model::{Arc, Builder, thread};
use mqfq_sched::wake::WakeWord;

/// Race: A completes and gives the device's only token back, while B, which has just found none, falls asleep (K3).
/// Shown to fail without the fence in `give_back` or that in `wait`, and if a gift is not kicked for.
#[test]
fn loom_device_token_meets_a_worker_that_falls_asleep() {
    Builder::new().check(|| {
        one_token_passes_to_a_worker_that_falls_asleep(Kyber::new(&options(KYBER), 2));
    });
}

/// Race: as above, with the only token of a domain, on a device that has room.
#[test]
fn loom_domain_token_meets_a_worker_that_falls_asleep() {
    Builder::new().check(|| {
        let kyber = KyberOptions { read_depth: 1, ..KyberOptions::DEFAULT };
        let own = OwnOptions::of(&kyber);
        let options = PolicyOptions { depth: 1000, own, ..options(KYBER) };
        one_token_passes_to_a_worker_that_falls_asleep(Kyber::new(&options, 2));
    });
}

/// Race: the only token that is out stays out; A raises the limit while B, which has found no token, falls asleep (K3).
/// Shown to fail without the fence in `set_limit` or that in `wait`, and if a gift is not kicked for.
#[test]
fn loom_raised_depth_meets_a_worker_that_falls_asleep() {
    Builder::new().check(|| {
        let pools = Arc::new(Pools::new([1; POOLS], 2));
        assert!(pools.take(0));
        let word = Arc::new(WakeWord::default());
        let (their_pools, their_word) = (pools.clone(), word.clone());
        let raising = thread::spawn(move || {
            let mut rings = 0;
            their_pools.set_limit(0, 2, HctxId(0), &mut |_| rings += u32::from(their_word.kick()));
            rings
        });
        let gifts = || {
            let mut tokens = 0;
            pools.collect(HctxId(1), |_, count| tokens += count);
            tokens
        };
        let mut tokens = u32::from(pools.take(0));
        let mut asleep = false;
        if tokens == 0 {
            pools.wait(0, HctxId(1));
            tokens += u32::from(pools.take(0));
            while tokens == 0 && !asleep {
                asleep = word.may_sleep();
                tokens += gifts();
            }
        }
        let rings = raising.join().unwrap();
        tokens += gifts();
        assert_eq!(tokens, 1, "the limit is two, one is out, and the worker has {tokens}");
        assert!(!asleep || rings == 1, "a token was given, the worker sleeps, and nobody rings");
        assert_eq!(pools.out(0), 2);
    });
}
