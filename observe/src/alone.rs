//! How long a tenant's requests take without neighbours, as seen since the server started.
//!
//! Answers: by how much is a tenant slowed? Each reading that has requests of an operation gives their mean time from
//! submission to completion. It is kept by operation, size and number in flight, so that only like is compared with
//! like: the time alone, if others had no more than [`OTHERS_PERCENT`] of the work on the device. Else there are two
//! bounds: the least time that was seen, and the time alone with fewer in flight.

use crate::history::FlowInterval;

/// Operations that are told apart: read, write, flush.
pub const OPS: usize = 3;

/// A mean counts if it is of so many requests at least.
const REQUESTS_MIN: u64 = 8;

/// A tenant is alone while others have at most this part of the work on the device, percent.
const OTHERS_PERCENT: u128 = 5;

/// Kinds of requests that are kept of a tenant.
const KINDS_MAX: usize = 12;

/// Requests of one operation over an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpInterval {
    /// Requests completed.
    pub requests: u64,
    /// Sum of their times from submission to completion, ns.
    pub total_ns: u64,
    /// Bytes of those that ended well.
    pub bytes: u64,
}

/// Time of a request without neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alone {
    /// Mean from submission to completion, ns.
    pub ns: u64,
    /// It was seen alone. Else this is the least that was seen beside others, and it takes no longer alone.
    pub is_sure: bool,
}

/// Times of one tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    op: usize,
    /// Logarithms to base 2 of the mean size and of the mean number in flight.
    size: u32,
    depth: u32,
    least_ns: u64,
    alone_ns: Option<u64>,
}

impl Times {
    /// Takes in what one reading brought.
    pub(crate) fn learn(&mut self, flow: &FlowInterval, is_alone: bool) {
        let depth = depth(flow);
        for (op, done) in flow.ops.iter().enumerate().filter(|(_, done)| done.requests >= REQUESTS_MIN) {
            let (size, mean_ns) = (size(done), done.total_ns / done.requests);
            let is_it = |known: &&mut Known| (known.op, known.size, known.depth) == (op, size, depth);
            let Some(known) = self.0.iter_mut().find(is_it) else {
                if self.0.len() == KINDS_MAX {
                    self.0.remove(0);
                }
                self.0.push(Known { op, size, depth, least_ns: mean_ns, alone_ns: is_alone.then_some(mean_ns) });
                continue;
            };
            known.least_ns = known.least_ns.min(mean_ns);
            if is_alone {
                // An eighth of the average is new.
                known.alone_ns = Some(known.alone_ns.map_or(mean_ns, |before| (7 * before + mean_ns) / 8));
            }
        }
    }

    /// Times of the operations of an interval, as far as requests like these were seen.
    pub(crate) fn of(&self, flow: &FlowInterval) -> [Option<Alone>; OPS] {
        let depth = depth(flow);
        std::array::from_fn(|op| {
            let done = &flow.ops[op];
            let size = (done.requests > 0).then(|| size(done))?;
            let distance = |known: &&Known| known.size.abs_diff(size).max(known.depth.abs_diff(depth));
            let like = self.0.iter().filter(|known| known.op == op && distance(known) <= 1);
            let nearest = like.min_by_key(|known| (known.alone_ns.is_none(), distance(known)));
            if let Some(Known { alone_ns: Some(ns), .. }) = nearest {
                return Some(Alone { ns: *ns, is_sure: true });
            }
            // Clients with pauses have more in flight where each takes longer: alone so many would take as many times
            // as long at most.
            let fewer = self.0.iter().filter(|known| known.op == op && known.size.abs_diff(size) <= 1);
            let fewer = fewer.filter(|known| known.depth < depth);
            let most = fewer.filter_map(|known| known.alone_ns?.checked_shl(depth - known.depth));
            let ns = most.chain(nearest.map(|known| known.least_ns)).min()?;
            Some(Alone { ns, is_sure: false })
        })
    }
}

/// Logarithm of the mean size in bytes.
fn size(done: &OpInterval) -> u32 {
    (done.bytes / done.requests).max(1).ilog2()
}

