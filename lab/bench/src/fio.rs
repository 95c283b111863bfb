//! fio as a program: starting it, and the part of its JSON that all who use it read.

use serde_json::Value;
use std::process::{Command, Stdio};

/// True if fio is there and has the engine.
pub(crate) fn has_engine(engine: &str) -> bool {
    let help = Command::new("fio").arg(format!("--enghelp={engine}")).stdin(Stdio::null()).output();
    help.is_ok_and(|output| output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("not found"))
}

/// Runs fio, which shall write JSON, and returns what it wrote.
///
/// # Errors
/// One sentence.
pub(crate) fn run(fio: &mut Command) -> Result<String, String> {
    let output = fio.stdin(Stdio::null()).output().map_err(|error| format!("cannot start fio: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("fio ended with {}: {}", output.status, text.trim().replace('\n', "; ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first job of fio's JSON. fio may print a line of advice before it.
///
/// # Errors
/// One sentence: it is no JSON, or the job failed.
pub(crate) fn first_job(text: &str) -> Result<Value, String> {
    let json = text.find('{').map_or("", |at| &text[at..]);
    let mut value: Value = serde_json::from_str(json).map_err(|error| format!("fio's output is not JSON: {error}"))?;
    let job = value["jobs"][0].take();
    if job["error"].as_i64() != Some(0) {
        return Err(format!("fio's job failed with error {}", job["error"]));
    }
    Ok(job)
}

/// A number of fio's JSON.
///
/// # Errors
/// One sentence: there is none.
pub(crate) fn number(value: &Value, key: &str) -> Result<f64, String> {
    value[key].as_f64().ok_or_else(|| format!("fio's output has no number at \"{key}\""))
}
