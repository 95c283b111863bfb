//! A model of two workers around any policy: one passes on its token while the other falls asleep on its wake word, as
//! the workers of `blk` do. Work left undone when both have ended would never be done.

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

/// Worker 0 has the token and gives it back; worker 1 has a request, finds no token, and sleeps unless it is kicked.
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
