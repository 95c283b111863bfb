//! Results as files and as text.

use std::path::Path;

/// The name of a figure or scenario as that of its files: `mqfq/8` is mqfq-8, `my/own.toml` is own.
pub(super) fn file_stem(name: &str) -> String {
    match name.strip_suffix(".toml") {
        Some(path) => Path::new(path).file_name().map_or("own".into(), |stem| stem.to_string_lossy().into_owned()),
        None => name.replace('/', "-"),
    }
}

/// Writes a file into a folder, which is made. Returns its path.
pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result<String, String> {
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot make the folder {}: {}", folder.display(), crate::plain(&error)))?;
    let path = folder.join(name);
    std::fs::write(&path, text)
        .map_err(|error| format!("cannot write {}: {}", path.display(), crate::plain(&error)))?;
    Ok(path.display().to_string())
}

/// A table as CSV.
pub(super) fn csv<C: AsRef<[u8]>, R: IntoIterator<Item = C>>(
    header: &[&str],
    rows: impl Iterator<Item = R>,
) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot write CSV: {error}");
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    writer.write_record(header).map_err(|error| failed(&error))?;
    for row in rows {
        writer.write_record(row).map_err(|error| failed(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| failed(&error))?;
    String::from_utf8(bytes).map_err(|error| failed(&error))
}

/// A number with as many digits as say something.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        large if large >= 1000.0 => format!("{value:.0}"),
        large if large >= 100.0 => format!("{value:.1}"),
        small if small < 0.01 => format!("{value:.1e}"),
        _ => format!("{value:.3}"),
    }
}

/// A number as text, or the mark for a number that does not exist.
pub(super) fn maybe(value: Option<f64>) -> String {
    value.map_or("-".into(), number)
}
