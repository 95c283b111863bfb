//! One test for each row of the table of docs/use/why.md, with the sentence that the page shows.

use super::*;
use crate::history::tests::{stats, tenant};

const SECOND_NS: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// `web`, over ten seconds on a device that also served `db` and `batch`: so many requests of 4 KiB, each of which was
/// so long in the queue and on the device, and which came one at a time, if the time is enough for that.
fn case(requests: u64, queue_ns: u64, device_ns: u64) -> Case {
    let flow = FlowInterval {
        requests,
        bytes: requests * 4096,
        served: requests * 4096,
        entitled: requests * 4096,
        asked: crate::share::asked(requests * 4096, queue_ns, device_ns),
        queued_ns: requests * queue_ns,
        device_ns: requests * device_ns,
        active_ns: (requests * (queue_ns + device_ns)).min(10 * SECOND_NS),
        weight: 100_000_000,
        is_hungry: requests * queue_ns >= 5 * SECOND_NS,
        group: None,
        ..FlowInterval::default()
    };
    Case {
        tenant: "web".into(),
        elapsed_ns: 10 * SECOND_NS,
        flow,
        under_way: 1,
        oldest_ns: queue_ns + device_ns,
        served: 1 << 40,
        others: others(&["db", "batch"]),
        has_shares: true,
        usual_device_ns: Some(200_000),
        workers: 1,
        ..Case::default()
    }
}

fn others(names: &[&str]) -> Others {
    Others { named: names.iter().take(NAMES_MAX).map(|name| (*name).to_owned()).collect(), count: names.len() }
}

fn is(case: &Case, row: Row, sentence: &str) {
    assert_eq!(judge(case), (row, sentence.to_owned()));
    assert!(PAGE.contains(sentence), "docs/use/why.md does not show: {sentence}");
}

const PAGE: &str = include_str!("../../../docs/use/why.md");

#[test]
fn idle() {
    let case = Case { under_way: 0, ..case(0, 0, 0) };
    is(&case, Row::Idle, "web is idle: it asked for nothing in the last 10 s");
}

#[test]
fn backing() {
    let hangs = |number: u64, since_s: u64| Ailing {
        part: format!("/srv/images/{number}"),
        offset_bytes: number << 48,
        state: "hanging",
        pool_below: None,
        hangs_since_ns: Some(since_s * SECOND_NS),
    };
    let fails = |number, state| Ailing { state, hangs_since_ns: None, ..hangs(number, 0) };
    let told = |ailing: Vec<Ailing>, exports: &[(&str, u64)]| {
        let mut now = stats(20, vec![tenant("web", 100, 0, 0, 0)]);
        now.devices[0].ailing = ailing;
        let exports: Vec<(String, u64)> = exports.iter().map(|(flow, at)| ((*flow).to_owned(), at << 48)).collect();
        let is_idle = || (Row::Idle, "web is idle".to_owned());
        let (row, sentence) = is_idle();
        let device = now.devices[0].name.clone();
        let mut found = vec![Verdict { device: device.clone(), tenant: "web".into(), row, sentence }];
        name_backings(&mut found, &now, &|asked| if asked == device { exports.clone() } else { Vec::new() });
        (found[0].row, found[0].sentence.clone())
    };
    let is = |found: (Row, String), row: Row, sentence: &str| {
        assert_eq!(found, (row, sentence.to_owned()));
        assert!(PAGE.contains(sentence.trim_start_matches("web is idle")), "docs/use/why.md does not show: {sentence}");
    };
    let hung = "web waits: its backing /srv/images/1 has left a request unanswered for 12.0 s, and further ones fail \
                until it answers";
    is(told(vec![hangs(1, 8)], &[("web", 1), ("db", 2)]), Row::Backing, hung);
    let fails_now = "web gets errors: its backing /srv/images/1 has failed, and requests to it fail until its export is \
                     reopened";
    is(told(vec![fails(1, "failed")], &[("web", 1)]), Row::Backing, fails_now);
    let beside = "web is idle; its backing /srv/images/1 has left a request unanswered for 12.0 s, and further ones \
                  fail until it answers";
    is(told(vec![hangs(1, 8)], &[("web", 1), ("web", 2)]), Row::Idle, beside);
    assert_eq!(told(vec![hangs(1, 8)], &[("db", 1), ("web", 2)]), (Row::Idle, "web is idle".to_owned()), "another's");
    // The one that hangs for longest is named, before those that have failed.
    for (ailing, all, words) in [
        (vec![fails(2, "cut"), hangs(1, 8)], 2, "/srv/images/1 has left a request unanswered for 12.0 s, and further"),
        (vec![fails(2, "cut"), hangs(1, 8)], 2, "until it answers, and another one ails"),
        (vec![hangs(1, 8), hangs(2, 5), hangs(3, 9)], 3, "/srv/images/2 has left a request unanswered for 15.0 s"),
        (vec![hangs(1, 8), hangs(2, 5), hangs(3, 9)], 3, "until it answers, and 2 others ail"),
        (vec![fails(1, "cut")], 1, "/srv/images/1 was cut, and flushes and requests beyond its end fail until its"),
        (vec![fails(1, "read-only")], 1, "/srv/images/1 has failed, and all but reads of it fail until its export"),
    ] {
        let exports: Vec<(&str, u64)> = (1..=all).map(|number| ("web", number)).collect();
        let (row, sentence) = told(ailing, &exports);
        assert!(row == Row::Backing && sentence.contains(words), "{sentence}");
    }
}

