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

/// Found by `cargo xtask vopr --managed --seed 7769975502100777829`: e2 becomes another tenant's while its client is
/// in its handshake. The client chooses afterwards, and rightly has the new one; the judge took it for a client of the
/// old.
const OWNER_CHANGES_IN_A_HANDSHAKE: &str = "\
config seed 7769975502100777829 workers 3 policy 4 depth 8 tenants 4 guests 0 split 0 sq 0 cache 1 reorder 7 \
error 27 torn 368 stall 0 lose 0 slow 1462 abort 2 staged 1 memory 67108864 turn-ns 5000 managed 1
connect 0
connect 1
connect 2
connect 3
io 4 1 2479445085
kill
propose 1331888340 6
connect 0
connect 1
connect 2
propose 2636518190 0
io 2 40 1
check
";

#[test]
fn a_client_that_has_not_chosen_may_have_the_export_that_comes_under_the_name_of_one_that_goes() {
    let script = Script::parse(OWNER_CHANGES_IN_A_HANDSHAKE).expect("a script that was printed");
    let outcome = run(&script).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert!(outcome.counts.good > 40 && outcome.changes - outcome.refused == 1, "{outcome:?}");
}

/// Found by `cargo xtask vopr --managed --seed 2583988116784883390`: e2 becomes another tenant's while requests are
/// left on its drive, and goes before its bytes could be erased. They are still those of the tenant that had them.
const OWNER_COMES_BACK: &str = "\
config seed 2583988116784883390 workers 3 policy 3 depth 1 tenants 1 guests 0 split 0 sq 0 cache 0 reorder 5 \
error 219 torn 0 stall 0 lose 0 slow 10423 abort 0 staged 4 memory 67108864 turn-ns 1000 managed 1
propose 899125824 6
io 2 8 339279410
connect 2
propose 577043214 6
propose 164257954 0
check
propose 2997242413 0
check
";

#[test]
fn a_tenant_may_find_its_bytes_where_another_that_was_to_have_them_went_before_they_were_erased() {
    let script = Script::parse(OWNER_COMES_BACK).expect("a script that was printed");
    let outcome = run(&script).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert!(outcome.counts.good > 60 && outcome.changes == 4, "{outcome:?}");
}

/// Found by `cargo xtask vopr --managed --seed 11405233934039219651`: during a change that leaves e1 as it is, its
/// drive fails the second piece of a large read. The first has left in a simple reply, so the server ends the
/// connection; the judge took that for a disconnect by the change.
const FAILED_IN_THE_MIDDLE: &str = "\
config seed 11405233934039219651 workers 2 policy 5 depth 2 tenants 3 guests 0 split 0 sq 0 cache 1 reorder 0 \
error 347 torn 0 stall 0 lose 0 slow 2248 abort 3 staged 4 memory 67108864 turn-ns 5000 managed 1
connect 0
connect 1
io 0 33 3219241864
propose 3846877736 6
connect 5
propose 1776805879 6
connect 5
io 1 47 4143324647
io 0 47 3919377335
propose 808222703 4
io 2 1 486241788
check
propose 3384820785 0
check
propose 2658385069 0
propose 978408001 0
propose 3586834225 1
io 1 20 1736998610
propose 798187151 0
io 4 1 1016804198
io 3 1 3270666480
io 2 1 1840947869
io 3 1 3237433283
propose 835099207 0
";

#[test]
fn a_client_may_lose_its_connection_to_a_large_read_that_its_drive_fails_in_the_middle() {
    let script = Script::parse(FAILED_IN_THE_MIDDLE).expect("a script that was printed");
    let outcome = run(&script).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert!(outcome.counts.good > 300 && outcome.counts.failed > 0, "{outcome:?}");
}

/// Found by `cargo xtask vopr --managed --seed 4494490895694710168`: e2 becomes another tenant's with `keep-data` while
/// drives hold still, and `keep-data` is withdrawn before it is offered. The server erases its bytes, as it must; the
/// judge wanted them kept.
const KEPT_NO_MORE: &str = "\
config seed 4494490895694710168 workers 3 policy 1 depth 16 tenants 4 guests 0 split 4096 sq 0 cache 1 reorder 7 error 0 torn 97 stall 0 lose 0 \
slow 6756 abort 1 staged 256 memory 131072 turn-ns 5000 managed 1
propose 721073160 0
propose 590189719 4
io 0 1 4008111309
run 653862
io 4 1 2981614438
io 2 1 3592536826
io 4 1 3038672986
io 5 1 62366354
io 0 1 928411780
connect 2
propose 2779784645 0
propose 3943953164 6
propose 733905698 0
check
";

#[test]
fn bytes_may_be_erased_if_keep_data_is_withdrawn_before_they_are_offered() {
    let script = Script::parse(KEPT_NO_MORE).expect("a script that was printed");
    let outcome = run(&script).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert!(outcome.counts.good > 60 && outcome.changes == 5, "{outcome:?}");
}
