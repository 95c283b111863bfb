//! Which worker uses which software and which hardware queue.
//!
//! Answers: how many queues are there at each level, and whose are they? Source: blk-mq sections 3.2, 3.2.2 and 3.3.
//! The map is made once, a function of the topology and of the device's queues, so that invented machines can be
//! tested.
//!
//! A device with fewer queues than asked for gets as many as it has: what one queue per core or per socket means on it.
//! A number of queues that is not there is refused, because the config's author counted on it.
//!
//! A policy that names class queues needs a *set* of three for each worker, one of each class, and then everything here
//! counts sets: a device of 32 queues has 10. With more workers than sets, neighbours share one (D2FQ section 5,
//! "Realistic workload": "we group three queues of three adjacent cores").

use crate::multi_queue::{MultiQueue, QueueLimits};
use mqfq_blk::tag::TagSet;
use mqfq_sched::policy::{PolicyKind, QueueClass};
use mqfq_sched::topology::{CpuPlace, HctxId, Topology};
use std::str::FromStr;

/// The block layer between clients and device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BlockLayer {
    /// Two levels of queues.
    #[default]
    Mq,
    /// One queue, one lock: what blk-mq section 2 measures.
    Sq,
    /// None: requests go straight to the worker's device queue. No staging, no policy, no counters per tenant.
    Raw,
    /// As [`BlockLayer::Raw`], with a policy that stages nothing: it names a class queue for each request, and that is
    /// all (D2FQ section 4.3).
    LowLatency,
}

impl BlockLayer {
    /// All layers, in the order of the papers' figures.
    pub const ALL: [BlockLayer; 4] = [BlockLayer::Sq, BlockLayer::Mq, BlockLayer::Raw, BlockLayer::LowLatency];

    /// Whether there are no queues but the device's, one for each worker.
    pub const fn is_bypass(self) -> bool {
        matches!(self, BlockLayer::Raw | BlockLayer::LowLatency)
    }

    /// The name in configs.
    pub const fn name(self) -> &'static str {
        match self {
            BlockLayer::Mq => "mq",
            BlockLayer::Sq => "sq",
            BlockLayer::Raw => "raw",
            BlockLayer::LowLatency => "low-latency",
        }
    }
}

/// Number of queues of one level that a machine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spread {
    /// One per worker.
    #[default]
    PerCore,
    /// One per socket on which there are workers.
    PerSocket,
    /// A single one.
    Single,
}

impl Spread {
    /// All spreads, from many to few.
    pub const ALL: [Spread; 3] = [Spread::PerCore, Spread::PerSocket, Spread::Single];

    /// The name in configs.
    pub const fn name(self) -> &'static str {
        match self {
            Spread::PerCore => "per-core",
            Spread::PerSocket => "per-socket",
            Spread::Single => "single",
        }
    }
}

/// Number of hardware queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HardwareQueues {
    /// As many as the machine suggests, or as the device has.
    Spread(Spread),
    /// This many; refused if the device or the workers have fewer.
    Count(u16),
}

impl Default for HardwareQueues {
    fn default() -> HardwareQueues {
        HardwareQueues::Spread(Spread::PerCore)
    }
}

impl FromStr for HardwareQueues {
    type Err = ();

    /// A name of [`Spread`] or a number.
    fn from_str(text: &str) -> Result<HardwareQueues, ()> {
        match Spread::ALL.into_iter().find(|spread| spread.name() == text) {
            Some(spread) => Ok(HardwareQueues::Spread(spread)),
            None => text.parse().ok().filter(|count| *count > 0).map(HardwareQueues::Count).ok_or(()),
        }
    }
}

/// Layout of queues that is asked for. The default has no lock anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueLayout {
    /// The block layer. SQ has one queue of each kind and Raw no software queue, whatever the other two say.
    pub layer: BlockLayer,
    /// Software queues.
    pub software: Spread,
    /// Hardware queues.
    pub hardware: HardwareQueues,
}

