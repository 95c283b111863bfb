//! Model checks: one named race each. The two-sided wake-up of I4 is in `ready_set/loom_tests.rs`.
//!
//! Run: `cargo xtask loom`.

use super::*;
use crate::sync::AtomicU64;
use crate::sync::model::{Arc, model, thread};

const H0: HctxId = HctxId(0);
const H1: HctxId = HctxId(1);

fn tree(depth: u32) -> Arc<TokenTree> {
    Arc::new(TokenTree::new(&Topology::flat(2), depth))
}

fn take(tree: &TokenTree, hctx: HctxId, units: u32) -> DispatchToken {
    tree.acquire(hctx, units).expect("nothing else holds tokens yet")
}

/// Race: two workers, one token at the root (I2). Shown to fail if `take_rest_from_root` adds instead of exchanging.
#[test]
fn loom_one_token_is_taken_once() {
    model(|| {
        let tokens = tree(1);
        let theirs = tokens.clone();
        let other = thread::spawn(move || theirs.acquire(H1, 1));
        let ours = tokens.acquire(H0, 1);
        let other = other.join().unwrap();
        assert!(ours.is_some() != other.is_some(), "{ours:?} and {other:?}");
        for token in [ours, other].into_iter().flatten() {
            tokens.release_root(token);
        }
        assert_eq!(tokens.total_units(), 1);
    });
}

/// Race: acquire beside `give`, at a node that both can take from. What the last holder did before it gave the token
/// away is seen by its taker.
fn taker_sees_what_the_last_holder_did(
    topology: Topology,
    give: impl Fn(&TokenTree, DispatchToken) + Sync + Send + Copy + 'static,
) {
    model(move || {
        let tokens = Arc::new(TokenTree::new(&topology, 1));
        let token = take(&tokens, H1, 1);
        let reaped = Arc::new(AtomicU64::new(0));
        let (theirs, their_reaped) = (tokens.clone(), reaped.clone());
        let other = thread::spawn(move || {
            their_reaped.store(1, Ordering::Relaxed);
            give(&theirs, token);
        });
        if let Some(token) = tokens.acquire(H0, 1) {
            assert_eq!(reaped.load(Ordering::Relaxed), 1);
            tokens.release_local(H0, token);
        }
        other.join().unwrap();
        assert_eq!(tokens.total_units(), 1);
    });
}

fn toward(tokens: &TokenTree, token: DispatchToken) {
    tokens.release_toward(H1, H0, token);
}

/// Shown to fail with Relaxed in place of the Release in `release_to` or the Acquire in `take_rest_from_root`.
#[test]
fn loom_whoever_gets_a_token_at_the_root_sees_what_its_last_holder_did() {
    taker_sees_what_the_last_holder_did(Topology::flat(2), toward);
}

/// Shown to fail with Relaxed in place of the Release in `release_to` or the Acquire in `take_up_to`.
#[test]
fn loom_whoever_gets_a_token_at_the_core_sees_what_its_last_holder_did() {
    taker_sees_what_the_last_holder_did(Topology::new(2, 1, 2), toward);
}

/// Shown to fail with Relaxed in place of the Release in `release_root`.
#[test]
fn loom_whoever_gets_a_token_given_to_all_sees_what_its_last_holder_did() {
    taker_sees_what_the_last_holder_did(Topology::flat(2), |tokens, token| tokens.release_root(token));
}

/// Shown to fail with Relaxed in place of the Release in `percolate`.
#[test]
fn loom_whoever_gets_a_token_that_percolated_sees_what_its_last_holder_did() {
    taker_sees_what_the_last_holder_did(Topology::flat(2), |tokens, token| {
        tokens.release_local(H1, token);
        tokens.percolate(H1);
    });
}