#[test]
fn no_answer() {
    let case = Case { under_way: 3, oldest_ns: 12 * SECOND_NS, ..case(0, 0, 0) };
    let sentence = "web has no answer: 3 requests are under way, the oldest for 12.0 s, and none has completed";
    is(&case, Row::NoAnswer, sentence);
}

#[test]
fn own_limit() {
    let limited = Some(("max-iops".to_owned(), 4 * SECOND_NS));
    // It waits, and more than its share is not the reason.
    let case = Case { limited, ..case(10_000, 3 * MS, MS) };
    is(&case, Row::OwnLimit, "web is limited by its own max-iops: that held it back for 40% of the time");
    let rarely = Case { limited: Some(("max-iops".to_owned(), SECOND_NS / 2)), ..case.clone() };
    assert_ne!(judge(&rarely).0, Row::OwnLimit, "5% of the time is not the reason");
    // A request of a minute's worth of its cap has gone before, and the next one still waits in its socket.
    let silent = Case { flow: FlowInterval::default(), under_way: 0, limited: case.limited.clone(), ..case.clone() };
    is(&silent, Row::OwnLimit, "web is limited by its own max-iops: that held it back for 40% of the time");
    is(&Case { limited: None, ..silent }, Row::Idle, "web is idle: it asked for nothing in the last 10 s");
}

#[test]
fn group_share() {
    let case = Case { group: Some(("gold".into(), others(&["db"]))), ..case(30_000, 3_100_000, 300_000) };
    let sentence = "web waits 3.1 of 3.4 ms in the queue: its group gold has one share, which db uses too";
    is(&case, Row::GroupShare, sentence);
    let alone = Case { group: Some(("gold".into(), others(&[]))), ..case };
    assert_eq!(judge(&alone).0, Row::OverShare, "nobody else in the group was served");
}

#[test]
fn over_share() {
    // At most what the device serves to all, which is 2.1 times what it got.
    let mut case = case(30_000, 3_100_000, 300_000);
    case.served = case.flow.served * 21 / 10;
    let sentence =
        "web waits 3.1 of 3.4 ms in the queue: it asks for 2.1 times its share while db and batch use theirs";
    is(&case, Row::OverShare, sentence);
    let many = Case { others: others(&["a", "b", "c", "d", "e"]), ..case.clone() };
    assert!(judge(&many).1.ends_with("while a, b, c and 2 others use theirs"));
    // It gets all that it asks for but a tenth.
    let little = Case { served: case.flow.served * 109 / 100, ..case.clone() };
    let sentence = "web waits 3.1 of 3.4 ms in the queue: it has its share while db and batch use theirs";
    is(&little, Row::OverShare, sentence);
    let alone = Case { others: others(&[]), ..case };
    let sentence =
        "web waits 3.1 of 3.4 ms in the queue: it has the device to itself and asks for more than the device can do";
    is(&alone, Row::OverShare, sentence);
}

#[test]
fn no_shares() {
    let case = Case { has_shares: false, ..case(30_000, 3_100_000, 300_000) };
    let sentence =
        "web waits 3.1 of 3.4 ms in the queue: the policy divides nothing by weight, and db and batch were served too";
    is(&case, Row::NoShares, sentence);
}

#[test]
fn below_share() {
    let mut case = case(30_000, 3_100_000, 300_000);
    case.flow.entitled = case.flow.served * 2;
    (case.throttled_ns, case.no_token_ns) = (2 * SECOND_NS, 3 * SECOND_NS);
    let sentence = "web waits 3.1 of 3.4 ms in the queue and gets 50% of its share: workers were held back by the \
                    depth D most";
    is(&case, Row::BelowShare, sentence);
    case.throttled_ns = 4 * SECOND_NS;
    assert!(judge(&case).1.ends_with("by the window T most"));
    (case.throttled_ns, case.no_token_ns) = (SECOND_NS / 20, SECOND_NS / 20);
    let sentence = "web waits 3.1 of 3.4 ms in the queue and gets 50% of its share: neither the window T nor the depth \
                    D held workers back";
    is(&case, Row::BelowShare, sentence);
    case.flow.entitled = case.flow.served * 10 / 9;
    assert_eq!(judge(&case).0, Row::OverShare, "nine tenths are its share");
}

#[test]
fn slow_device() {
    let case = case(1_000, 0, 12 * MS);
    let sentence =
        "the device is slow: 12.0 ms for a request of 4 KiB of web, its median of the last hour was 200.0 us";
    is(&case, Row::SlowDevice, sentence);
    let usual = Case { usual_device_ns: Some(4 * MS), ..case.clone() };
    assert_ne!(judge(&usual).0, Row::SlowDevice, "three times what is usual is not slow");
    let memory = Case {
        usual_device_ns: Some(10),
        flow: FlowInterval { device_ns: 9_000 * usual.flow.requests, ..usual.flow },
        ..usual
    };
    assert_ne!(judge(&memory).0, Row::SlowDevice, "900 times 10 ns is not slow");
    let unknown = Case { usual_device_ns: None, ..case };
    assert_ne!(judge(&unknown).0, Row::SlowDevice, "nothing is known to be usual");
}

