//! Whole screens as text. `MQFQ_BLESS=1` writes them into docs/use/top.md.

use super::*;
use crate::live::Snapshot;
use crate::top::view::{Action, Key};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn tenant(name: &str, weight: u16, shares: [f64; 2], times_us: [u64; 4], why: &str) -> TenantLive {
    let [queue_p50_ns, queue_p99_ns, device_p50_ns, device_p99_ns] = times_us.map(|us| us * 1000);
    TenantLive {
        name: name.into(),
        weight,
        share_1s: shares[0],
        entitled_1s: shares[1],
        bytes_per_s: shares[0] * 1.2e9,
        requests_per_s: shares[0] * 3e5,
        queue_p50_ns,
        queue_p99_ns,
        device_p50_ns,
        device_p99_ns,
        oldest_ns: queue_p99_ns + device_p99_ns,
        why: why.into(),
        ..TenantLive::default()
    }
}

fn snapshot(second: u64) -> Snapshot {
    let web = "web waits 3.1 of 3.4 ms in the queue: it asks for 1.4 times its share while db and batch use theirs";
    let batch = "batch waits 21.0 of 22.1 ms in the queue: it asks for 4.3 times its share while db and web use theirs";
    let db = "db's client keeps one request in flight: 208.0 us for each of 4 KiB, so 4807 a second at most";
    // Batch takes a little more each second, then web.
    let swing = (second % 10) as f64 / 500.0;
    let tenants = vec![
        tenant("web", 300, [0.666 - swing, 0.66], [2_900, 8_400, 260, 900], web),
        tenant("db", 100, [0.12, 0.12], [8, 30, 200, 700], db),
        tenant("batch", 100, [0.214 + swing, 0.22], [9_100, 21_000, 310, 1_100], batch),
        tenant("backup", 10, [0.0, 0.0], [0; 4], "backup is idle: it asked for nothing in the last 10 s"),
    ];
    let device = |name: &str, policy: &str, tenants: Vec<TenantLive>| DeviceLive {
        name: name.into(),
        policy: policy.into(),
        depth_units: Some(64),
        window_bytes: Some(65_536),
        commands: 41.2,
        bytes_per_s: tenants.iter().map(|tenant| tenant.bytes_per_s).sum(),
        requests_per_s: tenants.iter().map(|tenant| tenant.requests_per_s).sum(),
        tenants,
        ..DeviceLive::default()
    };
    let spare = device("spare", "sfqd", vec![tenant("web", 300, [1.0, 1.0], [1, 1, 90, 90], "")]);
    Snapshot { at_ns: second * 1_000_000_000, devices: vec![device("fast", "mqfq", tenants), spare] }
}

fn view() -> View {
    let mut view = View::default();
    (0..40).for_each(|second| view.take(snapshot(second)));
    view
}

fn screen(view: &View, columns: u16, lines: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y: u16| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..lines).map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_shows_the_screen_as_it_is_drawn() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/use/top.md");
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut fresh = String::new();
    for (at, part) in page.split("<!-- screen -->\n").enumerate() {
        match at {
            1 => {
                let mut view = view();
                view.key(Key::Char('j'));
                let drawn = screen(&view, 80, 24);
                fresh += &format!("<!-- screen -->\n```text\n{}\n```\n<!-- screen -->\n", drawn.trim_end());
            }
            _ => fresh += part,
        }
    }
    if std::env::var_os("MQFQ_BLESS").is_some() {
        std::fs::write(PAGE, &fresh).unwrap();
    }
    assert!(page == fresh || std::env::var_os("MQFQ_BLESS").is_some(), "docs/use/top.md is not:\n{fresh}");
    assert_eq!(page.matches("<!-- screen -->").count(), 2);
}

#[test]
fn every_line_fits_into_80_columns_and_24_lines_with_queue_and_device_apart() {
    let text = screen(&view(), 80, 24);
    assert!(text.contains("queue p99") && text.contains("device p99") && text.contains("q quit"), "{text}");
    let web = text.lines().find(|line| line.starts_with("web ")).unwrap();
    assert!(web.contains("300") && web.contains("8.4 ms") && web.contains("900.0 us"), "{web}");
    assert!(text.contains("web waits 3.1 of 3.4 ms") || text.contains("batch waits"), "{text}");
}

