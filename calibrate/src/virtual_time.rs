//! A worker where time is made up: the loop that serves tenants, with a clock that jumps to the device's next event.
//!
//! There is one worker, it is never kicked, and its clients have no sockets and no timers. When it would sleep with
//! nothing left to come, it stops: every client is done by then.

use mqfq_blk::ask::Ask;
use mqfq_blk::client::{Client, DeviceIndex};
use mqfq_blk::device::{Device, DeviceInfo, QueueOptions};
use mqfq_blk::hctx::{HwCtx, HwCtxOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::worker::host::{Ended, Host, HostEvent, Mail};
use mqfq_blk::worker::{Worker, WorkerOptions};
use mqfq_blk::{AnyPolicy, CostModel, HctxId, PolicyKind, PolicyOptions, Topology, Weight};
use std::io;
use std::sync::Arc;

/// The only device.
pub const DEVICE: DeviceIndex = DeviceIndex(0);

/// The only worker.
const HCTX: HctxId = HctxId(0);

/// The surroundings of the worker: a clock, and the order to stop.
#[derive(Debug, Default)]
pub struct VirtualHost {
    now_ns: u64,
    is_over: bool,
}

impl Host<AnyPolicy> for VirtualHost {
    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn kick(&mut self, hctx: HctxId) {
        unreachable!("{hctx:?} was kicked where there is one worker");
    }

    fn may_sleep(&mut self) -> bool {
        true
    }

    fn woke(&mut self) {}

    fn is_kicked(&mut self) -> bool {
        false
    }

    fn take_mail(&mut self) -> Option<Mail<AnyPolicy>> {
        std::mem::take(&mut self.is_over).then_some(Mail::Stop)
    }

    fn collect(&mut self, _: &mut Vec<Ended>) {}

    fn resolve(&mut self, (name, _): Ended) -> Option<HostEvent> {
        unreachable!("operation {name} ended, and none was asked for")
    }

    fn has_ended(&mut self) -> bool {
        false
    }

    fn enter(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn enter_and_wait(&mut self, wait_ns: Option<u64>, _is_held_back: bool) -> io::Result<()> {
        match wait_ns {
            Some(wait_ns) => self.now_ns += wait_ns,
            None => self.is_over = true,
        }
        Ok(())
    }

    fn spin_hint(&mut self) {
        self.now_ns += 1;
    }

    fn ask(&mut self, _: u32, _: Ask) {
        unreachable!("no sockets and no timers here")
    }

    fn cancel_waits(&mut self, _: u32) {}
}

/// The worker's context on `device`: no scheduler, and room for whatever one flow has in flight.
///
/// # Errors
/// One sentence: the device refuses a queue.
pub fn context(device: &dyn Device, queue_depth: u16) -> Result<HwCtx<AnyPolicy>, String> {
    let policy = AnyPolicy::new(&PolicyOptions::new(PolicyKind::None), &Topology::flat(1), &[Weight::DEFAULT])
        .map_err(|error| error.to_string())?;
    let interrupt = Arc::new(|hctx| unreachable!("{hctx:?} was interrupted where there is one worker"));
    let queue = device.open_queue(QueueOptions { hctx: HCTX, depth: queue_depth, ring: None, interrupt })?;
    Ok(HwCtx::new(HwCtxOptions {
        id: HCTX,
        policy: Arc::new(policy),
        device: queue,
        queue_depth,
        limits: vec![StageLimits { requests_max: queue_depth.into(), bytes_max: u64::MAX }],
        cost: CostModel::FLAT,
        path: PathOptions::TIMELESS,
    }))
}

/// Runs the worker with `clients` until nothing will happen any more. The host and the context, for the next time.
pub fn work(
    host: VirtualHost,
    context: HwCtx<AnyPolicy>,
    info: DeviceInfo,
    clients: impl Iterator<Item = Box<dyn Client>>,
) -> (VirtualHost, HwCtx<AnyPolicy>) {
    let options = WorkerOptions { spin_ns: 0, ..WorkerOptions::default() };
    let mut worker = Worker::new(host, vec![context], vec![info], options);
    clients.for_each(|client| worker.adopt(client));
    worker.work();
    let (host, contexts) = worker.into_parts();
    let context = contexts.into_iter().next().expect("the worker was made with one context");
    assert_eq!(context.admitted(), 0, "requests are under way and nothing will ever happen: a wake-up was lost");
    (host, context)
}
