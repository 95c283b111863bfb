//! Where are the owners of a device's data kept? In two files, of which each write replaces the older one.
//!
//! A write that a crash cuts short leaves a file that is not JSON, and the other one is the record. A path is opened
//! once, before the process gives up its rights to files.

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
    /// The devices' areas, as text.
    devices: String,
    /// Number of the write of that text.
    generation: u64,
    /// Index of the newest file.
    at: usize,
}

#[derive(Deserialize)]
struct Text {
    generation: u64,
    devices: Value,
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
        let mut record = Record { path: path.to_owned(), files, devices: String::new(), generation: 0, at: 0 };
        record.read_again()?;
        Ok(record)
    }

    /// Reads what another process has written since.
    ///
    /// # Errors
    /// As [`Record::open`].
    pub fn read_again(&mut self) -> Result<(), Fault> {
        let mut found: Vec<(u64, usize, String)> = Vec::new();
        let mut written = 0;
        for (at, file) in self.files.iter_mut().enumerate() {
            let mut text = String::new();
            let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
            if read.is_err() || !text.is_empty() {
                written += 1;
            }
            let text = read.ok().and_then(|_| serde_json::from_str(&text).ok());
            if let Some(Text { generation, devices }) = text {
                found.push((generation, at, devices.to_string()));
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
        (self.generation, self.at, self.devices) = found.into_iter().max().unwrap_or_default();
        Ok(())
    }

    /// The contents, by device.
    pub fn read<T: DeserializeOwned>(&self) -> BTreeMap<String, T> {
        serde_json::from_str(&self.devices).unwrap_or_default()
    }

    /// Writes these contents, which then survive a crash of the machine.
    ///
    /// # Errors
    /// One sentence. The contents are as before.
    pub fn write<'a, T: Serialize + 'a>(
        &mut self,
        devices: impl Iterator<Item = (&'a String, &'a T)>,
    ) -> Result<(), String> {
        let (generation, at) = (self.generation + 1, 1 - self.at);
        let devices: BTreeMap<_, _> = devices.collect();
        let devices = serde_json::to_string(&devices).map_err(|error| error.to_string())?;
        if devices == self.devices {
            return Ok(());
        }
        let text = format!("{{\"generation\":{generation},\"devices\":{devices}}}");
        let file = &mut self.files[at];
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
        written.and_then(|()| file.sync_all()).map_err(|error| {
            let path = &paths(&self.path)[at];
            format!("whose data devices hold cannot be kept in {}: {}", path.display(), mqfq_report::plain(&error))
        })?;
        (self.generation, self.at, self.devices) = (generation, at, devices);
        Ok(())
    }
}
