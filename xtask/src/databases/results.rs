//! Measurements as a table, a picture, and sentences on those that do not count.

use super::measured::{Sample, percentile};
use mqfq_report::panel::{Panel, Series, render_alike};
use mqfq_report::table::{Align, Table};
use std::collections::BTreeMap;

/// Settings in the order of rows and bars.
pub const SETTINGS: [&str; 3] = ["none", "mqfq", "goal"];

/// Medians over the rounds of a scene under a setting, of measurements that count.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    scene: &'static str,
    setting: &'static str,
    /// Rounds that count, and all.
    rounds: [usize; 2],
    per_s: f64,
    read_ms: [f64; 2],
    commit_ms: [f64; 2],
    /// Transactions and median commit over those alone under `none` in the same round.
    of_alone: [Option<f64>; 2],
    bulk_mb_per_s: Option<f64>,
    /// The neighbour over itself under `none` in the same round.
    of_none: Option<f64>,
    share: Option<f64>,
    /// Smallest and largest D.
    depth: Option<[u64; 2]>,
    window_bytes: Option<f64>,
    load: f64,
}

fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    (!values.is_empty()).then(|| percentile(&mut values, 0.5))
}

/// The scene in which the database of `scene` is alone.
fn alone(scene: &str) -> &'static str {
    if scene.starts_with("rocksdb") { "rocksdb" } else { "alone" }
}

/// Rows in the order of the measurements, without those of which none counts.
pub fn summary(samples: &[Sample]) -> Vec<Row> {
    let mut groups: BTreeMap<(usize, usize), Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        let scene = samples.iter().position(|first| first.scene == sample.scene);
        let setting = SETTINGS.iter().position(|name| *name == sample.setting);
        groups.entry((scene.unwrap_or(0), setting.unwrap_or(0))).or_default().push(sample);
    }
    let counted: BTreeMap<(u32, &str, &str), &Sample> = samples
        .iter()
        .filter(|sample| sample.cores.fault().is_none())
        .map(|sample| ((sample.round, sample.scene, sample.setting), sample))
        .collect();
    let row = |group: Vec<&Sample>| {
        let counts: Vec<&Sample> = group.iter().copied().filter(|sample| sample.cores.fault().is_none()).collect();
        let first = counts.first()?;
        let of = |value: &dyn Fn(&Sample) -> f64| median(counts.iter().map(|sample| value(sample))).unwrap_or(0.0);
        // Ratios are of one round: the machine was the same.
        let ratio = |scene: &str, value: &dyn Fn(&Sample) -> Option<f64>| {
            let over = |sample: &&Sample| Some(value(sample)? / value(counted.get(&(sample.round, scene, "none"))?)?);
            median(counts.iter().filter_map(over).filter(|ratio| ratio.is_finite()))
        };
        let has_alone = first.share.is_none();
        let alone = |value: &dyn Fn(&Sample) -> f64| {
            has_alone.then(|| ratio(alone(first.scene), &|sample| Some(value(sample)))).flatten()
        };
        let depths = || counts.iter().filter_map(|sample| sample.found.depth);
        Some(Row {
            scene: first.scene,
            setting: first.setting,
            rounds: [counts.len(), group.len()],
            per_s: of(&|sample| sample.statements.per_s),
            read_ms: [0, 1].map(|at| of(&|sample| sample.statements.read_ms[at])),
            commit_ms: [0, 1].map(|at| of(&|sample| sample.statements.commit_ms[at])),
            of_alone: [alone(&|sample| sample.statements.per_s), alone(&|sample| sample.statements.commit_ms[0])],
            bulk_mb_per_s: median(counts.iter().filter_map(|sample| sample.bulk_mb_per_s)),
            of_none: ratio(first.scene, &|sample| sample.bulk_mb_per_s),
            share: median(counts.iter().filter_map(|sample| sample.share)),
            depth: depths().min().zip(depths().max()).map(|(min, max)| [min, max]),
            window_bytes: median(counts.iter().filter_map(|sample| sample.found.window_bytes.map(|it| it as f64))),
            load: of(&|sample| sample.load),
        })
    };
    groups.into_values().filter_map(row).collect()
}

