//! A figure's file: TOML in, a checked [`Figure`] with its jobs out, or one sentence.
//!
//! Keys at the root (`[scenario]`, `[x]`, `[metric]`, `[[series]]`) are the beginning of each panel; a panel sets its
//! own on top, and its series or its x replace the root's. A file without `[[panel]]` has one panel, called `main`.
//! docs/lab/simulator.md has an example.
//!
//! | section | keys |
//! |---|---|
//! | `[figure]` | `title`, `source`; `note`; and for all panels `kind` (`"lines"`, the default, or `"bars"`), `x-label`, `y-label`, `log-x` (base 2), `log-y`, `ideal` (a dashed line at this height) |
//! | `[scenario]` | a whole scenario, or the part that the panels have in common |
//! | `[x]` | `keys` and `values`; or `[[x.point]]` with `x` and `set`; or `windows`, or `percentiles`, of one run: below. `keys` is one key, a list of keys that get the same value, or a table of keys with a factor for the value |
//! | `[metric]` | `name`; `tenant` or `program`; `scale` (multiplies); `alone` (keys of the run alone, for `slowdown` and `of-due`); `baseline` (keys of the run that `speedup`, `relative-time` and `weighted-speedup` compare with) |
//! | `[[series]]` | `name`; `set`; `metric` (its own keys of it); `like` (drawn dashed in the colour of that series); `text = true` (a number above the bars) |
//! | `[[panel]]` | `name`; `title`; all keys of axes as in `[figure]`; its own `scenario` (set over the file's), `x`, `metric`, `series` |
//! | `[[paper]]` | `panel`, `series`, `x`, `y`, `where` |
//! | `[[claim]]` | `what`; `of`, `over`; `each`; `at-least`, `at-most` or `equals`; `tolerance`; `reason`; `paper`, `where`; `not-held-because` |
//! | `[quick]` | `set`: keys of the scenario in the quick extent |
//!
//! `quick` is also a key: in `[x]` the list of values that stay; in a point, series, panel or claim `quick = false`
//! leaves it out.
//!
//! * **Setting keys.** `set` names keys with dots (`"tenant.fio.count" = 4`). The point is set over the panel, the
//!   series over the point, `[quick]` over all. The value `"default"` removes a key.
//! * **Over time.** `x = { windows = "10ms" }` gives a point for each window of one run (it sets `run.windows`), in
//!   seconds from the start. Metrics: `requests-per-s`, `bytes-per-s`, `of-ideal` and `high-low-ratio`. A claim
//!   chooses windows with `from` and `to`.
//! * **Over percentiles.** `x = { percentiles = [50, 99, 99.9, 100] }` gives a tenant's latencies in one run; 100 is
//!   the longest. The metric is `latency-ns`.
//! * **Claims.** The value is `of` over `over`, each reduced to one number (`reduce`: `"mean"`, the default, `"min"`
//!   or `"max"`) over the panels, series and x that it names, at or after `from` and before `to`. `each = true` takes
//!   each x by itself, and the worst counts. `tolerance` is the part of a limit by which it may be missed; `reason`
//!   justifies both. A claim with `not-held-because` is known not to hold, and is an error if it holds.
//! * **The paper's numbers** are those of its text, with the place, never read off a picture.

use super::claim::{Claim, Operand, Reduce};
use super::keys::{Keys, split};
use super::metric::{Kind, Metric, OF_WINDOWS, PERCENTILE, PERCENTILES, Whose, kinds};
use super::{Axis, Check, Extent, Figure, Panel, PaperPoint, Point, Series, Shape, X};
use mqfq_config::{ConfigError, Entry, Section, Source, SourceLocation};
use toml::Value;