#[test]
fn no_header_and_no_key_is_clipped_from_80_columns_on() {
    let narrow = ["tenant", "weight", "share ┃ entitled", "got", "MB/s", "IOPS", "queue p99", "device p99"];
    let wide = "tenant,weight,share ┃ entitled,got,own,MB/s,IOPS,queue p50,p99,device p50,p99,oldest,last minute";
    let devices = ["device", "policy", "D", "T", "on it", "MB/s", "requests/s", "tenants"];
    let mut view = view();
    for columns in [80, 81, 100, WIDE - 1, WIDE, WIDE + 1, 160, 220] {
        let names = if columns < WIDE { narrow.to_vec() } else { wide.split(',').collect() };
        for (screen_of, names) in [(Screen::Tenants, &*names), (Screen::Devices, &devices)] {
            view.screen = screen_of;
            let text = screen(&view, columns, 24);
            let header = text.lines().nth(2).unwrap();
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(header), words(&names.join(" ")), "{columns} columns");
            assert!(text.ends_with("Tab next device"), "{columns} columns: {text}");
        }
    }
}

#[test]
fn keys_sort_filter_select_and_change_views() {
    let mut view = view();
    let names = |view: &View| view.tenants().iter().map(|tenant| tenant.name.clone()).collect::<Vec<_>>();
    let press = |view: &mut View, keys: &str| {
        keys.chars()
            .map(|key| match key {
                '\n' => Key::Enter,
                '\t' => Key::Tab,
                key => Key::Char(key),
            })
            .map(|key| view.key(key))
            .last()
            .flatten()
    };
    assert_eq!(names(&view)[0], "web", "by share");
    press(&mut view, "s");
    assert_eq!(names(&view), ["backup", "batch", "db", "web"]);
    press(&mut view, "/b\n");
    assert_eq!(names(&view), ["backup", "batch", "db", "web"], "all of them have it");
    press(&mut view, "/w\n");
    assert_eq!(names(&view), ["web"]);
    assert_eq!(press(&mut view, "+30\n"), Some(Action::SetWeight { tenant: "web".into(), weight: 30 }));
    assert_eq!((press(&mut view, "+0\n"), &*view.message), (None, "0 is no weight, allowed is 1 to 10000"));
    view.key(Key::Char('/'));
    view.key(Key::Escape);
    assert_eq!(names(&view).len(), 4, "no filter");
    press(&mut view, "j");
    assert_eq!(names(&view)[view.selection()], "batch");
    press(&mut view, "\t");
    assert_eq!(view.device().unwrap().name, "spare");
    press(&mut view, "d");
    let text = screen(&view, 80, 24);
    assert!(text.contains("sfqd") && text.contains("mqfq") && !text.contains("weight of"), "{text}");
    assert_eq!(press(&mut view, "q"), Some(Action::Quit));
}

#[test]
fn a_weight_is_for_who_was_selected_when_it_was_begun() {
    let mut view = view();
    view.key(Key::Char('+'));
    let mut next = snapshot(40);
    next.devices[0]
        .tenants
        .iter_mut()
        .for_each(|tenant| tenant.share_1s = f64::from(u8::from(tenant.name == "backup")));
    view.take(next);
    assert_eq!(view.tenants()[0].name, "backup");
    view.key(Key::Char('7'));
    assert_eq!(view.key(Key::Enter), Some(Action::SetWeight { tenant: "web".into(), weight: 7 }));
}

#[test]
fn a_recording_is_read_as_it_was_written() {
    let path = std::env::temp_dir().join(format!("mqfq-top-record-{}", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    (0..3).for_each(|second| crate::top::run::write(&mut file, &snapshot(second)).unwrap());
    assert_eq!(crate::top::run::read(&path).unwrap(), [0, 1, 2].map(snapshot));
    std::fs::write(&path, "{}\n").unwrap();
    let refused = crate::top::run::read(&path).unwrap_err();
    assert!(refused.ends_with(":1: this is no snapshot, allowed is what --record has written"), "{refused}");
    std::fs::remove_file(&path).unwrap();
}
