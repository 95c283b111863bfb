//! A folder for a test, and bytes to put into files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that is gone at the end of the test.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one in the system's temporary folder.
    ///
    /// # Panics
    /// If it cannot be made, as everything here.
    #[allow(clippy::new_without_default, reason = "a folder is no default of anything")]
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: the number only has to differ between tests.
        let name = format!("mqfq-e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// No folder: what is left where one was taken.
    pub fn none() -> Folder {
        Folder(PathBuf::new())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of something in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file of `size_bytes` zeroes.
    pub fn file(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.join(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(size_bytes)).unwrap();
        path
    }

    /// A file whose byte at offset n depends on n and `seed`, with a hole in the middle third.
    pub fn patterned_file(&self, name: &str, size_bytes: usize, seed: u8) -> PathBuf {
        let mut bytes = pattern(size_bytes, seed);
        bytes[size_bytes / 3..2 * size_bytes / 3].fill(0);
        let path = self.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A failure cannot be reported; the system cleans its temporary folder in the end.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes that differ from each other, from zero runs, and from those of another seed.
pub fn pattern(length_bytes: usize, seed: u8) -> Vec<u8> {
    (0..length_bytes).map(|n| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[1] ^ seed).collect()
}

/// Path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
