//! A figure as SVG: small multiples, one panel each, our numbers beside the paper's.
//!
//! ```text
//!   title
//!   ┌ panel ──────────┐ ┌ panel ──────────┐     lines: a curve per series; another form of one is dashed, in its colour;
//!   │ ─── a  - - a'   │ │ ▇ a  ▇ b        │            what the paper states is a cross
//!   │   ___--x--      │ │  ▇▇   ▇▁  ▇▇    │     bars:  a group per x, numbers above; what the paper states is a black mark
//!   └─────────────────┘ └─────────────────┘            across the bar; the ideal is a dashed red line
//! ```
//! Axes are linear for the drawing library: logarithms are taken here, and labels give them back.

use super::{Axis, Figure, Panel, Row, Rows, Series, Shape, X};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const PANEL_HEIGHT_PX: u32 = 380;
const TITLE_PX: u32 = 44;
const LEGEND_LINE_PX: i32 = 17;
const FONT: &str = "sans-serif";
/// Of the font at 12 pixels, on the wide side: the legend breaks its lines by it.
const LETTER_PX: f64 = 6.4;
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const IDEAL: RGBColor = RGBColor(0xc0, 0x20, 0x20);
/// Okabe and Ito's palette: told apart by every eye.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x77, 0x77, 0x77),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws a figure's rows as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(figure: &Figure, rows: &Rows) -> Result<String, String> {
    let panels: Vec<&Panel> = figure.drawn_panels().collect();
    let (columns, panel_px) = match panels.len() {
        _ if panels.iter().any(|panel| bars_of(panel) > BARS_OF_A_COLUMN) => (1, 1180),
        1 => (1, 640),
        count if count.is_multiple_of(3) => (3, 440),
        _ => (2, 560),
    };
    let lines = panels.len().div_ceil(columns).max(1);
    let size_px = (columns as u32 * panel_px, TITLE_PX + lines as u32 * PANEL_HEIGHT_PX);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size_px).into_drawing_area();
        draw(&root, figure, rows, &panels, (lines, columns))
            .and_then(|()| Ok(root.present()?))
            .map_err(|error| format!("cannot draw the picture: {error}"))?;
    }
    Ok(text)
}

fn draw(root: &Area<'_>, figure: &Figure, rows: &Rows, panels: &[&Panel], grid: (usize, usize)) -> Drawn {
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(TITLE_PX);
    let quick = if rows.quick { " (quick: fewer points, shorter times)" } else { "" };
    head.draw(&Text::new(format!("{}{quick}", figure.title), (14, 10), font(18)))?;
    for (area, panel) in body.split_evenly(grid).iter().zip(panels) {
        let own: Vec<&Row> = rows.rows.iter().filter(|row| row.panel == panel.name).collect();
        draw_panel(area, panel, &own)?;
    }
    Ok(())
}

/// Bars that one column of panels has room for.
const BARS_OF_A_COLUMN: usize = 36;

/// Bars narrower than this have no number above them: the table has it.
const NUMBERED_BAR_PX: f64 = 22.0;

fn bars_of(panel: &Panel) -> usize {
    match panel.shape {
        Shape::Lines => 0,
        Shape::Bars => panel.points.len() * panel.series.iter().filter(|series| !series.as_text).count(),
    }
}

/// A series as it is drawn.
struct Drawing<'a> {
    series: &'a Series,
    colour: RGBColor,
    dashed: bool,
    rows: Vec<&'a Row>,
}

fn drawings<'a>(panel: &'a Panel, rows: &[&'a Row]) -> Vec<Drawing<'a>> {
    let is_colour = |series: &&Series| series.like.is_none() && !series.as_text;
    let leaders: Vec<&str> = panel.series.iter().filter(is_colour).map(|series| series.name.as_str()).collect();
    let drawing = |series: &'a Series| {
        let leader = series.like.as_deref().unwrap_or(&series.name);
        let at = leaders.iter().position(|name| *name == leader).unwrap_or(0);
        Drawing {
            series,
            colour: COLOURS[at % COLOURS.len()],
            dashed: series.like.is_some(),
            rows: rows.iter().copied().filter(|row| row.series == series.name).collect(),
        }
    };
    panel.series.iter().map(drawing).filter(|drawing| !drawing.rows.is_empty()).collect()
}