/// Three decimals below 1, two below 10, one above.
fn number(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or("-".into(), number)
}

/// The table, and a sentence for each scene and setting of which measurements do not count.
pub fn text(rows: &[Row], samples: &[Sample]) -> String {
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        ("scene", Align::Left),
        ("setting", Align::Left),
        right("rounds"),
        right("1/s"),
        right("of alone"),
        right("read p50, ms"),
        right("p99"),
        right("commit p50, ms"),
        right("p99"),
        right("times alone"),
        right("bulk, MB/s"),
        right("of none"),
        right("share"),
        right("D"),
        right("T, KiB"),
        right("load"),
    ]);
    for row in rows {
        let depth = match row.depth {
            Some([min, max]) if min == max => min.to_string(),
            Some([min, max]) => format!("{min}-{max}"),
            None => "-".into(),
        };
        table.row(vec![
            row.scene.into(),
            row.setting.into(),
            if row.rounds[0] == row.rounds[1] {
                row.rounds[0].to_string()
            } else {
                format!("{} of {}", row.rounds[0], row.rounds[1])
            },
            number(row.per_s),
            or_dash(row.of_alone[0]),
            number(row.read_ms[0]),
            number(row.read_ms[1]),
            number(row.commit_ms[0]),
            number(row.commit_ms[1]),
            or_dash(row.of_alone[1]),
            or_dash(row.bulk_mb_per_s),
            or_dash(row.of_none),
            or_dash(row.share),
            depth,
            row.window_bytes.map_or("-".into(), |bytes| number(bytes / 1024.0)),
            number(row.load),
        ]);
    }
    let mut text = if table.has_rows() { table.render() } else { String::new() };
    let mut faults: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
    for sample in samples {
        if let Some(fault) = sample.cores.fault() {
            let (count, last) = faults.entry((sample.scene, sample.setting)).or_default();
            (*count, *last) = (*count + 1, fault);
        }
    }
    for ((scene, setting), (count, fault)) in faults {
        text += &format!("left out: {scene}, {setting} ({count} times): {fault}\n");
    }
    if rows.is_empty() {
        text += "no measurement counts; try again when nothing else runs\n";
    }
    text
}

/// One measurement as it comes.
pub fn line(sample: &Sample) -> String {
    let statements = sample.statements;
    let bulk = sample.bulk_mb_per_s.map_or(String::new(), |bulk| format!(", bulk {} MB/s", number(bulk)));
    let share = sample.share.map_or(String::new(), |share| format!(", share {share:.2}"));
    let depth = sample.found.depth.map_or(String::new(), |depth| format!(", D {depth}"));
    let fault = sample.cores.fault().map_or(String::new(), |fault| format!("; left out: {fault}"));
    format!(
        "{}/s, read {} ms, commit {} ms{bulk}{share}{depth}, cores {:.0}% idle, load {}{fault}",
        number(statements.per_s),
        number(statements.read_ms[0]),
        number(statements.commit_ms[0]),
        sample.cores.idle * 100.0,
        number(sample.load)
    )
}

