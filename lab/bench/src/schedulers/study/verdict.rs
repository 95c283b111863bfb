//! The answer in three sentences, made of the numbers and of nothing else.

use super::report::{ContendedRow, Latency, Row, Study, Verdict, in_order, us};

/// Rates this close tie.
const TIE: f64 = 0.01;

/// Shares this close are as fair. A lock costs more with many cores than with the four of these numbers (`mqfq-lab
/// bench scale`), so among those a policy without one comes before a policy with one.
const AS_FAIR: f64 = 0.15;

/// A policy that leaves less of the drive's rate than this is fair at the cost of all tenants, and is not named.
const KEPT: f64 = 0.95;

/// Policies that keep what workers share under one lock.
const UNDER_ONE_LOCK: [&str; 4] = ["sfqd", "mqfq-serial", "mq-deadline", "bfq"];

/// Returns the `policies` whose value is within `tie` of the largest.
fn best<'a>(policies: &[&'a str], value: &dyn Fn(&str) -> f64, tie: f64) -> Vec<&'a str> {
    let values: Vec<f64> = policies.iter().map(|policy| value(policy)).collect();
    let least = values.iter().copied().fold(0.0, f64::max) * (1.0 - tie);
    policies.iter().zip(&values).filter(|(_, found)| **found >= least).map(|(policy, _)| *policy).collect()
}

/// Mean time of a core per request over all cells of a policy.
fn mean_cpu(rows: &[&Row], policy: &str) -> f64 {
    let of: Vec<f64> = rows.iter().filter(|row| row.policy == policy).map(|row| row.cpu_ns_per_io).collect();
    of.iter().sum::<f64>() / of.len().max(1) as f64
}

/// Winners among the policies in the rows.
pub fn verdict(report: &Study, device: &str, depth: Option<u32>) -> Verdict {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.device == device).collect();
    let policies = in_order(rows.iter().map(|row| row.policy.as_str()));
    let cpu = |policy: &str| mean_cpu(&rows, policy);
    let cheapest =
        |of: &[&str]| of.iter().copied().min_by(|a, b| cpu(a).total_cmp(&cpu(b))).unwrap_or("none").to_string();
    let lines: Vec<&Latency> =
        report.table_1.iter().filter(|line| line.device == device && line.path == "mqfq").collect();
    let read_ns =
        |policy: &str| lines.iter().find(|line| line.policy == policy).map_or(f64::MAX, |line| line.read_p50_ns);
    let fastest = policies.iter().copied().min_by(|a, b| read_ns(a).total_cmp(&read_ns(b))).unwrap_or("none");
    let top = rows.iter().filter(|row| row.workload == "multi-read").map(|row| row.depth).max().unwrap_or(1);
    let iops = |policy: &str| {
        let at_top = |row: &&&Row| row.policy == policy && row.workload == "multi-read" && row.depth == top;
        rows.iter().find(at_top).map_or(0.0, |row| row.iops)
    };
    let throughput = cheapest(&best(&policies, &iops, TIE));
    let cells: Vec<&Row> = rows.iter().copied().filter(|row| row.policy == "none").collect();
    let in_cell = |row: &Row, other: &Row| row.workload == other.workload && row.depth == other.depth;
    let none_is_cheapest =
        |cell: &&&Row| rows.iter().filter(|row| in_cell(row, cell)).all(|row| row.cpu_ns_per_io >= cell.cpu_ns_per_io);
    let none_is_cheapest_in = [cells.iter().filter(none_is_cheapest).count(), cells.len()];

    let contended: Vec<&ContendedRow> = report.contended.iter().filter(|row| row.device == device).collect();
    let worst_share = |policy: &str| {
        contended.iter().filter(|row| row.policy == policy).map(|row| row.fair_share).fold(1.0, f64::min)
    };
    let fairest = (!contended.is_empty()).then(|| {
        let kept = |policy: &str| {
            let totals = contended.iter().filter(|row| row.policy == policy).map(|row| row.total_over_none);
            totals.fold(f64::MAX, f64::min) >= KEPT
        };
        let keeping: Vec<&str> = policies.iter().copied().filter(|policy| kept(policy)).collect();
        let fair = best(&keeping, &worst_share, AS_FAIR);
        let free: Vec<&str> = fair.iter().copied().filter(|policy| !UNDER_ONE_LOCK.contains(policy)).collect();
        cheapest(if free.is_empty() { &fair } else { &free })
    });

    let slowest = policies.iter().copied().max_by(|a, b| read_ns(a).total_cmp(&read_ns(b))).unwrap_or("none");
    let mut sentences = vec![format!(
        "If nobody competes, take {}: a read at depth 1 takes {} us, with {slowest} {:.1}% more, and at {top} requests in \
         flight no scheduler gives more than {:.1}% above none's {:.0} thousand per second.",
        if fastest == "none" || read_ns("none") <= read_ns(fastest) * (1.0 + TIE) { "none" } else { fastest },
        us(read_ns("none")),
        100.0 * (read_ns(slowest) / read_ns("none") - 1.0),
        100.0 * (policies.iter().map(|policy| iops(policy)).fold(0.0, f64::max) / iops("none") - 1.0),
        iops("none") / 1e3,
    )];
    if let Some(fairest) = &fairest {
        let of = |policy: &str, antagonist: &str| {
            contended.iter().find(|row| row.policy == policy && row.antagonist == antagonist).copied()
        };
        if let (Some(crowd), Some(bulk)) = (of("none", "crowd"), of("none", "bulk")) {
            let (ours_crowd, ours_bulk) = (of(fairest, "crowd"), of(fairest, "bulk"));
            let slowed = |row: Option<&ContendedRow>| row.map_or(0.0, |row| row.slowdown);
            let kept = ours_crowd.into_iter().chain(ours_bulk).map(|row| row.total_over_none).fold(1.0, f64::min);
            sentences.push(format!(
                "If tenants compete, take {fairest}: a modest reader beside a crowd is slowed {:.1} times (none: {:.1}), beside \
                 large reads {:.1} times (none: {:.1}), and the drive keeps {:.0}% of what it gives under none.",
                slowed(ours_crowd),
                crowd.slowdown,
                slowed(ours_bulk),
                bulk.slowdown,
                100.0 * kept,
            ));
        }
        let added_ns = cpu(fairest) - cpu("none");
        sentences.push(format!(
            "{} costs {added_ns:.0} ns of a core per request more than none, {:.1}% of a read at depth 1{}.",
            fairest,
            100.0 * added_ns / read_ns("none"),
            depth.map_or(String::new(), |depth| format!(
                "; for this drive set policy = \"{fairest}\", expert.depth = {depth}"
            )),
        ));
    }
    Verdict {
        device: device.into(),
        latency: fastest.into(),
        throughput,
        cpu: cheapest(&policies),
        none_is_cheapest_in,
        fairness: fairest,
        depth,
        sentences,
    }
}