fn draw_panel(area: &Area<'_>, panel: &Panel, rows: &[&Row]) -> Drawn {
    let drawings = drawings(panel, rows);
    let area = area.margin(6, 6, 8, 8);
    area.draw(&Text::new(panel.title.clone(), (10, 2), font(15)))?;
    let legend_px = draw_legend(&area, panel, &drawings)?;
    let (_, body) = area.split_vertically(24 + legend_px);
    match panel.shape {
        Shape::Lines => draw_lines(&body, panel, &drawings),
        Shape::Bars => draw_bars(&body, panel, &drawings),
    }
}

/// Returns its height.
fn draw_legend(area: &Area<'_>, panel: &Panel, drawings: &[Drawing<'_>]) -> Result<i32, Box<dyn std::error::Error>> {
    let width = area.dim_in_pixel().0 as f64;
    let (mut x, mut y) = (10.0, 24);
    // A number above the bars has its name with it.
    let mut entries: Vec<(String, Option<&Drawing<'_>>)> = drawings
        .iter()
        .filter(|drawing| !drawing.series.as_text)
        .map(|drawing| (drawing.series.name.clone(), Some(drawing)))
        .collect();
    if drawings.iter().flat_map(|drawing| &drawing.rows).any(|row| row.paper_y.is_some()) {
        entries.push(("stated in the paper".into(), None));
    }
    for (name, drawing) in entries {
        let wide = 34.0 + LETTER_PX * name.chars().count() as f64;
        if x + wide > width && x > 10.0 {
            (x, y) = (10.0, y + LEGEND_LINE_PX);
        }
        let (left, middle) = (x as i32, y + 7);
        match drawing {
            Some(drawing) if panel.shape == Shape::Bars => {
                let corners = [(left + 4, middle - 5), (left + 18, middle + 5)];
                area.draw(&Rectangle::new(corners, colour_of(drawing).filled()))?;
            }
            Some(drawing) => {
                let step = if drawing.dashed { 7 } else { 20 };
                for from in (0..20).step_by(step) {
                    let to = if drawing.dashed { from + 4 } else { from + 20 };
                    area.draw(&PathElement::new(
                        [(left + from, middle), (left + to, middle)],
                        drawing.colour.stroke_width(2),
                    ))?;
                }
            }
            None if panel.shape == Shape::Bars => {
                area.draw(&PathElement::new([(left + 2, middle), (left + 20, middle)], BLACK.stroke_width(3)))?;
            }
            None => area.draw(&Cross::new((left + 11, middle), 4, INK.stroke_width(2)))?,
        }
        area.draw(&Text::new(name, (left + 24, y), font(12)))?;
        x += wide;
    }
    Ok(y - 24 + LEGEND_LINE_PX)
}

/// Position of an x on the axis: its number, its logarithm to base 2, or its index among the panel's.
fn x_at(panel: &Panel, x: &X) -> f64 {
    match x {
        X::Number(number) if panel.shape == Shape::Lines && panel.log_x => libm::log2(*number),
        X::Number(number) if panel.shape == Shape::Lines && all_numbers(panel) => *number,
        _ => panel.points.iter().position(|point| point.x == *x).unwrap_or(0) as f64,
    }
}

fn all_numbers(panel: &Panel) -> bool {
    // The tail of a distribution would be one point on a linear axis.
    panel.axis != Axis::Percentiles && panel.points.iter().all(|point| matches!(point.x, X::Number(_)))
}

fn y_at(panel: &Panel, y: f64) -> f64 {
    if panel.log_y { libm::log10(y.max(f64::MIN_POSITIVE)) } else { y }
}

/// All heights that are drawn.
fn heights<'a>(panel: &'a Panel, drawings: &'a [Drawing<'a>]) -> impl Iterator<Item = f64> + 'a {
    let rows = drawings.iter().filter(|drawing| !drawing.series.as_text).flat_map(|drawing| &drawing.rows);
    let values = rows.flat_map(|row| [row.y, row.paper_y]).flatten();
    values.chain(panel.ideal).filter(|y| y.is_finite() && (!panel.log_y || *y > 0.0))
}

