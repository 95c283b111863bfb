//! A drive and its tenants in virtual time, for the controller's tests.
//!
//! Answers: what would a device do under this D? Two stages as in `nvme/src/media.rs`: pages wait for their die, then
//! commands for one link. Tenants are closed loops; the one with the least service goes next if fewer than D units are
//! out, and a request of n units takes them all, if need be in debt.

use super::{Controller, Sample, class_of};
use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A closed loop.
pub struct Tenant {
    /// Requests in flight at a time, ns.
    pub depth: fn(u64) -> u32,
    /// Units of a request that begins at a time, ns.
    pub units: fn(u64) -> u32,
}

/// A drive's times.
#[derive(Clone, Copy)]
pub struct Drive {
    pub dies: usize,
    /// Time of a die for a unit, ns.
    pub unit_ns: u64,
    /// Time of the link for a command, and for each of its units, ns.
    pub link_ns: (u64, u64),
    /// When the link may begin what it could begin at a time, ns.
    pub pause: fn(u64) -> u64,
}

struct Request {
    tenant: usize,
    units: u32,
    submitted_ns: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    LeftDies,
    Completed,
    Look,
}

/// Figures of a run.
pub struct Run {
    /// Units completed from half of the time on.
    pub units: u64,
    /// Mean units on the device.
    pub device_units: u64,
    /// Mean time in the system of requests of one unit, ns.
    pub small_mean_ns: u64,
    /// D in force after each completion, with its time, ns; by half: the second half only.
    pub depths: Vec<(u64, u32)>,
    pub controller: Option<Controller>,
}

/// Runs for `end_ns` under a controller, or under a fixed D.
pub fn run(drive: &Drive, tenants: &[Tenant], mut controller: Option<Controller>, fixed: u32, end_ns: u64) -> Run {
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut next_random = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut dies = vec![0u64; drive.dies];
    let (mut link, mut now, mut order) = (0u64, 0u64, 0u64);
    let mut events: BinaryHeap<Reverse<(u64, u64, Event, usize)>> = BinaryHeap::new();
    let mut requests: Vec<Request> = Vec::new();
    let mut waiting: Vec<VecDeque<usize>> = tenants.iter().map(|_| VecDeque::new()).collect();
    let (mut live, mut service) = (vec![0u32; tenants.len()], vec![0u64; tenants.len()]);
    let mut sample = Sample::default();
    let (mut depth, mut is_waiting) = (controller.as_ref().map_or(fixed, Controller::depth), false);
    let (mut completed_ns, mut epoch) = (0, 0);
    let (mut units, mut small, mut depths) = (0, (0u64, 0u64), Vec::new());
    events.push(Reverse((0, 0, Event::Look, 0)));
    while let Some(Reverse((at, _, event, index))) = events.pop() {
        if at > end_ns {
            break;
        }
        let elapsed = at - now;
        now = at;
        sample.now_ns = now;
        sample.device_unit_ns += sample.out_units * elapsed;
        sample.waiting_ns += if is_waiting { elapsed } else { 0 };
        match event {
            Event::LeftDies => {
                link =
                    (drive.pause)(link.max(now)) + drive.link_ns.0 + drive.link_ns.1 * u64::from(requests[index].units);
                order += 1;
                events.push(Reverse((link, order, Event::Completed, index)));
                continue;
            }
            Event::Completed => {
                let Request { tenant, units: n, submitted_ns } = requests[index];
                live[tenant] -= 1;
                sample.out_units -= u64::from(n);
                let work = &mut sample.work[class_of(n)];
                work.units += u64::from(n);
                work.requests += 1;
                sample.system_unit_ns += u64::from(n) * (now - submitted_ns);
                if now > end_ns / 2 {
                    units += u64::from(n);
                    if n == 1 {
                        small = (small.0 + now - submitted_ns, small.1 + 1);
                    }
                }
                if let Some(controller) = &mut controller {
                    if epoch != controller.epoch() {
                        (epoch, sample.silence_ns) = (controller.epoch(), 0);
                    }
                    sample.silence_ns = sample.silence_ns.max(now - completed_ns);
                    depth = controller.step(&sample);
                    depths.push((now, controller.state().chosen));
                }
                completed_ns = now;
            }
            Event::Look => {
                order += 1;
                events.push(Reverse((now + 1_000_000, order, Event::Look, 0)));
            }
        }
        for (tenant, each) in tenants.iter().enumerate() {
            while live[tenant] < (each.depth)(now) {
                live[tenant] += 1;
                if waiting[tenant].is_empty() {
                    // A tenant that comes back begins where the others are.
                    let least =
                        (0..tenants.len()).filter(|&other| !waiting[other].is_empty()).map(|t| service[t]).min();
                    service[tenant] = service[tenant].max(least.unwrap_or(0));
                }
                waiting[tenant].push_back(requests.len());
                requests.push(Request { tenant, units: (each.units)(now), submitted_ns: now });
            }
        }
        loop {
            let next = (0..tenants.len()).filter(|&tenant| !waiting[tenant].is_empty()).min_by_key(|&t| service[t]);
            is_waiting = next.is_some();
            let Some(tenant) = next.filter(|_| sample.out_units < u64::from(depth)) else { break };
            let index = waiting[tenant].pop_front().expect("it has one");
            let n = requests[index].units;
            service[tenant] += u64::from(n);
            sample.out_units += u64::from(n);
            let first = next_random() as usize % dies.len();
            let mut left = now;
            for die in (first..first + n as usize).map(|die| die % drive.dies) {
                // +- 10%.
                let time = drive.unit_ns * (900 + next_random() % 201) / 1000;
                dies[die] = dies[die].max(now) + time;
                left = left.max(dies[die]);
            }
            order += 1;
            events.push(Reverse((left, order, Event::LeftDies, index)));
        }
    }
    let device_units = sample.device_unit_ns / now.max(1);
    Run { device_units, units, small_mean_ns: small.0 / small.1.max(1), depths, controller }
}
