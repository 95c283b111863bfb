//! Small multiples: one panel each, curves or bars.
//!
//! ```text
//!   title
//!   ┌ panel ──────────┐ ┌ panel ──────────┐     lines: a curve per series; another form of one is dashed, in its colour;
//!   │ ─── a  - - a'   │ │ ▇ a  ▇ b        │            a value from another source is a cross
//!   │   ___--x--      │ │  ▇▇   ▇▁  ▇▇    │     bars:  a group per x, numbers above; such a value is a black mark
//!   └─────────────────┘ └─────────────────┘            across the bar; the ideal is a dashed red line
//! ```

use crate::chart::{Area, Axes, COLOURS, Chart, Drawn, IDEAL, Mark, colour, font, legend, legend_px, plain, svg, text};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// Curves, or bars in groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One curve per series.
    Lines,
    /// One group per place, one bar per series.
    Bars,
}

/// Scale of x.
#[derive(Clone, PartialEq, Debug)]
pub enum Along {
    /// So many named places; x is a place's number, from 0 on.
    Places(Vec<String>),
    /// Numbers, of which whole ones are labelled.
    Numbers,
    /// Logarithms to base 2 of what the labels say.
    Doubling,
    /// Time: a curve without marks, for there is a point each few pixels.
    Time,
}

/// One part of a picture with axes of its own.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// One line.
    pub title: String,
    /// Curves or bars; bars need [`Along::Places`].
    pub shape: Shape,
    /// Scale of x.
    pub along: Along,
    /// Meaning of x in words; may be empty.
    pub x_label: String,
    /// Meaning of y, with its unit.
    pub y_label: String,
    /// y has a logarithmic scale; otherwise it begins at 0.
    pub log_y: bool,
    /// A dashed line at this height.
    pub ideal: Option<f64>,
    /// One after another; those without points take a colour, but are not drawn.
    pub series: Vec<Series>,
}

/// A curve, or the bars of one colour.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// As the legend calls it.
    pub name: String,
    /// Its own.
    pub colour: RGBColor,
    /// Another form of the series with the same colour.
    pub dashed: bool,
    /// A number above the group of bars in place of a bar.
    pub as_text: bool,
    /// Points in any order.
    pub points: Vec<Point>,
}

/// A point of a series.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Point {
    /// See [`Along`].
    pub x: f64,
    /// `None`: there is no number, since its subject was starved.
    pub y: Option<f64>,
    /// Value that another source states.
    pub stated: Option<f64>,
    /// Smallest and largest of the values whose middle is `y`.
    pub spread: Option<(f64, f64)>,
}

impl Series {
    /// A series number `at` with points `(x, y)`. Once all colours are used they come again, dashed.
    pub fn new(name: impl Into<String>, at: usize, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        let points = points.into_iter().map(|(x, y)| Point { x, y: Some(y), ..Point::default() }).collect();
        Series { name: name.into(), colour: colour(at), dashed: at >= COLOURS.len(), as_text: false, points }
    }

    /// Series in the order in which their names come, and their colours in that order, of points with names.
    pub fn by_name(points: impl IntoIterator<Item = (String, Point)>) -> Vec<Series> {
        let mut all: Vec<Series> = Vec::new();
        for (name, point) in points {
            match all.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => all.push(Series { points: vec![point], ..Series::new(name, all.len(), []) }),
            }
        }
        all
    }

    fn fill(&self) -> RGBAColor {
        self.colour.mix(if self.dashed { 0.5 } else { 0.9 })
    }
}

const PANEL_HEIGHT_PX: u32 = 380;
const TITLE_PX: u32 = 44;

/// Bars that one column of panels has room for.
const BARS_OF_A_COLUMN: usize = 36;

/// Bars narrower than this have no number above them: the table has it.
const NUMBERED_BAR_PX: f64 = 22.0;

/// Draws `panels` under `title` as an SVG document, in as many columns as suit them.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(title: &str, panels: &[Panel]) -> Result<String, String> {
    let (columns, panel_px) = match panels.len() {
        _ if panels.iter().any(|panel| panel.bars() > BARS_OF_A_COLUMN) => (1, 1180),
        1 => (1, 640),
        count if count.is_multiple_of(3) => (3, 440),
        _ => (2, 560),
    };
    let lines = panels.len().div_ceil(columns).max(1);
    let size_px = (columns as u32 * panel_px, TITLE_PX + lines as u32 * PANEL_HEIGHT_PX);
    svg(size_px, |root| {
        let (head, body) = root.split_vertically(TITLE_PX);
        text(&head, title, (14, 10), 18)?;
        for (area, panel) in body.split_evenly((lines, columns)).iter().zip(panels) {
            panel.draw(area, true)?;
        }
        Ok(())
    })
}