fn y_range(panel: &Panel, drawings: &[Drawing<'_>]) -> std::ops::Range<f64> {
    let top = heights(panel, drawings).map(|y| y_at(panel, y)).fold(f64::NEG_INFINITY, f64::max);
    if !panel.log_y {
        return 0.0..if top > 0.0 { top * 1.15 } else { 1.0 };
    }
    let bottom = heights(panel, drawings).map(|y| y_at(panel, y)).fold(f64::INFINITY, f64::min);
    if top < bottom { 0.0..1.0 } else { bottom.floor()..top.ceil().max(bottom.floor() + 1.0) }
}

fn draw_axes<'a, 'b>(
    area: &'a Area<'b>,
    panel: &Panel,
    x: std::ops::Range<f64>,
    y: std::ops::Range<f64>,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    let labelled = panel.shape == Shape::Bars || !(panel.log_x || all_numbers(panel));
    let x_label = |x: &f64| {
        let whole = (x - x.round()).abs() < 1e-6;
        match () {
            () if labelled && whole => {
                panel.points.get(x.round() as usize).map_or(String::new(), |point| point.x.to_string())
            }
            () if panel.axis == Axis::Time => plain(*x),
            () if labelled || !whole => String::new(),
            () if panel.log_x && *x < 0.0 => plain(libm::exp2(*x)),
            () if panel.log_x => format!("{}", libm::exp2(*x).round()),
            () => format!("{x:.0}"),
        }
    };
    let top = y.end;
    let y_label = |y: &f64| match () {
        () if panel.log_y && (y - y.round()).abs() > 1e-6 => String::new(),
        () if panel.log_y => plain(libm::exp10(*y)),
        () if (0.5..10.0).contains(&top) => format!("{y:.1}"),
        () => plain(*y),
    };
    let x_labels = if labelled || panel.log_x { 2 * (x.end - x.start).ceil() as usize + 1 } else { 9 };
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(if panel.x_label.is_empty() { 22 } else { 36 })
        .y_label_area_size(64)
        .margin_right(12)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .x_desc(&panel.x_label)
        .y_desc(&panel.y_label)
        .axis_desc_style(font(12))
        .label_style(font(12))
        .x_labels(x_labels)
        .y_labels(6)
        .x_label_formatter(&x_label)
        .y_label_formatter(&y_label)
        .draw()?;
    Ok(chart)
}

fn draw_lines(area: &Area<'_>, panel: &Panel, drawings: &[Drawing<'_>]) -> Drawn {
    let xs = || drawings.iter().flat_map(|drawing| &drawing.rows).map(|row| x_at(panel, &row.x));
    let (first, last) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
    if first > last {
        return Ok(());
    }
    let least = if panel.axis == Axis::Time { 0.0 } else { 0.1 };
    let air = ((last - first) * 0.03).max(least);
    let mut chart = draw_axes(area, panel, first - air..last + air, y_range(panel, drawings))?;
    draw_ideal(&mut chart, panel, first - air, last + air)?;
    for drawing in drawings {
        let colour = drawing.colour;
        let drawable = |y: f64| y.is_finite() && (!panel.log_y || y > 0.0);
        let at = |row: &&&Row| {
            let y = row.y.filter(|y| drawable(*y))?;
            Some((x_at(panel, &row.x), y_at(panel, y)))
        };
        let mut points: Vec<(f64, f64)> = drawing.rows.iter().filter_map(|row| at(&row)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if drawing.dashed {
            chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, colour.stroke_width(2)))?;
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.stroke_width(1))))?;
        } else {
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
            // Over time there is a point each few pixels.
            let marked = if panel.axis == Axis::Time { &[] } else { &points[..] };
            chart.draw_series(marked.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
        }
        let stated = drawing.rows.iter().filter_map(|row| Some((x_at(panel, &row.x), y_at(panel, row.paper_y?))));
        chart.draw_series(stated.map(|point| Cross::new(point, 6, colour.stroke_width(3))))?;
    }
    Ok(())
}