/// Logarithm, rounded, of the mean number in flight while any was.
fn depth(flow: &FlowInterval) -> u32 {
    let hundredths = u128::from(flow.queued_ns + flow.device_ns) * 100 / u128::from(flow.active_ns.max(1));
    (hundredths * 141 / 10_000).max(1).ilog2()
}

/// By tenant, the work on the device times how long it was there, bytes-equivalent x ns.
pub(crate) fn held(flows: &[FlowInterval]) -> Vec<u128> {
    let of =
        |flow: &FlowInterval| u128::from(flow.device_ns) * u128::from(flow.served) / u128::from(flow.requests.max(1));
    flows.iter().map(of).collect()
}

/// Whether a tenant that held so much of all had the device to itself.
pub(crate) fn is_alone(held: u128, all: u128) -> bool {
    (all - held) * 100 <= all * OTHERS_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many reads of so many bytes, one after another, each of which took so long on the device.
    fn reads(requests: u64, bytes: u64, ns: u64) -> FlowInterval {
        let read = OpInterval { requests, total_ns: requests * ns, bytes: requests * bytes };
        let device_ns = requests * ns;
        FlowInterval {
            requests,
            device_ns,
            active_ns: device_ns,
            ops: [read, OpInterval::default(), OpInterval::default()],
            ..FlowInterval::default()
        }
    }

    #[test]
    fn the_time_alone_is_an_average_and_beside_others_the_least_is_a_bound() {
        let mut times = Times::default();
        times.learn(&reads(REQUESTS_MIN - 1, 4096, 5), true);
        let now = reads(100, 4096, 2_000);
        assert_eq!(times.of(&now), [None; OPS], "too few");
        for ns in [1_800, 1_500, 1_900] {
            times.learn(&reads(REQUESTS_MIN, 4096, ns), false);
        }
        let of = |times: &Times, flow: &FlowInterval| times.of(flow)[0].map(|alone| (alone.ns, alone.is_sure));
        assert_eq!(of(&times, &now), Some((1_500, false)));
        times.learn(&reads(100, 4096, 800), true);
        times.learn(&reads(100, 4096, 1_600), true);
        assert_eq!(of(&times, &now), Some((900, true)), "an eighth is new");
    }

    #[test]
    fn only_requests_of_like_size_and_number_in_flight_are_compared() {
        let mut times = Times::default();
        times.learn(&reads(100, 8192, 800), true);
        let known = |bytes, in_flight| {
            let mut flow = reads(100, bytes, 2_000);
            flow.active_ns /= in_flight;
            times.of(&flow)[0].is_some()
        };
        assert!(known(8192, 1) && known(4096, 1) && known(16384, 2) && !known(2048, 1));
        assert!(!known(32768, 1) && known(8192, 4), "at most four times as long, which is a bound");
        let of = |in_flight| {
            let mut flow = reads(100, 8192, 2_000);
            flow.active_ns /= in_flight;
            times.of(&flow)[0].map(|alone| (alone.ns, alone.is_sure))
        };
        assert_eq!([of(1), of(2), of(4), of(8)], [(800, true), (800, true), (3200, false), (6400, false)].map(Some));
        let mut write = reads(100, 8192, 2_000);
        write.ops.swap(0, 1);
        assert_eq!(times.of(&write), [None; OPS]);
        // The nearest that was seen alone; and the oldest goes.
        times.learn(&reads(100, 4096, 500), false);
        assert_eq!(times.of(&reads(100, 4096, 1))[0], Some(Alone { ns: 800, is_sure: true }));
        (0..KINDS_MAX as u32).for_each(|kind| times.learn(&reads(100, 1 << (14 + kind), 900), true));
        assert_eq!(times.of(&reads(100, 4096, 1)), [None; OPS]);
    }

    #[test]
    fn work_on_the_device_is_of_bytes_and_time() {
        let flow = |requests: u64, bytes: u64, device_ns| FlowInterval {
            requests,
            device_ns,
            served: requests * bytes,
            ..FlowInterval::default()
        };
        let held = held(&[flow(10, 4096, 7_000), flow(2, 131_072, 1_000), flow(0, 0, 0)]);
        assert_eq!(held, [7_000 * 4096, 1_000 * 131_072, 0]);
        assert!(is_alone(95, 100) && !is_alone(94, 100) && is_alone(0, 0));
    }
}
