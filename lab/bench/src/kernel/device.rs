//! The block device, its choice of schedulers, and the guard that puts things back.

use mqfq_demo::scratch::Scratch;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Size of the file under a loop device that we make: far more than a processor's caches.
const FILE_BYTES: usize = 256 << 20;

/// Where files in memory are, if there is such a place.
const MEMORY: &str = "/dev/shm";

/// A block device under measurement. Dropped, its scheduler is what it was, and a loop device of ours is gone.
pub struct Target {
    path: PathBuf,
    /// Its file in /sys that names the schedulers.
    choice: PathBuf,
    offered: Vec<String>,
    /// Keeps a loop device, which was detached already, for as long as it is open.
    _held: File,
    guard: Child,
}

/// The sentence for what is no block device.
///
/// # Errors
/// That sentence.
pub fn must_be_block_device(path: &Path) -> Result<(), String> {
    let metadata = std::fs::metadata(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    match metadata.file_type().is_block_device() {
        true => Ok(()),
        false => Err(format!("{} is no block device, and only those have a scheduler", path.display())),
    }
}

impl Target {
    /// The given device, or a loop device.
    ///
    /// # Errors
    /// Why it cannot be measured here.
    pub fn open(given: Option<&Path>) -> Result<Target, String> {
        let (path, held) = match given {
            Some(path) => {
                let path = path.canonicalize().map_err(|error| format!("cannot find {}: {error}", path.display()))?;
                let held = File::open(&path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
                (path, held)
            }
            None => loop_device()?,
        };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
        let choice = PathBuf::from(format!("/sys/block/{name}/queue/scheduler"));
        // Schedulers that are modules are offered only once they are loaded; without modprobe the list stays as it is.
        for module in ["mq-deadline", "kyber-iosched", "bfq"] {
            let loaded =
                Command::new("modprobe").args(["-q", module]).stdin(Stdio::null()).stderr(Stdio::null()).status();
            drop(loaded);
        }
        let text = std::fs::read_to_string(&choice).map_err(|error| {
            format!("{} cannot be read, a partition has no scheduler of its own: {error}", choice.display())
        })?;
        let (offered, chosen) = parse(&text);
        if offered.len() < 2 {
            return Err(format!("the kernel offers no scheduler but {} for {name}", offered.join(", ")));
        }
        let guard = guard(&choice, chosen.as_deref().unwrap_or("none"))?;
        Ok(Target { path, choice, offered, _held: held, guard })
    }

    /// Its node in /dev.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Schedulers that the kernel offers.
    pub fn offered(&self) -> &[String] {
        &self.offered
    }

    /// Chooses one of them.
    ///
    /// # Errors
    /// One sentence.
    pub fn choose(&self, name: &str) -> Result<(), String> {
        std::fs::write(&self.choice, name)
            .map_err(|error| format!("the kernel does not take {name} for {}: {error}", self.path.display()))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The end of its pipe is what it waits for.
        drop(self.guard.stdin.take());
        drop(self.guard.wait());
    }
}

/// The names in the kernel's line, and the one in brackets: `none mq-deadline [kyber]`.
fn parse(text: &str) -> (Vec<String>, Option<String>) {
    let bare = |word: &str| word.trim_matches(['[', ']']).to_string();
    let chosen = text.split_whitespace().find(|word| word.starts_with('[')).map(bare);
    (text.split_whitespace().map(bare).collect(), chosen)
}

/// A shell that puts the scheduler back when its input ends, in a process group of its own: what interrupts us does not
/// reach it.
fn guard(choice: &Path, chosen: &str) -> Result<Child, String> {
    Command::new("sh")
        .args(["-c", "read wait; echo \"$1\" > \"$0\""])
        .arg(choice)
        .arg(chosen)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start sh, which is to put the scheduler back: {error}"))
}

/// A loop device over a file without a name, in memory if it can be. Attached, opened and detached.
fn loop_device() -> Result<(PathBuf, File), String> {
    let scratch = Scratch::new()?;
    let folder = if Path::new(MEMORY).is_dir() { Path::new(MEMORY) } else { scratch.path() };
    let backing = folder.join(format!("mqfq-kernel-{}", std::process::id()));
    let attached = fill(&backing).and_then(|()| attach(&backing));
    // The loop device holds the file; its name goes, whatever came of it.
    drop(std::fs::remove_file(&backing));
    attached
}

fn fill(path: &Path) -> Result<(), String> {
    let mut file = File::create_new(path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    let chunk: Vec<u8> = (0..1 << 20).map(|at| at as u8 | 1).collect();
    (0..FILE_BYTES / chunk.len())
        .try_for_each(|_| file.write_all(&chunk))
        .map_err(|error| format!("cannot fill {}: {error}", path.display()))
}

fn attach(backing: &Path) -> Result<(PathBuf, File), String> {
    let losetup = |arguments: &[&str], path: &Path| {
        let output = Command::new("losetup").args(arguments).arg(path).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("a loop device needs losetup, which does not start: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
            false => Err(format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    };
    let path = PathBuf::from(losetup(&["--find", "--show"], backing)?);
    let held = File::open(&path);
    // A used device is detached once it is closed.
    losetup(&["--detach"], &path)?;
    let held = held.map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    Ok((path, held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let (offered, chosen) = parse("none mq-deadline [kyber] bfq\n");
        assert_eq!(offered, ["none", "mq-deadline", "kyber", "bfq"]);
        assert_eq!(chosen.as_deref(), Some("kyber"));
        assert_eq!(parse("none\n"), (vec!["none".to_string()], None));
    }

    #[test]
    fn only_a_block_device_has_a_scheduler() {
        assert!(must_be_block_device(Path::new("/dev/null")).unwrap_err().contains("is no block device"));
        assert!(must_be_block_device(Path::new("/nowhere")).unwrap_err().contains("/nowhere"));
    }
}
