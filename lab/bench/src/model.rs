//! The demo in virtual time: the data path that ships, the drive model that ships, and no clock, thread or socket.
//!
//! # What it answers
//! What a scenario gives if the machine costs nothing: where the knee of D lies, and which part of a measured figure is
//! the machine's. It is also the test of the demo's promises that no busy machine can break.
//!
//! # Shape
//! A list of requests that will arrive and the device's own next event are the only two things that move time. At each
//! moment every hctx runs and reaps until nothing moves; each completion is followed by the tenant's next request
//! `think_ns` later (what sockets and clients take in between).
//!
//! # What would make it lie
//! It assumes cores without end: a worker always runs at the moment when something happens. With `think_ns` = 0 it is
//! the bound that a real machine approaches from below.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Device, QueueOptions};
use mqfq_blk::hctx::{HwCtx, HwCtxOptions};
use mqfq_blk::path::PathOptions;
use mqfq_blk::request::{Op, Submission};
use mqfq_blk::split::SplitControl;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::Owner;
use mqfq_blk::tuning::Tuning;
use mqfq_blk::{CostModel, FlowId, HctxId, PolicyOptions, Topology, Weight};
use mqfq_demo::harness::{self, Tenant};
use mqfq_demo::load::{Counted, Requests, Window};
use mqfq_sched::policy::AnyPolicy;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// What is modelled.
pub struct ModelOptions<'a> {
    /// The drive; it must not have been used before, its time starts at 0.
    pub device: &'a dyn Device,
    /// Who gets what.
    pub policy: PolicyOptions,
    /// Commands on each hctx's device queue at once.
    pub queue_depth: u16,
    /// The tenants.
    pub tenants: &'a [Tenant],
    /// Hctxs; connections take them in turn.
    pub workers: usize,
    /// From a completion to the arrival of the request that follows it.
    pub think_ns: u64,
}

/// One connection of a tenant.
struct Connection {
    tenant: usize,
    hctx: usize,
    requests: Requests,
}

/// A request that will arrive: when, in which order, on which connection.
type Arrival = Reverse<(u64, u64, usize)>;

struct Model {
    hctxs: Vec<HwCtx<AnyPolicy>>,
    connections: Vec<Connection>,
    arrivals: BinaryHeap<Arrival>,
    sequence: u64,
    in_flight: usize,
}

/// Runs the tenants named in `who` together for `window`; the counts come in that order.
///
/// # Errors
/// One sentence: options that no policy or queue can be made of.
///
/// # Panics
/// If requests are in flight and neither an arrival nor the device will ever move time again: a lost wake-up.
pub fn run(options: &ModelOptions<'_>, who: &[usize], window: Window) -> Result<Vec<Counted>, String> {
    let mut model = Model::new(options, who)?;
    let mut counted: Vec<Counted> = options.tenants.iter().map(|_| Counted::new(window)).collect();
    let mut completions = Vec::new();
    let mut now_ns = 0;
    loop {
        let arrival_ns = model.arrivals.peek().map(|Reverse((at_ns, ..))| *at_ns);
        let device_ns = model.hctxs.iter().filter_map(HwCtx::next_event_ns).min();
        let Some(next_ns) = arrival_ns.into_iter().chain(device_ns).min() else {
            assert_eq!(model.in_flight, 0, "requests are in flight and nothing will ever happen: a wake-up was lost");
            break;
        };
        now_ns = next_ns.max(now_ns);
        // Until nothing moves: an hctx may have been kicked by one that was looked at after it.
        loop {
            let mut moved = model.arrive(options.tenants, now_ns, window);
            for hctx in &mut model.hctxs {
                let run = hctx.run(now_ns, &mut |_: HctxId| {});
                moved |= run.dispatched > 0 || run.again;
                moved |= hctx.reap(now_ns, &mut |_: HctxId| {}, &mut completions) > 0;
            }
            for (Owner(connection), completion) in completions.drain(..) {
                let connection = connection as usize;
                let total_ns = completion.queued_ns + completion.device_ns;
                counted[model.connections[connection].tenant].record(now_ns, total_ns, completion.length_bytes);
                model.in_flight -= 1;
                model.expect(now_ns + options.think_ns, connection);
            }
            if !moved {
                break;
            }
        }
    }
    Ok(who.iter().map(|&tenant| counted[tenant].clone()).collect())
}

