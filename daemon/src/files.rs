//! Files that a user named: opened so that none can hold the server up, and refused in words.
//!
//! Opening a FIFO blocks until its other end is opened, which may be never. So the type is looked at first, and the
//! file is opened without waiting in case that it has changed in between.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The text of a regular file of at most `bytes_max`.
///
/// # Errors
/// Why not, in words that follow "cannot read PATH: ".
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, String> {
    const ALLOWED: &str = "a regular file";
    let metadata = std::fs::metadata(path).map_err(|error| mqfq_report::plain(&error))?;
    allow(&metadata, FileType::is_file, ALLOWED)?;
    let file = open(OpenOptions::new().read(true), path)?;
    allow(&file.metadata().map_err(|error| mqfq_report::plain(&error))?, FileType::is_file, ALLOWED)?;
    let mut text = Vec::new();
    // One byte more tells a file that is too long.
    (&file).take(bytes_max + 1).read_to_end(&mut text).map_err(|error| mqfq_report::plain(&error))?;
    if text.len() as u64 > bytes_max {
        return Err(format!("it has more than {bytes_max} bytes, which is the most that is allowed"));
    }
    mqfq_config::text::utf8(text)
}

/// A regular file, made if there is none and emptied if there is one.
///
/// # Errors
/// Why not, in words.
pub fn create(path: &Path) -> Result<File, String> {
    let file = made(OpenOptions::new().write(true), path)?;
    file.set_len(0).map_err(|error| mqfq_report::plain(&error))?;
    Ok(file)
}

/// Opens a regular file that only its owner may read, with its contents, or makes it.
///
/// # Errors
/// Why not, in words.
pub fn open_own(path: &Path) -> Result<File, String> {
    made(OpenOptions::new().read(true).write(true).mode(0o600), path)
}

fn made(how: &mut OpenOptions, path: &Path) -> Result<File, String> {
    const ALLOWED: &str = "a regular file, or a path where nothing is yet";
    if let Ok(metadata) = std::fs::metadata(path) {
        allow(&metadata, FileType::is_file, ALLOWED)?;
    }
    let file = open(how.create(true), path)?;
    allow(&file.metadata().map_err(|error| mqfq_report::plain(&error))?, FileType::is_file, ALLOWED)?;
    Ok(file)
}

/// Size of a regular file or block device, bytes.
///
/// A regular file is not opened for it: closing it again would take the process's lock (fcntl) from a file that it
/// serves.
///
/// # Errors
/// Why not, in words that follow "cannot open PATH: ".
pub fn device_size_bytes(path: &Path) -> Result<u64, String> {
    let is_device = |kind: &FileType| kind.is_file() || kind.is_block_device();
    const ALLOWED: &str = "a regular file or a block device";
    let metadata = std::fs::metadata(path).map_err(|error| mqfq_report::plain(&error))?;
    allow(&metadata, is_device, ALLOWED)?;
    if metadata.is_file() {
        return accessible(path, libc::R_OK).map(|()| metadata.len());
    }
    let mut file = open(OpenOptions::new().read(true), path)?;
    allow(&file.metadata().map_err(|error| mqfq_report::plain(&error))?, is_device, ALLOWED)?;
    // The end of a block device is not in its metadata.
    file.seek(SeekFrom::End(0)).map_err(|error| mqfq_report::plain(&error))
}

/// This process may write to the file.
///
/// # Errors
/// Why not, in words.
pub fn writable(path: &Path) -> Result<(), String> {
    accessible(path, libc::W_OK)?;
    match std::fs::metadata(path) {
        Ok(about) if about.file_type().is_block_device() && is_read_only(about.rdev()) => {
            Err("it is a read-only device".to_owned())
        }
        _ => Ok(()),
    }
}

/// A block device takes no writes. Linux opens it to be written all the same, for those who may do anything.
fn is_read_only(number: u64) -> bool {
    let about = format!("/sys/dev/block/{}:{}/ro", libc::major(number), libc::minor(number));
    std::fs::read_to_string(about).is_ok_and(|text| text.trim() == "1")
}

fn accessible(path: &Path, mode: libc::c_int) -> Result<(), String> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| "its path holds a NUL character")?;
    // SAFETY: `name` is a C string; nothing else is read or written.
    match unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), mode, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(mqfq_report::plain(&std::io::Error::last_os_error())),
    }
}

fn open(how: &mut OpenOptions, path: &Path) -> Result<File, String> {
    how.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).map_err(|error| match error.raw_os_error() {
        // A FIFO without a reader, put there after the look at its type.
        Some(libc::ENXIO) => "it is not a regular file".to_owned(),
        _ => mqfq_report::plain(&error),
    })
}

fn allow(metadata: &Metadata, is_allowed: impl Fn(&FileType) -> bool, allowed: &str) -> Result<(), String> {
    let kind = metadata.file_type();
    if is_allowed(&kind) { Ok(()) } else { Err(format!("it is {}, allowed is {allowed}", name_of(&kind))) }
}

fn name_of(kind: &FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_block_device() => "a block device",
        kind if kind.is_char_device() => "a character device",
        _ => "a file of another kind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A path of this test that is gone at its end.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Temporary {
            Temporary(std::env::temp_dir().join(format!("mqfq-files-{name}-{}", std::process::id())))
        }

        fn fifo(name: &str) -> Temporary {
            let path = Temporary::new(name);
            let name = std::ffi::CString::new(path.0.as_os_str().as_bytes()).unwrap();
            // SAFETY: `name` is a C string.
            assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
            path
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_fifo_is_refused_and_waited_for_by_nobody() {
        let fifo = Temporary::fifo("fifo");
        let refused = |result: Result<u64, String>| result.unwrap_err();
        assert_eq!(read_text(&fifo.0, 9).unwrap_err(), "it is a FIFO, allowed is a regular file");
        assert_eq!(refused(device_size_bytes(&fifo.0)), "it is a FIFO, allowed is a regular file or a block device");
        let create = |path: &Path| create(path).map(|_| 0);
        let rest = "allowed is a regular file, or a path where nothing is yet";
        assert_eq!(refused(create(&fifo.0)), format!("it is a FIFO, {rest}"));
        assert_eq!(refused(create(Path::new("/"))), format!("it is a directory, {rest}"));
        assert_eq!(refused(create(Path::new("/dev/full"))), format!("it is a character device, {rest}"));
        // Put there after the look at it: opening does not wait either.
        assert_eq!(refused(open(OpenOptions::new().write(true), &fifo.0).map(|_| 0)), "it is not a regular file");
        assert!(open(OpenOptions::new().read(true), &fifo.0).is_ok());
    }

    #[test]
    fn a_text_of_exactly_the_longest_length_is_read() {
        let path = Temporary::new("text");
        std::fs::write(&path.0, "12345").unwrap();
        assert_eq!(read_text(&path.0, 5).unwrap(), "12345");
        let sentence = "it has more than 4 bytes, which is the most that is allowed";
        assert_eq!(read_text(&path.0, 4).unwrap_err(), sentence);
    }

    #[test]
    fn a_file_that_is_made_again_is_empty() {
        let path = Temporary::new("again");
        std::fs::write(&path.0, "something long").unwrap();
        drop(create(&path.0).unwrap());
        assert_eq!(std::fs::metadata(&path.0).unwrap().len(), 0);
        assert_eq!(device_size_bytes(&path.0), Ok(0));
    }
}
