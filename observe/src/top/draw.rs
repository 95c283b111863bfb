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
mod tests;