impl QueueLayout {
    /// The layout with one queue and one lock.
    pub const SQ: QueueLayout = QueueLayout {
        layer: BlockLayer::Sq,
        software: Spread::Single,
        hardware: HardwareQueues::Spread(Spread::Single),
    };

    /// The layout without a block layer.
    pub const RAW: QueueLayout = QueueLayout {
        layer: BlockLayer::Raw,
        software: Spread::PerCore,
        hardware: HardwareQueues::Spread(Spread::PerCore),
    };

    /// A layout with two levels of queues.
    pub const fn mq(software: Spread, hardware: Spread) -> QueueLayout {
        QueueLayout { layer: BlockLayer::Mq, software, hardware: HardwareQueues::Spread(hardware) }
    }

    /// Whether this policy can run on it.
    ///
    /// # Errors
    /// One sentence: every policy but `none` stages requests itself, or names class queues, per worker.
    pub fn check_policy(&self, policy: PolicyKind) -> Result<(), String> {
        let what = match (self.layer, self.software) {
            (BlockLayer::Sq, _) => "block layer sq has one queue for all workers",
            (BlockLayer::Raw, _) => "block layer raw has no queue",
            (BlockLayer::LowLatency, _) if policy.is_direct() => return Ok(()),
            (BlockLayer::LowLatency, _) => {
                return Err(format!(
                    "block layer low-latency has no queue to schedule in, so it needs a policy that stages nothing, and {policy} does"
                ));
            }
            (BlockLayer::Mq, Spread::PerSocket) => "a software queue per socket is one queue for several workers",
            (BlockLayer::Mq, Spread::Single) => "a single software queue is one queue for all workers",
            (BlockLayer::Mq, Spread::PerCore) => return Ok(()),
        };
        match policy {
            PolicyKind::None => Ok(()),
            policy if policy.is_direct() => Err(format!(
                "{what}, and policy {policy} fills class queues of each worker's own: allowed is policy none"
            )),
            policy => Err(format!("{what}, and policy {policy} stages requests per worker: allowed is policy none")),
        }
    }
}

/// For each worker of a device, its software queue and its hardware queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueMap {
    layer: BlockLayer,
    /// Index of the software queue, by worker.
    software: Vec<u16>,
    /// Index of the hardware queue, by worker.
    hardware: Vec<u16>,
    /// Each hardware queue is a set of three.
    is_of_sets: bool,
}

/// Queues of a set: one of each class.
const SET: u32 = QueueClass::ALL.len() as u32;

impl QueueMap {
    /// The map of `layout` for the workers of `topology` on `device`, whose queues are to be `depth` deep.
    ///
    /// # Errors
    /// One sentence: more queues, or deeper ones, than the device or the machine has.
    pub fn new(
        layout: &QueueLayout,
        topology: &Topology,
        device: &dyn MultiQueue,
        depth: u16,
    ) -> Result<QueueMap, String> {
        QueueMap::of(layout, topology, device, depth, false)
    }

    /// Returns the map of queue sets: three of the device's queues make one, which takes `depth` commands of each
    /// class.
    ///
    /// # Errors
    /// One sentence: more sets, or deeper ones, than the device or the machine has; a layout that has no place for
    /// them.
    pub fn of_sets(
        layout: &QueueLayout,
        topology: &Topology,
        device: &dyn MultiQueue,
        depth: u16,
    ) -> Result<QueueMap, String> {
        if layout.layer == BlockLayer::Sq || layout.software != Spread::PerCore {
            return Err("queue sets are fed by the workers themselves, allowed is a software queue per core".to_owned());
        }
        let QueueLimits { queues_max, depth_max } = device.queue_limits();
        if queues_max < SET {
            return Err(format!("a queue set is {SET} queues, one of each class, and the device has {queues_max}"));
        }
        let most = TagSet::CLASS_DEPTH_MAX.min(depth_max);
        if depth > most {
            return Err(format!(
                "a queue depth of {depth} is too deep for each queue of a set, allowed is 1 to {most}"
            ));
        }
        QueueMap::of(layout, topology, device, depth, true)
    }

