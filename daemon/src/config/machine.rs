//! Files and devices of the machine, as the checks of a config see them.

use super::model::Medium;
use super::plan::{DevicePlan, Plan};
use crate::files;
use std::path::{Path, PathBuf};

/// The machine's answers about a path; a trait so that the checks are tested without files.
pub trait Files {
    /// Size of a regular file or block device, bytes.
    ///
    /// # Errors
    /// It is something else, or cannot be opened: why, in words.
    fn size_bytes(&self, path: &Path) -> Result<u64, String>;

    /// Whether this process may write to it.
    ///
    /// # Errors
    /// It may not: why, in words.
    fn writable(&self, path: &Path) -> Result<(), String>;

    /// One spelling of a file's path.
    fn canonical(&self, path: &Path) -> PathBuf;
}

/// The machine's own files.
pub struct RealFiles;

impl Files for RealFiles {
    fn size_bytes(&self, path: &Path) -> Result<u64, String> {
        files::device_size_bytes(path)
    }

    fn writable(&self, path: &Path) -> Result<(), String> {
        files::writable(path)
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    }
}

/// [`Files`] for a server that runs a plan: after it has become another user, it may not be allowed to open again the
/// files that it holds.
pub struct HeldFiles<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// A device of it that is to be opened again all the same, by name.
    pub but: Option<&'p str>,
}

impl HeldFiles<'_> {
    /// The device that holds this file: `None` if there is none, or it is to be opened again, or its file is gone.
    fn held(&self, path: &Path) -> Option<(&DevicePlan, std::fs::Metadata)> {
        let is_its = |device: &&DevicePlan| match &device.config.medium {
            Medium::File { path: own, .. } => own.value == path && self.but != Some(device.config.name.as_str()),
            _ => false,
        };
        Some((self.plan.devices.values().find(is_its)?, std::fs::metadata(path).ok()?))
    }
}

impl Files for HeldFiles<'_> {
    fn size_bytes(&self, path: &Path) -> Result<u64, String> {
        let held =
            || self.held(path).map(|(device, about)| if about.is_file() { about.len() } else { device.size_bytes });
        RealFiles.size_bytes(path).or_else(|why| held().ok_or(why))
    }

    fn writable(&self, path: &Path) -> Result<(), String> {
        let is_held = || self.held(path).is_some_and(|(device, _)| !device.read_only);
        RealFiles.writable(path).or_else(|why| if is_held() { Ok(()) } else { Err(why) })
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        RealFiles.canonical(path)
    }
}