fn draw_bars(area: &Area<'_>, panel: &Panel, drawings: &[Drawing<'_>]) -> Drawn {
    let groups = panel.points.len() as f64;
    let y = y_range(panel, drawings);
    let (floor, top) = (y.start, y.end);
    let mut chart = draw_axes(area, panel, -0.5..groups - 0.5, y)?;
    draw_ideal(&mut chart, panel, -0.5, groups - 0.5)?;
    let (texts, bars): (Vec<_>, Vec<_>) = drawings.iter().partition(|drawing| drawing.series.as_text);
    let wide = 0.8 / bars.len().max(1) as f64;
    let bar_px = wide * f64::from(area.dim_in_pixel().0.saturating_sub(76)) / groups;
    let is_numbered = bar_px >= NUMBERED_BAR_PX || bars_of(panel) <= BARS_OF_A_COLUMN;
    let above =
        |y: f64, text: String, x: f64| Text::new(text, (x, y), font(11).pos(Pos::new(HPos::Center, VPos::Bottom)));
    for (at, drawing) in bars.iter().enumerate() {
        for row in &drawing.rows {
            let left = x_at(panel, &row.x) - 0.4 + wide * at as f64;
            let middle = left + wide / 2.0;
            let height = row.y.map_or(floor, |y| y_at(panel, y));
            let corners = [(left + wide * 0.04, floor), (left + wide * 0.96, height)];
            chart.draw_series([Rectangle::new(corners, colour_of(drawing).filled())])?;
            if let Some(stated) = row.paper_y.map(|y| y_at(panel, y)) {
                chart
                    .draw_series([PathElement::new([(left, stated), (left + wide, stated)], BLACK.stroke_width(3))])?;
            }
            if !is_numbered {
                continue;
            }
            let label = row.y.map_or("starved".into(), |y| format!("{y:.2}"));
            let (air, line) = ((top - floor) * 0.01, (top - floor) * 0.07);
            let stated = row.paper_y.map(|y| (y, y_at(panel, y)));
            // Our number stays at its bar, unless the mark is in its way; the paper's stands at a mark that is clear of
            // both.
            let clear = match stated {
                Some((_, mark)) if (height..height + line).contains(&mark) => mark,
                _ => height,
            };
            chart.draw_series([above(clear + air, label, middle)])?;
            if let Some((y, mark)) = stated.filter(|(_, mark)| *mark >= height + line) {
                chart.draw_series([above(mark + air, format!("paper {y}"), middle)])?;
            }
        }
    }
    for (at, drawing) in texts.iter().enumerate() {
        for row in &drawing.rows {
            let label = row.y.map_or("-".into(), |y| format!("{} {}", plain(y), drawing.series.name));
            chart.draw_series([above(top * (0.94 - 0.06 * at as f64), label, x_at(panel, &row.x))])?;
        }
    }
    Ok(())
}

fn draw_ideal(chart: &mut Chart<'_, '_>, panel: &Panel, from: f64, to: f64) -> Drawn {
    if let Some(y) = panel.ideal.map(|y| y_at(panel, y)) {
        chart.draw_series(DashedLineSeries::new([(from, y), (to, y)], 6, 4, IDEAL.stroke_width(1)))?;
    }
    Ok(())
}

fn colour_of(drawing: &Drawing<'_>) -> RGBAColor {
    drawing.colour.mix(if drawing.dashed { 0.5 } else { 0.9 })
}

fn font(size_px: u32) -> TextStyle<'static> {
    (FONT, size_px).into_font().color(&INK)
}

/// A number with as many digits as say something.
fn plain(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        large if large >= 1e6 && large % 1e5 == 0.0 => format!("{}M", number / 1e6),
        large if large >= 100.0 => format!("{number:.0}"),
        large if large >= 10.0 => format!("{number:.1}"),
        large if large < 0.01 => format!("{number:.1e}"),
        _ => format!("{number:.2}"),
    }
}
