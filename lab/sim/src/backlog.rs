//! Service while all tenants wait: a part by weight is due only then.
//!
//! A tenant waits from the submission of a request to its dispatch. It is backlogged in the union of these times over
//! its requests; all are in the intersection over the tenants.

/// A request's wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// When it ended, ns.
    pub dispatched_ns: u64,
    /// How long it was, ns.
    pub queued_ns: u64,
    /// The request's bytes.
    pub bytes: u32,
}

/// The time in which all tenants wait, and what is dispatched in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Backlog {
    /// All of it, ns.
    pub total_ns: u64,
    /// By tenant.
    pub bytes: Vec<u64>,
}

impl Backlog {
    /// Backlog of tenants with these waits.
    pub fn of(waits: &[&[Wait]]) -> Backlog {
        let mut all: Option<Vec<(u64, u64)>> = None;
        for waits in waits {
            let of_one = union(waits);
            all = Some(all.map_or_else(|| of_one.clone(), |all| both(&all, &of_one)));
        }
        let all = all.unwrap_or_default();
        // Dispatched in the time, which its last moment belongs to: there the last request went.
        let is_in = |at_ns: u64| {
            let after = all.partition_point(|(begin_ns, _)| *begin_ns < at_ns);
            after > 0 && at_ns <= all[after - 1].1
        };
        let bytes = |waits: &&[Wait]| {
            waits.iter().filter(|wait| is_in(wait.dispatched_ns)).map(|wait| u64::from(wait.bytes)).sum()
        };
        Backlog { total_ns: all.iter().map(|(begin, end)| end - begin).sum(), bytes: waits.iter().map(bytes).collect() }
    }
}

/// Times with at least one wait, in order.
fn union(waits: &[Wait]) -> Vec<(u64, u64)> {
    let of = |wait: &Wait| (wait.dispatched_ns.saturating_sub(wait.queued_ns), wait.dispatched_ns);
    let mut each: Vec<_> = waits.iter().filter(|wait| wait.queued_ns > 0).map(of).collect();
    each.sort_unstable();
    let mut union: Vec<(u64, u64)> = Vec::new();
    for (begin, end) in each {
        match union.last_mut() {
            Some((_, last)) if begin <= *last => *last = end.max(*last),
            _ => union.push((begin, end)),
        }
    }
    union
}

/// Times that are in both.
fn both(a: &[(u64, u64)], b: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut at_a, mut at_b, mut both) = (0, 0, Vec::new());
    while let (Some(of_a), Some(of_b)) = (a.get(at_a), b.get(at_b)) {
        let (begin, end) = (of_a.0.max(of_b.0), of_a.1.min(of_b.1));
        if begin < end {
            both.push((begin, end));
        }
        if of_a.1 < of_b.1 { at_a += 1 } else { at_b += 1 }
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(begin_ns: u64, dispatched_ns: u64, bytes: u32) -> Wait {
        Wait { dispatched_ns, queued_ns: dispatched_ns - begin_ns, bytes }
    }

    #[test]
    fn what_is_dispatched_while_all_wait_is_told_apart() {
        // One waits from 0 to 30 and from 50 to 60, the other from 10 to 20 and from 25 to 55: both from 10 to 20, from
        // 25 to 30 and from 50 to 55.
        let one = [wait(0, 15, 1), wait(10, 30, 2), wait(40, 40, 4), wait(50, 60, 8), wait(52, 52, 16)];
        let other = [wait(10, 20, 1), wait(25, 55, 2), wait(45, 50, 4), wait(60, 60, 8)];
        let backlog = Backlog::of(&[&one, &other]);
        assert_eq!(backlog, Backlog { total_ns: 20, bytes: vec![1 + 2 + 16, 1 + 2] });
        assert_eq!(Backlog::of(&[&one]).total_ns, 40);
        assert_eq!(Backlog::of(&[&one, &[]]), Backlog { total_ns: 0, bytes: vec![0, 0] });
        assert_eq!(Backlog::of(&[]), Backlog { total_ns: 0, bytes: vec![] });
    }
}
