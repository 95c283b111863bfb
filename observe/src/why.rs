//! Why a tenant waits: one sentence from the counters.
//!
//! Answers: is it the tenant's own asking, its share, a limit, its client, the server's cores, or the device? The rows
//! of [`Row`] are looked at in the order of `docs/use/why.md`, and the first that holds is the verdict; each row has a
//! test.
//!
//! A mean time in the queue and one on the device are never added up to a latency without being named: they tell apart
//! what is late.

use crate::history::{FlowInterval, Interval};
use crate::share::{Claim, own};
use crate::source::Limited;
use mqfq_blk::engine::EngineStats;
use mqfq_blk::tuning::{Fares, GoalState};
use serde::Serialize;

/// Seconds of which a verdict is.
pub const SECONDS: u64 = 10;

/// A request is overdue after this without any completion, ns.
const OVERDUE_NS: u64 = 1_000_000_000;

/// A device is slow if a request takes it so many times what is usual.
const SLOW_TIMES: u64 = 4;

/// And it is not slow below this, ns: four times nothing is nothing. Memory answers in less, and drives do not.
const SLOW_LEAST_NS: u64 = 10_000;

/// A client pauses if it has something under way for less of the time, percent.
const ACTIVE_PERCENT: u64 = 80;

/// A client keeps one request in flight if it has at most so many while it has any, hundredths.
const ONE_HUNDREDTHS: u64 = 120;

/// Cores are the limit if each worker that serves the tenant wants one for so much of the time, percent.
const CORES_PERCENT: u64 = 95;

/// A tenant that does not wait here has less than its own part if it gets less of it, percent.
const OWN_PERCENT: u64 = 97;

/// T or D holds workers back if it does so for this part of their time, percent.
const HELD_PERCENT: u64 = 1;

/// Names of others in a sentence, at most.
const NAMES_MAX: usize = 3;

/// Which row of the table holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// Nothing was asked, and nothing is under way.
    Idle,
    /// Something is under way for long, and nothing completed.
    NoAnswer,
    /// A limit of its own held it back for at least a tenth of the time.
    OwnLimit,
    /// It waits here, and its group has its part, which others in it use too.
    GroupShare,
    /// It waits here, and has its share, which is less than it asks for.
    OverShare,
    /// It waits here under a policy that shares nothing.
    NoShares,
    /// It waits here, and has not got its share.
    BelowShare,
    /// The device takes much longer than usual.
    SlowDevice,
    /// The workers that serve it have no time left.
    Cores,
    /// One request at a time, and the device's time is all of it.
    OneInFlight,
    /// Nothing of it is under way for part of the time: the client pauses.
    ClientPauses,
    /// Others wait, it does not, and what it keeps in flight brings less than its share.
    ClientDepth,
    /// Several requests at a time, most of whose time is the device's.
    Served,
}

/// Why one tenant waits on one device, or does not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Verdict {
    /// Name of the device.
    pub device: String,
    /// Name of the tenant (or of its export, if exports have weights).
    pub tenant: String,
    /// Which row of the table.
    pub row: Row,
    /// All of it.
    pub sentence: String,
}

/// Facts about one tenant on one device.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// Its name.
    pub tenant: String,
    /// Length of the interval, ns.
    pub elapsed_ns: u64,
    /// Its activity.
    pub flow: FlowInterval,
    /// Requests under way now.
    pub under_way: u64,
    /// Age of the oldest one, ns; 0: none.
    pub oldest_ns: u64,
    /// Service of the device to all tenants, bytes-equivalent.
    pub served: u64,
    /// Other tenants that were served.
    pub others: Others,
    /// Its group, and others in it that were served.
    pub group: Option<(String, Others)>,
    /// A limit of its own, and how long it held it back in the interval, ns.
    pub limited: Option<(String, u64)>,
    /// The policy divides the device by weight.
    pub has_shares: bool,
    /// Usual time of a request on this device, ns.
    pub usual_device_ns: Option<u64>,
    /// Its entitlement if it asked for everything, bytes-equivalent, where others wait here; 0: none does.
    pub own: u64,
    /// Part of the interval, percent, that the least loaded of its workers wanted a core, if that is known.
    pub cores_percent: Option<u64>,
    /// Workers.
    pub workers: u64,
    /// Time during which T held workers back in the interval, ns, all workers together.
    pub throttled_ns: u64,
    /// Time during which D held them back, likewise.
    pub no_token_ns: u64,
}

/// Some tenants.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// Names of the tenants that were served most.
    pub named: Vec<String>,
    /// How many there are.
    pub count: usize,
}

/// Most of its requests' time is the queue's, and not only now and then.
fn is_waiting(flow: &FlowInterval) -> bool {
    flow.queued_ns >= flow.device_ns && flow.is_hungry
}

