//! Why a tenant waits: one sentence from the counters.
//!
//! Answers: is it the tenant's own asking, its share, a limit, its client, the server's cores, or the device? The rows
//! of [`Row`] are looked at in the order of `docs/use/why.md`, and the first that holds is the verdict; each row has a
//! test.
//!
//! A mean time in the queue and one on the device are never added up to a latency without being named: they tell apart
//! what is late.

mod neighbour;

use crate::alone;
use crate::history::{DeviceInterval, FlowInterval, Interval};
use crate::share::{Claim, own};
use crate::source::Limited;
use mqfq_blk::device::Ailing;
use mqfq_blk::engine::{DeviceStats, EngineStats};
use mqfq_blk::tuning::{Fares, GoalState};
use neighbour::Neighbours;
use serde::Serialize;
use std::collections::BTreeMap;

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
    /// All backings that it has of a pool hang or have failed.
    Backing,
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
    /// Its requests take longer than alone, behind those of others.
    Neighbour,
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
    /// The device does less than half as much in a second as usual.
    pub is_idling: bool,
    /// Work of others on the device, and what less depth would bring.
    pub neighbours: Neighbours,
    /// Its part of the service if it had asked for everything, thousandths.
    pub due_thousandths: u64,
    /// Its entitlement if it asked for everything, bytes-equivalent, where others wait here; 0: none does.
    pub own: u64,
    /// Part of the interval, percent, that the least loaded of its workers wanted a core, if that is known.
    pub cores_percent: Option<u64>,
    /// Workers that served it.
    pub workers: u64,
    /// Time during which T held those back in the interval, ns, all together.
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
    let its_size = size(flow.bytes / flow.requests);
    if let Some(usual_ns) = case.usual_device_ns
        && device_ns >= usual_ns.saturating_mul(SLOW_TIMES).max(SLOW_LEAST_NS)
        // Where others hold it and it does as much as usual, they are the reason.
        && (case.is_idling || !case.neighbours.hold_most())
        // A worker without time finds late what the device has done.
        && cores_percent.is_none()
    {
        let (now, usual) = (time(device_ns), time(usual_ns));
        let sentence = format!(
            "the device is slow: {now} for a request of {its_size} of {tenant}, its median of the last hour was {usual}"
        );
        return (Row::SlowDevice, sentence);
    }
    if cores_percent.is_none()
        && let Some(sentence) = neighbour::sentence(case, queue_ns, device_ns)
    {
        return (Row::Neighbour, sentence);
    }
    let (row, mut sentence) = client(case, queue_ns, device_ns, cores_percent);
    if row != Row::Cores {
        sentence.extend(neighbour::beside(case));
    }
    (row, sentence)
}

/// Most of the time is the device's, and no neighbour is known to be the reason.
fn client(case: &Case, queue_ns: u64, device_ns: u64, cores_percent: Option<u64>) -> (Row, String) {
    let Case { tenant, elapsed_ns, flow, .. } = case;
    let size = size(flow.bytes / flow.requests);
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
             {}% is its own: about {enough} would bring that{}",
            part(flow.served),
            part(case.own),
            backlogged(case)
        );
        return (Row::ClientDepth, sentence);
    }
    let is_served = match neighbour::beside(case) {
        None => "is served as it asks",
        Some(_) => "hardly waits here",
    };
    let sentence = format!(
        "{tenant} {is_served}: {} of a request's {each} are the device's, with {in_flight} requests in flight",
        time(device_ns),
    );
    (Row::Served, sentence)
}

