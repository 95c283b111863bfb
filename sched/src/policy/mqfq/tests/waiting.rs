//! Queues that wait, for virtual time or for a token: what they leave in the wheel and the ready set, and take back.

use super::*;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

fn pick(policy: &Mqfq, queue: &mut MqfqQueue) -> (Pick, Vec<HctxId>) {
    let mut kicked = Vec::new();
    (policy.pick(queue, 0, &mut |hctx| kicked.push(hctx)), kicked)
}

#[test]
fn who_gave_his_place_up_is_listed_no_more_and_who_was_taken_out_of_it_looks_once_more() {
    let options = PolicyOptions { window: VSpan::from_bytes(64 << 10), ..PolicyOptions::new(PolicyKind::Mqfq) };
    let policy = policy(options, &Topology::flat(2), 2);
    let [mut ahead, mut behind] = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), 8));
    submit(&policy, &mut behind, 1, 4096, 0);
    (0..2).for_each(|handle| submit(&policy, &mut ahead, 0, 1 << 20, handle));
    let grant = dispatched(&policy, &mut ahead, &mut Vec::new());
    assert_eq!(pick(&policy, &mut ahead).0, Pick::Throttled);
    assert!(ahead.is_listed && ahead.place.is_some());
    policy.unlist(&mut ahead);
    assert!(!ahead.is_listed && ahead.place.is_none(), "nobody else knows of it");
    // A turner has the place, and marks the queue after the first look.
    assert_eq!(pick(&policy, &mut ahead).0, Pick::Throttled);
    policy.wheel.turn(VTime::ZERO.plus(VSpan::from_bytes(1 << 20)), |hctx| assert_eq!(hctx, HctxId(0)));
    policy.unlist(&mut ahead);
    assert!(ahead.is_listed);
    policy.ready.mark(HctxId(0));
    policy.unlist(&mut ahead);
    assert!(!ahead.is_listed && !policy.ready.any());
    grant.token.into_units();
}

#[test]
fn a_token_goes_to_another_queue_though_the_own_one_is_marked() {
    // D is 1. A turner has marked the queue that completes, which has nothing more.
    let options = PolicyOptions { depth: 1, ..PolicyOptions::new(PolicyKind::Mqfq) };
    let policy = policy(options, &Topology::flat(2), 2);
    let [mut one, mut two] = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), 8));
    submit(&policy, &mut one, 0, 4096, 0);
    submit(&policy, &mut two, 1, 4096, 1);
    let grant = dispatched(&policy, &mut one, &mut Vec::new());
    assert_eq!(pick(&policy, &mut two).0, Pick::NoToken);
    policy.ready.mark(HctxId(0));
    let mut kicked = Vec::new();
    policy.complete(&mut one, Done::read(FLOW, grant.handle), grant.token, 0, &mut |hctx| kicked.push(hctx));
    assert_eq!(kicked, [HctxId(1)]);
    dispatched(&policy, &mut two, &mut kicked).token.into_units();
}

#[test]
fn a_worker_whose_device_queue_is_full_leaves_its_spare_tokens_to_others() {
    // Four tokens for four requests, of which one goes.
    let options = PolicyOptions { depth: 4, token_batch: 4, ..PolicyOptions::new(PolicyKind::Mqfq) };
    let policy = policy(options, &Topology::flat(2), 2);
    let [mut one, mut two] = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), 8));
    (0..4).for_each(|handle| submit(&policy, &mut one, 0, 4096, handle));
    submit(&policy, &mut two, 1, 4096, 4);
    let first = dispatched(&policy, &mut one, &mut Vec::new());
    assert_eq!((pick(&policy, &mut two).0, policy.tokens.root_units()), (Pick::NoToken, 0));
    let mut kicked = Vec::new();
    policy.pause(&mut one, &mut |hctx| kicked.push(hctx));
    assert_eq!((kicked.as_slice(), policy.tokens.root_units()), (&[HctxId(1)][..], 3));
    let second = dispatched(&policy, &mut two, &mut kicked);
    _ = [first, second].map(|grant| grant.token.into_units());
}

#[test]
fn a_queue_that_gives_a_token_away_learns_that_its_share_has_grown() {
    // 2 queues: of D = 16 each has a share of 8; of D = 64 it is 32.
    let options = PolicyOptions { depth: 16, depth_auto: true, ..PolicyOptions::new(PolicyKind::Mqfq) };
    let policy = policy(options.relaxed(2), &Topology::flat(2), 1);
    let mut queue = policy.open_queue(HctxId(0), 16);
    (0..10).for_each(|handle| submit(&policy, &mut queue, 0, 4096, handle));
    let mut out: Vec<Grant> = (0..10).map(|_| dispatched(&policy, &mut queue, &mut Vec::new())).collect();
    assert_eq!((queue.batch, queue.share, queue.room), (2, 8, -2));
    assert!(policy.set_depth(HctxId(0), 64, &mut |_| ()));
    let grant = out.pop().expect("ten are out");
    policy.complete(&mut queue, Done::read(FLOW, grant.handle), grant.token, 0, &mut |_| ());
    assert_eq!((queue.batch, queue.share, queue.room), (8, 32, 32 - 9));
    out.into_iter().for_each(|grant| _ = grant.token.into_units());
}

