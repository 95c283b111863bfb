//! Limits beside shares, in virtual time: caps, and latency goals.

mod caps {
    //! A capped tenant beside others, in virtual time: it has its cap, they have the rest by weight, and each its
    //! bound.

    use mqfq_blk_watched::cap::CapLimits;
    use mqfq_sim::embedded;
    use mqfq_sim::outcome::Outcome;
    use mqfq_sim::run::run;
    use mqfq_sim::scenario::Scenario;

    /// The scenario that comes with the program, changed.
    fn outcome(change: impl Fn(&mut Scenario)) -> Outcome {
        let text = embedded::scenario("caps").expect("it comes with the program");
        let mut scenario = Scenario::parse("caps.toml", text).unwrap();
        scenario.measured_ns = 100_000_000;
        change(&mut scenario);
        run(&scenario).unwrap()
    }

    fn requests_per_s(outcome: &Outcome) -> Vec<f64> {
        let rates: Vec<f64> = outcome.tenants.iter().map(|tenant| tenant.requests_per_s).collect();
        println!("{:?} requests/s, {:.0} together", rates, outcome.requests_per_s);
        rates
    }

    fn assert_near(value: f64, ideal: f64, part: f64) {
        assert!((value / ideal - 1.0).abs() < part, "{value}, not {ideal}");
    }

    #[test]
    fn others_have_what_a_capped_tenant_may_not_use_by_weight() {
        let free = outcome(|scenario| scenario.tenants[0].caps = CapLimits::NONE);
        let before = requests_per_s(&free);
        for (other, weight) in [(1.0, 100), (3.0, 300)] {
            let capped = outcome(|scenario| {
                scenario.tenants[2].weight = mqfq_blk_watched::Weight::new(weight).unwrap();
            });
            let rates = requests_per_s(&capped);
            assert_near(rates[0], 46_000.0, 0.01);
            assert_near(capped.requests_per_s, free.requests_per_s, 0.01);
            assert_near(rates[2] / rates[1], other, 0.02);
            assert_near(before[0] / before[1], 1.0, 0.02);
        }
    }

    #[test]
    fn a_cap_on_bytes_holds_for_all_threads_and_sizes_together() {
        let capped = outcome(|scenario| {
            scenario.tenants[0].caps = CapLimits { iops: None, bytes_per_s: Some(100 << 20) };
            scenario.tenants[0].load.sizes = vec![(4096, 50), (65_536, 50)];
        });
        requests_per_s(&capped);
        // 100 ms: 10 MiB, to a request of each thread.
        let bytes = capped.tenants[0].bytes as f64;
        assert!((bytes - 10_485_760.0).abs() < 0.01 * 10_485_760.0 + 2.0 * 65_536.0, "{bytes}");
        assert_near(capped.tenants[1].requests_per_s, capped.tenants[2].requests_per_s, 0.02);
    }

    #[test]
    fn a_tenant_that_asks_for_less_than_its_cap_notices_nothing() {
        let slow = |caps| {
            outcome(|scenario| {
                scenario.tenants[0].caps = caps;
                scenario.tenants[0].load.arrival =
                    mqfq_sim::scenario::Arrival::Open { rate_per_s: 5_000.0, poisson: false, bursts: None };
            })
        };
        let limit = CapLimits { iops: Some(46_000), bytes_per_s: Some(1 << 30) };
        let rates = [CapLimits::NONE, limit].map(|caps| requests_per_s(&slow(caps)));
        assert_near(rates[1][0], rates[0][0], 0.001);
        assert_near(rates[1][1], rates[0][1], 0.01);
    }
}

mod goal {
    //! Latency goals beside shares: a goal is met, or what can be had is told; no share changes (I20).

    use mqfq_sim::outcome::Outcome;
    use mqfq_sim::run::run;
    use mqfq_sim::scenario::Scenario;

    /// A database with one small read at a time beside two tenants with large requests, 300 to 100.
    fn beside(goal: &str, floor: &str, stop: &str) -> Outcome {
        let text = format!(
            "[run]\nseed = 1\nwarm-up = \"1500ms\"\nmeasured = \"1s\"\n[machine]\npreset = \"user-space-2\"\nworkers = 2\n\
         [device]\nkind = \"nvme\"\npreset = \"flash-460k\"\nsize = \"64GiB\"\nsplit = \"auto\"\n{floor}\n\
         [policy]\nkind = \"mqfq\"\ndepth = \"auto\"\nwindow = \"auto\"\n\
         [tenant.db]\nload = \"closed\"\ndepth = 1\nsize = \"4KiB\"\n{goal}\n{stop}\n\
         [tenant.three]\nweight = 300\nload = \"closed\"\nfirst-worker = 1\ndepth = 32\nsize = \"128KiB\"\n\
         [tenant.one]\nload = \"closed\"\ndepth = 32\nsize = \"128KiB\"\n"
        );
        run(&Scenario::parse("goal.toml", &text).unwrap()).unwrap()
    }

    /// Bytes of the tenant of weight 300 over those of the tenant of weight 100.
    fn ratio(outcome: &Outcome) -> f64 {
        outcome.tenants[1].bytes as f64 / outcome.tenants[2].bytes as f64
    }

    #[test]
    fn i20_a_goal_is_met_and_costs_no_share_and_no_more_throughput_than_the_floor_allows() {
        let without = beside("", "", "");
        assert!(without.goals.is_empty());
        for (goal_us, floor, expected) in [(280, "0.7", "met"), (150, "0.8", "out of reach")] {
            let with = beside(&format!("latency = \"{goal_us}us\""), &format!("throughput-floor = {floor}"), "");
            let db = &with.tenants[0];
            let goal = &with.goals[0];
            assert_eq!((goal.fares, goal.goal_ns), (expected, goal_us * 1000), "{goal:?}");
            assert!(db.p90_ns < without.tenants[0].p90_ns, "{} of {}", db.p90_ns, without.tenants[0].p90_ns);
            if expected == "met" {
                assert!(db.p90_ns <= goal_us * 1000, "{}", db.p90_ns);
            } else {
                assert!(goal.p90_ns.abs_diff(db.p90_ns) < db.p90_ns / 6, "{} of {}", goal.p90_ns, db.p90_ns);
            }
            let kept = with.bytes_per_s / without.bytes_per_s;
            assert!(kept > floor.parse::<f64>().unwrap() && kept < 0.98, "{kept}");
            assert!(
                (ratio(&with) / 3.0 - 1.0).abs() < 0.02 && (ratio(&without) / 3.0 - 1.0).abs() < 0.02,
                "{}",
                ratio(&with)
            );
        }
    }

    #[test]
    fn the_throughput_is_given_back_when_the_tenant_with_the_goal_is_idle() {
        // Its last request is at 200 ms, and 1 s later it is inactive.
        let [with, without] = ["latency = \"150us\"", ""].map(|goal| beside(goal, "", "stop = \"200ms\""));
        assert_eq!(with.goals[0].fares, "inactive");
        assert_eq!(with.goals[0].cap, None);
        let kept = with.bytes_per_s / without.bytes_per_s;
        assert!(kept > 0.98, "{kept}");
    }
}
