//! How is the config file made to say what is configured?
//!
//! Only what differs is changed in the file: comments, order and spelling of everything else stay (toml_edit). The file
//! is replaced at once or not at all: the new text is written beside it, reaches the disk, and takes its name. A file
//! whose values are others than those that the server read last was changed by another program or a person, and is left
//! alone unless that is forced.

use crate::document::Document;
use crate::model::KeyChange;
use mqfq_config::text::{counted, shown, utf8};
use mqfq_report::plain;
use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table as Tables, TableLike};

/// How a file is saved.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Also if it was changed since the server read it.
    pub force: bool,
    /// A file of another user is given back to that user. Otherwise it is refused, since the sandbox of a server ends a
    /// process that tries.
    pub may_chown: bool,
}

/// A file that says what is configured.
#[derive(Clone, PartialEq, Debug)]
pub struct Saved {
    /// Its text.
    pub text: String,
    /// Changes that were written to it; empty: nothing was written.
    pub changes: Vec<KeyChange>,
}

/// The text of the file at `path`.
///
/// # Errors
/// One sentence: it cannot be read.
pub fn read(path: &Path) -> Result<String, String> {
    let text = std::fs::read(path).map_err(|error| plain(&error)).and_then(utf8);
    text.map_err(|why| format!("cannot read {}: {why}", shown(&path.to_string_lossy())))
}

/// Makes the file at `path` say what is `configured`. `last` is its text as the server read it last.
///
/// # Errors
/// One sentence: the file has changed since the server read it, or cannot be written.
pub fn save(path: &Path, last: &str, configured: &Document, how: How) -> Result<Saved, String> {
    let text = read(path)?;
    let name = shown(&path.to_string_lossy());
    let of_file = Document::parse(&text).map_err(|fault| format!("{name}:{fault}"))?;
    let changes = of_file.changes_to(configured);
    if changes.is_empty() {
        return Ok(Saved { text, changes });
    }
    let of_last = Document::parse(last).unwrap_or_default();
    if !how.force && !of_last.changes_to(&of_file).is_empty() {
        return Err(format!(
            "{name} has changed since the server read it, and differs from what runs in {}, allowed is mqfq ctl reload \
             to take the file, or save --force to overwrite what was changed",
            counted(changes.len(), "key")
        ));
    }
    let text = merged(&text, configured)?;
    replace(path, &text, how.may_chown)?;
    Ok(Saved { text, changes })
}

/// Whether files can be made beside `path`.
///
/// # Errors
/// One sentence.
pub fn try_beside(path: &Path) -> Result<(), String> {
    let name = shown(&path.to_string_lossy());
    let failed = |error: std::io::Error| format!("cannot write beside {name}: {}", plain(&error));
    let beside = beside(&path.canonicalize().map_err(failed)?);
    File::options().write(true).create_new(true).mode(0o600).open(&beside).map_err(failed)?;
    std::fs::remove_file(&beside).map_err(failed)
}

/// Where the new text of the file at `path` is written before it takes its name.
fn beside(path: &Path) -> PathBuf {
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{file_name}.mqfq-{}", std::process::id()))
}

/// `text` with the values of `wanted`; all that is the same stays as it is written.
///
/// # Errors
/// One sentence: it is not TOML.
fn merged(text: &str, wanted: &Document) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error| format!("not valid TOML: {error}"))?;
    merge(document.as_table_mut(), wanted.table(), 0);
    let merged = document.to_string();
    let says = Document::parse(&merged).map(|document| document.changes_to(wanted).is_empty());
    if says != Ok(true) {
        return Err("the file cannot be written without losing its form, allowed is to edit it by hand".to_owned());
    }
    Ok(merged)
}

/// Sections of sections (`[tenant.web]`) stand `depth` 1 deep.
fn merge(into: &mut dyn TableLike, wanted: &toml::Table, depth: usize) {
    let gone: Vec<String> =
        into.iter().map(|(key, _)| key.to_owned()).filter(|key| !wanted.contains_key(key)).collect();
    for key in gone {
        into.remove(&key);
    }
    for (key, value) in wanted {
        match (into.get_mut(key), value) {
            (Some(item), toml::Value::Table(inner)) if item.is_table_like() => {
                let table = item.as_table_like_mut().expect("it was asked for");
                merge(table, inner, depth + 1);
            }
            (Some(item), value) => {
                let Some(old) = item.as_value_mut() else {
                    *item = made(value, depth);
                    continue;
                };
                if !is_same(old, value) {
                    let decor = old.decor().clone();
                    *old = edit_value(value);
                    *old.decor_mut() = decor;
                }
            }
            (None, value) => drop(into.insert(key, made(value, depth))),
        }
    }
}