    fn of(
        layout: &QueueLayout,
        topology: &Topology,
        device: &dyn MultiQueue,
        depth: u16,
        is_of_sets: bool,
    ) -> Result<QueueMap, String> {
        let QueueLimits { queues_max: device_queues, depth_max } = device.queue_limits();
        let (queues_max, what, each) = match is_of_sets {
            true => (device_queues / SET, "queue set", ", three to a set"),
            false => (device_queues, "hardware queue", ""),
        };
        let workers = topology.hctx_count();
        let places: Vec<CpuPlace> = (0..workers).map(|worker| topology.place(HctxId(worker as u16))).collect();
        if depth > depth_max {
            return Err(format!("a queue depth of {depth} is more than the device has, allowed is 1 to {depth_max}"));
        }
        let per_socket = numbered(places.iter().map(|place| place.socket));
        let sockets = count(&per_socket);
        let asked = match (layout.layer, layout.hardware) {
            (BlockLayer::Sq, _) => 1,
            (layer, _) if layer.is_bypass() && (queues_max as usize) < workers => {
                return Err(format!(
                    "block layer {} needs a {what} for each of {workers} workers, and the device has {queues_max}",
                    layer.name()
                ));
            }
            (BlockLayer::Raw | BlockLayer::LowLatency, _) | (_, HardwareQueues::Spread(Spread::PerCore)) => workers,
            (_, HardwareQueues::Spread(Spread::PerSocket)) => sockets,
            (_, HardwareQueues::Spread(Spread::Single)) => 1,
            (_, HardwareQueues::Count(count)) => {
                let most = workers.min(queues_max as usize);
                if usize::from(count) > most {
                    return Err(format!(
                        "{count} {what}s are out of range, allowed is 1 to {most} with {workers} workers on a device of {device_queues} queues{each}"
                    ));
                }
                usize::from(count)
            }
        };
        let queues = asked.min(queues_max as usize).max(1);
        let own: Vec<u16> = (0..workers as u16).collect();
        let hardware = if queues == workers { own.clone() } else { device.map_queues(&places, queues) };
        assert!(
            hardware.len() == workers
                && count(&hardware) == queues
                && hardware.iter().all(|&at| usize::from(at) < queues),
            "the device maps {workers} workers to {queues} queues as {hardware:?}"
        );
        let software = match (layout.layer, layout.software) {
            (BlockLayer::Sq, _) | (BlockLayer::Mq, Spread::Single) => vec![0; workers],
            (BlockLayer::Mq, Spread::PerSocket) => per_socket,
            (BlockLayer::Raw | BlockLayer::LowLatency, _) | (BlockLayer::Mq, Spread::PerCore) => own,
        };
        Ok(QueueMap { layer: layout.layer, software, hardware, is_of_sets })
    }

    /// A map with queues of its own for each worker: no lock.
    pub fn private(workers: usize) -> QueueMap {
        let own: Vec<u16> = (0..workers as u16).collect();
        QueueMap { layer: BlockLayer::Mq, software: own.clone(), hardware: own, is_of_sets: false }
    }

    /// Whether each hardware queue is a set of three, one of each class.
    pub fn is_of_sets(&self) -> bool {
        self.is_of_sets
    }

    /// The block layer.
    pub fn layer(&self) -> BlockLayer {
        self.layer
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.software.len()
    }

    /// Number of software queues.
    pub fn software_queues(&self) -> usize {
        count(&self.software)
    }

    /// Number of hardware queues.
    pub fn hardware_queues(&self) -> usize {
        count(&self.hardware)
    }

    /// The software queue of a worker.
    pub fn software_of(&self, hctx: HctxId) -> usize {
        self.software[hctx.index()].into()
    }

    /// The hardware queue of a worker.
    pub fn hardware_of(&self, hctx: HctxId) -> usize {
        self.hardware[hctx.index()].into()
    }

