//! How is the driver told to add, start, stop and delete devices?
//!
//! By commands of 80 bytes on `/dev/ublk-control`, for which a ring of its own has entries of 128 bytes. A command
//! waits in the kernel until it is done, so this is for threads that may wait. Each command owns what the kernel
//! reads and writes for it, and is waited for, so nothing of it outlives the call.
//!
//! Linux 6.4 gave the operations other numbers. Which of the two a kernel takes is found out once.
//!
//! Without CAP_SYS_ADMIN a process may add devices (UBLK_F_UNPRIVILEGED_DEV), and commands for such a device name its
//! file, which the process must be allowed to open: udev has to give it away first, so each of them waits for that.

use crate::abi::{self, DEV_INFO_BYTES, DevInfo, Operation, PARAMS_BYTES, Params, feature};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The driver's own file.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// For udev to make `/dev/ublkcN`, and to give it to its user, after the device was added.
const NODE_WAIT: Duration = Duration::from_secs(5);

/// Between two looks for that.
const NODE_LOOK: Duration = Duration::from_millis(10);

/// Commands to the driver.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    encoded: bool,
    features: u64,
    /// The device is one of a user without CAP_SYS_ADMIN: commands for it name its file.
    by_path: bool,
}

/// Features of a kernel, and how it takes operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// Bits of [`feature`].
    pub features: u64,
    /// Operations are ioctl codes.
    pub encoded: bool,
}