/// A store of tokens that is one number. It can hide what it has from so many looks, as another thread would.
struct Pool {
    free: AtomicI64,
    hides: AtomicI64,
}

impl Tokens for Pool {
    fn acquire_own(&self, _hctx: HctxId, _units: u32) -> Option<DispatchToken> {
        None
    }

    fn acquire_batch(&self, _hctx: HctxId, units: u32, _spare: u32) -> Option<DispatchToken> {
        if self.hides.load(Relaxed) > 0 {
            self.hides.fetch_sub(1, Relaxed);
            return None;
        }
        self.free.fetch_sub(units.into(), Relaxed);
        Some(DispatchToken::new(units))
    }

    fn release_local(&self, hctx: HctxId, token: DispatchToken) {
        self.release_root(hctx, token);
    }

    fn release_toward(&self, from: HctxId, _to: HctxId, token: DispatchToken) {
        self.release_root(from, token);
    }

    fn release_root(&self, _hctx: HctxId, token: DispatchToken) {
        self.free.fetch_add(token.into_units().into(), Relaxed);
    }

    fn percolate(&self, _hctx: HctxId) {}

    fn is_in_debt(&self) -> bool {
        false
    }

    fn root_units(&self) -> i64 {
        self.free.load(Relaxed)
    }

    fn total_units(&self) -> i64 {
        self.root_units()
    }
}

struct Pooled;

impl Structures for Pooled {
    type VirtualTime = Mindicator;
    type Tokens = Pool;
    type Wheel = ThrottleWheel;
}

/// Over a pool of 4 that hides them from the first look.
fn pooled(options: &PolicyOptions) -> Result<Mqfq<Pooled>, PolicyError> {
    let topology = Topology::flat(2);
    let pool = Pool { free: AtomicI64::new(4), hides: AtomicI64::new(1) };
    let wheel = ThrottleWheel::new(2, options.window, VTime::ZERO);
    let structures = (Mindicator::new(&topology, VTime::ZERO), pool, wheel);
    Mqfq::with_structures(options, &topology, &[Weight::DEFAULT], structures)
}

#[test]
fn options_out_of_range_are_refused_over_any_structures() {
    let options = PolicyOptions { depth: 0, ..PolicyOptions::new(PolicyKind::Mqfq) };
    assert!(pooled(&options).is_err());
}

#[test]
fn a_queue_that_finds_a_token_at_the_second_look_takes_its_mark_back() {
    let policy = pooled(&PolicyOptions::new(PolicyKind::Mqfq)).expect("options are in range");
    let mut queue = policy.open_queue(HctxId(0), 8);
    policy.submit(&mut queue, Entry::read(FLOW, Cost(4096), Handle(0)), 0, &mut |_| ());
    let Pick::Dispatch(grant) = policy.pick(&mut queue, 0, &mut |_| ()) else { panic!("four are free") };
    assert_eq!((policy.tokens.hides.load(Relaxed), policy.ready.any(), queue.is_listed), (0, false, false));
    policy.complete(&mut queue, Done::read(FLOW, grant.handle), grant.token, 0, &mut |_| ());
    assert_eq!(policy.free_units(), 4);
}

#[test]
fn a_store_of_tokens_that_knows_no_other_depth_keeps_its_own() {
    let policy = pooled(&PolicyOptions::new(PolicyKind::Mqfq)).expect("options are in range");
    assert_eq!((policy.set_depth(HctxId(0), 8, &mut |_| ()), policy.depth()), (false, None));
    assert_eq!(policy.free_units(), 4);
}

/// Three queues on D = 8 units of 4 KiB. The first has its share out, 2 requests, and more to come; the second has the
/// rest of D, and waits for nothing; the third has a request.
fn one_with_its_share_and_one_that_waits() -> (Mqfq, [MqfqQueue; 3], Grant) {
    let options =
        PolicyOptions { depth: 8, token_unit_bytes: Some(4096), ..PolicyOptions::new(PolicyKind::Mqfq) }.relaxed(3);
    let policy = policy(options, &Topology::flat(3), 3);
    let mut queues = [0, 1, 2].map(|hctx| policy.open_queue(HctxId(hctx), 8));
    submit(&policy, &mut queues[1], 1, 6 * 4096, 0);
    dispatched(&policy, &mut queues[1], &mut Vec::new()).token.into_units();
    (1..5).for_each(|handle| submit(&policy, &mut queues[0], 0, 4096, handle));
    let [first, second] = [0, 1].map(|_| dispatched(&policy, &mut queues[0], &mut Vec::new()));
    second.token.into_units();
    submit(&policy, &mut queues[2], 2, 4096, 5);
    assert_eq!((pick(&policy, &mut queues[2]).0, queues[0].room), (Pick::NoToken, 0));
    (policy, queues, first)
}

