//! In what do the config file and what runs differ, and how is the file made to say what runs?
//!
//! `save` runs where the file is, with the rights of its caller, and tells the server what it has written.

use super::command_line::{Form, Options};
use super::show;
use super::{applied, only_if, query, state};
use crate::client::{Ask, Client};
use crate::config_file::{self, How, read};
use crate::document::Document;
use crate::model::{ConfigFile, KeyChange, Kind, SetBy, State};
use axum::http::Method;
use mqfq_config::join;
use mqfq_config::text::{counted, shown, utf8};
use mqfq_report::plain;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::Read;
use std::path::Path;

const TOML: &str = "application/toml";

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
        _ => {
            applied(reply, form)?;
            save_if_asked(client, options, form)
        }
    }
}

/// Prints in what the file and the server differ. True: in nothing.
///
/// # Errors
/// One sentence.
pub(super) fn diff(client: &Client, form: Form) -> Result<bool, String> {
    let (name, differences) = differences(client)?;
    let is_same = differences.is_empty();
    form.print(&differences, |differences| match is_same {
        true => format!("{name} says what runs"),
        false => table(differences),
    })?;
    Ok(is_same)
}

/// Name of the file, and in what it and the server differ.
fn differences(client: &Client) -> Result<(String, Vec<Difference>), String> {
    let (file, running) = (file(client)?, running(client)?);
    let name = shown(&file.path);
    // A file of another machine is known as the server has read it.
    let text = read(Path::new(&file.path)).unwrap_or(file.text);
    let of_file = Document::parse(&text).map_err(|fault| format!("{name}:{fault}"))?;
    let of_server = Document::from_json(&running.config).map_err(|refusal| refusal.sentence)?;
    let state = state(client)?;
    let difference = |change: KeyChange| Difference { set_by: set_by(&state, &change.key).cloned(), change };
    Ok((name, of_file.changes_to(&of_server).into_iter().map(difference).collect()))
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

/// Returns the author of a thing's key.
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
    form.print(&written(client, force)?, |Saved { file, revision, changes }| match changes.len() {
        0 => format!("{} says what runs already, revision {revision}", shown(file)),
        number => format!("{}: {} written, revision {revision}", shown(file), counted(number, "key")),
    })
}

/// Writes what is configured to the file, and tells the server.
fn written(client: &Client, force: bool) -> Result<Saved, String> {
    let (file, running) = (file(client)?, running(client)?);
    let of_server = Document::from_json(&running.config).map_err(|refusal| refusal.sentence)?;
    let how = How { force, may_chown: true };
    let config_file::Saved { text, changes } = config_file::save(Path::new(&file.path), &file.text, &of_server, how)?;
    let told = client.ask(Ask::new(Method::POST, "/v1/config/saved").body(TOML, text))?;
    told.good().map_err(|problem| problem.detail)?;
    Ok(Saved { file: file.path, revision: running.revision, changes })
}

fn file(client: &Client) -> Result<ConfigFile, String> {
    client.ask(Ask::new(Method::GET, "/v1/config/file"))?.json()
}

/// All that is configured.
///
/// # Errors
/// One sentence.
pub(super) fn configured(client: &Client) -> Result<Document, String> {
    Document::from_json(&running(client)?.config).map_err(|refusal| refusal.sentence)
}

fn running(client: &Client) -> Result<Configured, String> {
    client.ask(Ask::new(Method::GET, "/v1/config"))?.json()
}

fn read_stdin() -> Result<String, String> {
    let mut bytes = Vec::new();
    // One byte more than the server takes, so that it is refused.
    let most = crate::api::CONFIG_BYTES_MAX as u64 + 1;
    let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(|error| plain(&error));
    read.and_then(|_| utf8(bytes)).map_err(|why| format!("cannot read stdin: {why}"))
}

