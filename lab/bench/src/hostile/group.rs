//! The cgroup of the server.

use super::MEMORY_MIB;
use std::path::{Path, PathBuf};

/// A cgroup whose processes may have [`MEMORY_MIB`].
pub struct Group {
    folder: PathBuf,
    is_v1: bool,
}

impl Group {
    /// `None`: none can be made.
    pub fn new() -> Option<Group> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let is_v1 = v1.is_dir();
        let root = if is_v1 { v1 } else { Path::new("/sys/fs/cgroup") };
        let group = Group { folder: root.join(format!("mqfq-hostile-{}", std::process::id())), is_v1 };
        let limit = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
        std::fs::create_dir(&group.folder).ok()?;
        std::fs::write(group.folder.join(limit), (MEMORY_MIB << 20).to_string()).ok().map(|()| group)
    }

    /// File that takes the ids of processes.
    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Most memory that they had, MiB.
    pub fn peak_mib(&self) -> Option<u64> {
        let file = if self.is_v1 { "memory.max_usage_in_bytes" } else { "memory.peak" };
        let bytes: u64 = std::fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()?;
        Some(bytes >> 20)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The server has ended, so it is empty; if not, it is seen.
        let _ = std::fs::remove_dir(&self.folder);
    }
}
