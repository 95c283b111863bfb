//! How every picture looks: ink, colours, fonts, axes and legend. One SVG document, drawn with plotters.
//!
//! [`crate::panel`] draws curves and bars with it; a picture that is neither takes the parts from here. Axes are linear
//! for the drawing library: a caller that wants a logarithm takes it first, and undoes it in the labels.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// A part of a picture, measured in pixels.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A part with axes, measured in their units.
pub type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
/// Result of drawing. It cannot fail, short of a bug.
pub type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Text and lines.
pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Ground of a part that is told apart from the rest.
pub const SHADE: RGBColor = RGBColor(0xf1, 0xee, 0xe4);
/// Line of the ideal value.
pub const IDEAL: RGBColor = RGBColor(0xc0, 0x20, 0x20);

// Okabe and Ito's palette: told apart by every eye.
/// The first series.
pub const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
/// The second.
pub const VERMILION: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
/// The third.
pub const GREEN: RGBColor = RGBColor(0x00, 0x9e, 0x73);
/// The last series, and the one with which others are compared.
pub const GREY: RGBColor = RGBColor(0x77, 0x77, 0x77);
/// The colours of series, in their order.
pub const COLOURS: [RGBColor; 7] =
    [BLUE, VERMILION, GREEN, RGBColor(0xe6, 0x9f, 0x00), RGBColor(0xcc, 0x79, 0xa7), RGBColor(0x56, 0xb4, 0xe9), GREY];

const FONT: &str = "sans-serif";
/// Width of a letter of the font at 12 pixels, on the wide side: a legend breaks its lines by it.
const LETTER_PX: f64 = 6.4;
/// Height of a legend's line.
pub const LEGEND_LINE_PX: i32 = 17;

/// The colour of series number `at`.
pub fn colour(at: usize) -> RGBColor {
    COLOURS[at % COLOURS.len()]
}

/// Text of so many pixels.
pub fn font(size_px: u32) -> TextStyle<'static> {
    (FONT, size_px).into_font().color(&INK)
}

/// Text of so many pixels whose position is this end of its middle line.
pub fn anchored(size_px: u32, end: HPos) -> TextStyle<'static> {
    font(size_px).pos(Pos::new(end, VPos::Center))
}

/// Writes `words` with the left upper corner at `at`.
pub fn text(area: &Area<'_>, words: impl Into<String>, at: (i32, i32), size_px: u32) -> Drawn {
    Ok(area.draw(&Text::new(words.into(), at, font(size_px)))?)
}

/// An SVG document of that width and height on a white ground.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn svg(size_px: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, String> {
    let mut document = String::new();
    {
        let root = SVGBackend::with_string(&mut document, size_px).into_drawing_area();
        let drawn = root.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&root));
        drawn.and_then(|()| Ok(root.present()?)).map_err(|error| format!("cannot draw the picture: {error}"))?;
    }
    Ok(document)
}

/// Axes with their labels and pale horizontal lines.
pub struct Axes<'f> {
    /// First and last x.
    pub x: Range<f64>,
    /// First and last y.
    pub y: Range<f64>,
    /// Meaning of x, with its unit.
    pub x_label: &'f str,
    /// Meaning of y, with its unit.
    pub y_label: &'f str,
    /// Room for the labels below and on the left.
    pub room_px: (u32, u32),
    /// Height of the labels' font.
    pub font_px: u32,
    /// Labels at most, of x and of y.
    pub ticks: (usize, usize),
    /// A part with another ground.
    pub shaded_x: Option<Range<f64>>,
    /// A place on the x axis as text.
    pub x_text: &'f dyn Fn(&f64) -> String,
    /// A place on the y axis as text.
    pub y_text: &'f dyn Fn(&f64) -> String,
}