impl Model {
    fn new(options: &ModelOptions<'_>, who: &[usize]) -> Result<Model, String> {
        let weights: Vec<Weight> = options.tenants.iter().map(|tenant| tenant.weight).collect();
        let policy = AnyPolicy::new(&options.policy, &Topology::flat(options.workers), &weights)
            .map_err(|error| error.to_string())?;
        let policy = Arc::new(policy);
        let tuning = Tuning::new(&options.policy, options.workers);
        let PathOptions { split, .. } = harness::path(&options.policy);
        let control = Arc::new(SplitControl::new(split, options.workers));
        let mut hctxs = Vec::new();
        for index in 0..options.workers {
            let id = HctxId(index as u16);
            let device = options.device.open_queue(QueueOptions {
                hctx: id,
                depth: options.queue_depth,
                ring: None,
                // Every hctx is looked at whenever anything happens, so nobody has to be told.
                interrupt: Arc::new(|_| {}),
            })?;
            let limits = options.tenants.iter().map(|tenant| StageLimits {
                requests_max: u32::from(tenant.load.connections) * u32::from(tenant.load.depth),
                bytes_max: u64::MAX,
            });
            let mut hctx = HwCtx::new(HwCtxOptions {
                id,
                policy: policy.clone(),
                device,
                queue_depth: options.queue_depth,
                limits: limits.collect(),
                cost: CostModel::FLAT,
                path: PathOptions { split, ..PathOptions::TIMELESS },
            });
            hctx.set_tuning(tuning.clone(), 0);
            hctxs.push(hctx.with_split(control.clone()));
        }
        let size_bytes = options.device.info().size_bytes;
        let mut model =
            Model { hctxs, connections: Vec::new(), arrivals: BinaryHeap::new(), sequence: 0, in_flight: 0 };
        for (tenant, plan) in options.tenants.iter().enumerate() {
            for number in 0..plan.load.connections {
                let hctx = model.connections.len() % options.workers;
                let requests = Requests::new(&plan.load, number, size_bytes)?;
                model.connections.push(Connection { tenant, hctx, requests });
                if who.contains(&tenant) {
                    (0..plan.load.depth).for_each(|_| model.expect(0, model.connections.len() - 1));
                }
            }
        }
        Ok(model)
    }

    fn expect(&mut self, at_ns: u64, connection: usize) {
        self.arrivals.push(Reverse((at_ns, self.sequence, connection)));
        self.sequence += 1;
    }

    /// Submits what has arrived by now. After the window's end arrivals are dropped. True: something was submitted.
    fn arrive(&mut self, tenants: &[Tenant], now_ns: u64, window: Window) -> bool {
        let mut moved = false;
        while let Some(&Reverse((at_ns, _, connection))) = self.arrivals.peek()
            && at_ns <= now_ns
        {
            self.arrivals.pop();
            if now_ns >= window.end_ns {
                continue;
            }
            let Connection { tenant, hctx, requests } = &mut self.connections[connection];
            let next = requests.advance();
            let length_bytes = tenants[*tenant].load.request_bytes;
            let submission = Submission {
                flow: FlowId(*tenant as u32),
                op: if next.write { Op::Write } else { Op::Read },
                offset_bytes: next.offset_bytes,
                length_bytes,
                fua: false,
                buffer: Some(Buffer::new(length_bytes as usize)),
                cookie: 0,
            };
            let owner = Owner(connection as u32);
            let taken = self.hctxs[*hctx].submit(owner, submission, now_ns, &mut |_: HctxId| {});
            assert!(taken.is_ok(), "the bound of a flow is all that its tenant can have in flight");
            self.in_flight += 1;
            moved = true;
        }
        moved
    }
}