#[test]
fn one_in_flight() {
    let case = case(48_000, 8_000, 200_000);
    let sentence = "web's client keeps one request in flight: 208.0 us for each of 4 KiB, so 4807 a second at most";
    is(&case, Row::OneInFlight, sentence);
    // Eight at a time, an eighth of the time: as many on average.
    let mut eight = case;
    eight.flow.active_ns /= 8;
    assert_ne!(judge(&eight).0, Row::OneInFlight);
    eight.flow.active_ns = 9_990_000_000;
    (eight.flow.queued_ns, eight.flow.device_ns) = (0, 48_000);
    let (row, sentence) = judge(&eight);
    assert_eq!(row, Row::OneInFlight);
    assert!(
        sentence.ends_with("one request in flight: less than 1 us for each of 4 KiB, so 1000000000 a second at most")
    );
}

#[test]
fn client_pauses() {
    let case = case(10_000, 0, 200_000);
    let sentence = "web's client asks for no more: nothing of it is under way for 80% of the time, and a request takes \
                    200.0 us";
    is(&case, Row::ClientPauses, sentence);
    // A job at depth 8 with as much work.
    let mut eight = case;
    eight.flow.active_ns /= 8;
    let sentence = "web's client asks for no more: nothing of it is under way for 98% of the time, and a request takes \
                    200.0 us, with 8.0 in flight until then";
    is(&eight, Row::ClientPauses, sentence);
    eight.flow.active_ns = 8 * SECOND_NS;
    assert_ne!(judge(&eight).0, Row::ClientPauses, "it is active for four fifths of the time");
}

#[test]
fn client_depth() {
    // 64 at a time, 46% of what was served; half of that would be its own.
    let mut case = case(3_200_000, 10_000, 190_000);
    (case.served, case.own) = (case.flow.served * 100 / 46, case.flow.served * 50 / 46);
    let sentence = "web's client keeps 64.0 requests of 4 KiB in flight, which bring 46% of the service where 50% is its \
                    own: about 70 would bring that";
    is(&case, Row::ClientDepth, sentence);
    let near = Case { own: case.flow.served * 103 / 100, ..case.clone() };
    assert_eq!(judge(&near).0, Row::Served, "3% less than its own is as good as that");
    assert_eq!(judge(&Case { own: 0, ..case }).0, Row::Served, "no request waits");
}

#[test]
fn cores() {
    let served = Case { cores_percent: Some(98), ..case(400_000, 10_000, 200_000) };
    let sentence = "the server's cores are the limit for web: its workers ran or waited for one for 98% of the time, and \
                    8.4 of its requests are in flight";
    is(&served, Row::Cores, sentence);
    let late = Case { usual_device_ns: Some(20_000), ..served.clone() };
    assert_eq!(judge(&late).0, Row::Cores, "a worker without time finds late what the device has done");
    for percent in [None, Some(94)] {
        assert_eq!(judge(&Case { cores_percent: percent, ..served.clone() }).0, Row::Served);
    }
    let waiting = Case { cores_percent: Some(98), ..case(30_000, 3_100_000, 300_000) };
    let sentence = "web waits 3.1 of 3.4 ms in the queue and gets 100% of its share: the server's cores are the limit, \
                    its workers ran or waited for one for 98% of the time";
    is(&waiting, Row::Cores, sentence);
    // Neither has work for more.
    for (other, row) in
        [(case(10_000, 0, 200_000), Row::ClientPauses), (case(48_000, 8_000, 200_000), Row::OneInFlight)]
    {
        assert_eq!(judge(&Case { cores_percent: Some(98), ..other }).0, row);
    }
}

#[test]
fn served() {
    let case = case(400_000, 10_000, 200_000);
    let sentence = "web is served as it asks: 200.0 us of a request's 210.0 us are the device's, with 8.4 requests in \
                    flight";
    is(&case, Row::Served, sentence);
    let new = Case { under_way: 2, ..self::case(0, 0, 0) };
    is(&new, Row::Served, "web has just begun: 2 requests are under way");
    // A device that answers within one turn.
    let memory = self::case(40_000_000, 400, 500);
    assert_eq!(
        judge(&memory).1,
        "web is served as it asks: less than 1 us of a request's less than 1 us are the device's, with 3.6 requests in flight"
    );
}

/// A ratio as a logarithm to base 2, 65536ths.
fn log(ratio: f64) -> i32 {
    (ratio.log2() * 65536.0) as i32
}

/// `db`, one read of 8 KiB at a time, each 2.6 ms on the device, beside `bulk`, which has 97% of the work there. Alone
/// a read took 0.8 ms. Half of D brought 0.62 of the time on the device and 0.83 of the work.
fn slowed() -> Case {
    let mut case = case(3_800, 0, 2_600_000);
    case.tenant = "db".into();
    case.usual_device_ns = Some(MS);
    case.flow.ops[0] = alone::OpInterval { requests: 3_800, total_ns: case.flow.device_ns, bytes: 3_800 * 8192 };
    case.flow.alone[0] = Some(alone::Alone { ns: 800_000, is_sure: true });
    let tried = [(193, 1.01, 1.2), (81, 0.83, 0.62), (129, 0.97, 0.85)];
    let tried =
        tried.map(|(depth, work, stay)| mqfq_blk::tuning::Tried { depth, work_log: log(work), stay_log: log(stay) });
    case.neighbours = Neighbours {
        most: Some(("bulk".into(), 97)),
        percent: 97,
        served: case.flow.served * 33,
        has_depth: true,
        depth: 161,
        found: Some(tried.into_iter().collect()),
        has_goal: false,
    };
    case
}