/// In which part of the time requests of the tenant waited here, and what it had of the service then.
fn backlogged(case: &Case) -> String {
    let Case { flow, elapsed_ns, workers, .. } = case;
    let all_ns = u128::from(elapsed_ns * (*workers).max(1));
    let percent = (u128::from(flow.waited_ns) * 100 / all_ns.max(1)).min(100);
    if percent == 0 {
        return String::new();
    }
    // Cost of the requests that waited, over what the device served in that part of the time.
    let waited = u128::from(flow.served) * u128::from(flow.waited) / u128::from(flow.requests.max(1));
    let served = u128::from(case.served) * u128::from(flow.waited_ns).min(all_ns) / all_ns;
    let hundredths = ((waited * 100 + served / 2) / served.max(1)).min(100);
    let due = (case.due_thousandths + 5) / 10;
    let part = |hundredths: u64| format!("{}.{:02}", hundredths / 100, hundredths % 100);
    let (had, due) = (part(hundredths as u64), part(due));
    format!("; it was backlogged {percent}% of the time, and had {had} of the service then, where {due} is due")
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
        let sentence =
            format!("{waits}: its group {group} has one share, which {members} {use_it} too{}", backlogged(case));
        return (Row::GroupShare, sentence);
    }
    if has_its_share {
        let times = flow.asked.min(case.served).max(flow.served).saturating_mul(10) / flow.entitled.max(1);
        let share = match times {
            // It has what it asks for but for little.
            ..=10 => "has its share".to_owned(),
            _ => format!("asks for {}.{} times its share", times / 10, times % 10),
        };
        let then = backlogged(case);
        let sentence = match names(&case.others) {
            Some((names, true)) => format!("{waits}: it {share} while {names} use theirs{then}"),
            Some((names, false)) => format!("{waits}: it {share} while {names} uses its own{then}"),
            None => format!("{waits}: it has the device to itself and asks for more than the device can do"),
        };
        return (Row::OverShare, sentence);
    }
    let by = match case.held_by() {
        None => "neither the window T nor the depth D held workers back".to_owned(),
        Some(by) => format!("workers were held back by {by} most"),
    };
    (Row::BelowShare, format!("{waits} and gets {percent}% of its share: {by}{}", backlogged(case)))
}

impl Case {
    /// T or D, whichever held its workers back for longer, if either did.
    fn held_by(&self) -> Option<&'static str> {
        let longer_ns = self.throttled_ns.max(self.no_token_ns);
        let is_held = longer_ns.saturating_mul(100) >= HELD_PERCENT * self.elapsed_ns * self.workers;
        let by = if self.throttled_ns > self.no_token_ns { "the window T" } else { "the depth D" };
        is_held.then_some(by)
    }
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
        let held = alone::held(&done.flows);
        let per_s = u128::from(done.served) * 1_000_000_000 / u128::from(interval.elapsed_ns);
        let is_idling = done.usual_served_per_s.is_some_and(|usual| per_s * 2 < u128::from(usual));
        let begin_ns = stats.at_ns.saturating_sub(interval.elapsed_ns);
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
            // Not of all of ten thousand.
            let needs_own = all_waiting > 0 && !waiting[number] && flow.served > 0;
            let own = if needs_own { own(&claims, number) } else { 0 };
            let (workers, [throttled_ns, no_token_ns]) = held_back(done, &named.last_ns, begin_ns);
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
                is_idling,
                neighbours: neighbours(device, number, &held, done.served),
                due_thousandths: part_of(flow.entitled.max(own), done.served),
                own,
                cores_percent: cores_percent(&named.last_ns),
                workers,
                throttled_ns,
                no_token_ns,
            };
            let (row, mut sentence) = judge(&case);
            if let Some(goal) = &named.goal {
                let other = served.iter().copied().find(|&other| other != number);
                let other = other.map(|other| (&*device.flows[other].name, done.flows[other].bytes));
                sentence.extend(goal_sentence(goal, other, interval.elapsed_ns));
            }
            sentence.extend(neighbour::chain(&case));
            all.push(Verdict { device: device.name.clone(), tenant: named.name.clone(), row, sentence });
        }
    }
    all
}

