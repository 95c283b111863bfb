//! How does it look?
//!
//! ```text
//!   fast · mqfq · 1.2 GB/s · 310 k/s · D 64 · T 64 KiB · on device 41.2          head
//!   tenant   weight  share ████████▏  ...                                         a line for each tenant
//!   web waits 3.1 of 3.4 ms in the queue: ...                                     why, of the selected one
//!   q quit  s sort …                                                              keys
//! ```
//! In a bar, full cells are what was received, and `┃` stands where the entitlement ends. With fewer than [`WIDE`]
//! columns the sparkline, the medians, the entitlements and the oldest request's age are left out. No header is clipped
//! from 80 columns on.

use crate::live::{DeviceLive, TenantLive};
use crate::top::view::{Input, Screen, View};
use crate::why::time;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

/// Columns from which on everything is shown: the least widths of all columns of the table.
const WIDE: u16 = 135;

/// Least widths of the columns for names and for bars; both grow with the terminal.
const NAME_COLUMNS: u16 = 13;
const BAR_COLUMNS: u16 = 16;

const QUEUE: Color = Color::Yellow;
const DEVICE: Color = Color::Cyan;

/// Draws `view`.
pub fn draw(frame: &mut Frame<'_>, view: &View) {
    let why_lines = if view.shows_why && view.screen == Screen::Tenants { 3 } else { 0 };
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(why_lines),
        Constraint::Length(1),
    ])
    .split(frame.area());
    frame.render_widget(Paragraph::new(head(view)), areas[0]);
    match view.screen {
        Screen::Tenants => tenants(frame, view, areas[1]),
        Screen::Devices => devices(frame, view, areas[1]),
    }
    if let Some(tenant) = view.tenants().get(view.selection()) {
        let why = Paragraph::new(tenant.why.as_str()).wrap(Wrap { trim: true });
        frame.render_widget(why.style(Style::new().add_modifier(Modifier::BOLD)), areas[2]);
    }
    frame.render_widget(Paragraph::new(foot(view)), areas[3]);
}

fn head(view: &View) -> Vec<Line<'static>> {
    let Some(device) = view.device() else { return vec![Line::from("waiting for the first second")] };
    let mut facts = vec![
        Span::styled(device.name.clone(), Style::new().add_modifier(Modifier::BOLD)),
        format!(" · {} · {} MB/s · {}/s", device.policy, rate(device.bytes_per_s), count(device.requests_per_s)).into(),
    ];
    if !device.trouble.is_empty() {
        facts.push(Span::styled(format!(" · {}", device.trouble), Style::new().fg(Color::Red)));
    }
    facts.extend(device.depth_units.map(|depth| format!(" · D {depth}").into()));
    facts.extend(device.window_bytes.map(|bytes| format!(" · T {} KiB", bytes >> 10).into()));
    facts.push(format!(" · on device {:.1}", device.commands).into());
    let others = view.snapshot.devices.len() - 1;
    let more = match (others, device.left_out) {
        (0, 0) => String::new(),
        (devices, 0) => format!("{devices} more devices (Tab)"),
        (_, tenants) => format!("{tenants} tenants that were served less are left out"),
    };
    let sorted = format!("sorted by {}   {more}", view.sort.name());
    vec![Line::from(facts), Line::styled(sorted, Style::new().fg(Color::DarkGray))]
}

fn foot(view: &View) -> Line<'static> {
    match &view.input {
        Input::Filter(text) => format!("names with: {text}_").into(),
        Input::Weight { tenant, text } => format!("weight of {tenant}, 1 to 10000: {text}_").into(),
        Input::None if !view.message.is_empty() => Line::styled(view.message.clone(), Style::new().fg(Color::Red)),
        Input::None => "q quit  ↑↓ select  + weight  w why  s sort  / filter  d devices  Tab next device".into(),
    }
}