const ROOT: &[&str] = &["figure", "scenario", "x", "metric", "series", "panel", "paper", "claim", "quick"];
const FIGURE: &[&str] = &["title", "source", "note", "kind", "x-label", "y-label", "log-x", "log-y", "ideal"];
const PANEL: &[&str] = &[
    "name", "title", "kind", "x-label", "y-label", "log-x", "log-y", "ideal", "scenario", "x", "metric", "series",
    "quick",
];
const X_AXIS: &[&str] = &["keys", "values", "quick", "point", "windows", "percentiles"];
const POINT: &[&str] = &["x", "set", "quick"];
const METRIC: &[&str] = &["name", "tenant", "program", "alone", "baseline", "scale"];
const SERIES: &[&str] = &["name", "set", "metric", "like", "text", "quick"];
const PAPER: &[&str] = &["panel", "series", "x", "y", "where"];
const CLAIM: &[&str] = &[
    "what",
    "of",
    "over",
    "each",
    "at-least",
    "at-most",
    "equals",
    "tolerance",
    "reason",
    "paper",
    "where",
    "not-held-because",
    "quick",
];
const OPERAND: &[&str] = &["panel", "series", "x", "from", "to", "reduce"];

/// Any number that a figure may state.
const NUMBERS: std::ops::RangeInclusive<f64> = 0.0..=1e15;

impl Figure {
    /// Reads `text`; `file` is its name for errors, `id` what users call the figure. `check` reads each scenario that
    /// comes of it.
    ///
    /// # Errors
    /// A key that is unknown, missing or of the wrong type, a name that nothing has, or a scenario that `check`
    /// refuses.
    pub fn read(id: &str, file: &str, text: &str, extent: Extent, check: Check<'_>) -> Result<Figure, ConfigError> {
        let source = Source::new(file, text);
        let root = source.parse()?;
        let root = Section::root(&source, root.get_ref(), ROOT)?;
        let head = root.require("figure", "a table with title and source")?.table(FIGURE)?;
        let panels = panels(&root, &head)?;
        let mut figure = Figure {
            id: id.into(),
            title: head.require("title", "one line")?.text("one line")?,
            source: head.require("source", "which paper and where")?.text("which paper and where")?,
            note: head.get("note").map(|note| note.text("a text")).transpose()?,
            extent,
            paper: paper(&root, &panels)?,
            claims: claims(&root, &panels)?,
            panels,
            jobs: Vec::new(),
            cells: Vec::new(),
        };
        figure.claims.retain(|claim| claim.quick || extent == Extent::Full);
        let mut last = Keys::default();
        if let Some(quick) = root.get("quick") {
            let quick = quick.table(&["set"])?;
            let set = Keys::read(&quick.require("set", "a table of the scenario's keys")?, true)?;
            if extent == Extent::Quick {
                last = set;
            }
        }
        figure.expand(file, &last, check)?;
        Ok(figure)
    }
}

/// Beginning of a panel.
#[derive(Default)]
struct Common {
    scenario: Keys,
    points: Option<(Axis, Vec<Point>)>,
    metric: PartialMetric,
    series: Option<Vec<PartialSeries>>,
    shape: Option<Shape>,
    x_label: Option<String>,
    y_label: Option<String>,
    log_x: bool,
    log_y: bool,
    ideal: Option<f64>,
}

impl Common {
    /// Returns these with the keys of `axes` and `content` on top. For a panel both are its own section.
    fn with(&self, axes: &Section<'_, '_>, content: &Section<'_, '_>) -> Result<Common, ConfigError> {
        let text = |key, default: &Option<String>| match axes.get(key) {
            Some(entry) => Ok(Some(entry.text("a text")?)),
            None => Ok(default.clone()),
        };
        let flag = |key, default| axes.get(key).map_or(Ok(default), |entry: Entry<'_, '_>| entry.flag());
        let shape = match axes.get("kind") {
            Some(kind) if kind.choice(&["lines", "bars"])? == "bars" => Some(Shape::Bars),
            Some(_) => Some(Shape::Lines),
            None => self.shape,
        };
        let scenario = content.get("scenario").map(|entry| Keys::read(&entry, false)).transpose()?;
        Ok(Common {
            scenario: scenario.map_or_else(|| self.scenario.clone(), |own| self.scenario.with(&own)),
            points: content.get("x").map(|x| x_axis(&x)).transpose()?.or_else(|| self.points.clone()),
            metric: match content.get("metric") {
                Some(metric) => self.metric.with(&metric)?,
                None => self.metric.clone(),
            },
            series: match content.get("series") {
                Some(series) => Some(all_series(&series)?),
                None => self.series.clone(),
            },
            shape,
            x_label: text("x-label", &self.x_label)?,
            y_label: text("y-label", &self.y_label)?,
            log_x: flag("log-x", self.log_x)?,
            log_y: flag("log-y", self.log_y)?,
            ideal: axes.get("ideal").map(|ideal| ideal.decimal(NUMBERS)).transpose()?.or(self.ideal),
        })
    }

