//! Model checks of a budget's word: one named race each, every interleaving.
//!
//! Run: `cargo xtask loom`.

use super::*;
use mqfq_sched::sync::model::{Arc as ModelArc, model, thread};

/// One request in 10 ms.
const PER_S: u64 = 100;
const EACH_NS: u64 = 10_000_000;
const NOW_NS: u64 = 1_000_000_000;

fn budget() -> ModelArc<Budget> {
    ModelArc::new(Budget::new(Some(PER_S)))
}

#[test]
fn loom_two_takes_beside_each_other_are_a_whole_cost_apart() {
    model(|| {
        let budget = budget();
        let other = {
            let budget = budget.clone();
            thread::spawn(move || budget.take(1, NOW_NS))
        };
        let mut times = [budget.take(1, NOW_NS), other.join().unwrap()];
        times.sort_unstable();
        // Both find that it is to be raised, in any order.
        assert_eq!(times, [NOW_NS - BURST_NS, NOW_NS - BURST_NS + EACH_NS]);
        assert_eq!(budget.take(1, NOW_NS), NOW_NS - BURST_NS + 2 * EACH_NS, "none is lost");
    });
}

#[test]
fn loom_what_is_given_back_beside_a_take_is_given_back_once() {
    model(|| {
        let budget = budget();
        budget.take(1, NOW_NS);
        let other = {
            let budget = budget.clone();
            thread::spawn(move || budget.give_back(1))
        };
        let time = budget.take(1, NOW_NS);
        other.join().unwrap();
        assert!([NOW_NS - BURST_NS, NOW_NS - BURST_NS + EACH_NS].contains(&time), "{time}");
        assert_eq!(budget.take(1, NOW_NS), NOW_NS - BURST_NS + EACH_NS, "one was used, whichever came first");
    });
}

/// Shown to fail if the rate is set before the debts are: of a rate that is halved, the take then owes four times its
/// price, and of one that falls to a hundredth, as long as a hundred takes.
#[test]
fn loom_a_take_beside_a_change_of_the_rate_owes_at_one_of_the_two_rates() {
    for new_per_s in [2 * PER_S, PER_S / 2] {
        model(move || {
            let budget = budget();
            // Owed: two times 10 ms, less 8 ms of the burst.
            budget.take(1, NOW_NS);
            budget.take(1, NOW_NS);
            let other = {
                let budget = budget.clone();
                thread::spawn(move || budget.set(Some(new_per_s), NOW_NS))
            };
            budget.take(1, NOW_NS);
            other.join().unwrap();
            let owed_ns = budget.take(1, NOW_NS) - NOW_NS;
            // The debts are paid at the new rate. The third is one of them, or costs its new price after them; or it
            // was priced before the change and added after it.
            let at_new_rate = |ns: u64| ns * PER_S / new_per_s;
            let debts_ns = at_new_rate(2 * EACH_NS - BURST_NS);
            let allowed_ns = [at_new_rate(EACH_NS), EACH_NS].map(|price_ns| debts_ns + price_ns);
            assert!(allowed_ns.contains(&owed_ns), "{owed_ns}, not {allowed_ns:?}");
        });
    }
}
