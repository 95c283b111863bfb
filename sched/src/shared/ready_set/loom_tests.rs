//! Model checks: one named race each; the two-sided wake-up of I4 with the real token tree.
//!
//! Run: `cargo xtask loom`.

use super::*;
use crate::policy::DispatchToken;
use crate::sync::model::{Arc, Builder, model, thread};
use crate::token_tree::TokenTree;

const H0: HctxId = HctxId(0);
const H1: HctxId = HctxId(1);

struct World {
    tokens: TokenTree,
    ready: ReadySet,
}

impl World {
    fn new(topology: &Topology) -> Arc<World> {
        Arc::new(World { tokens: TokenTree::new(topology, 1), ready: ReadySet::new(topology) })
    }

    /// Takes a token for a queue that has a request and may dispatch it; None means that it goes to sleep.
    fn token_or_sleep(&self, hctx: HctxId) -> Option<DispatchToken> {
        self.tokens.acquire(hctx, 1).or_else(|| {
            self.ready.mark(hctx);
            self.tokens.acquire(hctx, 1)
        })
    }
}

fn end(token: Option<DispatchToken>) -> bool {
    token.map(DispatchToken::into_units).is_some()
}

/// Race: the table in the module's text: a queue marks itself ready while the only token is released at the root.
/// Shown to fail without the fence in `mark` and without the one in `release_root`.
#[test]
fn loom_a_mark_beside_a_release_at_the_root_is_not_lost() {
    model(|| {
        let world = World::new(&Topology::flat(2));
        let token = world.tokens.acquire(H0, 1).expect("D = 1");
        let theirs = world.clone();
        let completing = thread::spawn(move || {
            theirs.tokens.release_root(token);
            theirs.ready.take_nearest(H0)
        });
        let dispatched = end(world.token_or_sleep(H1));
        let kicked = completing.join().unwrap() == Some(H1);
        assert!(dispatched || kicked, "the token lies at the root, hctx 1 sleeps, nobody will wake it");
    });
}

/// Race: the same with tokens that a larger D brings, which come to the root without a release.
/// Shown to fail without the fence in `set_depth`.
#[test]
fn loom_a_mark_beside_a_larger_depth_is_not_lost() {
    model(|| {
        let world = World::new(&Topology::flat(2));
        let token = world.tokens.acquire(H0, 1).expect("D = 1");
        let theirs = world.clone();
        let tuning = thread::spawn(move || {
            theirs.tokens.set_depth(2);
            theirs.ready.take_nearest(H0)
        });
        let dispatched = end(world.token_or_sleep(H1));
        let kicked = tuning.join().unwrap() == Some(H1);
        assert!(dispatched || kicked, "a token lies at the root, hctx 1 sleeps, nobody will wake it");
        end(Some(token));
    });
}

/// Race: the same with a token that lay at an idle leaf and percolates.
/// Shown to fail without the fence in `percolate`.
#[test]
fn loom_a_mark_beside_a_percolation_is_not_lost() {
    model(|| {
        let world = World::new(&Topology::flat(2));
        let token = world.tokens.acquire(H0, 1).expect("D = 1");
        world.tokens.release_local(H0, token);
        let theirs = world.clone();
        let idling = thread::spawn(move || {
            assert_eq!(theirs.tokens.percolate(H0), 1);
            theirs.ready.take_nearest(H0)
        });
        let dispatched = end(world.token_or_sleep(H1));
        let kicked = idling.join().unwrap() == Some(H1);
        assert!(dispatched || kicked, "the token went to the root, hctx 1 sleeps, nobody will wake it");
    });
}

/// Race: two completions search, one queue is marked: one of them claims it (R1).
/// Shown to fail if `claim` stores the word without the bit.
#[test]
fn loom_a_mark_is_claimed_once() {
    model(|| {
        let world = World::new(&Topology::flat(2));
        world.ready.mark(H1);
        let theirs = world.clone();
        let other = thread::spawn(move || theirs.ready.take_nearest(H1));
        let ours = world.ready.take_nearest(H0);
        let other = other.join().unwrap();
        assert!(ours.is_some() != other.is_some(), "{ours:?} and {other:?}");
        assert!(!world.ready.any());
    });
}

/// Race: two marked queues in one word and two claimants: each gets one, no mark is wiped out by a neighbour's (R2).
#[test]
fn loom_two_marks_and_two_claimants_make_two_claims() {
    model(|| {
        let world = World::new(&Topology::flat(2));
        world.ready.mark(H0);
        let theirs = world.clone();
        let other = thread::spawn(move || {
            theirs.ready.mark(H1);
            theirs.ready.take_nearest(H0)
        });
        let ours = world.ready.take_nearest(H1);
        let claims = [ours, other.join().unwrap(), world.ready.take_nearest(H0)];
        assert_eq!(claims.iter().flatten().count(), 2, "{claims:?}");
        assert!(!world.ready.any());
    });
}

/// Race: a queue got a token after all and takes its mark back while a completion claims it: exactly one has it.
#[test]
fn loom_taking_a_mark_back_beside_a_claim_is_settled_once() {
    model(|| {
        let world = World::new(&Topology::new(2, 1, 1));
        world.ready.mark(H1);
        let theirs = world.clone();
        let claiming = thread::spawn(move || theirs.ready.take_nearest(H0));
        let back = world.ready.unmark(H1);
        assert!(back != claiming.join().unwrap().is_some());
    });
}

/// Race: spare tokens at the leaf of a queue that goes to sleep, and a queue that looks for one, finds none and marks
/// itself. Shown to fail without the fence in `percolate`.
#[test]
fn loom_spare_tokens_at_the_leaf_of_a_sleeper_meet_a_mark() {
    model(|| {
        let topology = Topology::flat(2);
        let world = Arc::new(World { tokens: TokenTree::new(&topology, 2), ready: ReadySet::new(&topology) });
        let used = world.tokens.acquire_batch(H0, 1, 1).expect("D = 2");
        let theirs = world.clone();
        let idling = thread::spawn(move || {
            assert_eq!(theirs.tokens.percolate(H0), 1, "the spare one");
            theirs.ready.take_nearest(H0)
        });
        let dispatched = end(world.token_or_sleep(H1));
        let kicked = idling.join().unwrap() == Some(H1);
        assert!(dispatched || kicked, "the spare token went to the root, hctx 1 sleeps, nobody will wake it");
        end(Some(used));
    });
}

/// Race: three workers: two give a token back at the root and search, one looks for a token, marks itself and looks
/// again. Shown to fail without the fence in `mark` and without the one in `release_root`. (Loom by itself: three
/// threads are too many for all orders.)
#[test]
fn loom_a_mark_beside_two_releases_is_claimed_at_most_once_and_not_lost() {
    Builder::new().check(|| {
        let topology = Topology::flat(3);
        let world = Arc::new(World { tokens: TokenTree::new(&topology, 2), ready: ReadySet::new(&topology) });
        let release = |from: HctxId| {
            let token = world.tokens.acquire(from, 1).expect("D = 2");
            let theirs = world.clone();
            (from, token, theirs)
        };
        let both = [release(H0), release(HctxId(2))];
        let completing = both.map(|(from, token, theirs)| {
            thread::spawn(move || {
                theirs.tokens.release_root(token);
                theirs.ready.take_nearest(from)
            })
        });
        let dispatched = end(world.token_or_sleep(H1));
        let claims = completing.map(|thread| thread.join().unwrap()).into_iter().flatten().count();
        assert!(claims <= 1, "R1");
        assert!(dispatched || claims == 1, "two tokens lie at the root, hctx 1 sleeps, nobody will wake it");
    });
}
