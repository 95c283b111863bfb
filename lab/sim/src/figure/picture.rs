//! A figure as SVG: our numbers beside the paper's. The panels are drawn by [`mqfq_report::panel`].

use super::{Axis, Figure, Panel, Row, Rows, Shape, X};
use mqfq_report::chart::colour;
use mqfq_report::panel::{self, Along, Point, Series};

/// Draws a figure's rows as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(figure: &Figure, rows: &Rows) -> Result<String, String> {
    let quick = if rows.quick { " (quick: fewer points, shorter times)" } else { "" };
    let panels: Vec<panel::Panel> = figure.drawn_panels().map(|panel| drawn(panel, rows)).collect();
    panel::render(&format!("{}{quick}", figure.title), &panels)
}

fn drawn(panel: &Panel, rows: &Rows) -> panel::Panel {
    let own: Vec<&Row> = rows.rows.iter().filter(|row| row.panel == panel.name).collect();
    let leaders: Vec<&str> = panel
        .series
        .iter()
        .filter(|series| series.like.is_none() && !series.as_text)
        .map(|series| series.name.as_str())
        .collect();
    let series = panel.series.iter().map(|series| {
        let leader = series.like.as_deref().unwrap_or(&series.name);
        let at = leaders.iter().position(|name| *name == leader).unwrap_or(0);
        let own = own.iter().filter(|row| row.series == series.name);
        let points = own.map(|row| Point { x: x_at(panel, &row.x), y: row.y, stated: row.paper_y, spread: None });
        Series {
            name: series.name.clone(),
            colour: colour(at),
            dashed: series.like.is_some(),
            as_text: series.as_text,
            points: points.collect(),
        }
    });
    panel::Panel {
        title: panel.title.clone(),
        shape: panel.shape,
        along: along(panel),
        x_label: panel.x_label.clone(),
        y_label: panel.y_label.clone(),
        log_y: panel.log_y,
        ideal: panel.ideal,
        series: series.collect(),
    }
}

fn along(panel: &Panel) -> Along {
    match () {
        () if panel.shape == Shape::Bars || !(panel.log_x || all_numbers(panel)) => {
            Along::Places(panel.points.iter().map(|point| point.x.to_string()).collect())
        }
        () if panel.axis == Axis::Time => Along::Time,
        () if panel.log_x => Along::Doubling,
        () => Along::Numbers,
    }
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