    fn panel(self, name: String, title: String, quick: bool, place: &SourceLocation) -> Result<Panel, ConfigError> {
        let missing = |key: &str, allowed: &str| {
            place
                .inside(key)
                .error(format!("this key is missing, for the panel or the whole figure, allowed is {allowed}"))
        };
        let points = self.points.filter(|(_, points)| !points.is_empty());
        let (axis, points) = points.ok_or_else(|| missing("x", "a table with keys and values, or with points"))?;
        let mut series: Vec<Series> = Vec::new();
        for partial in self.series.ok_or_else(|| missing("series", "a list of tables"))? {
            if series.iter().any(|known| known.name == partial.name) {
                return Err(partial.place.error(format!("there are two series \"{}\", allowed is one", partial.name)));
            }
            let place = partial.place.clone();
            let whole = partial.whole(&self.metric)?;
            fits(axis, &whole.metric, &place)?;
            series.push(whole);
        }
        for like in &series {
            if let Some(name) = &like.like
                && !series.iter().any(|known| known.name == *name)
            {
                let known = names(series.iter().map(|series| &series.name));
                return Err(like.place.error(format!("there is no series \"{name}\", there are {known}")));
            }
        }
        Ok(Panel {
            name,
            title,
            shape: self.shape.unwrap_or(Shape::Lines),
            x_label: self.x_label.unwrap_or_default(),
            y_label: self.y_label.ok_or_else(|| missing("y-label", "what y is, with its unit"))?,
            log_x: self.log_x,
            log_y: self.log_y,
            ideal: self.ideal,
            axis,
            points,
            series,
            base: self.scenario,
            quick,
        })
    }
}

fn panels(root: &Section<'_, '_>, head: &Section<'_, '_>) -> Result<Vec<Panel>, ConfigError> {
    let common = Common::default().with(head, root)?;
    let Some(list) = root.get("panel") else {
        let title = head.require("title", "one line")?.text("one line")?;
        return Ok(vec![common.panel("main".into(), title, true, head.place())?]);
    };
    let mut panels: Vec<Panel> = Vec::new();
    for entry in list.items("a list of tables")? {
        let section = entry.table(PANEL)?;
        let name = section.require("name", "a name")?.text("a name")?;
        if panels.iter().any(|panel| panel.name == name) {
            return Err(entry.place().error(format!("there are two panels \"{name}\", allowed is one")));
        }
        let title = section.get("title").map(|title| title.text("one line")).transpose()?;
        let quick = section.get("quick").map_or(Ok(true), |quick| quick.flag())?;
        let common = common.with(&section, &section)?;
        panels.push(common.panel(name.clone(), title.unwrap_or(name), quick, &entry.place())?);
    }
    Ok(panels)
}

/// The metric can be told over such an axis.
fn fits(axis: Axis, metric: &Metric, place: &SourceLocation) -> Result<(), ConfigError> {
    let name = metric.kind.name;
    match axis {
        Axis::Time if !OF_WINDOWS.contains(&name) => Err(place.error(format!(
            "the metric {name} is not told of a part of a run, allowed with x.windows are {}",
            OF_WINDOWS.join(", ")
        ))),
        Axis::Percentiles if name != PERCENTILE => {
            Err(place.error(format!("the metric {name} has no percentiles, allowed with x.percentiles is latency-ns")))
        }
        Axis::Scenarios if name == PERCENTILE => {
            Err(place.error("the metric latency-ns is that of a percentile, allowed is it with x.percentiles"))
        }
        _ => Ok(()),
    }
}