#[test]
fn neighbour() {
    let waits = "db waits 1.8 of 2.6 ms behind bulk's requests on the device (D = 161)";
    is(&slowed(), Row::Neighbour, &format!("{waits}; a goal of 2.0 ms would cost bulk 18%"));
    type Change = fn(&mut Case);
    let table: [(Change, String); 12] = [
        (|case| case.neighbours.has_goal = true, waits.to_owned()),
        (
            |case| case.neighbours.found = Some(Default::default()),
            format!("{waits}; the price of a latency goal is not known yet"),
        ),
        (|case| case.neighbours.found = None, format!("{waits}; D is a number, so a latency goal would change nothing")),
        (|case| case.neighbours.has_depth = false, "db waits 1.8 of 2.6 ms behind bulk's requests on the device".into()),
        // Only the 129 that was tried is above the floor; then nothing is.
        (
            |case| {
                let found = case.neighbours.found.iter().flat_map(|table| table.tried());
                let cheaper = |tried: mqfq_blk::tuning::Tried| mqfq_blk::tuning::Tried {
                    work_log: if tried.depth == 81 { log(0.69) } else { tried.work_log },
                    stay_log: if tried.depth == 81 { log(0.5) } else { log(0.7) },
                    ..tried
                };
                case.neighbours.found = Some(found.map(cheaper).collect());
            },
            format!("{waits}; a goal of 2.3 ms would cost bulk 3%"),
        ),
        (
            |case| {
                let dear = mqfq_blk::tuning::Tried { depth: 81, work_log: log(0.5), stay_log: log(0.62) };
                case.neighbours.found = Some([dear].into_iter().collect());
            },
            format!("{waits}; a goal of 2.0 ms would cost bulk 52%, more than the default floor allows"),
        ),
        (
            |case| {
                let useless = mqfq_blk::tuning::Tried { depth: 129, work_log: 0, stay_log: log(0.96) };
                case.neighbours.found = Some([useless].into_iter().collect());
            },
            format!("{waits}; of the depths that were tried none would bring much"),
        ),
        // No less than it takes alone.
        (
            |case| case.flow.alone[0] = Some(alone::Alone { ns: 1_800_000, is_sure: true }),
            "db waits 0.8 of 2.6 ms behind bulk's requests on the device (D = 161); a goal of 2.3 ms would cost bulk 18%"
                .into(),
        ),
        // It was never alone: 1.9 ms were seen; with half of D it would be 1.6.
        (
            |case| case.flow.alone[0] = Some(alone::Alone { ns: 1_900_000, is_sure: false }),
            "db waits at least 1.0 of 2.6 ms behind bulk's requests on the device (D = 161); a goal of 2.0 ms would cost \
             bulk 18%"
                .into(),
        ),
        (
            |case| {
                case.flow.alone[0] = Some(alone::Alone { ns: 1_900_000, is_sure: false });
                case.neighbours.percent = 70;
                case.neighbours.most = Some(("bulk".into(), 40));
            },
            "db waits at least 0.7 of 2.6 ms behind requests of bulk and others on the device (D = 161); a goal of 2.0 ms \
             would cost bulk and others 18%"
                .into(),
        ),
        (
            |case| {
                case.flow.queued_ns = case.flow.requests * 500_000;
                case.flow.device_ns = case.flow.requests * 2_100_000;
                case.no_token_ns = SECOND_NS;
            },
            "db waits 1.8 of 2.6 ms behind bulk: 500.0 us in the queue, mostly for the depth D, and 1.3 ms on the device \
             (D = 161); a goal of 2.3 ms would cost bulk 18%"
                .into(),
        ),
        // A twentieth of its time is of an operation of which nothing is known.
        (
            |case| {
                case.flow.ops[0].total_ns -= case.flow.device_ns / 20;
                case.flow.ops[1] =
                    alone::OpInterval { requests: 1, total_ns: case.flow.device_ns / 20, bytes: 4096 };
            },
            "db waits 1.7 of 2.6 ms behind bulk's requests on the device (D = 161); a goal of 2.0 ms would cost bulk 18%"
                .into(),
        ),
    ];
    for (change, sentence) in table {
        let mut case = slowed();
        change(&mut case);
        assert_eq!(judge(&case), (Row::Neighbour, sentence));
    }
}

