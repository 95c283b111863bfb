//! Fixed seeds of servers that are changed as a whole, by the reconciler and the control plane that ship.
//!
//! `cargo xtask vopr --managed --for 60` looks for others; `docs/lab/vopr.md` tells how.

use mqfq_vopr::run::run;
use mqfq_vopr::script::Script;

/// Steps of each script.
const STEPS: usize = 90;

#[test]
fn what_is_proposed_is_there_as_a_whole_or_not_at_all_in_every_run_of_fixed_seeds() {
    let (mut requests, mut proposals, mut refused, mut cuts, mut upgrades) = (0, 0, 0, 0, 0);
    for seed in 1..=120 {
        let outcome = match run(&Script::draw_managed(seed, STEPS)) {
            Ok(outcome) => outcome,
            Err(failure) => {
                panic!("seed {seed}: {failure:?}; cargo xtask vopr --managed --seed {seed} --steps {STEPS} shrinks it")
            }
        };
        requests += outcome.counts.good;
        proposals += outcome.changes;
        refused += outcome.refused;
        cuts += outcome.cuts;
        upgrades += outcome.upgrades;
    }
    // The seeds are fixed, so these are counts and no luck.
    assert!(requests > 8_000 && proposals > 800 && cuts > 16, "{requests} {proposals} {cuts}");
    assert!(refused > 160 && proposals - refused > 480, "{refused} of {proposals} were refused");
    assert!(upgrades > 40, "{upgrades} upgrades");
}