/// `[x]`: scenarios, or the time or the percentiles of one.
fn x_axis(entry: &Entry<'_, '_>) -> Result<(Axis, Vec<Point>), ConfigError> {
    let section = entry.table(X_AXIS)?;
    if let Some(windows) = section.get("windows") {
        let mut set = Keys::default();
        set.set(split("run.windows"), windows.value()?, windows.place());
        return Ok((Axis::Time, vec![Point { x: X::Number(0.0), set, quick: true }]));
    }
    if let Some(list) = section.get("percentiles") {
        let point = |entry: &Entry<'_, '_>| {
            let percent = entry.decimal(0.0..=100.0)?;
            if !PERCENTILES.contains(&percent) {
                let known = PERCENTILES.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
                return Err(entry.place().error(format!("{percent} is not kept, allowed are {known}")));
            }
            Ok(Point { x: X::Number(percent), set: Keys::default(), quick: true })
        };
        let points = list.items_or_one().iter().map(point).collect::<Result<_, _>>()?;
        return Ok((Axis::Percentiles, points));
    }
    Ok((Axis::Scenarios, points(&section)?))
}

/// Points one by one, or values of keys.
fn points(section: &Section<'_, '_>) -> Result<Vec<Point>, ConfigError> {
    let mut points = Vec::new();
    if let Some(list) = section.get("point") {
        for entry in list.items("a list of tables with x and set")? {
            let point = entry.table(POINT)?;
            points.push(Point {
                x: x(&point.require("x", "a number or a name")?)?,
                set: point.get("set").map_or_else(|| Ok(Keys::default()), |set| Keys::read(&set, true))?,
                quick: point.get("quick").map_or(Ok(true), |quick| quick.flag())?,
            });
        }
        return Ok(points);
    }
    let keys_entry =
        section.require("keys", "a key of the scenario, a list of keys, or a table of keys with factors")?;
    let keys = factors(&keys_entry)?;
    let values = section.require("values", "a list of numbers or names")?;
    let quick = match section.get("quick") {
        Some(quick) => Some(quick.items_or_one().iter().map(x).collect::<Result<Vec<_>, _>>()?),
        None => None,
    };
    for entry in values.items_or_one() {
        let x = x(&entry)?;
        let mut set = Keys::default();
        for (path, factor) in &keys {
            set.set(split(path), scaled(&entry, *factor)?, entry.place());
        }
        points.push(Point { quick: quick.as_ref().is_none_or(|quick| quick.contains(&x)), x, set });
    }
    if let Some(stray) = quick.iter().flatten().find(|quick| !points.iter().any(|point| point.x == **quick)) {
        return Err(section.place().inside("quick").error(format!("{stray} is not among the values")));
    }
    Ok(points)
}

/// The keys that a value sets, each with what the value is multiplied by.
fn factors(entry: &Entry<'_, '_>) -> Result<Vec<(String, f64)>, ConfigError> {
    if entry.value()?.is_table() {
        let pairs = entry.pairs("a table of keys with factors")?;
        return pairs.into_iter().map(|(key, factor)| Ok((key, factor.decimal(NUMBERS)?))).collect();
    }
    Ok(entry.texts("a key of the scenario or a list of keys")?.into_iter().map(|key| (key, 1.0)).collect())
}

fn scaled(entry: &Entry<'_, '_>, factor: f64) -> Result<Value, ConfigError> {
    let value = entry.value()?;
    let number = match &value {
        Value::Integer(number) => *number as f64 * factor,
        Value::Float(number) => *number * factor,
        _ => return Ok(value),
    };
    Ok(if number.fract() == 0.0 && value.is_integer() { Value::Integer(number as i64) } else { Value::Float(number) })
}