#[test]
fn a_tenant_that_is_hardly_slowed_or_has_no_neighbour_is_not_said_to_wait_behind_one() {
    let row = |change: fn(&mut Case)| {
        let mut case = slowed();
        change(&mut case);
        judge(&case).0
    };
    let alone = |case: &mut Case, ns| case.flow.alone[0] = Some(alone::Alone { ns, is_sure: true });
    assert_eq!(row(|_| {}), Row::Neighbour);
    let mut case = slowed();
    alone(&mut case, 1_950_000);
    assert_eq!(judge(&case).0, Row::Neighbour, "a quarter");
    alone(&mut case, 1_960_000);
    assert_eq!(judge(&case).0, Row::OneInFlight, "less than a quarter");
    assert_eq!(row(|case| case.neighbours.percent = 9), Row::OneInFlight);
    assert_eq!(row(|case| case.cores_percent = Some(98)), Row::OneInFlight, "a worker without time");
    // Thirteen times what is usual, since the neighbour came; and on a device that does a third of what it did.
    assert_eq!(row(|case| case.usual_device_ns = Some(200_000)), Row::Neighbour);
    assert_eq!(row(|case| (case.usual_device_ns, case.is_idling) = (Some(200_000), true)), Row::SlowDevice);
    assert_eq!(row(|case| (case.usual_device_ns, case.neighbours.percent) = (Some(200_000), 49)), Row::SlowDevice);
}

#[test]
fn where_it_is_not_known_how_long_a_request_takes_alone_the_neighbour_is_named_all_the_same() {
    let mut case = slowed();
    (case.flow.alone[0], case.neighbours.found) = (None, None);
    let sentence = "db's client keeps one request in flight: 2.6 ms for each of 4 KiB, so 384 a second at most; bulk has \
                    97% of the work on the device (D = 161), and how long a request takes alone is not known yet";
    assert_eq!(judge(&case), (Row::OneInFlight, sentence.to_owned()));
    case.flow.active_ns /= 8;
    case.elapsed_ns /= 8;
    let sentence = "db hardly waits here: 2.6 ms of a request's 2.6 ms are the device's, with 8.0 requests in flight; \
                    bulk has 97% of the work on the device (D = 161), and how long a request takes alone is not known \
                    yet";
    is(&case, Row::Served, sentence);
    case.neighbours.percent = 49;
    assert!(judge(&case).1.starts_with("db is served as it asks"), "{}", judge(&case).1);
}

#[test]
fn a_commit_is_told_as_one_chain() {
    let mut case = slowed();
    let op = |requests: u64, ns: u64| alone::OpInterval { requests, total_ns: requests * ns, bytes: 0 };
    let known = |ns| Some(alone::Alone { ns, is_sure: true });
    case.flow.ops = [op(0, 0), op(1_500, 1_200_000), op(1_000, 900_000)];
    case.flow.alone = [None, known(200_000), known(300_000)];
    let chain = |case: &Case| neighbour::chain(case).unwrap_or_default();
    let sentence = "; a flush and the 1.5 writes before it take 2.7 ms one after another, 4.5 times as long as alone";
    assert_eq!(chain(&case), sentence);
    assert!(PAGE.contains(sentence));
    case.flow.alone[1] = None;
    assert_eq!(chain(&case), "; a flush and the 1.5 writes before it take 2.7 ms one after another");
    case.flow.active_ns /= 2;
    assert_eq!(chain(&case), "; a flush takes 900.0 us and the 1.5 writes before it 1.2 ms each");
    case.flow.ops[2].requests = FLUSHES_MIN_OF_CHAIN - 1;
    assert_eq!(chain(&case), "");
    case.flow.ops[1].requests = 0;
    case.flow.ops[2].requests = 1_000;
    assert_eq!(chain(&case), "", "it writes nothing");
}

const FLUSHES_MIN_OF_CHAIN: u64 = 8;

#[test]
fn verdicts_about_shares_tell_how_long_a_tenant_was_backlogged() {
    let mut case = case(30_000, 3_100_000, 300_000);
    case.served = case.flow.served * 2;
    // 74% of what was served in 61% of the time.
    (case.flow.waited_ns, case.flow.waited, case.due_thousandths) = (6_100_000_000, 27_084, 750);
    let then = "it was backlogged 61% of the time, and had 0.74 of the service then, where 0.75 is due";
    let sentence = format!(
        "web waits 3.1 of 3.4 ms in the queue: it asks for 2.0 times its share while db and batch use theirs; {then}"
    );
    assert_eq!(judge(&case), (Row::OverShare, sentence));
    assert!(PAGE.contains(then));
    case.workers = 2;
    case.flow.waited_ns *= 2;
    assert!(judge(&case).1.ends_with(then), "the mean of its workers: {}", judge(&case).1);
    case.workers = 1;
    case.flow.waited_ns = 6_100_000_000;
    case.flow.entitled = case.flow.served * 2;
    assert!(judge(&case).0 == Row::BelowShare && judge(&case).1.ends_with(then));
    case.flow.entitled = case.flow.served;
    case.group = Some(("gold".into(), others(&["db"])));
    assert!(judge(&case).0 == Row::GroupShare && judge(&case).1.ends_with(then));
    let mut shallow = self::case(3_200_000, 10_000, 190_000);
    (shallow.served, shallow.own) = (shallow.flow.served * 100 / 46, shallow.flow.served * 50 / 46);
    (shallow.flow.waited_ns, shallow.flow.waited) = (SECOND_NS, shallow.flow.requests / 5);
    shallow.due_thousandths = 500;
    let then = "it was backlogged 10% of the time, and had 0.92 of the service then, where 0.50 is due";
    assert!(judge(&shallow).1.ends_with(then), "{}", judge(&shallow).1);
}

