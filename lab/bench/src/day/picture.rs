//! A day as a picture, drawn from its record.
//!
//! Answers: what did each class of tenants get in each phase, and what was its own? Received is a line and entitled the
//! dashes of its colour, as on the page of a server. Below, the machine: throughput and memory.

use mqfq_report::panel::{Along, Panel, Series, render};
use serde_json::Value;
use std::path::Path;

/// The classes of tenants, by what happens to them in the phases.
const CLASSES: [&str; 4] = ["0", "1: weight 300 once reweighted", "2: capped once", "3: half of it leaves"];

/// Draws the record in `json` to `svg`.
///
/// # Errors
/// One sentence: a file that cannot be read or written, or is not a record of a day.
pub fn draw(json: &Path, svg: &Path) -> Result<(), String> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(json).map_err(|error| failed(json, &error))?;
    let day: Value = serde_json::from_str(&text).map_err(|error| failed(json, &error))?;
    let picture = picture(&day).map_err(|error| failed(json, &error))?;
    std::fs::write(svg, picture).map_err(|error| failed(svg, &error))
}

fn picture(day: &Value) -> Result<String, String> {
    let phases = day["phases"].as_array().filter(|phases| !phases.is_empty()).ok_or("it has no phases")?;
    let names: Vec<String> = phases.iter().filter_map(|phase| phase["phase"].as_str().map(str::to_owned)).collect();
    let along = || Along::Places(names.clone());
    let number =
        |value: &Value| value.as_f64().ok_or_else(|| "a number is missing, an older record has none".to_owned());
    let of_class = |key: &str, class: usize| {
        let at = |(phase, value): (usize, &Value)| Ok((phase as f64, 100.0 * number(&value[key][class])?));
        phases.iter().enumerate().map(at).collect::<Result<Vec<_>, String>>()
    };
    let mut shares = Vec::new();
    for (class, name) in CLASSES.iter().enumerate() {
        shares.push(Series::new(format!("class {name}"), class, of_class("class_part", class)?));
        let entitled = Series::new(format!("class {name}, entitled"), class, of_class("class_entitled", class)?);
        shares.push(Series { dashed: true, ..entitled });
    }
    let of_phase = |key: &str| {
        let at = |(phase, value): (usize, &Value)| Ok((phase as f64, number(&value[key])?));
        phases.iter().enumerate().map(at).collect::<Result<Vec<_>, String>>()
    };
    let throughput = Panel::bars_at("Throughput", names.clone(), "MB/s");
    let panels = [
        Panel::lines("Part of the bytes, by class", along(), "", "% of all").with(shares),
        throughput.with(vec![Series::new("all tenants", 0, of_phase("megabytes_per_s")?)]),
    ];
    render(&format!("A day of {} tenants, in {} s", day["tenants"], day["seconds"]), &panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_record_becomes_a_picture_and_something_else_a_sentence() {
        let phase = |name: &str| {
            let part = json!([0.25, 0.25, 0.25, 0.25]);
            json!({ "phase": name, "class_part": part, "class_entitled": part, "megabytes_per_s": 270.0 })
        };
        let day = json!({ "tenants": 8, "seconds": 9, "phases": [phase("equal"), phase("capped")] });
        let svg = picture(&day).unwrap();
        for words in ["A day of 8 tenants, in 9 s", "equal", "capped", "class 2: capped once, entitled"] {
            assert!(svg.contains(words), "{words}");
        }
        assert_eq!(picture(&json!({})), Err("it has no phases".to_owned()));
        let older = json!({ "phases": [{ "phase": "equal" }] });
        assert_eq!(picture(&older), Err("a number is missing, an older record has none".to_owned()));
    }
}