/// The verdict of a case.
pub fn judge(case: &Case) -> (Row, String) {
    let Case { tenant, elapsed_ns, flow, .. } = case;
    let seconds = (elapsed_ns / 1_000_000_000).max(1);
    // A tenant that waits for a limit has nothing under way yet.
    let is_limited = |(_, waited_ns): &(String, u64)| waited_ns.saturating_mul(10) >= *elapsed_ns;
    let limited = case.limited.as_ref().filter(|limited| is_limited(limited));
    if flow.requests == 0 && case.under_way == 0 && limited.is_none() {
        return (Row::Idle, format!("{tenant} is idle: it asked for nothing in the last {seconds} s"));
    }
    if flow.requests == 0 && case.oldest_ns >= OVERDUE_NS {
        let (under_way, oldest) = (case.under_way, time(case.oldest_ns));
        let sentence = format!(
            "{tenant} has no answer: {under_way} requests are under way, the oldest for {oldest}, and none has completed"
        );
        return (Row::NoAnswer, sentence);
    }
    if let Some((key, waited_ns)) = limited {
        let percent = (waited_ns * 100 / elapsed_ns.max(&1)).min(100);
        let sentence = format!("{tenant} is limited by its own {key}: that held it back for {percent}% of the time");
        return (Row::OwnLimit, sentence);
    }
    if flow.requests == 0 {
        let under_way = case.under_way;
        return (Row::Served, format!("{tenant} has just begun: {under_way} requests are under way"));
    }
    let (queue_ns, device_ns) = (flow.queued_ns / flow.requests, flow.device_ns / flow.requests);
    let is_waiting = is_waiting(flow);
    let cores_percent = case.cores_percent.filter(|percent| *percent >= CORES_PERCENT);
    if is_waiting {
        return waits(case, queue_ns, device_ns, cores_percent);
    }
    let size = size(flow.bytes / flow.requests);
    if let Some(usual_ns) = case.usual_device_ns
        && device_ns >= usual_ns.saturating_mul(SLOW_TIMES).max(SLOW_LEAST_NS)
        // A worker without time finds late what the device has done.
        && cores_percent.is_none()
    {
        let (now, usual) = (time(device_ns), time(usual_ns));
        let sentence = format!(
            "the device is slow: {now} for a request of {size} of {tenant}, its median of the last hour was {usual}"
        );
        return (Row::SlowDevice, sentence);
    }
    let active_ns = flow.active_ns.min(*elapsed_ns);
    // In hundredths: how many of its requests were under way on average while any was.
    let depth = (flow.queued_ns + flow.device_ns).saturating_mul(100) / active_ns.max(1);
    let in_flight = tenths(depth, 100);
    let each = time(queue_ns + device_ns);
    let active_percent = active_ns.saturating_mul(100) / elapsed_ns.max(&1);
    if active_percent < ACTIVE_PERCENT {
        let several =
            if depth > ONE_HUNDREDTHS { format!(", with {in_flight} in flight until then") } else { "".into() };
        let sentence = format!(
            "{tenant}'s client asks for no more: nothing of it is under way for {}% of the time, and a request takes \
             {each}{several}",
            100 - active_percent
        );
        return (Row::ClientPauses, sentence);
    }
    if depth <= ONE_HUNDREDTHS {
        let most = 1_000_000_000_u64.checked_div(queue_ns + device_ns);
        let most = most.map_or("".into(), |most| format!(", so {most} a second at most"));
        let sentence = format!("{tenant}'s client keeps one request in flight: {each} for each of {size}{most}");
        return (Row::OneInFlight, sentence);
    }
    if let Some(percent) = cores_percent {
        let sentence = format!(
            "the server's cores are the limit for {tenant}: its workers ran or waited for one for {percent}% of the \
             time, and {in_flight} of its requests are in flight"
        );
        return (Row::Cores, sentence);
    }
    if flow.served.saturating_mul(100) < case.own.saturating_mul(OWN_PERCENT) {
        let part = |served: u64| served.saturating_mul(200).div_ceil(case.served.max(1)) / 2;
        // As much more as it lacks, if a request takes as long then.
        let enough = (u128::from(depth) * u128::from(case.own)).div_ceil(u128::from(flow.served.max(1)) * 100);
        let sentence = format!(
            "{tenant}'s client keeps {in_flight} requests of {size} in flight, which bring {}% of the service where \
             {}% is its own: about {enough} would bring that",
            part(flow.served),
            part(case.own)
        );
        return (Row::ClientDepth, sentence);
    }
    let sentence = format!(
        "{tenant} is served as it asks: {} of a request's {each} are the device's, with {in_flight} requests in flight",
        time(device_ns),
    );
    (Row::Served, sentence)
}