/// A place on the x axis.
fn x(entry: &Entry<'_, '_>) -> Result<X, ConfigError> {
    match entry.value()? {
        Value::Integer(number) => Ok(X::Number(number as f64)),
        Value::Float(number) => Ok(X::Number(number)),
        Value::String(label) => Ok(X::Label(label)),
        _ => Err(entry.place().error("this does not fit here, allowed is a number or a name")),
    }
}

/// A metric of which a part may be said elsewhere.
#[derive(Clone, Default)]
struct PartialMetric {
    kind: Option<&'static Kind>,
    tenant: Option<String>,
    program: Option<String>,
    alone: Keys,
    baseline: Keys,
    scale: Option<f64>,
}

impl PartialMetric {
    fn with(&self, entry: &Entry<'_, '_>) -> Result<PartialMetric, ConfigError> {
        let section = entry.table(METRIC)?;
        let mut metric = self.clone();
        if let Some(name) = section.get("name") {
            let name = name.choice(&kinds().map(|kind| kind.name).collect::<Vec<_>>())?;
            metric.kind = kinds().find(|kind| kind.name == name);
        }
        if let Some(tenant) = section.get("tenant") {
            metric.tenant = Some(tenant.text("the name of a tenant")?);
        }
        if let Some(program) = section.get("program") {
            metric.program = Some(program.text("the name of a program")?);
        }
        if let Some(alone) = section.get("alone") {
            metric.alone = Keys::read(&alone, true)?;
        }
        if let Some(baseline) = section.get("baseline") {
            metric.baseline = Keys::read(&baseline, true)?;
        }
        if let Some(scale) = section.get("scale") {
            metric.scale = Some(scale.decimal(NUMBERS)?);
        }
        Ok(metric)
    }

    fn whole(&self, place: &SourceLocation) -> Result<Metric, ConfigError> {
        let names = || kinds().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
        let missing = || place.inside("metric.name").error(format!("this key is missing, allowed is {}", names()));
        let kind = self.kind.ok_or_else(missing)?;
        let name = kind.name;
        let (section, own, stranger, other) = match kind.section() {
            "program" => ("program", &self.program, "tenant", &self.tenant),
            _ => ("tenant", &self.tenant, "program", &self.program),
        };
        if let Some(other) = other {
            let message = format!("the metric {name} is that of a {section}, and \"{other}\" is named as a {stranger}");
            return Err(place.error(message));
        }
        match (kind.whose, own) {
            (Whose::Tenant, None) => Err(place.error(format!("the metric {name} needs a {section}, none is named"))),
            (Whose::All, Some(own)) => {
                Err(place.error(format!("the metric {name} is the whole run's and not that of \"{own}\"")))
            }
            _ => Ok(Metric {
                kind,
                member: own.clone(),
                alone: self.alone.clone(),
                baseline: self.baseline.clone(),
                scale: self.scale.unwrap_or(1.0),
            }),
        }
    }
}

/// A series whose metric may be said elsewhere.
#[derive(Clone)]
struct PartialSeries {
    name: String,
    set: Keys,
    metric: Option<PartialMetric>,
    like: Option<String>,
    as_text: bool,
    quick: bool,
    place: SourceLocation,
}

impl PartialSeries {
    fn whole(self, common: &PartialMetric) -> Result<Series, ConfigError> {
        let metric = match self.metric {
            None => common.clone(),
            Some(own) => {
                let name = |metric: &PartialMetric| metric.kind.map(|kind| kind.name);
                let same_kind = own.kind.is_none() || name(&own) == name(common);
                PartialMetric {
                    kind: own.kind.or(common.kind),
                    // Another metric may be one that no tenant has.
                    tenant: own.tenant.or_else(|| common.tenant.clone().filter(|_| same_kind)),
                    program: own.program.or_else(|| common.program.clone().filter(|_| same_kind)),
                    alone: common.alone.with(&own.alone),
                    baseline: common.baseline.with(&own.baseline),
                    scale: own.scale.or(common.scale.filter(|_| same_kind)),
                }
            }
        };
        Ok(Series {
            metric: metric.whole(&self.place)?,
            name: self.name,
            set: self.set,
            like: self.like,
            as_text: self.as_text,
            quick: self.quick,
            place: self.place,
        })
    }
}