impl Control {
    /// Opens the driver, and asks what it can.
    ///
    /// # Errors
    /// One sentence: there is no driver here, or it may not be used.
    pub fn open() -> Result<Control, String> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL_PATH).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOENT) => {
                    format!(
                        "{CONTROL_PATH} is missing: this kernel has no ublk driver, or `modprobe ublk_drv` was not run"
                    )
                }
                Some(libc::EACCES | libc::EPERM) => {
                    format!(
                        "{CONTROL_PATH} may not be opened: ublk needs root, CAP_SYS_ADMIN, or a rule of udev that gives the \
                         driver's files to this user, and a sandbox whose `paths` have /dev or that began with a ublk \
                         export"
                    )
                }
                _ => format!("{CONTROL_PATH} cannot be opened: {error}"),
            }
        })?;
        let ring = IoUring::builder().build(4).map_err(|error| {
            format!("{CONTROL_PATH} cannot be spoken to: io_uring has no entries of 128 bytes here ({error})")
        })?;
        let mut control = Control { file, ring, encoded: true, features: 0, by_path: false };
        match control.get_features() {
            Ok(features) => control.features = features | feature::IOCTL_ENCODE,
            Err(_) => {
                control.encoded = control.takes_codes();
                control.features = if control.encoded { feature::OF_6_4 } else { feature::OF_6_1 };
            }
        }
        Ok(control)
    }

    /// Adding a device without saying which is refused as invalid where the code is known. A kernel before 6.4 takes
    /// the code for another operation's, and misses the device that it is for.
    fn takes_codes(&mut self) -> bool {
        let refused = self.command(Operation::AddDev, abi::ANY_NUMBER, &mut [], 0);
        refused.err().and_then(|error| error.raw_os_error()) == Some(libc::EINVAL)
    }

    /// Abilities of this kernel.
    pub fn abilities(&self) -> Abilities {
        Abilities { features: self.features, encoded: self.encoded }
    }

    /// Executes one command and waits for its end.
    fn command(&mut self, operation: Operation, number: u32, buffer: &mut [u8], data: u64) -> io::Result<u32> {
        self.command_with(operation, number, buffer, data, 0)
    }

    /// As [`Control::command`], for a device that exists: if it is one of a user without CAP_SYS_ADMIN, with its file's
    /// path, as soon as this process may open that.
    fn device_command(&mut self, operation: Operation, number: u32, buffer: &mut [u8], data: u64) -> io::Result<u32> {
        if !self.by_path {
            return self.command(operation, number, buffer, data);
        }
        let path = device_path(number);
        let length = path.len();
        let mut all = [path.as_bytes(), buffer].concat();
        let since = Instant::now();
        let result = loop {
            let result = self.command_with(operation, number, &mut all, data, length as u16);
            let is_early = result.as_ref().is_err_and(|error| is_early(error, true));
            if !is_early || since.elapsed() >= NODE_WAIT {
                break result;
            }
            std::thread::sleep(NODE_LOOK);
        };
        buffer.copy_from_slice(&all[length..]);
        result
    }

    fn command_with(
        &mut self,
        operation: Operation,
        number: u32,
        buffer: &mut [u8],
        data: u64,
        path_length: u16,
    ) -> io::Result<u32> {
        let length = u16::try_from(buffer.len()).expect("a structure of the driver is short");
        let address = if buffer.is_empty() { 0 } else { buffer.as_mut_ptr().expose_provenance() as u64 };
        let mut bytes = [0; 80];
        bytes[..abi::CONTROL_BYTES].copy_from_slice(&abi::control(number, address, length, data, path_length));
        let code = operation.code(self.encoded);
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), code).cmd(bytes).build();
        // SAFETY: the one address in the entry is that of `buffer`, with its length, and its end is waited for below.
        unsafe { self.ring.submission().push(&entry) }.expect("one command at a time fits");
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel may have the command: nothing may be freed that it could write to.
                Err(error) => panic!("io_uring_enter on {CONTROL_PATH}: {error}"),
            }
            if let Some(entry) = self.ring.completion().next() {
                let result = entry.result();
                return u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            }
        }
    }

    fn get_features(&mut self) -> io::Result<u64> {
        let mut features = [0; 8];
        self.command(Operation::GetFeatures, abi::ANY_NUMBER, &mut features, 0)?;
        Ok(u64::from_ne_bytes(features))
    }

    /// The driver's description of a device.
    ///
    /// # Errors
    /// ENODEV: there is none of this number.
    pub fn info(&mut self, number: u32) -> io::Result<DevInfo> {
        let mut bytes = [0; DEV_INFO_BYTES];
        let asked = match self.by_path {
            true => self.device_command(Operation::GetDevInfoByPath, number, &mut bytes, 0),
            false => self.command(Operation::GetDevInfo, number, &mut bytes, 0),
        };
        match asked.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => {}
            // It is a device without privileges, of this process or of another one.
            Err((Some(libc::EPERM | libc::EINVAL), _)) if !self.by_path => {
                let path = device_path(number);
                let mut all = [path.as_bytes(), &bytes].concat();
                self.command_with(Operation::GetDevInfoByPath, number, &mut all, 0, path.len() as u16)?;
                bytes.copy_from_slice(&all[path.len()..]);
                self.by_path = DevInfo::from_bytes(&bytes).flags & feature::UNPRIVILEGED != 0;
            }
            Err((_, error)) => return Err(error),
        }
        Ok(DevInfo::from_bytes(&bytes))
    }

    /// Adds a device, or one of the next free number where it is [`abi::ANY_NUMBER`]; what the driver made of it.
    ///
    /// # Errors
    /// The driver's.
    pub fn add(&mut self, info: DevInfo) -> io::Result<DevInfo> {
        let mut bytes = info.to_bytes();
        self.command(Operation::AddDev, info.number, &mut bytes, 0)?;
        self.by_path = info.flags & feature::UNPRIVILEGED != 0;
        Ok(DevInfo::from_bytes(&bytes))
    }

    /// Sets the block device's parameters, before the device is started.
    ///
    /// # Errors
    /// The driver's.
    pub fn set_params(&mut self, number: u32, params: Params) -> io::Result<()> {
        let mut bytes: [u8; PARAMS_BYTES] = params.to_bytes();
        self.device_command(Operation::SetParams, number, &mut bytes, 0).map(drop)
    }

    /// Waits until each queue has fetched all its requests; then there is a block device.
    ///
    /// # Errors
    /// The driver's.
    pub fn start(&mut self, number: u32) -> io::Result<()> {
        self.device_command(Operation::StartDev, number, &mut [], u64::from(std::process::id())).map(drop)
    }

    /// Waits until the block device's requests have ended, and removes it.
    ///
    /// Dirty pages go to the server first: once the device stops, the driver fails all further requests of a device
    /// whose requests would wait for another server (`ublk_force_abort_dev`), the kernel's own last writes included.
    ///
    /// # Errors
    /// The driver's.
    pub fn stop(&mut self, number: u32) -> io::Result<()> {
        write_back(number);
        self.device_command(Operation::StopDev, number, &mut [], 0).map(drop)
    }

    /// Removes a device. Where the kernel can, without waiting for processes that have the block device open.
    ///
    /// # Errors
    /// The driver's.
    pub fn delete(&mut self, number: u32) -> io::Result<()> {
        if self.encoded {
            match self.device_command(Operation::DelDevAsync, number, &mut [], 0) {
                // EINVAL: not for a device of a user without CAP_SYS_ADMIN.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {}
                result => return result.map(drop),
            }
        }
        self.device_command(Operation::DelDev, number, &mut [], 0).map(drop)
    }

    /// This process begins to serve a device that another one left.
    ///
    /// # Errors
    /// EBUSY: the other one still has it.
    pub fn start_recovery(&mut self, number: u32) -> io::Result<()> {
        self.device_command(Operation::StartUserRecovery, number, &mut [], 0).map(drop)
    }

    /// Waits until each queue has fetched all its requests; then this process serves it.
    ///
    /// # Errors
    /// The driver's.
    pub fn end_recovery(&mut self, number: u32) -> io::Result<()> {
        self.device_command(Operation::EndUserRecovery, number, &mut [], u64::from(std::process::id())).map(drop)
    }

    /// The block device has so many sectors from now on.
    ///
    /// # Errors
    /// EOPNOTSUPP: this kernel cannot.
    pub fn update_size(&mut self, number: u32, sectors: u64) -> io::Result<()> {
        self.device_command(Operation::UpdateSize, number, &mut [], sectors).map(drop)
    }
}

