//! Where are the owners of a device's data kept? In two files, of which each write replaces the older one.
//!
//! A write that a crash cuts short leaves a file that is not JSON, and the other one is the record. A path is opened
//! once, before the process gives up its rights to files. The text of each device stays in memory, so that a write
//! makes text of those alone that have changed.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The two files.
pub struct Record {
    path: PathBuf,
    files: [File; 2],
    /// Each device's areas by its name, as text with that name before it.
    devices: BTreeMap<String, String>,
    /// Number of the write of that text.
    generation: u64,
    /// Index of the newest file.
    at: usize,
}

#[derive(Deserialize)]
struct Text {
    generation: u64,
    devices: BTreeMap<String, Value>,
}

/// The reason why a record cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A file cannot be opened: one sentence.
    Closed(String),
    /// Neither file holds a record: one sentence.
    Damaged(String),
}

impl From<Fault> for String {
    fn from((Fault::Closed(sentence) | Fault::Damaged(sentence)): Fault) -> String {
        sentence
    }
}

/// The paths of the two files.
pub fn paths(path: &Path) -> [PathBuf; 2] {
    ["0", "1"].map(|number| {
        let mut name = path.as_os_str().to_owned();
        name.push(".");
        name.push(number);
        name.into()
    })
}

/// The path of the record of a server with this config: in systemd's state folder for it, or beside the config.
pub fn path_for(config: &Path, state_folders: Option<&str>) -> PathBuf {
    let mut name = config.file_name().unwrap_or_default().to_owned();
    name.push(".owners");
    match state_folders.and_then(|folders| folders.split(':').next()).filter(|folder| !folder.is_empty()) {
        Some(folder) => Path::new(folder).join(name),
        None => config.with_file_name(name),
    }
}

impl Record {
    /// Opens both files, which are made if they are not there.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn open(path: &Path) -> Result<Record, Fault> {
        let paths = paths(path);
        let failed = |path: &Path, error: &io::Error| {
            let why = mqfq_report::plain(error);
            Fault::Closed(format!("whose data devices hold cannot be kept in {}: {why}", path.display()))
        };
        let open = |path: &PathBuf| {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
            file.map_err(|error| failed(path, &error))
        };
        let [first, second] = &paths;
        let files = [open(first)?, open(second)?];
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed(folder, &error))?;
        }
        let mut record = Record { path: path.to_owned(), files, devices: BTreeMap::new(), generation: 0, at: 0 };
        record.read_again()?;
        Ok(record)
    }

    /// Reads what another process has written since.
    ///
    /// # Errors
    /// As [`Record::open`].
    pub fn read_again(&mut self) -> Result<(), Fault> {
        let mut found: Vec<(u64, usize, BTreeMap<String, Value>)> = Vec::new();
        let mut written = 0;
        for (at, file) in self.files.iter_mut().enumerate() {
            let mut text = String::new();
            let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
            if read.is_err() || !text.is_empty() {
                written += 1;
            }
            let text = read.ok().and_then(|_| serde_json::from_str(&text).ok());
            if let Some(Text { generation, devices }) = text {
                found.push((generation, at, devices));
            }
        }
        // A first write that was cut short is alone; nothing was offered before it had ended.
        if found.is_empty() && written == 2 {
            let [first, second] = paths(&self.path);
            let (first, second) = (first.display(), second.display());
            return Err(Fault::Damaged(format!(
                "{first} and {second}, which say whose data devices hold, are damaged: allowed is to remove both, and \
                 then all bytes count as those of the exports that have them"
            )));
        }
        let newest = found.into_iter().max_by_key(|(generation, at, _)| (*generation, *at)).unwrap_or_default();
        (self.generation, self.at) = (newest.0, newest.1);
        self.devices = newest.2.into_iter().map(|(name, areas)| (name.clone(), entry(&name, &areas))).collect();
        Ok(())
    }

    /// The contents, by device.
    pub fn read<T: DeserializeOwned>(&self) -> BTreeMap<String, T> {
        serde_json::from_str(&self.text()).unwrap_or_default()
    }

    /// All devices as an object of JSON.
    fn text(&self) -> String {
        let mut text = String::with_capacity(self.devices.values().map(|entry| entry.len() + 1).sum::<usize>() + 2);
        text.push('{');
        for (at, entry) in self.devices.values().enumerate() {
            text.push_str(if at == 0 { "" } else { "," });
            text.push_str(entry);
        }
        text.push('}');
        text
    }

    /// Writes the contents of these devices, which then survive a crash of the machine as the others do; `None`: the
    /// record has it no more.
    ///
    /// # Errors
    /// One sentence. The contents are as before.
    pub fn write<'a, T: Serialize + 'a>(
        &mut self,
        devices: impl Iterator<Item = (&'a String, Option<&'a T>)>,
    ) -> Result<(), String> {
        let mut before = Vec::new();
        for (name, areas) in devices {
            let new = areas.map(|areas| entry(name, areas));
            if self.devices.get(name) != new.as_ref() {
                before.push((name, self.set(name, new)));
            }
        }
        if before.is_empty() {
            return Ok(());
        }
        let written = self.write_all();
        if written.is_err() {
            before.into_iter().rev().for_each(|(name, entry)| drop(self.set(name, entry)));
        }
        written
    }

    /// Writes fail from now on.
    #[cfg(test)]
    pub fn break_files(&mut self) {
        self.files = [0, 1].map(|_| File::open("/dev/null").expect("it is there"));
    }

    fn set(&mut self, name: &str, entry: Option<String>) -> Option<String> {
        match entry {
            Some(entry) => self.devices.insert(name.to_owned(), entry),
            None => self.devices.remove(name),
        }
    }

    fn write_all(&mut self) -> Result<(), String> {
        let (generation, at) = (self.generation + 1, 1 - self.at);
        let text = format!("{{\"generation\":{generation},\"devices\":{}}}", self.text());
        let file = &mut self.files[at];
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
        written.and_then(|()| file.sync_all()).map_err(|error| {
            let path = &paths(&self.path)[at];
            format!("whose data devices hold cannot be kept in {}: {}", path.display(), mqfq_report::plain(&error))
        })?;
        (self.generation, self.at) = (generation, at);
        Ok(())
    }
}

/// A device's part of the object. Names and numbers are always text.
fn entry<T: Serialize>(name: &str, areas: &T) -> String {
    let text = |part: serde_json::Result<String>| part.expect("a name and numbers are text");
    format!("{}:{}", text(serde_json::to_string(name)), text(serde_json::to_string(areas)))
}