fn all_series(list: &Entry<'_, '_>) -> Result<Vec<PartialSeries>, ConfigError> {
    let one = |entry: &Entry<'_, '_>| {
        let section = entry.table(SERIES)?;
        let metric = section.get("metric").map(|metric| PartialMetric::default().with(&metric));
        Ok(PartialSeries {
            name: section.require("name", "a name")?.text("a name")?,
            set: section.get("set").map_or_else(|| Ok(Keys::default()), |set| Keys::read(&set, true))?,
            metric: metric.transpose()?,
            like: section.get("like").map(|like| like.text("the name of another series")).transpose()?,
            as_text: section.get("text").map_or(Ok(false), |text| text.flag())?,
            quick: section.get("quick").map_or(Ok(true), |quick| quick.flag())?,
            place: entry.place(),
        })
    };
    list.items("a list of tables")?.iter().map(one).collect()
}

fn paper(root: &Section<'_, '_>, panels: &[Panel]) -> Result<Vec<PaperPoint>, ConfigError> {
    let Some(list) = root.get("paper") else { return Ok(Vec::new()) };
    let one = |entry: &Entry<'_, '_>| {
        let section = entry.table(PAPER)?;
        let panel = panel_names(section.get("panel"), panels, &entry.place())?;
        let [panel] = &panel[..] else { return Err(entry.place().error("a point is in one panel")) };
        let panel = panels.iter().find(|known| known.name == *panel).expect("a known name");
        let series = section.require("series", "the name of a series")?;
        let series = known_series(&series, &series.text("the name of a series")?, &[panel])?;
        let x_entry = section.require("x", "one of the panel's x")?;
        let x = known_x(&x_entry, &[panel])?;
        section.require("where", "where in the paper it stands")?.text("where in the paper it stands")?;
        let y = section.require("y", "a number")?.decimal(NUMBERS)?;
        Ok(PaperPoint { panel: panel.name.clone(), series, x, y })
    };
    list.items("a list of tables")?.iter().map(one).collect()
}

fn claims(root: &Section<'_, '_>, panels: &[Panel]) -> Result<Vec<Claim>, ConfigError> {
    let Some(list) = root.get("claim") else { return Ok(Vec::new()) };
    list.items("a list of tables")?.iter().map(|entry| claim(entry, panels)).collect()
}

fn claim(entry: &Entry<'_, '_>, panels: &[Panel]) -> Result<Claim, ConfigError> {
    let section = entry.table(CLAIM)?;
    let text = |key, allowed: &str| section.require(key, allowed)?.text(allowed);
    let optional = |key| section.get(key).map(|entry: Entry<'_, '_>| entry.text("a text")).transpose();
    let decimal = |key| section.get(key).map(|entry: Entry<'_, '_>| entry.decimal(NUMBERS)).transpose();
    let flag = |key, default| section.get(key).map_or(Ok(default), |entry: Entry<'_, '_>| entry.flag());
    let equals = decimal("equals")?;
    let (at_least, at_most) = (decimal("at-least")?, decimal("at-most")?);
    if equals.is_some() == (at_least.is_some() || at_most.is_some()) {
        return Err(entry.place().error("a claim has at-least, at-most or both, or equals alone"));
    }
    let (paper, paper_where) = (decimal("paper")?, optional("where")?);
    if paper.is_some() != paper_where.is_some() {
        return Err(entry.place().error("paper and where come together: a number and where it was read"));
    }
    Ok(Claim {
        what: text("what", "one sentence")?,
        of: operand(&section.require("of", "a table with series")?, panels)?,
        over: section.get("over").map(|over| operand(&over, panels)).transpose()?,
        each: flag("each", false)?,
        at_least: at_least.or(equals),
        at_most: at_most.or(equals),
        tolerance: section.get("tolerance").map_or(Ok(0.0), |tolerance| tolerance.decimal(0.0..=1.0))?,
        reason: text("reason", "why these limits and this tolerance")?,
        paper,
        paper_where,
        not_held_because: optional("not-held-because")?,
        quick: flag("quick", true)?,
    })
}