/// Most of the time is the queue's.
fn waits(case: &Case, queue_ns: u64, device_ns: u64, cores_percent: Option<u64>) -> (Row, String) {
    let Case { tenant, flow, .. } = case;
    let waits = format!("{tenant} waits {} in the queue", part(queue_ns, queue_ns + device_ns));
    if !case.has_shares {
        let others = match names(&case.others) {
            Some((names, true)) => format!("{names} were served too"),
            Some((name, false)) => format!("{name} was served too"),
            None => "nobody else was served".to_owned(),
        };
        return (Row::NoShares, format!("{waits}: the policy divides nothing by weight, and {others}"));
    }
    let percent = flow.served.saturating_mul(100) / flow.entitled.max(1);
    if let Some(busy) = cores_percent {
        let sentence = format!(
            "{waits} and gets {percent}% of its share: the server's cores are the limit, its workers ran or waited for \
             one for {busy}% of the time"
        );
        return (Row::Cores, sentence);
    }
    let has_its_share = flow.served.saturating_mul(10) >= flow.entitled.saturating_mul(9);
    if has_its_share
        && let Some((group, members)) = &case.group
        && let Some((members, many)) = names(members)
    {
        let use_it = if many { "use" } else { "uses" };
        return (Row::GroupShare, format!("{waits}: its group {group} has one share, which {members} {use_it} too"));
    }
    if has_its_share {
        let times = flow.asked.min(case.served).max(flow.served).saturating_mul(10) / flow.entitled.max(1);
        let share = match times {
            // It has what it asks for but for little.
            ..=10 => "has its share".to_owned(),
            _ => format!("asks for {}.{} times its share", times / 10, times % 10),
        };
        let sentence = match names(&case.others) {
            Some((names, true)) => format!("{waits}: it {share} while {names} use theirs"),
            Some((names, false)) => format!("{waits}: it {share} while {names} uses its own"),
            None => format!("{waits}: it has the device to itself and asks for more than the device can do"),
        };
        return (Row::OverShare, sentence);
    }
    let is_held = |ns: u64| ns.saturating_mul(100) >= HELD_PERCENT * case.elapsed_ns * case.workers;
    let by = match case.throttled_ns > case.no_token_ns {
        _ if !is_held(case.throttled_ns.max(case.no_token_ns)) => {
            "neither the window T nor the depth D held workers back"
        }
        true => "workers were held back by the window T most",
        false => "workers were held back by the depth D most",
    };
    (Row::BelowShare, format!("{waits} and gets {percent}% of its share: {by}"))
}

/// Their names, and whether there are several.
fn names(others: &Others) -> Option<(String, bool)> {
    let shown = &others.named[..];
    let more = others.count - shown.len();
    let text = match (shown, more) {
        ([], _) => return None,
        ([one], 0) => one.clone(),
        ([first @ .., last], 0) => format!("{} and {last}", first.join(", ")),
        (_, more) => format!("{} and {more} others", shown.join(", ")),
    };
    Some((text, others.count > 1))
}

/// "3.1 of 3.4 ms": both in the unit of the whole.
fn part(part_ns: u64, whole_ns: u64) -> String {
    if whole_ns < 1_000 {
        return format!("{part_ns} of {whole_ns} ns");
    }
    let (unit_ns, unit) = unit_of(whole_ns);
    format!("{} of {} {unit}", tenths(part_ns, unit_ns), tenths(whole_ns, unit_ns))
}

/// "3.4 ms". Time is read once in a worker's turn, so that a mean of less than 1 us says no more than that.
pub(crate) fn time(ns: u64) -> String {
    if ns < 1_000 {
        return "less than 1 us".to_owned();
    }
    let (unit_ns, unit) = unit_of(ns);
    format!("{} {unit}", tenths(ns, unit_ns))
}

fn unit_of(ns: u64) -> (u64, &'static str) {
    match ns {
        1_000_000_000.. => (1_000_000_000, "s"),
        1_000_000.. => (1_000_000, "ms"),
        _ => (1_000, "us"),
    }
}

