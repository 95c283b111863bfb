//! A folder of our own for sockets and configs, gone when dropped.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Longest path of a unix socket, bytes, without its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Room that callers need for a socket's name inside the folder.
const NAME_BYTES: usize = 32;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A folder that only this user may enter.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new, empty folder under the system's temporary folder, with a path short enough for sockets.
    ///
    /// # Errors
    /// One sentence naming the folder.
    pub fn new() -> Result<Scratch, String> {
        // Relaxed: only the number matters.
        let name = || format!("mqfq-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut root = std::env::temp_dir();
        if root.as_os_str().len() + NAME_BYTES * 2 > SOCKET_PATH_BYTES_MAX {
            root = PathBuf::from("/tmp");
        }
        loop {
            let path = root.join(name());
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch { path }),
                // Left behind by a process of the same number that was killed.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("cannot make the folder {}: {error}", path.display())),
            }
        }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure cannot be reported; it leaves a few small files in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_ours_alone_and_gone_afterwards() {
        let (first, second) = (Scratch::new().unwrap(), Scratch::new().unwrap());
        assert_ne!(first.path(), second.path());
        assert_eq!(std::fs::metadata(first.path()).unwrap().permissions().mode() & 0o777, 0o700);
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
    }
}