/// Draws panels of that width and height in `columns` columns, all of the same series: the legend stands once, under
/// the title.
///
/// # Errors
/// As [`render`].
pub fn render_alike(title: &str, columns: usize, panel_px: (u32, u32), panels: &[Panel]) -> Result<String, String> {
    let columns = columns.max(1);
    let lines = panels.len().div_ceil(columns).max(1);
    let width_px = columns as u32 * panel_px.0;
    let entries = panels.first().map_or(Vec::new(), |panel| panel.legend(panel.series.iter()));
    let head_px = TITLE_PX + legend_px(width_px, &entries) as u32 + 4;
    svg((width_px, head_px + lines as u32 * panel_px.1), |root| {
        let (head, body) = root.split_vertically(head_px);
        text(&head, title, (14, 10), 18)?;
        legend(&head, TITLE_PX as i32 - 4, &entries)?;
        for (area, panel) in body.split_evenly((lines, columns)).iter().zip(panels) {
            panel.draw(area, false)?;
        }
        Ok(())
    })
}

impl Panel {
    /// A panel of curves that begins at 0 and has no series yet.
    pub fn lines(title: impl Into<String>, along: Along, x_label: &str, y_label: &str) -> Panel {
        Panel {
            title: title.into(),
            shape: Shape::Lines,
            along,
            x_label: x_label.into(),
            y_label: y_label.into(),
            log_y: false,
            ideal: None,
            series: Vec::new(),
        }
    }

    /// A panel of bars in groups called `places` that has no series yet.
    pub fn bars_at(title: impl Into<String>, places: Vec<String>, y_label: &str) -> Panel {
        Panel { shape: Shape::Bars, ..Panel::lines(title, Along::Places(places), "", y_label) }
    }

    /// This panel with these series.
    #[must_use]
    pub fn with(self, series: Vec<Series>) -> Panel {
        Panel { series, ..self }
    }

    fn places(&self) -> &[String] {
        match &self.along {
            Along::Places(places) => places,
            _ => &[],
        }
    }

    fn bars(&self) -> usize {
        match self.shape {
            Shape::Lines => 0,
            Shape::Bars => self.places().len() * self.series.iter().filter(|series| !series.as_text).count(),
        }
    }

    fn draw(&self, area: &Area<'_>, with_legend: bool) -> Drawn {
        let drawn: Vec<&Series> = self.series.iter().filter(|series| !series.points.is_empty()).collect();
        let area = area.margin(6, 6, 8, 8);
        text(&area, self.title.as_str(), (10, 2), 15)?;
        let legend_px = if with_legend { legend(&area, 24, &self.legend(drawn.iter().copied()))? } else { 0 };
        let (_, body) = area.split_vertically(24 + legend_px);
        match self.shape {
            Shape::Lines => self.draw_lines(&body, &drawn),
            Shape::Bars => self.draw_bars(&body, &drawn),
        }
    }

