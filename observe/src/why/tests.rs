//! One test for each row of the table of docs/use/why.md, with the sentence that the page shows.

use super::*;

const SECOND_NS: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// `web`, over ten seconds on a device that also served `db` and `batch`: so many requests of 4 KiB, each of which was
/// so long in the queue and on the device.
fn case(requests: u64, queue_ns: u64, device_ns: u64) -> Case {
    let flow = FlowInterval {
        requests,
        bytes: requests * 4096,
        served: requests * 4096,
        entitled: requests * 4096,
        asked: crate::share::asked(requests * 4096, queue_ns, device_ns),
        queued_ns: requests * queue_ns,
        device_ns: requests * device_ns,
        is_hungry: requests * queue_ns >= 5 * SECOND_NS,
        group: None,
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
    (case.throttled_ns, case.no_token_ns) = (1, 2);
    let sentence = "web waits 3.1 of 3.4 ms in the queue and gets 50% of its share: workers were held back by the \
                    depth D most";
    is(&case, Row::BelowShare, sentence);
    case.throttled_ns = 3;
    assert!(judge(&case).1.ends_with("by the window T most"));
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
}

#[test]
fn client_pauses() {
    let case = case(10_000, 0, 200_000);
    let sentence = "web's client asks for no more: nothing of it is under way for 80% of the time, and a request takes \
                    200.0 us";
    is(&case, Row::ClientPauses, sentence);
}

#[test]
fn served() {
    let case = case(400_000, 10_000, 200_000);
    let sentence = "web is served as it asks: 200.0 us of a request's 210.0 us are the device's, with 8.4 requests in \
                    flight";
    is(&case, Row::Served, sentence);
    let new = Case { under_way: 2, ..self::case(0, 0, 0) };
    is(&new, Row::Served, "web has just begun: 2 requests are under way");
}

#[test]
fn a_verdict_names_the_device_the_tenant_and_those_that_were_served_most() {
    use crate::history::History;
    use crate::history::tests::{stats, tenant};
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