    /// The first worker of a hardware queue.
    pub fn worker_of(&self, hardware: usize) -> HctxId {
        let first = self.hardware.iter().position(|&of| usize::from(of) == hardware);
        HctxId(first.expect("every queue is somebody's") as u16)
    }

    /// A software queue is shared by workers, or was asked to be.
    pub(super) fn has_shared_software(&self) -> bool {
        self.layer == BlockLayer::Mq && self.software_queues() < self.workers()
    }

    /// Nothing is shared: each worker has its own queues of both levels. SQ shares by its nature, even with one worker.
    pub fn is_private(&self) -> bool {
        self.layer != BlockLayer::Sq && !self.has_shared_software() && self.hardware_queues() == self.workers()
    }
}

/// The numbers of things as they come: the first is 0, the next other one is 1, and so on.
fn numbered(things: impl Iterator<Item = u16>) -> Vec<u16> {
    let mut known: Vec<u16> = Vec::new();
    things
        .map(|thing| {
            let at = known.iter().position(|&other| other == thing);
            at.unwrap_or_else(|| {
                known.push(thing);
                known.len() - 1
            }) as u16
        })
        .collect()
}

fn count(queues: &[u16]) -> usize {
    let mut queues = queues.to_vec();
    queues.sort_unstable();
    queues.dedup();
    queues.len()
}

/// The default of [`MultiQueue::map_queues`]: sockets do not share a queue while there
/// is one for each, every socket has queues by its number of workers, and those of a socket are spread evenly over its
/// cores. With fewer queues than sockets, neighbours share.
pub(super) fn nearest(workers: &[CpuPlace], queues: usize) -> Vec<u16> {
    let mut order: Vec<usize> = (0..workers.len()).collect();
    order.sort_by_key(|&worker| workers[worker]);
    let sockets: Vec<&[usize]> = order.chunk_by(|&a, &b| workers[a].socket == workers[b].socket).collect();
    let mut map = vec![0; workers.len()];
    if queues <= sockets.len() {
        for (number, socket) in sockets.iter().enumerate() {
            socket.iter().for_each(|&worker| map[worker] = (number * queues / sockets.len()) as u16);
        }
        return map;
    }
    let queues = queues.min(workers.len());
    let mut of_socket = vec![1; sockets.len()];
    for _ in sockets.len()..queues {
        // To the socket with the most workers to a queue; to the first of equal ones.
        let crowded = |&socket: &usize| (sockets[socket].len() * 1024 / of_socket[socket], std::cmp::Reverse(socket));
        let most = (0..sockets.len()).max_by_key(crowded).expect("there is a worker");
        of_socket[most] += 1;
    }
    let mut first = 0;
    for (socket, queues) in sockets.iter().zip(of_socket) {
        for (number, &worker) in socket.iter().enumerate() {
            map[worker] = (first + number * queues / socket.len()) as u16;
        }
        first += queues;
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_keeps_its_queues_together() {
        // Workers fill the first socket, and half of the second.
        let uneven: Vec<_> = (0..9).map(|worker| CpuPlace { socket: worker / 6, core: worker % 6 }).collect();
        assert_eq!(nearest(&uneven, 2), [0, 0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(nearest(&uneven, 3), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(nearest(&uneven, 1), [0; 9]);
        let eight: Vec<_> = (0..16).map(|worker| CpuPlace { socket: worker / 2, core: worker % 2 }).collect();
        assert_eq!(nearest(&eight, 3), [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn every_queue_is_somebodys_on_every_machine() {
        for sockets in 1..=4u16 {
            for workers in 1..=13u16 {
                let places: Vec<_> =
                    (0..workers).map(|worker| CpuPlace { socket: worker % sockets, core: worker }).collect();
                for queues in 1..=usize::from(workers) {
                    let mut used = nearest(&places, queues);
                    used.sort_unstable();
                    used.dedup();
                    assert_eq!(used, (0..queues as u16).collect::<Vec<_>>(), "{workers} workers, {sockets} sockets");
                }
            }
        }
    }
}