fn tenths(value: u64, unit: u64) -> String {
    let tenths = (value * 10 + unit / 2) / unit;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// A flow is a tenant's: it has its name, or is one of its exports (`TENANT/EXPORT`).
pub(crate) fn is_of(flow: &str, tenant: &str) -> bool {
    flow.strip_prefix(tenant).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The verdicts of tenants that `wanted` names by device and place there. `before` are limits as they were when the
/// interval began.
pub fn verdicts(
    stats: &EngineStats,
    interval: &Interval,
    limited: &[Limited],
    before: &[Limited],
    wanted: &dyn Fn(usize, usize) -> bool,
) -> Vec<Verdict> {
    let mut all = Vec::new();
    // Least time, percent, that a worker which served the tenant wanted a core.
    let cores_percent = |last_ns: &[u64]| {
        let begin_ns = stats.at_ns.saturating_sub(interval.elapsed_ns);
        let serving = last_ns.iter().zip(&interval.wanted_ns).filter(|(last_ns, _)| **last_ns > begin_ns);
        let least_ns = serving.map(|(_, wanted_ns)| *wanted_ns).min()??;
        Some((least_ns.saturating_mul(100) / interval.elapsed_ns.max(1)).min(100))
    };
    for (at, (device, done)) in stats.devices.iter().zip(&interval.devices).enumerate() {
        let mut served: Vec<usize> = (0..done.flows.len().min(device.flows.len())).collect();
        served.retain(|&flow| done.flows[flow].served > 0);
        served.sort_by_key(|&flow| std::cmp::Reverse(done.flows[flow].served));
        let waiting: Vec<bool> = done.flows.iter().map(is_waiting).collect();
        let all_waiting = waiting.iter().filter(|is_waiting| **is_waiting).count();
        let claims: Vec<Claim> = done.flows.iter().map(FlowInterval::claim).collect();
        for (number, (named, flow)) in device.flows.iter().zip(&done.flows).enumerate() {
            if !wanted(at, number) {
                continue;
            }
            let others = |is_meant: &dyn Fn(usize) -> bool| {
                let others = served.iter().copied().filter(|&other| other != number && is_meant(other));
                let named = others.clone().take(NAMES_MAX).map(|other| device.flows[other].name.clone()).collect();
                Others { named, count: others.count() }
            };
            let group = named.group.and_then(|group| {
                let name = &device.groups.get(group.0 as usize)?.name;
                Some((name.clone(), others(&|other| device.flows[other].group == Some(group))))
            });
            // The one that held it back for longest. A tenant's is that of its exports, too.
            let limits = limited.iter().filter(|limit| is_of(&named.name, &limit.tenant));
            let waited = limits.map(|limit| {
                let of = |limit: &Limited| (limit.tenant.clone(), limit.export.clone(), limit.key.clone());
                let is_same = |other: &&Limited| of(other) == of(limit);
                let earlier_ns = before.iter().find(is_same).map_or(0, |before| before.waited_ns);
                (limit.key.clone(), limit.waited_ns.saturating_sub(earlier_ns))
            });
            let limited = waited.max_by_key(|(_, waited_ns)| *waited_ns);
            let case = Case {
                tenant: named.name.clone(),
                elapsed_ns: interval.elapsed_ns,
                flow: *flow,
                under_way: named.stats.under_way,
                oldest_ns: named.stats.oldest_ns.map_or(0, |ns| stats.at_ns.saturating_sub(ns)),
                served: done.served,
                others: others(&|_| true),
                group,
                limited,
                has_shares: device.options.kind.is_fair(),
                usual_device_ns: done.usual_device_ns,
                // Not of all of ten thousand.
                own: if all_waiting > 0 && !waiting[number] && flow.served > 0 { own(&claims, number) } else { 0 },
                cores_percent: cores_percent(&named.last_ns),
                workers: device.hctxs.len() as u64,
                throttled_ns: done.throttled_ns,
                no_token_ns: done.no_token_ns,
            };
            let (row, mut sentence) = judge(&case);
            if let Some(goal) = &named.goal {
                let other = served.iter().copied().find(|&other| other != number);
                let other = other.map(|other| (&*device.flows[other].name, done.flows[other].bytes));
                sentence.extend(goal_sentence(goal, other, interval.elapsed_ns));
            }
            all.push(Verdict { device: device.name.clone(), tenant: named.name.clone(), row, sentence });
        }
    }
    all
}

/// How a latency goal fares, as the end of a sentence. `other`: the name of the neighbour that was served most, and its
/// bytes in `elapsed_ns`. `None`: nothing was judged.
fn goal_sentence(goal: &GoalState, other: Option<(&str, u64)>, elapsed_ns: u64) -> Option<String> {
    let GoalState { goal_ns, p90_ns, fares, depth, kept_thousandths, .. } = *goal;
    if fares == Fares::Inactive || p90_ns == 0 {
        return None;
    }
    let fares = match fares {
        Fares::Met => "is met",
        Fares::OutOfReach => "is out of reach",
        Fares::Inactive | Fares::Trying => "is not met yet",
    };
    let had = format!("; its goal of {} {fares}: nine of ten small requests take {}", time(goal_ns), time(p90_ns));
    if kept_thousandths >= 1000 {
        return Some(format!("{had} at D = {depth}, as found"));
    }
    let rate = other.map(|(name, bytes)| {
        let mb_per_s = u128::from(bytes) * 1000 / u128::from(elapsed_ns.max(1));
        format!(", and {name} has {mb_per_s} MB/s")
    });
    let lost = (1000 - kept_thousandths) / 10;
    Some(format!("{had} at D = {depth}, which costs {lost}% of the device's throughput{}", rate.unwrap_or_default()))
}

#[cfg(test)]
mod tests;
