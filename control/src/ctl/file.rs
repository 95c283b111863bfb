//! In what do the config file and what runs differ, and how is the file made to say what runs?
//!
//! `save` changes in the file only what differs: comments, order and spelling of everything else stay (toml_edit). The
//! file is replaced at once or not at all: what is new is written beside it, reaches the disk, and takes its name. The
//! server has told the text that it read last; a file that says something else by now, comments aside, was changed by
//! somebody and is left alone unless that is forced.

use super::command_line::{Form, Options};
use super::{applied, only_if, query, show, state};
use crate::client::{Ask, Client};
use crate::document::Document;
use crate::model::{ConfigFile, KeyChange, Kind, SetBy, State};
use axum::http::Method;
use mqfq_config::join;
use mqfq_config::text::{shown, utf8};
use mqfq_report::plain;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table as Tables, TableLike};

const TOML: &str = "application/toml";

/// What is configured.
#[derive(Deserialize)]
struct Configured {
    revision: u64,
    config: Map<String, Value>,
}

/// A line of `diff`.
#[derive(Serialize)]
struct Difference {
    #[serde(flatten)]
    change: KeyChange,
    set_by: Option<SetBy>,
}

/// What `save` did.
#[derive(Serialize)]
struct Saved {
    file: String,
    revision: u64,
    changes: Vec<KeyChange>,
}

/// Puts the config in `path` in force.
///
/// # Errors
/// One sentence, with the file's name and line where it is about the file.
pub(super) fn apply(client: &Client, path: &Path, options: &Options, form: Form) -> Result<(), String> {
    let (name, text) = match path == Path::new("-") {
        true => ("stdin".to_owned(), read_stdin()?),
        false => (shown(&path.to_string_lossy()), read(path)?),
    };
    let ask = Ask::new(Method::PUT, format!("/v1/config{}", query(options))).body(TOML, text);
    let reply = client.ask(only_if(ask, options))?;
    match reply.clone().good() {
        Err(problem) if problem.line.is_some() => {
            // The server calls it "config".
            let detail = problem.detail.strip_prefix("config:").unwrap_or(&problem.detail);
            Err(format!("{name}:{detail}"))
        }
        _ => applied(reply, form),
    }
}

/// Prints in what the file and the server differ. True: in nothing.
///
/// # Errors
/// One sentence.
pub(super) fn diff(client: &Client, form: Form) -> Result<bool, String> {
    let (file, running) = (file(client)?, running(client)?);
    // A file of another machine is known as the server has read it.
    let text = read(Path::new(&file.path)).unwrap_or(file.text);
    let of_file = Document::parse(&text).map_err(|fault| format!("{}:{fault}", shown(&file.path)))?;
    let of_server = Document::from_json(&running.config).map_err(|refusal| refusal.sentence)?;
    let state = state(client)?;
    let difference = |change: KeyChange| Difference { set_by: set_by(&state, &change.key).cloned(), change };
    let differences: Vec<Difference> = of_file.changes_to(&of_server).into_iter().map(difference).collect();
    let is_same = differences.is_empty();
    form.put(&differences, |differences| match is_same {
        true => format!("{} says what runs", shown(&file.path)),
        false => table(differences),
    })?;
    Ok(is_same)
}

fn table(differences: &[Difference]) -> String {
    let columns = ["key", "file", "server", "set by", "at"].map(|name| (name, Align::Left));
    let mut table = Table::new(&columns);
    for Difference { change, set_by } in differences {
        let (from, to) = (show::value(Some(&change.from)), show::value(Some(&change.to)));
        let (who, at) =
            set_by.as_ref().map_or(("-".into(), "-".into()), |set_by| (show::who(set_by), set_by.at.clone()));
        table.row(vec![change.key.clone(), from, to, who, at]);
    }
    table.render()
}

/// Who set a key of something.
fn set_by<'s>(state: &'s State, key: &str) -> Option<&'s SetBy> {
    Kind::ALL
        .iter()
        .find_map(|kind| {
            state.things.get(kind.plural())?.iter().find_map(|thing| {
                let under = format!("{}.", join(kind.section(), &thing.name));
                let rest = key.strip_prefix(&under)?;
                thing.set_by.iter().find(|(name, _)| rest == **name || rest.starts_with(&format!("{name}.")))
            })
        })
        .map(|(_, set_by)| set_by)
}

/// Writes what is configured to the file.
///
/// # Errors
/// One sentence: the file has changed since the server read it, or cannot be written.
pub(super) fn save(client: &Client, force: bool, form: Form) -> Result<(), String> {
    let (file, running) = (file(client)?, running(client)?);
    let path = PathBuf::from(&file.path);
    let text = read(&path)?;
    let name = shown(&file.path);
    let of_file = Document::parse(&text).map_err(|fault| format!("{name}:{fault}"))?;
    let of_server = Document::from_json(&running.config).map_err(|refusal| refusal.sentence)?;
    let changes = of_file.changes_to(&of_server);
    let of_last = Document::parse(&file.text).unwrap_or_default();
    if !of_last.changes_to(&of_file).is_empty() && !changes.is_empty() && !force {
        return Err(format!(
            "{name} has changed since the server read it, and differs from what runs in {} keys, allowed is mqfq ctl reload to take \
             the file, or save --force to overwrite what was changed",
            changes.len()
        ));
    }
    let written = if changes.is_empty() { text } else { merged(&text, &of_server)? };
    if !changes.is_empty() {
        replace(&path, &written)?;
    }
    let told = client.ask(Ask::new(Method::POST, "/v1/config/saved").body(TOML, written))?;
    told.good().map_err(|problem| problem.detail)?;
    let saved = Saved { file: file.path, revision: running.revision, changes };
    form.put(&saved, |Saved { revision, changes, .. }| match changes.len() {
        0 => format!("{name} says what runs already, revision {revision}"),
        number => format!("{name}: {number} keys written, revision {revision}"),
    })
}

fn file(client: &Client) -> Result<ConfigFile, String> {
    client.ask(Ask::new(Method::GET, "/v1/config/file"))?.json()
}

fn running(client: &Client) -> Result<Configured, String> {
    client.ask(Ask::new(Method::GET, "/v1/config"))?.json()
}

fn read(path: &Path) -> Result<String, String> {
    let text = std::fs::read(path).map_err(|error| plain(&error)).and_then(utf8);
    text.map_err(|why| format!("cannot read {}: {why}", shown(&path.to_string_lossy())))
}

fn read_stdin() -> Result<String, String> {
    let mut bytes = Vec::new();
    // One byte more than the server takes, so that it says so.
    let most = crate::api::CONFIG_BYTES_MAX as u64 + 1;
    let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(|error| plain(&error));
    read.and_then(|_| utf8(bytes)).map_err(|why| format!("cannot read stdin: {why}"))
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
fn replace(path: &Path, text: &str) -> Result<(), String> {
    let name = shown(&path.to_string_lossy());
    let failed = |error: std::io::Error| format!("cannot write {name}: {}", plain(&error));
    // A link stays one.
    let path = path.canonicalize().map_err(failed)?;
    let old = path.metadata().map_err(failed)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = folder.join(format!(".{file_name}.mqfq-{}", std::process::id()));
    let write = || {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        let own = file.metadata()?;
        if (old.uid(), old.gid()) != (own.uid(), own.gid()) {
            std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(old.permissions())?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)?;
        File::open(folder)?.sync_all()
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
        let folder = std::env::temp_dir().join(format!("mqfq-ctl-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, link) = (folder.join("c.toml"), folder.join("link"));
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "nothing is left beside it: {names:?}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
