//! A loop device that is detached with the last descriptor of it: a test that is killed leaves none attached.

use std::fs::File;
use std::io::{BufRead, BufReader, Error};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// `include/uapi/linux/loop.h`.
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_config` there, with the `struct loop_info64` in it.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_bytes: u32,
    /// Device, inode, device node, offset and size limit.
    places: [u64; 5],
    /// Number, type and length of a key.
    numbers: [u32; 3],
    flags: u32,
    /// Two of 64 bytes each, and a key of 32.
    names: [u8; 160],
    init: [u64; 2],
    reserved: [u64; 8],
}

static ATTACHING: Mutex<()> = Mutex::new(());

pub struct LoopDevice {
    pub path: PathBuf,
    /// Keeps it attached.
    _held: File,
}

impl LoopDevice {
    /// A free loop device on `image`, of blocks of 512 bytes.
    ///
    /// # Errors
    /// One sentence: there is none, or no right to it.
    pub fn attach(image: &Path) -> Result<LoopDevice, String> {
        LoopDevice::attach_of(image, 0)
    }

    /// A free loop device on `image`, of such blocks; 0: of the smallest that there are.
    ///
    /// # Errors
    /// One sentence: there is none, or no right to it.
    pub fn attach_of(image: &Path, block_bytes: u32) -> Result<LoopDevice, String> {
        let open = |path: &Path| {
            let opened = File::options().read(true).write(true).open(path);
            opened.map_err(|error| format!("{}: {error}", path.display()))
        };
        let (control, backing) = (open(Path::new("/dev/loop-control"))?, open(image)?);
        let config = LoopConfig {
            fd: backing.as_raw_fd() as u32,
            block_bytes,
            places: [0; 5],
            numbers: [0; 3],
            flags: LO_FLAGS_AUTOCLEAR,
            names: [0; 160],
            init: [0; 2],
            reserved: [0; 8],
        };
        // One thread at a time. Two may be given the same number, and the slower one closes a device that the other
        // serves by then, with which the process loses its lock on it (fcntl), by which a server names itself.
        let _alone = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // SAFETY: this request takes no argument and answers a number.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(format!("no loop device is free: {}", Error::last_os_error()));
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let held = open(&path)?;
            // SAFETY: the kernel reads a struct loop_config, and keeps only the file of its descriptor.
            if unsafe { libc::ioctl(held.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
                return Ok(LoopDevice { path, _held: held });
            }
            let error = Error::last_os_error();
            // EBUSY: another process was faster.
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(format!("{} on {}: {error}", path.display(), image.display()));
            }
        }
    }

    /// An attribute of the device; `None`: it is not attached.
    fn attribute(path: &str, name: &str) -> Option<String> {
        let device = path.strip_prefix("/dev/")?;
        Some(std::fs::read_to_string(format!("/sys/block/{device}/loop/{name}")).ok()?.trim().to_string())
    }
}

/// Names the image; set only for the victim.
const VICTIM: &str = "MQFQ_TEST_LOOP_VICTIM";

#[test]
fn a_killed_run_leaves_no_loop_device() {
    if let Some(image) = std::env::var_os(VICTIM) {
        let attached = LoopDevice::attach(Path::new(&image));
        let told = attached.as_ref().map_or_else(String::clone, |device| device.path.display().to_string());
        println!("\nattached {told}");
        loop {
            std::thread::park();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "loop_device::a_killed_run_leaves_no_loop_device", "--nocapture"])
        .env(VICTIM, &image)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.find_map(|line| Some(line.strip_prefix("attached ")?.to_string())).expect("the victim says so");
    let image_of = || LoopDevice::attribute(&told, "backing_file");
    let (attached, is_cleared) = (image_of(), LoopDevice::attribute(&told, "autoclear"));
    victim.kill().unwrap();
    victim.wait().unwrap();
    if attached.is_none() {
        return eprintln!("skipped: no loop device: {told}");
    }
    let image = image.to_str().map(str::to_string);
    assert_eq!((&attached, is_cleared.as_deref()), (&image, Some("1")));
    // A process that looks at new devices may have it open for a moment.
    while image_of() == image {
        std::thread::yield_now();
    }
}