/// Race: one hctx of a core gives its core's tokens to the root while the other takes from the core (I1).
#[test]
fn loom_percolate_beside_acquire_neither_loses_nor_doubles_a_token() {
    model(|| {
        let tokens = Arc::new(TokenTree::new(&Topology::new(2, 1, 2), 2));
        // Both tokens at the core of hctxs 0 and 1.
        for token in [take(&tokens, H0, 1), take(&tokens, H0, 1)] {
            tokens.release_toward(H0, H1, token);
        }
        let theirs = tokens.clone();
        let percolating = thread::spawn(move || theirs.percolate(H0));
        let taken = tokens.acquire(H1, 1);
        let moved = percolating.join().unwrap();
        // Taken from the core before or from the root after; or not at all, while both were in the other's hand.
        assert!(moved == 2 || (moved == 1 && taken.is_some()), "{moved} moved, {taken:?}");
        if let Some(token) = taken {
            tokens.release_root(token);
        }
        assert_eq!((tokens.total_units(), tokens.root_units()), (2, 2));
    });
}

/// Race: two big requests, half of the tokens near each. One goes, in debt; never both, never neither (T2, T3).
/// Shown to fail if a request that cannot go keeps its hand at its own leaf (neither goes).
#[test]
fn loom_two_big_requests_with_half_the_tokens_each_do_not_wait_for_each_other() {
    model(|| {
        let tokens = tree(2);
        for (hctx, token) in [(H0, take(&tokens, H0, 1)), (H1, take(&tokens, H1, 1))] {
            tokens.release_local(hctx, token);
        }
        let theirs = tokens.clone();
        let other = thread::spawn(move || theirs.acquire(H1, 2));
        let ours = tokens.acquire(H0, 2);
        let other = other.join().unwrap();
        assert!(ours.is_some() != other.is_some(), "{ours:?} and {other:?}");
        assert_eq!(tokens.total_units(), 0, "2 units of 2 are out");
        let token = ours.or(other).expect("one has it");
        tokens.release_local(H0, token);
        assert_eq!(tokens.total_units(), 2);
    });
}

/// Race: a release beside a big acquire that goes into debt: the debt and the payment meet at the root (I1, T2).
#[test]
fn loom_debt_beside_release_is_conserved_and_bounded() {
    model(|| {
        let tokens = tree(2);
        let held = take(&tokens, H1, 1);
        let theirs = tokens.clone();
        let other = thread::spawn(move || theirs.release_local(H1, held));
        // One token is at the root, so a request of 2 may go at once (D + 2 - 1 = 3 units out at most).
        let big = tokens.acquire(H0, 2).expect("the root has a token");
        assert!(tokens.root_units() >= -1);
        other.join().unwrap();
        assert_eq!(tokens.total_units(), 0);
        tokens.release_local(H0, big);
        tokens.percolate(H0);
        tokens.percolate(H1);
        assert_eq!(tokens.root_units(), 2);
    });
}

/// Race: two releases pay one debt; each unit counts once (I1). Shown to fail if `pay_debt` stores what it computed.
#[test]
fn loom_a_debt_is_paid_once_by_each() {
    model(|| {
        let tokens = tree(3);
        let (first, second) = (take(&tokens, H0, 1), take(&tokens, H1, 1));
        // One token left: a request of 3 leaves a debt of 2.
        let big = take(&tokens, H0, 3);
        let theirs = tokens.clone();
        let other = thread::spawn(move || theirs.release_local(H1, second));
        let ours = tokens.release_local(H0, first);
        assert_eq!((ours, other.join().unwrap(), tokens.root_units()), (0, 0, 0));
        tokens.release_root(big);
        assert_eq!(tokens.root_units(), 3);
    });
}

