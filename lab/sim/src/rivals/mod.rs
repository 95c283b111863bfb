//! The policy of a scenario: the scheduler's own, or MQFQ with one of its structures replaced by a rival of the paper.
//!
//! Source: MQFQ sections 4.3.1 to 4.3.3 (figures 9, 10 and 11).
//!
//! | replaced | by | file |
//! |---|---|---|
//! | mindicator | a scan of all leads | `array_scan.rs` |
//! | throttle wheel | looking again after a while | `polling.rs` |
//! | token tree | one counter; a scalable bitmap | `tokens.rs` |
//! | virtual time, to see the tokens alone | nothing | `off.rs` |
//! | d2fq's global virtual time | a mindicator; a scan of all flows; nothing | `gvt.rs` |
//!
//! The policy is the same source each time, over the promises of `sched/src/policy/mqfq/structures.rs`; what is
//! replaced is built of the same watched words (`word.rs`), so the machine charges it in the same way. With all three
//! as they ship, the policy is [`AnyPolicy`] itself and nothing stands between.
//!
//! The duties of workers to each other (I4) do not change: the ready set stays, so a worker without a token is woken
//! when one is given back. `lab/sim/tests/all/rivals.rs` holds the invariants against each rival, step by step and in
//! random interleavings.

mod any;
pub mod array_scan;
pub mod gvt;
pub mod polling;
pub mod tokens;
pub mod word;

pub use any::{Any, AnyTokens, AnyVirtualTime, AnyWheel};

use crate::form::ByHand;
use crate::scenario::{self, GvtKind, TokensKind, Unthrottle, VirtualTimeKind};
use array_scan::ArrayScan;
use gvt::AnyGvt;
use mqfq_policies_watched::{D2FQ, D2fq};
use mqfq_sched_watched::flow::Tree;
use mqfq_sched_watched::flow::{TAG_GRAIN, Weight};
use mqfq_sched_watched::mindicator::Mindicator;
use mqfq_sched_watched::policy::structures::Structures;
use mqfq_sched_watched::policy::{AnyPolicy, Mqfq, Policy, PolicyKind, PolicyOptions};
use mqfq_sched_watched::throttle_wheel::ThrottleWheel;
use mqfq_sched_watched::token_tree::TokenTree;
use mqfq_sched_watched::topology::Topology;
use mqfq_sched_watched::vtime::{VSpan, VTime};
use mqfq_sched_watched::window_rule::WINDOW_LEAST;
use polling::Polling;
use polling::{NoVirtualTime, NoWheel};
use std::sync::Arc;
use tokens::AtomicCounter;
use tokens::BitmapTokens;

/// A policy that can be looked into while no call is under way.
pub trait Inspect: Policy + 'static {
    /// Units of D that no request holds, of a policy that has a depth.
    fn free_units(&self) -> Option<i64>;
    /// D as it is now, of a policy whose D can be changed.
    fn depth(&self) -> Option<u32>;
    /// Virtual time, of a policy that has one.
    fn global_vtime(&self) -> Option<VTime>;
}

impl Inspect for AnyPolicy {
    fn free_units(&self) -> Option<i64> {
        self.free_units()
    }

    fn depth(&self) -> Option<u32> {
        self.depth()
    }

    fn global_vtime(&self) -> Option<VTime> {
        self.global_vtime()
    }
}

impl<S: Structures> Inspect for Mqfq<S> {
    fn free_units(&self) -> Option<i64> {
        Some(self.free_units())
    }

    fn depth(&self) -> Option<u32> {
        self.depth()
    }

    fn global_vtime(&self) -> Option<VTime> {
        Some(self.global_vtime())
    }
}

impl Inspect for D2fq<AnyGvt> {
    fn free_units(&self) -> Option<i64> {
        None
    }

    fn depth(&self) -> Option<u32> {
        None
    }

    fn global_vtime(&self) -> Option<VTime> {
        Some(self.global_vtime())
    }
}

/// Work on the policy of a scenario, whose type depends on the scenario.
pub trait PolicyVisitor {
    /// Result of the visit.
    type Output;
    /// Does it.
    fn visit<P: Inspect>(self, policy: Arc<P>) -> Self::Output;
}

/// Builds the policy that a scenario names, for the workers of `topology` and one flow per weight, and shows it to
/// `visitor`.
///
/// # Errors
/// One sentence: what is out of range, or does not go together.
pub fn with_policy<V: PolicyVisitor>(
    policy: &scenario::Policy,
    topology: &Topology,
    weights: &[Weight],
    visitor: V,
) -> Result<V::Output, String> {
    with_policy_in_groups(policy, topology, weights, &Tree::default(), visitor)
}

/// Visits the policy with the flows in groups.
///
/// # Errors
/// As [`with_policy`], and groups together with a rival structure.
pub fn with_policy_in_groups<V: PolicyVisitor>(
    policy: &scenario::Policy,
    topology: &Topology,
    weights: &[Weight],
    tree: &Tree,
    visitor: V,
) -> Result<V::Output, String> {
    let options = options(policy, topology.hctx_count())?;
    if is_shipped(policy) {
        let policy = AnyPolicy::with_tree(&options, topology, weights, tree);
        return Ok(visitor.visit(Arc::new(policy.map_err(|error| format!("policy: {error}"))?)));
    }
    if !tree.is_empty() {
        return Err("policy: groups go together with the structures that ship alone".into());
    }
    if policy.kind == D2FQ {
        let gvt = AnyGvt::new(policy.global_vtime, &options, topology, weights.len())?;
        let d2fq = D2fq::with_gvt(&options, topology.hctx_count(), weights, gvt);
        return Ok(visitor.visit(Arc::new(d2fq.map_err(|error| format!("policy: {error}"))?)));
    }
    let structures = structures(policy, &options, topology);
    let mqfq = Mqfq::<Any>::with_structures(&options, topology, weights, structures);
    Ok(visitor.visit(Arc::new(mqfq.map_err(|error| format!("policy: {error}"))?)))
}

