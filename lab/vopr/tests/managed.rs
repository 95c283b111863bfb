//! Fixed seeds of servers that are changed as a whole, by the reconciler and the control plane that ship.
//!
//! `cargo xtask vopr --managed --for 60` looks for others; `docs/lab/vopr.md` tells how.

use mqfq_vopr::run::run;
use mqfq_vopr::script::Script;

/// Steps of each script.
const STEPS: usize = 40;

#[test]
fn what_is_proposed_is_there_as_a_whole_or_not_at_all_in_every_run_of_fixed_seeds() {
    let (mut requests, mut proposals, mut refused, mut cuts, mut upgrades) = (0, 0, 0, 0, 0);
    for seed in 1..=12 {
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
    assert!(requests > 1_000 && proposals > 100 && cuts > 2, "{requests} {proposals} {cuts}");
    assert!(refused > 20 && proposals - refused > 60, "{refused} of {proposals} were refused");
    assert!(upgrades > 5, "{upgrades} upgrades");
}

/// The client of an export that is withdrawn from the address by which it came, and offered at another, stays: another
/// server took it for one of an export that is gone, and refused to take over.
const WITHDRAWN: &str = "\
config seed 8714952604014271925 workers 2 policy 4 depth 4 tenants 2 guests 0 merge 2 split 0 sq 0 cache 1 reorder 0 \
error 363 torn 0 stall 10 lose 0 slow 3403 abort 3 staged 256 memory 67108864 managed 1
propose 3129298296 0
propose 324360752 4
propose 242477528 3
propose 4206949742 0
propose 3297851594 3
connect 1
propose 1281448620 0
propose 2335339748 0
upgrade
";

#[test]
fn an_upgrade_takes_clients_to_where_their_export_is_offered_now() {
    let script = Script::parse(WITHDRAWN).expect("a script that was printed");
    let outcome = run(&script).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert_eq!((outcome.upgrades, outcome.counts.sessions), (1, 1), "{outcome:?}");
}
