//! Which changes did a server have that ended before they were saved?
//!
//! A file of lines beside the config, or in the folder that systemd gives (`STATE_DIRECTORY`) where the config's cannot
//! be written. A line is JSON: a thing, the revision, and all changes of that thing that the config file does not have;
//! of several lines about a thing the one of the latest revision counts. A change appends a line before its answer, so
//! a killed server has told it; a thread of its own brings lines to the disk, so no answer waits for that. A file that
//! has grown to [`BYTES_MAX`] is written anew, from its beginning: a kill in the middle leaves lines of older revisions
//! behind newer ones, and at most one that cannot be read.
//!
//! The file is opened before the server gives up its rights (`sandbox`), and is neither made nor renamed later.

use crate::model::{KeyChange, Kind};
use crate::unsaved::{ThingKey, Unsaved};
use mqfq_report::plain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

/// Size of the file, bytes. Of changes that find no room the journal has the first.
pub const BYTES_MAX: usize = 1 << 20;

/// Environment variable with folders for a service's files: systemd.exec(5).
pub const STATE_DIRECTORY: &str = "STATE_DIRECTORY";

#[derive(Serialize, Deserialize)]
struct Line {
    /// Section and name; `null`: all else in the document.
    thing: Option<(String, String)>,
    revision: u64,
    changes: Vec<KeyChange>,
}

/// An open journal.
pub struct Journal {
    file: File,
    /// Length of the file.
    bytes: usize,
    /// Has the thread bring it to the disk. Full: it is asked already.
    sync: SyncSender<()>,
}

/// Where the journal of a config is. `state_directory`: the value of [`STATE_DIRECTORY`].
pub fn path_of(config: &Path, state_directory: Option<&str>) -> PathBuf {
    let name = config.file_name().unwrap_or_default().to_string_lossy();
    match state_directory.and_then(|folders| folders.split(':').find(|folder| !folder.is_empty())) {
        Some(folder) => Path::new(folder).join(format!("{name}.unsaved")),
        None => config.with_file_name(format!(".{name}.unsaved")),
    }
}

impl Journal {
    /// The journal in `file`, at [`path_of`] and open to be read and written. What an earlier server has left stays in
    /// it until [`Journal::take`].
    ///
    /// # Errors
    /// One sentence: the file cannot be used, or there is no thread to be had.
    pub fn new(file: File) -> Result<Journal, String> {
        let failed = |error: io::Error| format!("the journal of unsaved changes cannot be kept: {}", plain(&error));
        let bytes = file.metadata().map_err(failed)?.len() as usize;
        let (sync, asked) = sync_channel(1);
        let of_thread = file.try_clone().map_err(failed)?;
        let body = move || {
            while asked.recv().is_ok() {
                // A failed sync is reported by the next write, or not at all: the journal is a help and no promise.
                let _ = of_thread.sync_data();
            }
        };
        std::thread::Builder::new().name("mqfq-journal".into()).spawn(body).map_err(failed)?;
        Ok(Journal { file, bytes, sync })
    }

    /// The changes that an earlier server has left, in the order of their things. The journal is empty then.
    ///
    /// # Errors
    /// One sentence.
    pub fn take(&mut self) -> Result<Vec<KeyChange>, String> {
        let mut text = Vec::new();
        let read = self.file.rewind().and_then(|()| (&self.file).take(2 * BYTES_MAX as u64).read_to_end(&mut text));
        read.map_err(|error| format!("the journal of unsaved changes cannot be read: {}", plain(&error)))?;
        self.rewrite(&[]).map_err(|error| said(&error))?;
        let mut latest: BTreeMap<_, (u64, Vec<KeyChange>)> = BTreeMap::new();
        // A line that a kill has cut is none.
        for line in text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok()) {
            let known = latest.entry(line.thing).or_default();
            if line.revision >= known.0 {
                *known = (line.revision, line.changes);
            }
        }
        Ok(latest.into_values().flat_map(|(_, changes)| changes).collect())
    }

    /// After a change of `thing`, which has the document at `revision`. `None`: of anything.
    ///
    /// # Errors
    /// One sentence: it cannot be written.
    pub fn follow(&mut self, unsaved: &Unsaved, thing: Option<(Kind, &str)>, revision: u64) -> Result<(), String> {
        let thing = thing.map(|(kind, name)| (kind, name.to_owned()));
        let line = thing.as_ref().map(|(kind, name)| {
            let key = Some((*kind, name.clone()));
            line(&key, unsaved.by_thing().get(&key).map_or(&[], Vec::as_slice), revision)
        });
        let written = match line {
            // Nothing was there, and nothing is.
            Some(_) if self.bytes == 0 && unsaved.by_thing().is_empty() => return Ok(()),
            Some(line) if !unsaved.by_thing().is_empty() && self.bytes + line.len() <= BYTES_MAX => self.append(&line),
            _ => self.write_all(unsaved, revision),
        };
        written.map_err(|error| said(&error))?;
        match self.sync.try_send(()) {
            Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => Ok(()),
        }
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.bytes as u64))?;
        self.file.write_all(line)?;
        self.bytes += line.len();
        Ok(())
    }

    /// At most half of what fits, so that it is not written anew at each change.
    fn write_all(&mut self, unsaved: &Unsaved, revision: u64) -> io::Result<()> {
        let mut text = Vec::new();
        for (thing, changes) in unsaved.by_thing() {
            let line = line(thing, changes, revision);
            if text.len() + line.len() > BYTES_MAX / 2 {
                break;
            }
            text.extend(line);
        }
        self.rewrite(&text)
    }

    fn rewrite(&mut self, text: &[u8]) -> io::Result<()> {
        self.file.rewind()?;
        self.file.write_all(text)?;
        self.file.set_len(text.len() as u64)?;
        self.bytes = text.len();
        Ok(())
    }
}