fn is_same(old: &toml_edit::Value, new: &toml::Value) -> bool {
    let read: Result<toml::Table, _> = format!("value = {}", old.to_string().trim()).parse();
    read.is_ok_and(|table| table.get("value") == Some(new))
}

/// A key that is new: sections down to `[kind.NAME]`, values inside.
fn made(value: &toml::Value, depth: usize) -> Item {
    match value {
        toml::Value::Table(inner) if depth <= 1 => {
            let mut table = Tables::new();
            // `[tenant]` alone says nothing.
            table.set_implicit(depth == 0);
            table.decor_mut().set_prefix("\n");
            for (key, value) in inner {
                table.insert(key, made(value, depth + 1));
            }
            Item::Table(table)
        }
        value => Item::Value(edit_value(value)),
    }
}

fn edit_value(value: &toml::Value) -> toml_edit::Value {
    let mut document: DocumentMut = format!("value = {value}").parse().expect("TOML writes what it reads");
    let item = document.remove("value").expect("it was just written");
    let mut value = item.into_value().expect("a value in one line");
    value.decor_mut().clear();
    value
}

/// Gives the file at `path` this text, at once or not at all, with its owner and permissions.
fn replace(path: &Path, text: &str, may_chown: bool) -> Result<(), String> {
    let name = shown(&path.to_string_lossy());
    let failed = |error: std::io::Error| format!("cannot write {name}: {}", plain(&error));
    // A link stays one.
    let path = path.canonicalize().map_err(failed)?;
    let old = path.metadata().map_err(failed)?;
    let beside = beside(&path);
    let write = || {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        let owner = |metadata: &Metadata| (metadata.uid(), metadata.gid());
        if owner(&old) != owner(&file.metadata()?) {
            if !may_chown {
                let why = format!("it is of user {} and group {}, and the server is not", old.uid(), old.gid());
                return Err(std::io::Error::other(why));
            }
            std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(old.permissions())?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    write().map_err(|error| {
        // Nothing of it stays.
        let _ = std::fs::remove_file(&beside);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const FILE: &str = "# who pays
[server]   # defaults
pin = false

[tenant.web]
weight = 300 # three
# the rest is free
[tenant.old]

[export.web]
size = \"1GiB\"
nbd = [
  \"unix:/a\", # first
]
";

    fn merged_with(change: impl FnOnce(&mut toml::Table)) -> String {
        let mut table: toml::Table = FILE.parse().unwrap();
        change(&mut table);
        merged(FILE, &Document::parse(&table.to_string()).unwrap()).unwrap()
    }

    fn section<'t>(table: &'t mut toml::Table, path: &[&str]) -> &'t mut toml::Table {
        path.iter().fold(table, |table, key| table.get_mut(*key).unwrap().as_table_mut().unwrap())
    }

    #[test]
    fn only_what_differs_is_written_and_comments_stay() {
        assert_eq!(merged_with(|_| ()), FILE);
        let weight = merged_with(|table| drop(section(table, &["tenant", "web"]).insert("weight".into(), 400.into())));
        assert_eq!(weight, FILE.replace("300 # three", "400 # three"));
        let gone = merged_with(|table| drop(section(table, &["tenant"]).remove("old")));
        assert_eq!(gone, FILE.replace("# the rest is free\n[tenant.old]\n", ""));
        let new = merged_with(|table| {
            let keys: toml::Table = "weight = 7\nclass = \"idle\"".parse().unwrap();
            section(table, &["tenant"]).insert("db".into(), keys.into());
        });
        assert_eq!(new.replace("\n[tenant.db]\nclass = \"idle\"\nweight = 7\n", ""), FILE, "{new}");
    }

    #[test]
    fn a_new_kind_of_section_and_a_new_key_are_written_as_one_writes_them() {
        let new = merged_with(|table| {
            let group: toml::Table = "acme = { weight = 7 }".parse().unwrap();
            table.insert("group".into(), group.into());
            section(table, &["server"]).insert("workers".into(), 2.into());
            let cost: toml::Table = "write = { per-byte = 2 }".parse().unwrap();
            section(table, &["export", "web"]).insert("cost".into(), cost.into());
        });
        assert!(new.contains("[server]   # defaults\npin = false\nworkers = 2\n"), "{new}");
        assert!(new.contains("\n[group.acme]\nweight = 7\n") && !new.contains("[group]"), "{new}");
        assert!(new.contains("cost = { write = { per-byte = 2 } }\n"), "{new}");
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_permissions() {
        let folder = std::env::temp_dir().join(format!("mqfq-config-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, link) = (folder.join("c.toml"), folder.join("link"));
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, "new", true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "nothing is left beside it: {names:?}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
