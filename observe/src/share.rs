//! Entitlement of each tenant: the service of an interval, divided by weight among the tenants that wanted it.
//!
//! Answers: of what a device served, how much was whose? Source: weighted max-min fairness (Demers, Keshav and Shenker,
//! SIGCOMM 1989).
//!
//! # Definition
//! A tenant *asked* for what it would have got if nothing had waited here: of its requests' time only the device's
//! would have passed, so in the same time they would have come back as many times as often ([`asked`]). Entitlements
//! are the largest parts of what was served with two properties: no tenant is entitled to more than it asked for, and
//! all tenants that are entitled to less than they asked for are entitled to the same, over their weight.
//!
//! Example: `a` (weight 100) got 10 without waiting, `b` (100) got 50 and `c` (300) got 40, and requests of both waited
//! ten times as long here as they were on the device. Served were 100. By weight alone `a` had 20, but it asked for 10;
//! the other 90 are divided 1 to 3: `b` is entitled to 23, `c` to 67. So `b` has had 2.2 times its entitlement and `c`
//! 0.6 times.
//!
//! Weights are effective ones where the policy knows of groups. Service is cost, in bytes-equivalent.
//!
//! # Invariants
//! E1. Entitlements sum to what was served, less rounding, and to no more.

/// A tenant's service, weight and demand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Service that it got.
    pub served: u64,
    /// Service that it asked for, at least what it got.
    pub asked: u64,
    /// Its weight, in any unit that all share.
    pub weight: u64,
}

/// Service that a tenant asked for that got `served`, whose requests were so long in the queue and on the device.
/// Everything, if something waited and nothing came back.
pub fn asked(served: u64, queued_ns: u64, device_ns: u64) -> u64 {
    let times = |ns: u64| u128::from(served) * (u128::from(queued_ns) + u128::from(device_ns)) / u128::from(ns);
    match device_ns {
        0 if queued_ns == 0 => served,
        0 => u64::MAX,
        ns => u64::try_from(times(ns)).unwrap_or(u64::MAX).max(served),
    }
}

/// By tenant, what it was entitled to of what all were served.
pub fn entitlements(claims: &[Claim]) -> Vec<u64> {
    let mut entitled = vec![0; claims.len()];
    let mut left: u128 = claims.iter().map(|claim| u128::from(claim.served)).sum();
    // Tenants that ask for least, over their weight, come first: the others get the rest.
    let mut order: Vec<usize> = (0..claims.len()).filter(|&at| claims[at].asked > 0).collect();
    let mut weights: u128 = order.iter().map(|&at| weight(&claims[at])).sum();
    order.sort_by(|&a, &b| {
        let over = |at: usize, other: usize| u128::from(claims[at].asked) * weight(&claims[other]);
        over(a, b).cmp(&over(b, a)).then(a.cmp(&b))
    });
    for at in order {
        let part = u128::from(claims[at].asked).min(left * weight(&claims[at]) / weights.max(1));
        entitled[at] = part as u64;
        (left, weights) = (left - part, weights - weight(&claims[at]));
    }
    entitled
}

/// Entitlement of the tenant at `at` if it had asked for everything.
pub fn own(claims: &[Claim], at: usize) -> u64 {
    let all: u128 = claims.iter().map(|claim| u128::from(claim.served)).sum();
    let wants = |other: usize| other == at || claims[other].asked > 0;
    let mut level = (0, 1);
    loop {
        // Tenants that ask for less than this part of the rest leave some of it, so that the part of the others grows.
        let (mut left, mut weights) = (all, 0);
        for (other, claim) in claims.iter().enumerate().filter(|(other, _)| wants(*other)) {
            let (part, of) = level;
            match other != at && u128::from(claim.asked) * of < part * weight(claim) {
                true => left = left.saturating_sub(claim.asked.into()),
                false => weights += weight(claim),
            }
        }
        if level == (left, weights) {
            return (left * weight(&claims[at]) / weights) as u64;
        }
        level = (left, weights);
    }
}

fn weight(claim: &Claim) -> u128 {
    u128::from(claim.weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(served: u64, weight: u64, asked: u64) -> Claim {
        Claim { served, asked, weight }
    }

    #[test]
    fn what_one_leaves_is_divided_by_weight_among_those_that_ask_for_more() {
        let claims = [claim(10, 100, 10), claim(50, 100, 550), claim(40, 300, 440), claim(0, 9000, 0)];
        assert_eq!(entitlements(&claims), [10, 23, 67, 0]);
        // One that asks for little more than it got leaves the rest as well.
        assert_eq!(entitlements(&[claim(20, 900, 30), claim(80, 100, 400)]), [30, 70]);
    }

    #[test]
    fn a_tenant_that_took_more_than_its_part_is_entitled_to_its_part() {
        // It waited for nothing, but the other tenant did.
        assert_eq!(entitlements(&[claim(90, 100, 90), claim(10, 100, 200)]), [50, 50]);
        assert_eq!(entitlements(&[claim(90, 100, 90), claim(10, 100, 10)]), [90, 10], "nobody wanted more");
        assert_eq!(entitlements(&[claim(0, 100, u64::MAX), claim(30, 200, 60)]), [10, 20], "one that got nothing");
        assert!(entitlements(&[]).is_empty());
    }

    #[test]
    fn a_tenant_asks_for_what_it_would_get_if_nothing_waited_here() {
        assert_eq!(asked(100, 0, 50), 100);
        assert_eq!(asked(100, 150, 50), 400, "of four parts of its time one is the device's");
        assert_eq!([asked(0, 7, 0), asked(5, 0, 0)], [u64::MAX, 5]);
    }

    #[test]
    fn what_would_be_its_own_is_the_entitlement_of_a_tenant_that_asks_for_everything() {
        // By weight a half; one that leaves 10 of its 50 gives it 60, and one that is idle takes no part.
        assert_eq!(own(&[claim(46, 300, 46), claim(54, 300, 500)], 0), 50);
        assert_eq!(own(&[claim(46, 300, 46), claim(40, 300, 40), claim(14, 0, 0)], 0), 60);
        let draw = |n: u64| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % 1000;
        for case in 0..500u64 {
            let drawn = |n: u64| {
                let served = draw(case * 31 + n);
                claim(served, draw(case * 7 + n) + 1, served + draw(case + 5 * n))
            };
            let mut claims: Vec<Claim> = (0..case % 9 + 1).map(drawn).collect();
            let own = own(&claims, 0);
            claims[0].asked = u64::MAX;
            assert!(own.abs_diff(entitlements(&claims)[0]) <= claims.len() as u64, "{claims:?}: {own}");
        }
    }

    #[test]
    fn entitlements_sum_to_what_was_served() {
        // Multiplicative hashing makes the cases.
        let draw = |n: u64| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % 1000;
        for case in 0..500u64 {
            let drawn = |n: u64| {
                let served = draw(case * 31 + n);
                claim(served, draw(case * 7 + n) + 1, served + draw(case + 5 * n))
            };
            let claims: Vec<Claim> = (0..case % 9 + 1).map(drawn).collect();
            let served: u64 = claims.iter().map(|claim| claim.served).sum();
            let sum: u64 = entitlements(&claims).iter().sum();
            assert!(sum <= served && sum + claims.len() as u64 >= served, "{claims:?}: {sum} of {served}");
        }
    }
}