    fn legend<'a>(&self, series: impl Iterator<Item = &'a Series> + Clone) -> Vec<(Mark, String)> {
        // A number above the bars has its name with it.
        let named = series.clone().filter(|series| !series.as_text).map(|series| {
            let mark = match self.shape {
                Shape::Bars => Mark::Bar(series.fill()),
                Shape::Lines if series.dashed => Mark::Dashes(series.colour),
                Shape::Lines => Mark::Line(series.colour),
            };
            (mark, series.name.clone())
        });
        let mut entries: Vec<(Mark, String)> = named.collect();
        if series.flat_map(|series| &series.points).any(|point| point.stated.is_some()) {
            let mark = if self.shape == Shape::Bars { Mark::Across } else { Mark::Cross };
            entries.push((mark, "stated in the paper".into()));
        }
        entries
    }

    fn y_at(&self, y: f64) -> f64 {
        if self.log_y { y.max(f64::MIN_POSITIVE).log10() } else { y }
    }

    fn y_range(&self, drawn: &[&Series]) -> Range<f64> {
        let points = drawn.iter().filter(|series| !series.as_text).flat_map(|series| &series.points);
        let of_points = points.flat_map(|point| [point.y, point.stated, point.spread.map(|spread| spread.1)]).flatten();
        let heights: Vec<f64> = of_points
            .chain(self.ideal)
            .filter(|y| y.is_finite() && (!self.log_y || *y > 0.0))
            .map(|y| self.y_at(y))
            .collect();
        let top = heights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !self.log_y {
            return 0.0..if top > 0.0 { top * 1.15 } else { 1.0 };
        }
        let bottom = heights.iter().copied().fold(f64::INFINITY, f64::min);
        if top < bottom { 0.0..1.0 } else { bottom.floor()..top.ceil().max(bottom.floor() + 1.0) }
    }

    fn axes<'a, 'b>(&self, area: &'a Area<'b>, x: Range<f64>, y: Range<f64>) -> Drawn<Chart<'a, 'b>> {
        let x_text = |x: &f64| {
            let whole = (x - x.round()).abs() < 1e-6;
            match &self.along {
                Along::Places(places) if whole => places.get(x.round() as usize).cloned().unwrap_or_default(),
                Along::Time => plain(*x),
                _ if !whole => String::new(),
                Along::Doubling if *x < 0.0 => plain(x.exp2()),
                Along::Doubling => format!("{}", x.exp2().round()),
                _ => format!("{x:.0}"),
            }
        };
        let top = y.end;
        let y_text = |y: &f64| match () {
            () if self.log_y && (y - y.round()).abs() > 1e-6 => String::new(),
            () if self.log_y => plain(10_f64.powf(*y)),
            () if (0.5..10.0).contains(&top) => format!("{y:.1}"),
            () => plain(*y),
        };
        let x_ticks = match &self.along {
            Along::Places(_) | Along::Doubling => 2 * (x.end - x.start).ceil() as usize + 1,
            Along::Numbers | Along::Time => 9,
        };
        let axes = Axes {
            x,
            y,
            x_label: &self.x_label,
            y_label: &self.y_label,
            room_px: (if self.x_label.is_empty() { 22 } else { 36 }, 64),
            font_px: 12,
            ticks: (x_ticks, 6),
            shaded_x: None,
            x_text: &x_text,
            y_text: &y_text,
        };
        let mut chart = ChartBuilder::on(area);
        chart.margin_right(12);
        axes.draw(chart)
    }

    fn draw_lines(&self, area: &Area<'_>, drawn: &[&Series]) -> Drawn {
        let xs = || drawn.iter().flat_map(|series| &series.points).map(|point| point.x);
        let (first, last) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
        if first > last {
            return Ok(());
        }
        let least = if self.along == Along::Time { 0.0 } else { 0.1 };
        let air = ((last - first) * 0.03).max(least);
        let mut chart = self.axes(area, first - air..last + air, self.y_range(drawn))?;
        self.draw_ideal(&mut chart, first - air, last + air)?;
        for series in drawn {
            let colour = series.colour;
            let drawable = |y: &f64| y.is_finite() && (!self.log_y || *y > 0.0);
            let at = |point: &Point| Some((point.x, self.y_at(point.y.filter(drawable)?)));
            let mut points: Vec<(f64, f64)> = series.points.iter().filter_map(at).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if series.dashed {
                chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, colour.stroke_width(2)))?;
                chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.stroke_width(1))))?;
            } else {
                chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
                let marked = if self.along == Along::Time { &[] } else { &points[..] };
                chart.draw_series(marked.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
            }
            let spreads = series.points.iter().filter_map(|point| {
                let (smallest, largest) = point.spread?;
                let ends = [smallest, largest].map(|y| (point.x, self.y_at(y)));
                Some(PathElement::new(ends, colour.mix(0.6)))
            });
            chart.draw_series(spreads)?;
            let stated = series.points.iter().filter_map(|point| Some((point.x, self.y_at(point.stated?))));
            chart.draw_series(stated.map(|point| Cross::new(point, 6, colour.stroke_width(3))))?;
        }
        Ok(())
    }

    fn draw_bars(&self, area: &Area<'_>, drawn: &[&Series]) -> Drawn {
        let groups = self.places().len() as f64;
        let y = self.y_range(drawn);
        let (floor, top) = (y.start, y.end);
        let mut chart = self.axes(area, -0.5..groups - 0.5, y)?;
        self.draw_ideal(&mut chart, -0.5, groups - 0.5)?;
        let (texts, bars): (Vec<&Series>, Vec<&Series>) = drawn.iter().partition(|series| series.as_text);
        let wide = 0.8 / bars.len().max(1) as f64;
        let bar_px = wide * f64::from(area.dim_in_pixel().0.saturating_sub(76)) / groups;
        let is_numbered = bar_px >= NUMBERED_BAR_PX || self.bars() <= BARS_OF_A_COLUMN;
        let above =
            |y: f64, text: String, x: f64| Text::new(text, (x, y), font(11).pos(Pos::new(HPos::Center, VPos::Bottom)));
        for (at, series) in bars.iter().enumerate() {
            for point in &series.points {
                let left = point.x - 0.4 + wide * at as f64;
                let middle = left + wide / 2.0;
                let height = point.y.map_or(floor, |y| self.y_at(y));
                let corners = [(left + wide * 0.04, floor), (left + wide * 0.96, height)];
                chart.draw_series([Rectangle::new(corners, series.fill().filled())])?;
                let stated = point.stated.map(|y| (y, self.y_at(y)));
                if let Some((_, mark)) = stated {
                    chart
                        .draw_series([PathElement::new([(left, mark), (left + wide, mark)], BLACK.stroke_width(3))])?;
                }
                if !is_numbered {
                    continue;
                }
                let label = point.y.map_or("starved".into(), |y| format!("{y:.2}"));
                let (air, line) = ((top - floor) * 0.01, (top - floor) * 0.07);
                // Our number stays at its bar, unless the mark is in its way; the other's stands at a mark that is
                // clear of both.
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
        for (at, series) in texts.iter().enumerate() {
            for point in &series.points {
                let label = point.y.map_or("-".into(), |y| format!("{} {}", plain(y), series.name));
                chart.draw_series([above(top * (0.94 - 0.06 * at as f64), label, point.x)])?;
            }
        }
        Ok(())
    }

    fn draw_ideal(&self, chart: &mut Chart<'_, '_>, from: f64, to: f64) -> Drawn {
        if let Some(y) = self.ideal.map(|y| self.y_at(y)) {
            chart.draw_series(DashedLineSeries::new([(from, y), (to, y)], 6, 4, IDEAL.stroke_width(1)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panel_of_curves_has_its_units_its_names_and_its_spreads() {
        let mut panel = Panel::lines("rates", Along::Numbers, "workers", "million/s");
        let spread = Point { x: 2.0, y: Some(3.0), spread: Some((2.0, 9.0)), stated: None };
        panel.series = Series::by_name([("a".into(), Point { x: 1.0, y: Some(1.0), ..spread }), ("a".into(), spread)]);
        panel.series.push(Series::new("b", 1, []));
        let text = render("all", &[panel.clone()]).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for words in ["all", "rates", "workers", "million/s", "\na\n"] {
            assert!(text.contains(words), "{words}");
        }
        assert!(!text.contains("\nb\n"), "a series without points is not drawn");
        let drawn: Vec<&Series> = panel.series.iter().collect();
        assert_eq!(panel.y_range(&drawn), 0.0..9.0 * 1.15, "the largest of all");
    }

    #[test]
    fn bars_have_their_numbers_and_one_who_starved_says_so() {
        let point = |x, y| Point { x, y, stated: Some(2.0), spread: None };
        let mut panel = Panel::bars_at("shares", vec!["left".into(), "right".into()], "times");
        panel.series = Series::by_name([("a".into(), point(0.0, Some(1.25))), ("a".into(), point(1.0, None))]);
        let text = render("all", &[panel]).unwrap();
        for words in ["left", "right", "1.25", "starved", "stated in the paper", "paper 2"] {
            assert!(text.contains(words), "{words}");
        }
    }

    #[test]
    fn what_all_panels_show_is_named_once() {
        let series = || vec![Series::new("mqfq", 0, [(0.0, 1.0), (3.0, 8.0)])];
        let panel = |title: &str| Panel::lines(title, Along::Doubling, "depth", "us").with(series());
        let text = render_alike("all", 2, (330, 230), &[panel("reads"), panel("writes"), panel("both")]).unwrap();
        assert_eq!(text.matches("\nmqfq\n").count(), 1);
        assert_eq!(text.matches("\ndepth\n").count(), 3);
        assert!(text.contains("\n8\n"), "2 to the third");
    }

    #[test]
    fn nothing_at_all_is_still_a_picture() {
        assert!(render("nothing", &[]).unwrap().starts_with("<svg"));
        assert!(render("empty", &[Panel::lines("empty", Along::Numbers, "", "")]).unwrap().contains("empty"));
    }
}