/// The options of a scenario's policy, checked, for so many workers: the paper's form or the relaxed one, and what the
/// scenario sets by itself.
///
/// # Errors
/// As [`with_policy`].
pub fn options(policy: &scenario::Policy, hctx_count: usize) -> Result<PolicyOptions, String> {
    let faithful = PolicyOptions {
        depth: policy.depth,
        depth_auto: policy.depth_auto,
        window: VSpan::from_bytes(policy.window_bytes),
        window_least: policy.window_auto.then_some(WINDOW_LEAST),
        token_unit_bytes: policy.token_unit_bytes,
        own: policy.own,
        ..PolicyOptions::new(policy.kind)
    };
    let (form, by_hand) = match policy.relaxed {
        Some(by_hand) => (faithful.relaxed(hctx_count), by_hand),
        None => (faithful, ByHand::default()),
    };
    let options = PolicyOptions {
        quantum: by_hand.quantum_bytes.map_or(form.quantum, VSpan::from_bytes),
        lease: by_hand.lease_bytes.map_or(form.lease, VSpan::from_bytes),
        token_batch: by_hand.token_batch.unwrap_or(form.token_batch),
        token_share: by_hand.token_share.unwrap_or(form.token_share),
        tokens_follow_depth: form.tokens_follow_depth && by_hand.follows_depth(),
        ..form
    };
    options.validate().map_err(|error| format!("policy: {error}"))?;
    goes_together(policy)?;
    Ok(options)
}

fn is_shipped(policy: &scenario::Policy) -> bool {
    policy.virtual_time == VirtualTimeKind::Mindicator
        && policy.tokens == TokensKind::TokenTree
        && policy.unthrottle == Unthrottle::Wheel
        && policy.global_vtime == GvtKind::Sloppy
}

fn goes_together(policy: &scenario::Policy) -> Result<(), String> {
    let is_d2fq = policy.kind == D2FQ && policy.global_vtime != GvtKind::Sloppy;
    if !is_shipped(policy) && policy.kind != PolicyKind::Mqfq && !is_d2fq {
        return Err(format!(
            "policy: structures can be replaced under kind \"{}\" only, not under \"{}\"",
            PolicyKind::Mqfq,
            policy.kind
        ));
    }
    if let Unthrottle::Poll { period_ns } = policy.unthrottle {
        if period_ns == 0 {
            return Err("policy: a poll period of 0 ns is out of range, allowed is 1 or more".into());
        }
        if policy.virtual_time == VirtualTimeKind::Off {
            return Err("policy: there is nothing to poll for with virtual time off, nobody is throttled then".into());
        }
    }
    if policy.depth_auto && policy.tokens != TokensKind::TokenTree {
        return Err(
            "policy: depth \"auto\" needs tokens whose number can change, allowed is tokens \"token-tree\"".into()
        );
    }
    if policy.window_auto && !is_shipped(policy) {
        return Err("policy: window \"auto\" is for the structures that ship, allowed with others is a size".into());
    }
    if policy.tokens == TokensKind::ScalableBitmap && policy.token_unit_bytes.is_some() {
        return Err(
            "policy: a scalable bitmap has tokens of one unit each, so it cannot be used with a token unit".into()
        );
    }
    Ok(())
}

fn structures(
    policy: &scenario::Policy,
    options: &PolicyOptions,
    topology: &Topology,
) -> (AnyVirtualTime, AnyTokens, AnyWheel) {
    let hctxs = topology.hctx_count();
    let start = VTime::from_raw(options.start.raw() & !(TAG_GRAIN.0 - 1));
    let virtual_time = match policy.virtual_time {
        VirtualTimeKind::Mindicator => AnyVirtualTime::Mindicator(Mindicator::new(topology, start)),
        VirtualTimeKind::ArrayScan => AnyVirtualTime::ArrayScan(ArrayScan::new(hctxs, start)),
        VirtualTimeKind::Off => AnyVirtualTime::Off(NoVirtualTime { start }),
    };
    let tokens = match policy.tokens {
        TokensKind::TokenTree => AnyTokens::TokenTree(TokenTree::new(topology, options.depth)),
        TokensKind::AtomicCounter => AnyTokens::AtomicCounter(AtomicCounter::new(options.depth)),
        TokensKind::ScalableBitmap => AnyTokens::ScalableBitmap(BitmapTokens::new(options.depth, hctxs)),
    };
    let wheel = match (policy.virtual_time, policy.unthrottle) {
        (VirtualTimeKind::Off, _) => AnyWheel::Off(NoWheel),
        (_, Unthrottle::Wheel) => {
            AnyWheel::Wheel(ThrottleWheel::with_quantum(hctxs, options.window, options.quantum, start))
        }
        (_, Unthrottle::Poll { .. }) => AnyWheel::Polling(Polling::new(options.window)),
    };
    (virtual_time, tokens, wheel)
}