/// Names the backings that ail to tenants of `verdicts`: `exports` are those of a device, by the name under which their
/// requests count and their first address there. A tenant of which no export is well has no other verdict.
pub(crate) fn name_backings(
    verdicts: &mut [Verdict],
    stats: &EngineStats,
    exports: &dyn Fn(&str) -> Vec<(String, u64)>,
) {
    for device in stats.devices.iter().filter(|device| !device.ailing.is_empty()) {
        let ailing: BTreeMap<u64, &Ailing> = device.ailing.iter().map(|part| (part.offset_bytes, part)).collect();
        let mut of_flow: BTreeMap<String, (usize, Vec<&Ailing>)> = BTreeMap::new();
        for (flow, offset_bytes) in exports(&device.name) {
            let (count, parts) = of_flow.entry(flow).or_default();
            *count += 1;
            parts.extend(ailing.get(&offset_bytes));
        }
        for verdict in verdicts.iter_mut().filter(|verdict| verdict.device == device.name) {
            let Some((count, parts)) = of_flow.get(&verdict.tenant) else { continue };
            // The one that hangs for longest.
            let key = |part: &&&Ailing| part.hangs_since_ns.unwrap_or(u64::MAX);
            let Some(part) = parts.iter().min_by_key(key) else { continue };
            let more = match parts.len() - 1 {
                0 => String::new(),
                1 => ", and another one ails".to_owned(),
                more => format!(", and {more} others ail"),
            };
            let phrase = format!("its backing {} {}{more}", part.part, ails(part, stats.at_ns));
            if parts.len() < *count {
                verdict.sentence += &format!("; {phrase}");
                continue;
            }
            let has = if part.hangs_since_ns.is_some() { "waits" } else { "gets errors" };
            (verdict.row, verdict.sentence) = (Row::Backing, format!("{} {has}: {phrase}", verdict.tenant));
        }
    }
}

/// "has left a request unanswered for 12.0 s, and further ones fail until it answers".
fn ails(part: &Ailing, now_ns: u64) -> String {
    let Some(since_ns) = part.hangs_since_ns else {
        let fails = match part.state {
            "read-only" => "has failed, and all but reads of it fail",
            "cut" => "was cut, and flushes and requests beyond its end fail",
            _ => "has failed, and requests to it fail",
        };
        return format!("{fails} until its export is reopened");
    };
    let hung = time(now_ns.saturating_sub(since_ns));
    format!("has left a request unanswered for {hung}, and further ones fail until it answers")
}

fn part_of(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1000 / u128::from(whole.max(1))) as u64
}

/// Number of the workers that served a tenant since `begin_ns`, by the time of their last completion for it, and the
/// time for which T and D held those back, ns.
fn held_back(done: &DeviceInterval, last_ns: &[u64], begin_ns: u64) -> (u64, [u64; 2]) {
    let serves = |hctx: usize| last_ns.get(hctx).is_none_or(|last_ns| *last_ns > begin_ns);
    let serving = done.held_ns.iter().enumerate().filter(|(hctx, _)| serves(*hctx));
    serving.fold((0, [0; 2]), |(workers, sum), (_, ns)| (workers + 1, [sum[0] + ns[0], sum[1] + ns[1]]))
}

/// Facts about the neighbours of the tenant at `number`, and about D.
fn neighbours(device: &DeviceStats, number: usize, held: &[u128], served: u64) -> Neighbours {
    let all: u128 = held.iter().sum();
    let part = |held: u128| (held * 100 / all.max(1)) as u64;
    let others = (0..held.len().min(device.flows.len())).filter(|&other| other != number && held[other] > 0);
    let most = others.max_by_key(|&other| held[other]);
    let own = held.get(number).copied().unwrap_or(0);
    let options = &device.options;
    let found = device.in_force.as_ref().and_then(|found| Some((found.depth?, found.depths)));
    let named = &device.flows[number];
    Neighbours {
        most: most.map(|other| (device.flows[other].name.clone(), part(held[other]))),
        percent: if all == 0 { 0 } else { part(all - own) },
        served,
        has_depth: options.kind.is_fair(),
        depth: match &found {
            Some((state, _)) => state.chosen.min(device.depth_cap.unwrap_or(u32::MAX)),
            None => options.depth,
        },
        found: found.map(|(_, depths)| depths),
        has_goal: named.goal.is_some(),
    }
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