#[test]
fn each_threshold_of_the_page_holds_at_its_own_value() {
    let row = |case: &Case| judge(case).0;
    let waiting = case(30_000, 3_100_000, 300_000);
    assert_eq!(row(&Case { limited: Some(("max-iops".into(), SECOND_NS)), ..waiting.clone() }), Row::OwnLimit);
    let silent = Case { oldest_ns: SECOND_NS, ..case(0, 0, 0) };
    assert_eq!([row(&silent), row(&Case { oldest_ns: SECOND_NS - 1, ..silent })], [Row::NoAnswer, Row::Served]);
    assert_eq!(row(&case(30_000, MS, MS)), Row::OverShare, "as long in the queue as on the device is to wait here");
    let mut nine_tenths = waiting;
    (nine_tenths.flow.served, nine_tenths.flow.entitled) = (9_000, 10_000);
    assert_eq!(row(&nine_tenths), Row::OverShare);
    nine_tenths.flow.served -= 1;
    (nine_tenths.throttled_ns, nine_tenths.no_token_ns) = (SECOND_NS / 10, SECOND_NS / 10);
    assert!(judge(&nine_tenths).1.ends_with("by the depth D most"), "1% of the time, and as long as by T");
    assert_eq!(row(&case(1_000, 0, 800_000)), Row::SlowDevice);
    let served = case(400_000, 10_000, 200_000);
    assert_eq!(row(&Case { cores_percent: Some(CORES_PERCENT), ..served.clone() }), Row::Cores);
    let mut own = Case { own: 100_000, ..served };
    own.flow.served = 97_000;
    assert_eq!(row(&own), Row::Served);
    let mut shallow = case(10_000, 0, 600_000);
    shallow.flow.active_ns = 5 * SECOND_NS;
    shallow.usual_device_ns = None;
    assert!(judge(&shallow).1.ends_with("takes 600.0 us"), "1.2 in flight are one: {}", judge(&shallow).1);
    let mut shallow = case(10_000, 0, MS + MS / 5);
    shallow.usual_device_ns = None;
    assert_eq!(row(&shallow), Row::OneInFlight);
    assert_eq!(
        (time(1_000), time(999), part(500, 1_000)),
        ("1.0 us".into(), "less than 1 us".into(), "0.5 of 1.0 us".into())
    );
    assert_eq!([size(1 << 20), size((1 << 20) - 1024)], ["1 MiB", "1023 KiB"]);
}

/// Three tenants of two groups over ten seconds, of which the first waited 3 ms of 3.4 in the queue; two workers.
fn three() -> EngineStats {
    let of = |group, mut flow: mqfq_blk::engine::NamedFlowStats| {
        flow.group = Some(mqfq_blk::GroupId(group));
        flow.last_ns = vec![10 * SECOND_NS, 0];
        flow
    };
    let group = |name: &str| mqfq_blk::engine::GroupStats {
        name: name.into(),
        parent: None,
        weight: mqfq_blk::Weight::DEFAULT,
        effective_weight: None,
    };
    let mut now = stats(
        10,
        vec![
            of(1, tenant("web", 100, 20_000, 3_000_000, 400_000)),
            of(0, tenant("db", 100, 15_000, 0, 1_000)),
            of(1, tenant("batch", 100, 16_000, 0, 1_000)),
        ],
    );
    now.devices[0].groups = vec![group("silver"), group("gold")];
    now
}

/// The verdict about `web` ten seconds after nothing had been counted.
fn verdict(now: &EngineStats, limited: &[Limited], before: &[Limited]) -> (Row, String) {
    let mut history = crate::history::History::default();
    let mut nothing = now.clone();
    nothing.at_ns = 0;
    for flow in &mut nothing.devices[0].flows {
        flow.stats = Default::default();
    }
    nothing.devices[0].hctxs = vec![Default::default(); now.devices[0].hctxs.len()];
    nothing.workers.iter_mut().for_each(|worker| worker.wanted_ns = Some(0));
    history.push(&nothing);
    history.push(now);
    let interval = history.over(SECONDS).unwrap();
    let found = verdicts(now, &interval, limited, before, &|_, flow| flow == 0);
    (found[0].row, found[0].sentence.clone())
}

#[test]
fn a_tenant_is_judged_by_its_own_group() {
    let now = three();
    let sentence = "web waits 3.0 of 3.4 ms in the queue: its group gold has one share, which batch uses too";
    assert_eq!(verdict(&now, &[], &[]), (Row::GroupShare, sentence.into()));
    let mut moved = now;
    moved.devices[0].flows[2].group = None;
    assert_eq!(verdict(&moved, &[], &[]).0, Row::OverShare, "nobody else is in gold");
}