/// Race: two workers take for all that they have staged from one node, which has less than both want. What one takes
/// too much lies at its own leaf, and nothing is taken twice (T1, I1); no worker is in debt for a spare token (T2).
/// Shown to fail if `take_up_to` takes by a load and a store.
#[test]
fn loom_two_batches_from_one_core_take_each_token_once() {
    model(|| {
        let tokens = Arc::new(TokenTree::new(&Topology::new(2, 1, 2), 4));
        let held: Vec<DispatchToken> = (0..4).map(|_| take(&tokens, H0, 1)).collect();
        for token in held {
            tokens.release_toward(H0, H1, token);
        }
        let theirs = tokens.clone();
        let other = thread::spawn(move || (theirs.acquire_batch(H1, 1, 2), theirs.counts[1].load(Ordering::Relaxed)));
        let ours = tokens.acquire_batch(H0, 1, 2);
        let own_leaf = tokens.counts[0].load(Ordering::Relaxed);
        let (other, their_leaf) = other.join().unwrap();
        let out = i64::from(ours.is_some()) + i64::from(other.is_some());
        assert_eq!(out, 2, "there were four");
        assert_eq!((own_leaf + their_leaf, tokens.root_units()), (2, 0), "four tokens, two used, none at the root");
        for token in [ours, other].into_iter().flatten() {
            tokens.release_root(token);
        }
        assert_eq!(tokens.total_units(), 4);
    });
}

/// Race: a worker takes a batch from the root while another borrows for a request of several units, and a third unit
/// comes back. A spare token is never owed for: the root is in debt for the borrower alone (T2).
/// Shown to fail if `take_rest_from_root` takes spare tokens that are not there.
#[test]
fn loom_a_batch_beside_a_borrower_owes_nothing_for_spare_tokens() {
    model(|| {
        let tokens = tree(3);
        let held = take(&tokens, H1, 1);
        let theirs = tokens.clone();
        let other = thread::spawn(move || {
            let big = theirs.acquire(H1, 2);
            theirs.release_root(held);
            big
        });
        let ours = tokens.acquire_batch(H0, 1, 3);
        assert!(tokens.root_units() >= -1, "the borrower owes one at most: {}", tokens.root_units());
        let other = other.join().unwrap();
        let out = |token: &Option<DispatchToken>| token.as_ref().map_or(0, |token| i64::from(token.units()));
        assert_eq!(tokens.total_units() + out(&ours) + out(&other), 3, "{ours:?} and {other:?}");
        for token in [ours, other].into_iter().flatten() {
            tokens.release_root(token);
        }
        assert_eq!(tokens.total_units(), 3);
    });
}

/// Race: a worker whose leaf holds spare tokens gives them up, and another takes a batch meanwhile (I1, T4).
/// Shown to fail if `percolate` adds to the root by a load and a store.
#[test]
fn loom_spare_tokens_that_percolate_beside_a_batch_are_conserved() {
    model(|| {
        let tokens = tree(3);
        let used = tokens.acquire_batch(H0, 1, 1).expect("three are there");
        let theirs = tokens.clone();
        let other = thread::spawn(move || theirs.percolate(H0));
        let ours = tokens.acquire_batch(H1, 1, 1);
        assert_eq!(other.join().unwrap(), 1, "the spare one");
        let out = 1 + i64::from(ours.is_some());
        assert_eq!(tokens.total_units(), 3 - out);
        assert_eq!(tokens.counts[0].load(Ordering::Relaxed), 0, "T4");
        for token in [Some(used), ours].into_iter().flatten() {
            tokens.release_root(token);
        }
        assert_eq!(tokens.total_units(), 3);
    });
}

/// Race: D shrinks while one worker takes a token and another gives one back (I1). Shown to fail if `set_depth` changes
/// the root by a load and a store.
#[test]
fn loom_less_depth_beside_acquire_and_release_is_conserved() {
    model(|| {
        let tokens = tree(2);
        let held = take(&tokens, H1, 1);
        let theirs = tokens.clone();
        let other = thread::spawn(move || {
            theirs.set_depth(1);
            theirs.release_local(H1, held)
        });
        let ours = tokens.acquire(H0, 1);
        let left = other.join().unwrap();
        let out = i64::from(ours.is_some());
        assert_eq!(tokens.total_units(), 1 - out, "{ours:?}, {left} left at the leaf");
        if let Some(token) = ours {
            tokens.release_local(H0, token);
        }
        tokens.percolate(H0);
        tokens.percolate(H1);
        assert_eq!(tokens.root_units(), 1);
    });
}