/// Bars of rates, commits and neighbours. `None`: no measurement counts.
///
/// # Errors
/// One sentence if it cannot be drawn.
pub fn picture(rows: &[Row], goal: &str) -> Result<Option<String>, String> {
    if rows.is_empty() {
        return Ok(None);
    }
    let mut places: Vec<&str> = rows.iter().map(|row| row.scene).collect();
    places.dedup();
    let panel = |title: &str, unit: &str, value: &dyn Fn(&Row) -> Option<f64>| {
        let of = |(at, setting): (usize, &&str)| {
            let rows = rows.iter().filter(|row| row.setting == *setting);
            let place = |row: &Row| places.iter().position(|place| *place == row.scene).unwrap_or(0) as f64;
            let name = if *setting == "goal" { format!("mqfq, goal {goal}") } else { setting.to_string() };
            Series::new(name, at, rows.filter_map(|row| Some((place(row), value(row)?))))
        };
        let names = places.iter().map(ToString::to_string).collect();
        Panel::bars_at(title, names, unit).with(SETTINGS.iter().enumerate().map(of).collect())
    };
    let panels = [
        panel("Transactions", "per second", &|row| Some(row.per_s)),
        panel("A commit, median", "ms", &|row| Some(row.commit_ms[0])),
        panel("The neighbour", "MB/s", &|row| row.bulk_mb_per_s),
    ];
    let title = format!("Databases beside neighbours, {}", super::PRESET);
    render_alike(&title, 1, (1180, 330), &panels).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::measured::{Cores, Found};
    use super::super::postgres::Statements;
    use super::*;

    fn sample(round: u32, scene: &'static str, setting: &'static str, per_s: f64, bulk: Option<f64>) -> Sample {
        Sample {
            round,
            scene,
            setting,
            statements: Statements { per_s, read_ms: [1.0, 2.0], commit_ms: [1000.0 / per_s, 9.0] },
            bulk_mb_per_s: bulk,
            found: Found { depth: (setting != "none").then_some(100 + u64::from(round)), ..Found::default() },
            cores: Cores { idle: 0.5, ..Cores::default() },
            ..Sample::default()
        }
    }

    fn samples() -> Vec<Sample> {
        let mut samples = Vec::new();
        for (round, alone) in [(1, 500.0), (2, 1000.0), (3, 800.0)] {
            samples.push(sample(round, "alone", "none", alone, None));
            samples.push(sample(round, "reads", "none", alone / 10.0, Some(350.0)));
            samples.push(sample(round, "reads", "mqfq", alone / 2.0, Some(315.0)));
        }
        samples
    }

    #[test]
    fn ratios_are_of_one_round_and_figures_are_medians() {
        let rows = summary(&samples());
        assert_eq!(
            rows.iter().map(|row| (row.scene, row.setting)).collect::<Vec<_>>(),
            [("alone", "none"), ("reads", "none"), ("reads", "mqfq")]
        );
        let mqfq = &rows[2];
        assert_eq!((mqfq.per_s, mqfq.of_alone), (400.0, [Some(0.5), Some(2.0)]));
        assert_eq!((mqfq.bulk_mb_per_s, mqfq.of_none, mqfq.depth), (Some(315.0), Some(0.9), Some([101, 103])));
        assert_eq!((rows[0].of_none, rows[0].depth, rows[0].rounds), (None, None, [3, 3]));
    }

    #[test]
    fn what_the_cores_limited_is_left_out_and_said() {
        let mut samples = samples();
        samples[2].cores.idle = 0.01;
        let text = text(&summary(&samples), &samples);
        let row = text.lines().find(|line| line.starts_with("reads  mqfq")).unwrap();
        assert!(row.contains("2 of 3") && row.contains("102-103"), "{row}");
        assert!(
            text.ends_with("needed\n") && text.contains("left out: reads, mqfq (1 times): the cores were"),
            "{text}"
        );
        assert!(line(&samples[2]).contains("left out: the cores"), "{}", line(&samples[2]));
    }

    #[test]
    fn where_no_measurement_counts_nothing_is_drawn() {
        let mut samples = samples();
        samples.iter_mut().for_each(|sample| sample.cores.waited = 0.5);
        let rows = summary(&samples);
        assert_eq!(picture(&rows, "2ms"), Ok(None));
        assert!(text(&rows, &samples).ends_with("try again when nothing else runs\n"));
    }

    #[test]
    fn the_picture_has_each_scene_and_setting() {
        let picture = picture(&summary(&samples()), "2ms").unwrap().unwrap();
        for part in ["alone", "reads", "none", "mqfq, goal 2ms", "A commit, median"] {
            assert!(picture.contains(part), "{part}");
        }
    }
}