#[test]
fn of_several_limits_the_one_that_held_a_tenant_back_longest_in_the_interval_is_named() {
    let limit = |tenant: &str, export: Option<&str>, key: &str, seconds: u64| Limited {
        tenant: tenant.into(),
        export: export.map(str::to_owned),
        key: key.into(),
        waited_ns: seconds * SECOND_NS,
    };
    let sentence = |key, percent| {
        (Row::OwnLimit, format!("web is limited by its own {key}: that held it back for {percent}% of the time"))
    };
    let now = three();
    // Both of the tenant's limits, and those of two exports of the same key; others' have nothing to say.
    let before = [
        limit("web", None, "max-iops", 50),
        limit("web", None, "max-bytes-per-s", 1),
        limit("web", Some("a"), "max-iops", 70),
        limit("web", Some("b"), "max-iops", 7),
        limit("web2", None, "max-iops", 0),
    ];
    let after = |grown: [u64; 5]| {
        let mut limits = before.clone();
        limits.iter_mut().zip(grown).for_each(|(limit, seconds)| limit.waited_ns += seconds * SECOND_NS);
        limits
    };
    assert_eq!(verdict(&now, &after([2, 3, 1, 0, 9]), &before), sentence("max-bytes-per-s", 30));
    assert_eq!(verdict(&now, &after([2, 0, 1, 4, 9]), &before), sentence("max-iops", 40));
    assert_eq!(verdict(&now, &after([0, 0, 0, 0, 9]), &before).0, Row::GroupShare, "none held it back now");
    assert_eq!(verdict(&now, &[limit("web", None, "max-iops", 6)], &[]), sentence("max-iops", 60), "it is new");
}

#[test]
fn what_is_under_way_and_what_held_workers_back_is_that_of_the_device() {
    let mut now = three();
    now.devices[0].flows[0].stats = Default::default();
    (now.devices[0].flows[0].stats.under_way, now.devices[0].flows[0].stats.oldest_ns) = (3, Some(4 * SECOND_NS));
    let sentence = "web has no answer: 3 requests are under way, the oldest for 6.0 s, and none has completed";
    assert_eq!(verdict(&now, &[], &[]), (Row::NoAnswer, sentence.into()));
    now.devices[0].flows[0].stats.oldest_ns = Some(19 * SECOND_NS / 2);
    assert_eq!(verdict(&now, &[], &[]).1, "web has just begun: 3 requests are under way");
    let mut now = three();
    now.devices[0].options.kind = mqfq_blk::PolicyKind::None;
    let sentence = "web waits 3.0 of 3.4 ms in the queue: the policy divides nothing by weight, and batch and db were \
                    served too";
    assert_eq!(verdict(&now, &[], &[]), (Row::NoShares, sentence.into()));
    // One tenant has three times the weight, and workers are held back for a second in twenty.
    let mut now = three();
    now.devices[0].flows[0].weight = mqfq_blk::Weight::new(1000).unwrap();
    now.devices[0].flows[1].stats.queued_ns_sum = 20 * SECOND_NS;
    now.devices[0].flows[2].stats.queued_ns_sum = 20 * SECOND_NS;
    let by = |throttled_ns, no_token_ns| {
        let mut now = now.clone();
        now.devices[0].hctxs = vec![mqfq_blk::stats::HctxStats { throttled_ns, no_token_ns, ..Default::default() }; 2];
        let (row, sentence) = verdict(&now, &[], &[]);
        assert_eq!(row, Row::BelowShare, "{sentence}");
        sentence.rsplit_once(": ").unwrap().1.to_owned()
    };
    assert_eq!(by(SECOND_NS, SECOND_NS / 2), "workers were held back by the window T most");
    assert_eq!(by(SECOND_NS / 2, SECOND_NS), "workers were held back by the depth D most");
    assert_eq!(by(SECOND_NS / 20, SECOND_NS / 20), "neither the window T nor the depth D held workers back");
}

/// A device that serves `web` without a wait and `db`, which waits, so many requests of each in ten seconds after a
/// minute in which a request took 100 us, and another device like it.
fn beside(web: u64, db: u64, db_queue_ns: u64, web_device_ns: u64) -> Vec<Verdict> {
    let mut history = crate::history::History::default();
    let at = |second, web: u64, db: u64, device_ns: u64| {
        let mut web = tenant("web", 100, web, 10_000, device_ns);
        let mut db = tenant("db", 100, db, db_queue_ns, 300_000);
        // Ten seconds with a request under way, in each ten.
        web.stats.active_ns = second * SECOND_NS;
        db.stats.active_ns = second * SECOND_NS;
        let mut stats = stats(second, vec![web, db]);
        let mut other = stats.devices[0].clone();
        other.name = "other".into();
        stats.devices.push(other);
        stats
    };
    history.push(&at(0, 0, 0, 100_000));
    let before = at(60, 1_000_000, 0, 100_000);
    history.push(&before);
    let mut now = at(70, web, db, web_device_ns);
    for (device, before) in now.devices.iter_mut().zip(&before.devices) {
        device.flows[0].stats.merge(&before.flows[0].stats);
        device.flows[0].stats.active_ns = 70 * SECOND_NS;
    }
    history.push(&now);
    verdicts(&now, &history.over(SECONDS).unwrap(), &[], &[], &|_, flow| flow == 0)
}