/// Has the kernel write back the dirty pages of `/dev/ublkbN` and of the file system on it, if this process may open
/// it.
fn write_back(number: u32) {
    /// Source: include/uapi/linux/fs.h.
    const BLKFLSBUF: u64 = 0x1261;
    if let Ok(device) = File::open(format!("/dev/ublkb{number}")) {
        // SAFETY: the command takes no argument, and touches no memory of ours.
        unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF as _, 0) };
    }
}

/// Starts a thread that may wait for the driver.
///
/// # Errors
/// The kernel's.
pub fn start_thread(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("mqfq-ublk".to_owned()).spawn(body).map(drop)
}

fn device_path(number: u32) -> String {
    format!("/dev/ublkc{number}")
}

/// udev has not made the device's file yet, or not given it to this user who has no privileges.
fn is_early(error: &io::Error, by_path: bool) -> bool {
    match error.kind() {
        io::ErrorKind::NotFound => true,
        io::ErrorKind::PermissionDenied => by_path,
        _ => false,
    }
}

/// Opens `/dev/ublkcN` of a device that was added. Only one process has it open at a time.
///
/// # Errors
/// EBUSY: another one has it.
pub fn open_device(control: &Control, number: u32) -> io::Result<Arc<OwnedFd>> {
    let path = device_path(number);
    let since = Instant::now();
    loop {
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => return Ok(Arc::new(file.into())),
            Err(error) if is_early(&error, control.by_path) && since.elapsed() < NODE_WAIT => {
                std::thread::sleep(NODE_LOOK);
            }
            Err(error) => return Err(error),
        }
    }
}