#[test]
fn a_token_goes_to_the_queue_that_is_due_and_comes_back_when_that_has_picked() {
    let (policy, [mut own, _, mut due], out) = one_with_its_share_and_one_that_waits();
    let mut kicked = Vec::new();
    policy.complete(&mut own, Done::read(FLOW, out.handle), out.token, 0, &mut |hctx| kicked.push(hctx));
    assert_eq!((kicked.as_slice(), due.hctx), (&[HctxId(2)][..], HctxId(2)));
    // The token lies where both look, and is not taken back.
    assert_eq!((pick(&policy, &mut own).0, policy.free_units()), (Pick::NoToken, 1));
    let grant = dispatched(&policy, &mut due, &mut kicked);
    assert_eq!((grant.flow, policy.free_units()), (FlowId(2), 0));
    // The end of that request finds the queue that waits.
    policy.complete(&mut due, Done::read(grant.flow, grant.handle), grant.token, 0, &mut |hctx| kicked.push(hctx));
    assert_eq!((pick(&policy, &mut due).0, kicked.last()), (Pick::Idle, Some(&HctxId(0))));
    dispatched(&policy, &mut own, &mut kicked).token.into_units();
}

#[test]
fn a_queue_that_was_called_and_is_away_holds_the_giver_up_once() {
    let (policy, [mut own, ..], out) = one_with_its_share_and_one_that_waits();
    policy.complete(&mut own, Done::read(FLOW, out.handle), out.token, 0, &mut |_| ());
    assert_eq!(pick(&policy, &mut own).0, Pick::NoToken);
    dispatched(&policy, &mut own, &mut Vec::new()).token.into_units();
}

#[test]
fn large_tokens_go_to_who_is_due_as_well() {
    // A request of 32 KiB holds all 8 units.
    let options =
        PolicyOptions { depth: 8, token_unit_bytes: Some(4096), ..PolicyOptions::new(PolicyKind::Mqfq) }.relaxed(2);
    let policy = policy(options, &Topology::flat(2), 2);
    let [mut own, mut due] = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), 8));
    (0..3).for_each(|handle| submit(&policy, &mut own, 0, 8 * 4096, handle));
    let out = dispatched(&policy, &mut own, &mut Vec::new());
    submit(&policy, &mut due, 1, 4096, 3);
    assert_eq!(pick(&policy, &mut due).0, Pick::NoToken);
    let mut kicked = Vec::new();
    policy.complete(&mut own, Done::read(FLOW, out.handle), out.token, 0, &mut |hctx| kicked.push(hctx));
    assert_eq!((kicked.as_slice(), pick(&policy, &mut own).0), (&[HctxId(1)][..], Pick::NoToken));
    let one = dispatched(&policy, &mut due, &mut kicked);
    // Seven units are left, and the large request goes into debt for its eighth.
    assert_eq!(policy.free_units(), 7);
    assert_eq!(pick(&policy, &mut due).0, Pick::Idle);
    let two = dispatched(&policy, &mut own, &mut kicked);
    assert_eq!(policy.free_units(), -1);
    _ = [one, two].map(|grant| grant.token.into_units());
}

#[test]
fn a_queue_whose_flow_has_more_requests_waiting_is_not_called() {
    let (policy, [mut own, _, mut deep], out) = one_with_its_share_and_one_that_waits();
    submit(&policy, &mut deep, 2, 4096, 6);
    assert_eq!(pick(&policy, &mut deep).0, Pick::NoToken);
    let mut kicked = Vec::new();
    policy.complete(&mut own, Done::read(FLOW, out.handle), out.token, 0, &mut |hctx| kicked.push(hctx));
    assert_eq!(kicked, [], "its lead is as early as ours");
    dispatched(&policy, &mut own, &mut kicked).token.into_units();
}

#[test]
fn a_queue_that_had_less_than_its_share_on_the_device_keeps_its_token() {
    let (policy, [mut own, ..], out) = one_with_its_share_and_one_that_waits();
    own.room += 1;
    let mut kicked = Vec::new();
    policy.complete(&mut own, Done::read(FLOW, out.handle), out.token, 0, &mut |hctx| kicked.push(hctx));
    assert_eq!(kicked, []);
    dispatched(&policy, &mut own, &mut kicked).token.into_units();
}
