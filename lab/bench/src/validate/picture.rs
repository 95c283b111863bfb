//! The picture of `bench validate`: bars in pairs, measured and simulated. Above the second tenant's share of each
//! scenario, below requests per second of each policy, one panel per setting.

use super::report::ValidateReport;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH_PX: u32 = 1260;
const HEIGHT_PX: u32 = 860;
const TITLE_PX: u32 = 40;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Two of Okabe and Ito's palette: told apart by every eye.
const MEASURED: RGBColor = RGBColor(0x77, 0x77, 0x77);
const SIMULATED: RGBColor = RGBColor(0x00, 0x72, 0xb2);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A name and its two bars.
struct Pair {
    name: String,
    measured: f64,
    simulated: f64,
}

struct Panel {
    title: String,
    unit: &'static str,
    pairs: Vec<Pair>,
}

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &ValidateReport) -> Result<String, String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH_PX, HEIGHT_PX)).into_drawing_area();
        draw(&root, report).map_err(|error| format!("cannot draw the picture: {error}"))?;
        root.present().map_err(|error| format!("cannot draw the picture: {error}"))?;
    }
    Ok(text)
}

fn draw(root: &Area<'_>, report: &ValidateReport) -> Drawn {
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(TITLE_PX);
    let title = format!("{} (grey) and its simulation {} (blue)", report.machine.host, report.simulated_machine);
    head.draw(&Text::new(title, (14, 10), (FONT, 19).into_font().color(&INK)))?;
    let (above, below) = body.split_vertically((HEIGHT_PX - TITLE_PX) / 2);
    draw_panel(&above, &shares(report))?;
    let panels = coherence(report);
    for (area, panel) in below.split_evenly((1, panels.len().max(1))).iter().zip(&panels) {
        draw_panel(area, panel)?;
    }
    Ok(())
}

fn shares(report: &ValidateReport) -> Panel {
    let pairs = report.shares.iter().filter_map(|row| {
        let second = row.tenants.last()?;
        let (measured, simulated) = (100.0 * second.measured_share, 100.0 * second.simulated_share);
        Some(Pair { name: format!("{}, {}", row.scenario, row.policy), measured, simulated })
    });
    Panel { title: "share of the second tenant".into(), unit: "percent", pairs: pairs.collect() }
}

fn coherence(report: &ValidateReport) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for row in &report.coherence {
        let placed = match (row.placement.as_str(), row.flows) {
            ("own", _) => "own flows".into(),
            (_, 1) => "one flow".into(),
            (_, flows) => format!("{flows} flows on all"),
        };
        let title = format!("{} {}, {placed}", row.workers, if row.workers == 1 { "worker" } else { "workers" });
        let pair = Pair {
            name: row.policy.clone(),
            measured: row.measured_requests_per_s / 1e6,
            simulated: row.simulated_requests_per_s / 1e6,
        };
        match panels.last_mut() {
            Some(panel) if panel.title == title => panel.pairs.push(pair),
            _ => panels.push(Panel { title, unit: "million requests/s", pairs: vec![pair] }),
        }
    }
    panels
}

fn draw_panel(area: &Area<'_>, panel: &Panel) -> Drawn {
    let label = (FONT, 12).into_font().color(&INK);
    let top = panel.pairs.iter().map(|pair| pair.measured.max(pair.simulated)).fold(0.001, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .caption(&panel.title, (FONT, 15).into_font().color(&INK))
        .x_label_area_size(130)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..panel.pairs.len().max(1) as f64, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .y_desc(panel.unit)
        .axis_desc_style(label.clone())
        .label_style(label.clone())
        .x_labels(0)
        .y_labels(6)
        .draw()?;
    for (at, pair) in panel.pairs.iter().enumerate() {
        let left = at as f64;
        for (value, from, colour) in [(pair.measured, 0.14, MEASURED), (pair.simulated, 0.5, SIMULATED)] {
            let bar = Rectangle::new([(left + from, 0.0), (left + from + 0.34, value)], colour.filled());
            chart.draw_series(std::iter::once(bar))?;
        }
        // Under the bars and turned, for the names are longer than the bars are wide.
        let turned = (FONT, 12).into_font().transform(FontTransform::Rotate270).color(&INK);
        let turned = turned.pos(Pos::new(HPos::Right, VPos::Center));
        let (x, y) = chart.backend_coord(&(left + 0.5, 0.0));
        let (base_x, base_y) = area.get_base_pixel();
        area.draw(&Text::new(pair.name.clone(), (x - base_x, y - base_y + 6), turned))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn every_row_has_a_pair_of_bars_and_its_name() {
        let report = report();
        let text = render(&report).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        let bars = |colour: &str| text.matches(&format!("fill=\"{colour}\"")).count();
        let pairs = report.shares.len() + report.coherence.len();
        assert_eq!((bars("#0072B2"), bars("#777777")), (pairs, pairs));
        for title in ["share of the second tenant", "1 worker, own flows", "2 workers, own flows", "sizes, none"] {
            assert!(text.contains(title), "{title}");
        }
    }
}
