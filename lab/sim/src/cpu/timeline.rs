//! Timeline of cores, drawn: a row per core, a bar per stretch.
//!
//! ```text
//!   core 0  ▇▇▇▇▇▁▁▇▇▇▇░░░░░░░░▇▇      each program has a colour, its threads two shades of it in turn, so that
//!   core 1  ░░░░░░░░░░░░░░░▇▇▁▁░░      one thread after another is seen; idle is white
//! ```
//! SVG is written by hand: it is a list of rectangles.

use super::Outcome;
use super::outcome::Stretch;

/// A colour and a darker shade of it: Okabe and Ito's blue, orange, green.
const COLOURS: [(&str, &str); 4] =
    [("#0072b2", "#56a5d6"), ("#e69f00", "#f3c766"), ("#009e73", "#5cc7a9"), ("#cc79a7", "#e2b1cc")];

const LEFT_PX: u32 = 64;
const WIDE_PX: u32 = 860;
const ROW_PX: u32 = 22;
const TOP_PX: u32 = 56;

/// An SVG of the outcome's timeline, which begins at the first of the two times and ends at the second.
pub fn draw(title: &str, outcome: &Outcome, window_ns: (u64, u64)) -> String {
    let programs: Vec<(&str, f64)> =
        outcome.programs.iter().map(|program| (program.name.as_str(), program.share)).collect();
    draw_stretches(title, outcome.cores, &programs, &outcome.timeline, window_ns)
}

/// Draws any record of stretches: programs by name, with their share of the machine.
pub fn draw_stretches(
    title: &str,
    cores: u32,
    programs: &[(&str, f64)],
    timeline: &[Stretch],
    window_ns: (u64, u64),
) -> String {
    let (from_ns, to_ns) = window_ns;
    let x = |ns: u64| {
        f64::from(LEFT_PX) + (ns - from_ns) as f64 * f64::from(WIDE_PX) / to_ns.saturating_sub(from_ns).max(1) as f64
    };
    let bottom = TOP_PX + cores * ROW_PX;
    let (wide, high) = (LEFT_PX + WIDE_PX + 16, bottom + 40);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {wide} {high}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"{wide}\" height=\"{high}\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"18\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let mut put = |text: String| svg.push_str(&text);
    let mut legend_x = LEFT_PX;
    for ((name, share), (colour, _)) in programs.iter().zip(COLOURS.iter().cycle()) {
        let label = format!("{name}: {:.0}% of the cores", share * 100.0);
        put(format!("<rect x=\"{legend_x}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n"));
        put(format!("<text x=\"{}\" y=\"40\">{}</text>\n", legend_x + 17, escaped(&label)));
        legend_x += 40 + 7 * label.chars().count() as u32;
    }
    for core in 0..cores {
        let y = TOP_PX + core * ROW_PX;
        put(format!("<text x=\"8\" y=\"{}\">core {core}</text>\n", y + 14));
        put(format!(
            "<rect x=\"{LEFT_PX}\" y=\"{}\" width=\"{WIDE_PX}\" height=\"{}\" fill=\"none\" stroke=\"#ccc\"/>\n",
            y + 1,
            ROW_PX - 4
        ));
    }
    for stretch in timeline {
        let (light, dark) = COLOURS[stretch.program as usize % COLOURS.len()];
        let colour = if stretch.thread.is_multiple_of(2) { light } else { dark };
        let (from, to) = (x(stretch.from_ns.max(from_ns)), x(stretch.to_ns.min(to_ns)));
        put(format!(
            "<rect x=\"{from:.2}\" y=\"{}\" width=\"{:.2}\" height=\"{}\" fill=\"{colour}\"/>\n",
            TOP_PX + stretch.core * ROW_PX + 1,
            (to - from).max(0.3),
            ROW_PX - 4
        ));
    }
    let length_ms = (to_ns - from_ns) as f64 / 1e6;
    let step_ms = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].into_iter().find(|step| length_ms / step <= 12.0);
    let step_ms = step_ms.unwrap_or(length_ms / 10.0);
    for tick in 0..=(length_ms / step_ms) as u32 {
        let (ms, y) = (f64::from(tick) * step_ms, bottom + 14);
        let at = f64::from(LEFT_PX) + ms * f64::from(WIDE_PX) / length_ms;
        put(format!("<text x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{ms}</text>\n"));
    }
    put(format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">ms</text>\n</svg>\n",
        LEFT_PX + WIDE_PX / 2,
        bottom + 32
    ));
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