/// Writes a change that is in force to the config file.
pub(super) fn save_if_asked(client: &Client, options: &Options, form: Form) -> Result<(), String> {
    if !options.save {
        return Ok(());
    }
    save(client, false, form).map_err(|why| format!("the change is in force and not saved: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::OnPaper;
    use crate::api::{CONFIG_BYTES_MAX, CONFIG_PARTS_MAX, too_long};
    use crate::listen::socket_tests::Folder;
    use serde_json::json;
    use std::os::unix::fs::{MetadataExt, chown};
    use std::sync::Arc;

    const RUNNING: &str = "[tenant.db]\nweight = 3\n[tenant.web]\nweight = 5\n";
    const READ: &str = "[tenant.db]\nweight = 1\n[tenant.web]\nweight = 2\n";

    /// A server that runs `RUNNING`, of a file that says `READ`.
    fn server(folder: &Folder) -> Arc<OnPaper> {
        let path = folder.0.join("c.toml");
        std::fs::write(&path, READ).unwrap();
        let server = OnPaper::new(RUNNING);
        server.set_file(ConfigFile { path: path.to_str().unwrap().to_owned(), text: READ.to_owned() });
        server
    }

    #[test]
    fn each_difference_of_the_file_is_told_with_its_author() {
        let folder = Folder::new("diff");
        let (_control, client) = folder.serve(server(&folder));
        let (name, differences) = differences(&client).unwrap();
        assert_eq!(name, folder.0.join("c.toml").to_str().unwrap());
        let all = serde_json::to_value(&differences).unwrap();
        for (at, (key, from, to)) in [("tenant.db.weight", 1, 3), ("tenant.web.weight", 2, 5)].into_iter().enumerate() {
            assert_eq!((&all[at]["key"], &all[at]["from"], &all[at]["to"]), (&json!(key), &json!(from), &json!(to)));
            assert_eq!(all[at]["set_by"]["via"], "file");
            assert!(table(&differences).contains(key), "{key}");
        }
        assert_eq!(differences.len(), 2);
    }

    #[test]
    fn a_file_that_was_changed_is_saved_by_force_alone_and_stays_its_owners() {
        let folder = Folder::new("save");
        let server = server(&folder);
        let (_control, client) = folder.serve(server.clone());
        let path = folder.0.join("c.toml");
        std::fs::write(&path, READ.replace('1', "9")).unwrap();
        // Only root can give a file away.
        let _ = chown(&path, Some(4242), Some(4242));
        let owner = path.metadata().unwrap().uid();
        let refusal = written(&client, false).map(drop).unwrap_err();
        assert!(refusal.contains("has changed since the server read it"), "{refusal}");
        let saved = serde_json::to_value(written(&client, true).unwrap()).unwrap();
        let change = |key: &str, from: u32, to: u32| json!({"key": key, "from": from, "to": to});
        let changes = [change("tenant.db.weight", 9, 3), change("tenant.web.weight", 2, 5)];
        assert_eq!(saved, json!({"file": path.to_str().unwrap(), "revision": 1, "changes": changes}));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), RUNNING);
        assert_eq!(path.metadata().unwrap().uid(), owner);
        assert_eq!(server.heard()[0].0, format!("saved {RUNNING}"));
    }

    #[test]
    fn a_refusal_of_the_server_is_no_success() {
        let folder = Folder::new("refused");
        let (_control, client) = folder.serve(server(&folder));
        let path = folder.0.join("c.toml");
        let options = Options { dry_run: false, revision: Some(9), save: false, yes: false };
        assert!(apply(&client, &path, &options, Form::Text).is_err(), "it has another revision");
        // More than the server takes. It counts the parts when it has all of it, so the answer finds its client.
        std::fs::write(&path, format!("#{}\n{READ}", ",".repeat(CONFIG_PARTS_MAX))).unwrap();
        let refusal = written(&client, false).map(drop).unwrap_err();
        assert!(refusal.contains("the config has 300"), "{refusal}");
        // More than it would read.
        std::fs::write(&path, format!("#{}\n{READ}", "x".repeat(CONFIG_BYTES_MAX))).unwrap();
        let refusal = written(&client, false).map(drop).unwrap_err();
        assert_eq!(refusal, too_long(CONFIG_BYTES_MAX));
    }
}