impl Axes<'_> {
    /// Draws them into what `chart` has of an area.
    ///
    /// # Errors
    /// See [`Drawn`].
    pub fn draw<'a, 'b>(&self, mut chart: ChartBuilder<'a, 'b, SVGBackend<'b>>) -> Drawn<Chart<'a, 'b>> {
        let mut chart = chart
            .x_label_area_size(self.room_px.0)
            .y_label_area_size(self.room_px.1)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        if let Some(Range { start, end }) = self.shaded_x {
            chart.draw_series([Rectangle::new([(start, self.y.start), (end, self.y.end)], SHADE.filled())])?;
        }
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE.mix(0.0))
            .bold_line_style(INK.mix(0.12))
            .axis_style(INK.mix(0.5))
            .x_desc(self.x_label)
            .y_desc(self.y_label)
            .axis_desc_style(font(self.font_px))
            .label_style(font(self.font_px))
            .x_labels(self.ticks.0)
            .y_labels(self.ticks.1)
            .x_label_formatter(self.x_text)
            .y_label_formatter(self.y_text)
            .draw()?;
        Ok(chart)
    }
}

/// Mark before a name in a legend.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mark {
    /// A stretch of a curve.
    Line(RGBColor),
    /// A stretch of a dashed curve.
    Dashes(RGBColor),
    /// A box.
    Bar(RGBAColor),
    /// The line across a bar at a value from another source.
    Across,
    /// The cross at such a value beside a curve.
    Cross,
}

/// Where the entries of a legend go in a part of that width, and the height of all.
fn legend_places(width_px: u32, entries: &[(Mark, String)]) -> (Vec<(i32, i32)>, i32) {
    let (mut x, mut y) = (10.0, 0);
    let mut place = |(_, name): &(Mark, String)| {
        let wide = 34.0 + LETTER_PX * name.chars().count() as f64;
        if x + wide > f64::from(width_px) && x > 10.0 {
            (x, y) = (10.0, y + LEGEND_LINE_PX);
        }
        let at = (x as i32, y);
        x += wide;
        at
    };
    let places = entries.iter().map(&mut place).collect();
    (places, y + LEGEND_LINE_PX)
}

/// Height of a legend in a part of that width.
pub fn legend_px(width_px: u32, entries: &[(Mark, String)]) -> i32 {
    legend_places(width_px, entries).1
}

/// Draws marks and names from `top_px` on, in as many lines as they need; returns their height.
///
/// # Errors
/// See [`Drawn`].
pub fn legend(area: &Area<'_>, top_px: i32, entries: &[(Mark, String)]) -> Drawn<i32> {
    let (places, height_px) = legend_places(area.dim_in_pixel().0, entries);
    for ((mark, name), (left, y)) in entries.iter().zip(places) {
        let middle = top_px + y + 7;
        let line = |from: i32, to: i32, style: ShapeStyle| {
            area.draw(&PathElement::new([(left + from, middle), (left + to, middle)], style))
        };
        match *mark {
            Mark::Line(colour) => line(0, 20, colour.stroke_width(2))?,
            Mark::Dashes(colour) => {
                for from in (0..20).step_by(7) {
                    line(from, from + 4, colour.stroke_width(2))?;
                }
            }
            Mark::Bar(colour) => {
                area.draw(&Rectangle::new([(left + 4, middle - 5), (left + 18, middle + 5)], colour.filled()))?;
            }
            Mark::Across => line(2, 20, BLACK.stroke_width(3))?,
            Mark::Cross => area.draw(&Cross::new((left + 11, middle), 4, INK.stroke_width(2)))?,
        }
        text(area, name, (left + 24, top_px + y), 12)?;
    }
    Ok(height_px)
}

/// A number with as many digits as say something.
pub fn plain(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        large if large >= 1e6 && large % 1e5 == 0.0 => format!("{}M", number / 1e6),
        large if large >= 100.0 => format!("{number:.0}"),
        large if large >= 10.0 => format!("{number:.1}"),
        large if large < 0.01 => format!("{number:.1e}"),
        _ => format!("{number:.2}"),
    }
}