fn operand(entry: &Entry<'_, '_>, panels: &[Panel]) -> Result<Operand, ConfigError> {
    let section = entry.table(OPERAND)?;
    let names = panel_names(section.get("panel"), panels, &entry.place())?;
    let chosen: Vec<&Panel> = panels.iter().filter(|panel| names.contains(&panel.name)).collect();
    let series = section.require("series", "the name of a series, or a list")?;
    let series =
        series.texts("the name of a series, or a list")?.into_iter().map(|name| known_series(&series, &name, &chosen));
    let xs = match section.get("x") {
        Some(xs) => xs.items_or_one().iter().map(|x| known_x(x, &chosen)).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let reduce =
        match section.get("reduce").map(|reduce| reduce.choice(&["mean", "min", "max"])).transpose()?.as_deref() {
            Some("min") => Reduce::Min,
            Some("max") => Reduce::Max,
            _ => Reduce::Mean,
        };
    let number = |key| section.get(key).map(|entry: Entry<'_, '_>| entry.decimal(NUMBERS)).transpose();
    let (from, to) = (number("from")?, number("to")?);
    Ok(Operand { panels: names, series: series.collect::<Result<_, _>>()?, xs, from, to, reduce })
}

/// The panels that are named; the only one, if none is.
fn panel_names(
    entry: Option<Entry<'_, '_>>,
    panels: &[Panel],
    place: &SourceLocation,
) -> Result<Vec<String>, ConfigError> {
    let known = || names(panels.iter().map(|panel| &panel.name));
    let Some(entry) = entry else {
        return match panels {
            [only] => Ok(vec![only.name.clone()]),
            _ => Err(place.inside("panel").error(format!("this key is missing, allowed are {}", known()))),
        };
    };
    let chosen = entry.texts("the name of a panel, or a list")?;
    match chosen.iter().find(|name| !panels.iter().any(|panel| panel.name == **name)) {
        Some(stray) => Err(entry.place().error(format!("there is no panel \"{stray}\", there are {}", known()))),
        None => Ok(chosen),
    }
}

fn known_series(entry: &Entry<'_, '_>, name: &str, panels: &[&Panel]) -> Result<String, ConfigError> {
    let mut all = panels.iter().flat_map(|panel| &panel.series);
    if all.any(|series| series.name == name) {
        return Ok(name.into());
    }
    let mut known: Vec<&String> = panels.iter().flat_map(|panel| &panel.series).map(|series| &series.name).collect();
    known.dedup();
    Err(entry.place().error(format!("there is no series \"{name}\", there are {}", names(known.into_iter()))))
}

fn known_x(entry: &Entry<'_, '_>, panels: &[&Panel]) -> Result<X, ConfigError> {
    let x = x(entry)?;
    if panels.iter().any(|panel| panel.axis == Axis::Time) {
        return Err(entry.place().error("the windows of a run are not named one by one, allowed are from and to"));
    }
    if panels.iter().flat_map(|panel| &panel.points).any(|point| point.x == x) {
        return Ok(x);
    }
    let mut known: Vec<String> =
        panels.iter().flat_map(|panel| &panel.points).map(|point| point.x.to_string()).collect();
    known.dedup();
    Err(entry.place().error(format!("nothing is simulated at {x}, there are {}", names(known.iter()))))
}

fn names<'n>(all: impl Iterator<Item = &'n String>) -> String {
    all.map(String::as_str).collect::<Vec<_>>().join(", ")
}