fn line(thing: &ThingKey, changes: &[KeyChange], revision: u64) -> Vec<u8> {
    let thing = thing.as_ref().map(|(kind, name)| (kind.section().to_owned(), name.clone()));
    let mut line = serde_json::to_vec(&Line { thing, revision, changes: changes.to_vec() }).unwrap_or_default();
    line.push(b'\n');
    line
}

fn said(error: &io::Error) -> String {
    format!("the journal of unsaved changes cannot be written: {}", plain(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;
    use crate::model::Edit;
    use crate::unsaved::described;
    use serde_json::json;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("mqfq-journal-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }

        fn open(&self) -> Journal {
            let mut how = File::options();
            let file = how.read(true).write(true).create(true).truncate(false).open(self.0.join("journal"));
            Journal::new(file.unwrap()).unwrap()
        }

        fn left(&self) -> String {
            described(&self.open().take().unwrap(), 9)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    struct Case {
        unsaved: Unsaved,
        now: Document,
        revision: u64,
    }

    impl Case {
        fn new() -> Case {
            let file = Document::parse("[tenant.web]\nweight = 300\n[tenant.db]\n").unwrap();
            Case { unsaved: Unsaved::new(file.clone()), now: file, revision: 1 }
        }

        fn weight(&mut self, journal: &mut Journal, name: &str, weight: u64) {
            let keys = json!({ "weight": weight }).as_object().unwrap().clone();
            self.now = self.now.edited(&Edit::Patch(Kind::Tenant, name.into(), keys)).unwrap();
            self.revision += 1;
            self.unsaved.follow(&self.now, (Kind::Tenant, name));
            journal.follow(&self.unsaved, Some((Kind::Tenant, name)), self.revision).unwrap();
        }
    }

    #[test]
    fn a_server_that_was_killed_has_told_what_was_not_saved_and_no_more() {
        let folder = Folder::new("told");
        let (mut case, mut journal) = (Case::new(), folder.open());
        case.weight(&mut journal, "web", 400);
        case.weight(&mut journal, "db", 5);
        case.weight(&mut journal, "web", 500);
        drop(journal);
        assert_eq!(folder.left(), "tenant.db.weight = 5, tenant.web.weight 300 -> 500");
        assert_eq!(folder.left(), "", "it is told once");

        let (mut case, mut journal) = (Case::new(), folder.open());
        case.weight(&mut journal, "web", 400);
        case.weight(&mut journal, "db", 5);
        case.weight(&mut journal, "web", 300);
        assert_eq!(folder.left(), "tenant.db.weight = 5", "what was taken back is not lost");
        case.weight(&mut journal, "web", 400);
        let saved = case.now.clone();
        case.unsaved.read(saved, &case.now);
        journal.follow(&case.unsaved, None, case.revision).unwrap();
        assert_eq!(folder.left(), "", "what was saved is not lost");
    }

    #[test]
    fn it_stays_within_its_size_and_a_cut_line_is_passed_over() {
        let folder = Folder::new("bounded");
        let (mut case, mut journal) = (Case::new(), folder.open());
        case.weight(&mut journal, "db", 5);
        let line_bytes = journal.bytes;
        // Empty lines, until little room is left.
        journal.append(&vec![b'\n'; BYTES_MAX - 50 * line_bytes]).unwrap();
        for round in 0..100 {
            case.weight(&mut journal, "web", 1000 + round as u64);
            assert!(journal.bytes <= BYTES_MAX);
            assert_eq!(journal.file.metadata().unwrap().len(), journal.bytes as u64);
        }
        let last = case.now.thing(Kind::Tenant, "web").unwrap()["weight"].clone();
        journal.append(b"{\"thing\":[\"tenant\",\"web\"],\"revis").unwrap();
        assert_eq!(folder.left(), format!("tenant.db.weight = 5, tenant.web.weight 300 -> {last}"));
    }

    #[test]
    fn old_lines_behind_new_ones_count_for_nothing() {
        let folder = Folder::new("order");
        let (mut case, mut journal) = (Case::new(), folder.open());
        case.weight(&mut journal, "web", 400);
        let old = std::fs::read(folder.0.join("journal")).unwrap();
        case.weight(&mut journal, "web", 500);
        journal.append(&old).unwrap();
        assert_eq!(folder.left(), "tenant.web.weight 300 -> 500");
    }

    #[test]
    fn it_is_beside_the_config_or_where_systemd_says() {
        let config = Path::new("/etc/mqfq/mqfq.toml");
        assert_eq!(path_of(config, None), Path::new("/etc/mqfq/.mqfq.toml.unsaved"));
        assert_eq!(path_of(config, Some("")), Path::new("/etc/mqfq/.mqfq.toml.unsaved"));
        assert_eq!(path_of(config, Some("/var/lib/mqfq:/x")), Path::new("/var/lib/mqfq/mqfq.toml.unsaved"));
    }
}