fn tenants(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let wide = area.width >= WIDE;
    let names: &[&str] = match wide {
        true => &[
            "tenant",
            "weight",
            "share ┃ entitled",
            "got",
            "own",
            "MB/s",
            "IOPS",
            "queue p50",
            "p99",
            "device p50",
            "p99",
            "oldest",
            "last minute",
        ],
        false => &["tenant", "weight", "share ┃ entitled", "got", "MB/s", "IOPS", "queue p99", "device p99"],
    };
    let mut widths: Vec<u16> = match wide {
        true => vec![NAME_COLUMNS, 6, BAR_COLUMNS, 6, 6, 7, 6, 9, 8, 10, 8, 8, 20],
        false => vec![NAME_COLUMNS, 6, BAR_COLUMNS, 6, 7, 6, 9, 10],
    };
    let least = widths.iter().sum::<u16>() + widths.len() as u16 - 1;
    let rest = area.width.saturating_sub(least);
    widths[0] += (rest / 3).min(17);
    widths[2] += (rest - (rest / 3).min(17)).min(28);
    let bar_columns = widths[2];
    let row = |tenant: &TenantLive| {
        let bar = Cell::from(bar(tenant.share_1s, tenant.entitled_1s, usize::from(bar_columns)));
        let right = |text: String| Cell::from(Line::from(text).right_aligned());
        let of = |ns: u64, colour: Color| right(if ns == 0 { "-".to_owned() } else { time(ns) }).style(colour);
        let percent = |part: f64| right(format!("{:.1}%", part * 100.0));
        let mut cells = vec![Cell::from(tenant.name.clone()), right(tenant.weight.to_string()), bar];
        cells.push(percent(tenant.share_1s));
        if wide {
            cells.push(percent(tenant.entitled_1s));
        }
        cells.extend([right(rate(tenant.bytes_per_s)), right(count(tenant.requests_per_s))]);
        if wide {
            cells.push(of(tenant.queue_p50_ns, QUEUE));
        }
        cells.push(of(tenant.queue_p99_ns, QUEUE));
        if wide {
            cells.push(of(tenant.device_p50_ns, DEVICE));
        }
        cells.push(of(tenant.device_p99_ns, DEVICE));
        if wide {
            cells.push(of(tenant.oldest_ns, Color::Reset));
            cells.push(Cell::from(sparkline(&view.seconds(&tenant.name), 20)));
        }
        Row::new(cells)
    };
    let (left, right) = (["tenant", "share ┃ entitled", "last minute"], Style::new().fg(Color::DarkGray));
    let name = |name: &&str| {
        let line = Line::from((*name).to_owned());
        Cell::from(if left.contains(name) { line } else { line.right_aligned() })
    };
    let table = Table::new(view.tenants().into_iter().map(row), widths)
        .header(Row::new(names.iter().map(name)).style(right))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(view.selection());
    frame.render_stateful_widget(table, area, &mut state);
}

fn devices(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let row = |device: &DeviceLive| {
        Row::new([
            Cell::from(device.name.clone()),
            match device.trouble.as_str() {
                "" => Cell::from(device.policy.clone()),
                trouble => Cell::from(trouble.to_owned()).style(Style::new().fg(Color::Red)),
            },
            right(device.depth_units.map_or("-".into(), |depth| depth.to_string())),
            right(device.window_bytes.map_or("-".into(), |bytes| format!("{} KiB", bytes >> 10))),
            right(format!("{:.1}", device.commands)),
            right(rate(device.bytes_per_s)),
            right(count(device.requests_per_s)),
            right((device.tenants.len() + device.left_out).to_string()),
        ])
    };
    let names = ["device", "policy", "D", "T", "on it", "MB/s", "requests/s", "tenants"];
    let name = |(at, name): (usize, &str)| {
        let line = Line::from(name.to_owned());
        Cell::from(if at < 2 { line } else { line.right_aligned() })
    };
    let widths = [14, 11, 6, 9, 6, 7, 10, 7];
    let shown = view.device().map(|device| &device.name);
    let selected = view.snapshot.devices.iter().position(|device| Some(&device.name) == shown);
    let table = Table::new(view.snapshot.devices.iter().map(row), widths)
        .header(Row::new(names.into_iter().enumerate().map(name)).style(Style::new().fg(Color::DarkGray)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::default().with_selected(selected));
}

/// Received as full cells in eighths, and where the entitlement ends.
fn bar(received: f64, entitled: f64, columns: usize) -> Line<'static> {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (received.clamp(0.0, 1.0) * columns as f64 * 8.0).round() as usize;
    let end = ((entitled.clamp(0.0, 1.0) * columns as f64).round() as usize).min(columns.saturating_sub(1));
    let cell = |at: usize| match eighths.saturating_sub(at * 8) {
        _ if at == end && entitled > 0.0 => '┃',
        8.. => '█',
        part => EIGHTHS[part],
    };
    let is_over = received > entitled * 1.05;
    let colour = if is_over { Color::Magenta } else { Color::Green };
    Line::styled((0..columns).map(cell).collect::<String>(), Style::new().fg(colour))
}

fn sparkline(seconds: &[u64], columns: usize) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = &seconds[seconds.len().saturating_sub(columns)..];
    let most = shown.iter().copied().max().unwrap_or(0).max(1);
    shown.iter().map(|value| LEVELS[(value * 7 / most) as usize]).collect()
}

fn rate(bytes_per_s: f64) -> String {
    format!("{:.1}", bytes_per_s / 1e6)
}

fn count(per_second: f64) -> String {
    match per_second {
        1e6.. => format!("{:.1} M", per_second / 1e6),
        1e4.. => format!("{:.0} k", per_second / 1e3),
        _ => format!("{per_second:.0}"),
    }
}

#[cfg(test)]
mod tests {
    //! Whole screens as text. `MQFQ_BLESS=1` writes them into docs/use/watch.md.

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
        let batch =
            "batch waits 21.0 of 22.1 ms in the queue: it asks for 4.3 times its share while db and web use theirs";
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
        const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/use/watch.md");
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
        assert!(page == fresh || std::env::var_os("MQFQ_BLESS").is_some(), "docs/use/watch.md is not:\n{fresh}");
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
}