#[test]
fn each_device_s_verdict_is_of_what_it_served_and_of_what_is_usual_there() {
    let found = beside(460_000, 540_000, 3_000_000, 190_000);
    let sentence = "web's client keeps 9.2 requests of 4 KiB in flight, which bring 46% of the service where 50% is its \
                    own: about 10 would bring that; db has 64% of the work on the device (D = 64), and how long a \
                    request takes alone is not known yet";
    let told = found.iter().map(|it| (&*it.device, it.row, &*it.sentence)).collect::<Vec<_>>();
    assert_eq!(told, [("fast", Row::ClientDepth, sentence), ("other", Row::ClientDepth, sentence)]);
    let row = |found: Vec<Verdict>| found[0].row;
    assert_eq!(row(beside(460_000, 540_000, 0, 190_000)), Row::Served, "no request waits");
    assert_eq!(row(beside(490_000, 510_000, 3_000_000, 190_000)), Row::Served, "2% less than its own");
    assert_eq!(row(beside(460_000, 0, 0, 390_000)), Row::Served, "not four times what is usual");
    assert_eq!(row(beside(460_000, 0, 0, 410_000)), Row::SlowDevice);
    let mut moved = three();
    moved.devices[0].flows[2].group = None;
    // 20,000 of 51,000 are its part of the others' leavings; it asks for all that is served at most.
    let sentence =
        "web waits 3.0 of 3.4 ms in the queue: it asks for 2.5 times its share while batch and db use theirs";
    assert_eq!(verdict(&moved, &[], &[]), (Row::OverShare, sentence.into()));
}

#[test]
fn cores_are_the_limit_if_each_worker_that_served_the_tenant_lately_had_no_time_left() {
    let mut now = three();
    let mut judged = |last_s: [u64; 2], wanted_s: [Option<u64>; 2]| {
        now.devices[0].flows[0].last_ns = last_s.map(|at_s| at_s * SECOND_NS).into();
        now.at_ns = 20 * SECOND_NS;
        let wanted = |seconds: Option<u64>| mqfq_blk::engine::WorkerStats {
            wanted_ns: seconds.map(|s| s * SECOND_NS),
            ..mqfq_blk::engine::WorkerStats::default()
        };
        now.workers = wanted_s.map(wanted).into();
        let (mut history, mut nothing) = (crate::history::History::default(), now.clone());
        (nothing.at_ns, nothing.workers) = (10 * SECOND_NS, vec![wanted(Some(0)); 2]);
        nothing.devices[0].flows.iter_mut().for_each(|flow| flow.stats = Default::default());
        history.push(&nothing);
        history.push(&now);
        verdicts(&now, &history.over(SECONDS).unwrap(), &[], &[], &|_, flow| flow == 0)[0].row
    };
    assert_eq!(judged([19, 19], [Some(10), Some(10)]), Row::Cores);
    assert_eq!(judged([19, 19], [Some(10), Some(5)]), Row::GroupShare, "one of its workers has time");
    assert_eq!(judged([19, 9], [Some(10), Some(5)]), Row::Cores, "that one served it before the interval");
    assert_eq!(judged([9, 19], [Some(10), Some(5)]), Row::GroupShare);
    assert_eq!(judged([19, 10], [Some(10), Some(5)]), Row::Cores, "what ended at its beginning is not in the interval");
    assert_eq!(judged([19, 19], [Some(10), None]), Row::GroupShare, "the kernel does not say");
}

#[test]
fn a_verdict_names_the_device_the_tenant_and_those_that_were_served_most() {
    use crate::history::History;
    let mut history = History::default();
    let names = ["web", "db", "batch"];
    history.push(&stats(0, names.map(|name| tenant(name, 100, 0, 0, 0)).to_vec()));
    let flows = vec![
        tenant("web", 100, 2000, 3_100_000, 300_000),
        tenant("db", 100, 1500, 0, 1),
        tenant("batch", 100, 1600, 0, 1),
    ];
    let now = stats(10, flows);
    history.push(&now);
    let interval = history.over(SECONDS).unwrap();
    let found = verdicts(&now, &interval, &[], &[], &|_, flow| flow == 0);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].device.as_str(), found[0].tenant.as_str(), found[0].row), ("fast", "web", Row::OverShare));
    // 6.2 s of waiting in ten are enough to be hungry; 5100 were served, of which 2000 are its part.
    assert!(found[0].sentence.ends_with("while batch and db use theirs"), "{}", found[0].sentence);
    let limits = [Limited { tenant: "web".into(), export: None, key: "max-iops".into(), waited_ns: 7 * SECOND_NS }];
    let limited = verdicts(&now, &interval, &limits, &[], &|_, flow| flow == 0);
    assert_eq!(limited[0].row, Row::OwnLimit);
}

#[test]
fn a_latency_goal_is_told_with_what_it_costs_and_what_can_be_had() {
    let state = GoalState {
        goal_ns: 2_000_000,
        p90_ns: 1_700_000,
        fares: Fares::Met,
        depth: 113,
        kept_thousandths: 918,
        periods: 9,
        met: 8,
    };
    let said = |state| goal_sentence(&state, Some(("bulk", 3_320_000_000)), 10 * SECOND_NS).unwrap_or_default();
    let had = "nine of ten small requests take 1.7 ms at D = 113";
    let cost = "which costs 8% of the device's throughput, and bulk has 332 MB/s";
    assert_eq!(said(state), format!("; its goal of 2.0 ms is met: {had}, {cost}"));
    let out = GoalState { fares: Fares::OutOfReach, ..state };
    assert_eq!(said(out), format!("; its goal of 2.0 ms is out of reach: {had}, {cost}"));
    let free = GoalState { kept_thousandths: 1000, fares: Fares::Trying, ..state };
    assert_eq!(said(free), format!("; its goal of 2.0 ms is not met yet: {had}, as found"));
    assert_eq!(said(GoalState { p90_ns: 0, ..state }) + &said(GoalState { fares: Fares::Inactive, ..state }), "");
}
