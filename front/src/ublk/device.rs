//! In which order is the driver told about one device?
//!
//! The driver's commands wait in the kernel: until all requests were fetched, until the block device's last request has
//! ended. So a thread of its own gives them, one for each device, and sleeps otherwise. It hears of the workers by
//! [`Order`]s, and they of it by a bell ([`Meeting`]).
//!
//! ```text
//!   Go ──▶ add, parameters ──┐                    ┌─▶ start ─────────┐
//!      └─▶ start recovery ───┴─▶ queues fetch ────┴─▶ end recovery ──┴─▶ serving ─ Leave ─▶ stop, queues go, delete
//!                                                                         └ Leave, and it stays ─▶ nothing
//! ```
//! While it serves it looks once a second whether the export has another size.

use super::plan::{self, Plan};
use super::queue::{Parts, Queue};
use super::request::{RANGE_BYTES_MAX, SECTOR_BYTES};
use super::{Own, ZeroCopy, variant};
use crate::export::{Export, ExportTable};
use crate::front_end::{Ending, Log, LogLine};
use crate::stats::Stats;
use mqfq_blk::client::{Client, MakeClient};
use mqfq_blk::pages::{PLACES, Pages};
use mqfq_ublk::abi::{ANY_NUMBER, DEPTH_MAX, DevInfo, Params, feature, state};
use mqfq_ublk::control::Control;
use mqfq_ublk::queue::{QueueMemory, open_queues};
use rustix::event::EventfdFlags;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// Most requests of a queue: what keeps a fast device busy from one core.
const QUEUE_DEPTH_MAX: u64 = 128;

/// Least requests of a queue, however little memory a connection may have.
const QUEUE_DEPTH_MIN: u64 = 4;

/// A page, bytes: the driver takes no device whose largest request is smaller, nor one with a larger block.
const PAGE_BYTES: u32 = 4096;

/// Between two looks at a device that another process still serves.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Looks at a device that is deleted and not gone before its users are logged: a second's.
const LOOKS_IN_SILENCE: u32 = 20;

/// Time between two looks for another export of the address.
const LOOK_AT_TABLE: Duration = Duration::from_millis(200);

/// Between two looks at the export's size.
const LOOK_AT_SIZE: Duration = Duration::from_secs(1);

/// State that a server leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// The block device goes with its server.
    None,
    /// It stays, and the server's requests go to the next one.
    Reissue,
    /// It stays, and requests fail: those that the server had, and those that come before the next server.
    Fail,
}

impl Recovery {
    /// Values of the key, in the order of the variants.
    pub const VALUES: &[&str] = &["none", "reissue", "fail"];

    /// The value that is called so.
    pub fn named(name: &str) -> Option<Recovery> {
        variant(Self::VALUES, [Recovery::None, Recovery::Reissue, Recovery::Fail], name)
    }

    /// The server ends, and a device stays for the next one.
    fn outlives(self, ending: &Ending) -> bool {
        self != Recovery::None && ending.has_begun()
    }

    /// Its bits of a device's flags, as far as this kernel has them.
    fn flags(self, features: u64) -> u64 {
        let quiesce = features & feature::QUIESCE;
        match self {
            Recovery::None => 0,
            Recovery::Reissue => feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE | quiesce,
            Recovery::Fail => feature::USER_RECOVERY | quiesce | (features & feature::USER_RECOVERY_FAIL_IO),
        }
    }
}

/// Order to the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The table has its export: begin.
    Go,
    /// End.
    Leave {
        /// The block device stays, for the next server.
        stays: bool,
    },
    /// A queue is asked to drain: its export may go, and the number stay for another one.
    Vacate,
    /// A queue of this [`Attached::generation`] is gone.
    QueueGone(u64),
}

/// Reason why a device is served no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// The thread was told to leave.
    Left,
    /// Its export went, or it cannot be served: the next export of the address has its turn.
    Vacant,
}

/// State of a device that all its clients share.
pub struct About {
    /// Export that it shows.
    pub export: Arc<Export>,
    /// Counters of the address.
    pub stats: Arc<Stats>,
    /// Number of the listener and all its clients.
    pub number: u64,
    recovery: Recovery,
    ending: Ending,
    /// Generation of the device's queues, see [`Attached`].
    generation: u64,
    orders: mpsc::Sender<Order>,
}

impl About {
    /// A device that shows `export`.
    pub fn new(
        export: Arc<Export>,
        stats: Arc<Stats>,
        number: u64,
        recovery: Recovery,
        ending: Ending,
        generation: u64,
        orders: mpsc::Sender<Order>,
    ) -> Arc<About> {
        Arc::new(About { export, stats, number, recovery, ending, generation, orders })
    }

    /// The block device outlives the drain that has been asked for: the server ends, and another one will come.
    pub fn stays(&self) -> bool {
        self.recovery.outlives(&self.ending)
    }

    /// The server ends: the device belongs to the kernel from then on.
    pub fn ends(&self) -> bool {
        self.ending.has_begun()
    }

    /// A queue is asked to drain, on its worker.
    pub fn vacate(&self) {
        // As below.
        let _ = self.orders.send(Order::Vacate);
    }

    /// A queue was dropped, on its worker.
    pub fn queue_gone(&self) {
        // A thread that has ended needs no news.
        let _ = self.orders.send(Order::QueueGone(self.generation));
    }
}

/// Place where the thread leaves queues for the recovery holder.
pub struct Meeting {
    state: Mutex<State>,
    /// Rung after each change.
    pub bell: OwnedFd,
}

#[derive(Default)]
struct State {
    queues: Vec<MakeClient>,
    has_ended: bool,
}

impl Meeting {
    /// Nothing there. `None`: no descriptor is left.
    pub fn new() -> Option<Arc<Meeting>> {
        let bell = eventfd()?;
        Some(Arc::new(Meeting { state: Mutex::default(), bell }))
    }

    /// The queues that are to be attached.
    pub fn take_queues(&self) -> Vec<MakeClient> {
        std::mem::take(&mut self.state().queues)
    }

    /// The thread does nothing any more.
    pub fn has_ended(&self) -> bool {
        self.state().has_ended
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole after each statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        // Full means rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// An eventfd that does not block.
fn eventfd() -> Option<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()
}

/// Initial state of the thread.
pub struct Device {
    /// The driver.
    pub control: Control,
    /// The number asked for, or [`ANY_NUMBER`].
    pub number: u32,
    /// State that is left when this server is gone.
    pub recovery: Recovery,
    /// Payloads that stay in the kernel.
    pub zero_copy: ZeroCopy,
    /// The address's exports: one, by the time of [`Order::Go`].
    pub exports: Arc<ExportTable>,
    /// Queues, as many as the kernel has CPUs for.
    pub queues: u16,
    /// Memory for rooms of each queue, bytes.
    pub bytes_max: u64,
    /// See [`crate::front_end::ListenOptions::replaces`].
    pub replaces: bool,
    /// See [`crate::front_end::ListenOptions::ending`].
    pub ending: Ending,
    /// Log for lines about it.
    pub log: Option<Log>,
    /// Its counters.
    pub stats: Arc<Stats>,
    /// Number of its clients.
    pub client: u64,
    /// Meeting place with the recovery holder.
    pub meeting: Arc<Meeting>,
    /// Its orders, and the sender that queues use.
    pub orders: (mpsc::Sender<Order>, mpsc::Receiver<Order>),
    /// Generation of the latest queues; 0 before the first.
    pub generation: u64,
}

/// The device that is served now.
struct Served {
    info: DevInfo,
    is_recovered: bool,
    /// Places for its requests, if their payloads stay in the kernel.
    pages: Option<Arc<Pages>>,
    /// Reason why they do not, although they were to.
    copies: Option<String>,
}

/// The queues of one device that workers have. A thread serves one device after another, and a queue of the former one
/// may go while the next one is served: it is no queue of the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attached {
    generation: u64,
    /// Queues that are left.
    left: u16,
}

impl Attached {
    /// A queue of this generation is no more.
    fn lose(&mut self, generation: u64) {
        if generation == self.generation {
            self.left -= 1;
        }
    }
}

/// State of a device whose queues are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DeviceState {
    /// It is served.
    Served {
        /// Size of the block device, if it is known to be there.
        size_bytes: u64,
    },
    /// It could not be taken over: it stays as it is until its export goes, or the server, and its queues with it.
    Stranded,
    /// The driver was told to stop it: queues and device go.
    Stopped,
}

/// Reason why the last queue of a device is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// The server ends, and has not told the thread yet: the queues are not on the worker that tells it. The device is
    /// for the next server.
    Ending,
    /// It was stopped by us.
    Stopped,
    /// Another process has taken it from this server.
    Quiesced,
    /// Another process has stopped or deleted it.
    Removed,
}

fn why_queues_are_gone(is_stopped: bool, stays: bool, is_quiesced: impl FnOnce() -> bool) -> Why {
    match (is_stopped, stays) {
        (true, _) => Why::Stopped,
        (false, true) => Why::Ending,
        (false, false) if is_quiesced() => Why::Quiesced,
        (false, false) => Why::Removed,
    }
}

impl Device {
    /// The thread, from its start to its end.
    pub fn run(mut self) {
        let mut goes_on = self.orders.1.recv() == Ok(Order::Go);
        let mut served = None;
        while goes_on {
            // One export after another: a proposal may give the number to another one.
            let next = self.exports.all().into_iter().next();
            goes_on = match next.filter(|next| !next.state.is_closed() && Some(next.id) != served) {
                Some(export) => {
                    served = Some(export.id);
                    self.serve(export) == Outcome::Vacant
                }
                None => !matches!(
                    self.orders.1.recv_timeout(LOOK_AT_TABLE),
                    Ok(Order::Leave { .. }) | Err(mpsc::RecvTimeoutError::Disconnected)
                ),
            };
        }
        self.meeting.change(|state| state.has_ended = true);
    }

    fn say(&self, export: Option<&str>, text: &str) {
        if let Some(log) = &self.log {
            log(LogLine { text, export });
        }
    }

    fn serve(&mut self, export: Arc<Export>) -> Outcome {
        let name = export.name.clone();
        let served = match self.acquire(&export) {
            Ok(Some(served)) => served,
            // Told to leave while it waited for another process.
            Ok(None) => return Outcome::Left,
            Err(sentence) => {
                self.say(Some(&name), &sentence);
                return Outcome::Vacant;
            }
        };
        let number = served.info.number;
        let attached = match self.attach(&served, export.clone()) {
            Ok(attached) => attached,
            Err(error) => {
                self.say(Some(&name), &format!("/dev/ublkb{number} cannot be served: {error}"));
                if !served.is_recovered {
                    self.delete(number);
                }
                return Outcome::Vacant;
            }
        };
        let begun = if served.is_recovered { self.control.end_recovery(number) } else { self.control.start(number) };
        if let Err(error) = begun {
            self.say(Some(&name), &format!("/dev/ublkb{number} cannot be served: {error}"));
            let state = if served.is_recovered { DeviceState::Stranded } else { self.stop(number, &export) };
            return self.watch(number, attached, state, &export);
        }
        let how = match (served.is_recovered, served.pages.is_some()) {
            (true, _) => "is there again, with its requests",
            (false, true) => "is there, with zero copy",
            (false, false) if served.info.flags & feature::UNPRIVILEGED != 0 => "is there, without CAP_SYS_ADMIN",
            (false, false) => "is there",
        };
        // In one line: a second one within a second is left out.
        let copies = served.copies.as_ref().map(|why| format!("; it copies its payloads: {why}"));
        self.say(Some(&name), &format!("/dev/ublkb{number} {how}{}", copies.unwrap_or_default()));
        self.stats.count_opened();
        let had_bytes = if served.is_recovered { kernel_bytes(number) } else { None };
        let state = DeviceState::Served { size_bytes: had_bytes.unwrap_or(export.size_bytes) };
        let outcome = self.watch(number, attached, state, &export);
        self.stats.count_closed();
        outcome
    }

    /// Adds the device, or takes it over. `None`: it is to leave.
    fn acquire(&mut self, export: &Export) -> Result<Option<Served>, String> {
        let (number, name) = (self.number, &export.name);
        let mut looks = 0u32;
        loop {
            let found = if number == ANY_NUMBER { None } else { self.control.info(number).ok() };
            let plan = match &found {
                Some(info) => plan::plan(info, Some(name), plan::is_alive(info.pid), self.replaces),
                None => Plan::Add,
            };
            match plan {
                Plan::Add => return self.add(export).map(Some),
                Plan::Replace => {
                    self.delete(number);
                    looks += 1;
                    if looks == LOOKS_IN_SILENCE {
                        let text = format!("ublk {number} is served once nobody has its former block device open");
                        self.say(Some(name), &text);
                    }
                }
                Plan::Recover => {
                    if let Some(served) = self.recover(export, found)? {
                        return Ok(Some(served));
                    }
                }
                Plan::Wait => {}
                Plan::Refuse(owner) => return Err(format!("ublk {number} is not served: {}", owner.why())),
            }
            match self.orders.1.recv_timeout(LOOK_AGAIN) {
                Ok(Order::Leave { .. }) | Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(None),
                Ok(Order::Go | Order::Vacate | Order::QueueGone(_)) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Takes over the device that another process has left. `None`: that process's end is under way.
    fn recover(&mut self, export: &Export, found: Option<DevInfo>) -> Result<Option<Served>, String> {
        let number = self.number;
        let failed = |error| format!("ublk {number} cannot be taken over: {error}");
        let had_pages = found.filter(DevInfo::has_pages);
        let pages = had_pages.map(|info| self.pages_again(export, &info)).transpose().map_err(failed)?;
        match self.control.start_recovery(number) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        }
        let info = self.control.info(number).map_err(|error| failed(error.to_string()))?;
        self.stats.add_own(Own::Recoveries as usize, 1);
        Ok(Some(Served { info, is_recovered: true, pages, copies: None }))
    }

    /// Places for the requests of a device of this export whose payloads are to stay in the kernel.
    ///
    /// # Errors
    /// Why they cannot: the end of a sentence.
    fn pages(&mut self, export: &Export, depth: u64) -> Result<Arc<Pages>, String> {
        if self.control.abilities().features & feature::PAGES != feature::PAGES {
            return Err("this kernel cannot (Linux 6.16 can)".to_owned());
        }
        let within = if self.zero_copy == ZeroCopy::On { PLACES } else { AUTO_PLACES };
        pages(export, depth * u64::from(self.queues.clamp(1, DEPTH_MAX)), within)
    }

    /// As [`Device::pages`], for a device that a server has left which had them.
    fn pages_again(&self, export: &Export, info: &DevInfo) -> Result<Arc<Pages>, String> {
        let left = |why| format!("it was added with zero copy, and {why}");
        let places = u64::from(info.queues) * u64::from(info.depth);
        let block_bytes = queue_setting(info.number, "logical_block_size").unwrap_or(SECTOR_BYTES);
        if block_bytes < export.block.pages_align_bytes.into() {
            return Err(left(format!("its block of {block_bytes} bytes is smaller than the device's below")));
        }
        pages(export, places, PLACES).map_err(left)
    }

    fn add(&mut self, export: &Export) -> Result<Served, String> {
        let depth_of = |params: &Params| {
            let room_bytes = u64::from(params.sectors_max) * SECTOR_BYTES;
            (self.bytes_max / room_bytes).clamp(QUEUE_DEPTH_MIN, QUEUE_DEPTH_MAX)
        };
        let mut params = params(export, false)?;
        let depth = depth_of(&params);
        let (mut pages, mut copies) = (None, None);
        if self.zero_copy != ZeroCopy::Off {
            match self.pages(export, depth).and_then(|pages| Ok((pages, self::params(export, true)?))) {
                Ok((places, with_pages)) if zero_copy_holds(self.zero_copy, &params, &with_pages) => {
                    (pages, params) = (Some(places), with_pages);
                }
                Ok(_) => {}
                Err(why) => copies = Some(why),
            }
        }
        let features = self.control.abilities().features;
        let info = DevInfo {
            queues: self.queues.clamp(1, DEPTH_MAX),
            depth: depth as u16,
            room_bytes: params.sectors_max * SECTOR_BYTES as u32,
            number: self.number,
            flags: self.recovery.flags(features) | if pages.is_some() { feature::PAGES } else { 0 },
            stamp: plan::stamp(&export.name),
            ..DevInfo::default()
        };
        let is_refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
        let mut added = self.control.add(info);
        if added.as_ref().is_err_and(is_refused) && features & feature::UNPRIVILEGED != 0 {
            let lack = without_privileges(self.recovery, pages.is_some()).map_err(|what| self.needs_admin(what))?;
            copies = lack.map(str::to_owned).or(copies);
            (pages, params) = (None, self::params(export, false)?);
            let room_bytes = params.sectors_max * SECTOR_BYTES as u32;
            let flags = (info.flags & !feature::PAGES) | feature::UNPRIVILEGED;
            added = self.control.add(DevInfo { flags, room_bytes, ..info });
        }
        let info = added.map_err(|error| match is_refused(&error) {
            true => self.needs_admin("a ublk device"),
            false => format!("a ublk device cannot be added: {error}"),
        })?;
        if let Err(error) = self.control.set_params(info.number, params) {
            self.delete(info.number);
            return Err(format!("the kernel takes no block device of this form ({params:?}): {error}"));
        }
        let copies = copies.filter(|_| self.zero_copy == ZeroCopy::On);
        Ok(Served { info, is_recovered: false, pages, copies })
    }

    fn needs_admin(&self, what: &str) -> String {
        format!("{} is not served: {what} cannot be added by this user, it needs CAP_SYS_ADMIN", self.called())
    }

    /// Address as the config writes it.
    fn called(&self) -> String {
        if self.number == ANY_NUMBER { "ublk auto".to_owned() } else { format!("ublk {}", self.number) }
    }

    /// Has the queues attached, which then fetch.
    fn attach(&mut self, served: &Served, export: Arc<Export>) -> std::io::Result<Attached> {
        let Served { info: DevInfo { number, depth, .. }, .. } = *served;
        let memory = open_queues(&mut self.control, number, served.pages.as_ref())?;
        let bell = Arc::new(eventfd().ok_or(rustix::io::Errno::MFILE)?);
        self.generation += 1;
        let attached = Attached { generation: self.generation, left: memory.len() as u16 };
        let (stats, ending, orders) = (self.stats.clone(), self.ending.clone(), self.orders.0.clone());
        let about = About::new(export.clone(), stats, self.client, self.recovery, ending, self.generation, orders);
        let encoded = self.control.abilities().encoded;
        let align_bytes = if served.pages.is_some() { export.block.pages_align_bytes } else { 1 };
        let make = |(QueueMemory { descriptors, file }, number): (QueueMemory, u16)| {
            let (about, bell) = (about.clone(), bell.clone());
            let parts = Parts { number, depth, descriptors, file, encoded, bell, align_bytes };
            Box::new(move || Box::new(Queue::new(about, parts)) as Box<dyn Client>) as MakeClient
        };
        let clients: Vec<MakeClient> = memory.into_iter().zip(0..).map(make).collect();
        self.meeting.change(|state| state.queues = clients);
        Ok(attached)
    }

    /// Waits for the end, and follows the export's size.
    fn watch(&mut self, number: u32, mut attached: Attached, mut state: DeviceState, export: &Export) -> Outcome {
        let mut outcome = Outcome::Vacant;
        while attached.left > 0 {
            let now_bytes = export.size_now_bytes();
            if matches!(state, DeviceState::Served { size_bytes } if size_bytes != now_bytes) {
                state = DeviceState::Served { size_bytes: now_bytes };
                self.resize(number, export, now_bytes);
            }
            // A server that ends drains queues whose export stays: then [`Order::Leave`] follows.
            let is_to_stop = match self.orders.1.recv_timeout(LOOK_AT_SIZE) {
                Ok(Order::Leave { stays: true }) | Err(mpsc::RecvTimeoutError::Disconnected) => return Outcome::Left,
                Ok(Order::Leave { stays: false }) => {
                    outcome = Outcome::Left;
                    true
                }
                Ok(Order::Vacate) => export.state.is_closed(),
                Ok(Order::QueueGone(generation)) => {
                    attached.lose(generation);
                    false
                }
                Ok(Order::Go) | Err(mpsc::RecvTimeoutError::Timeout) => false,
            };
            if is_to_stop && state != DeviceState::Stopped {
                state = self.stop(number, export);
            }
        }
        let stays = self.recovery.outlives(&self.ending);
        let why = why_queues_are_gone(state == DeviceState::Stopped, stays, || self.is_quiesced(number));
        let by_somebody_else = match why {
            Why::Ending => return Outcome::Left,
            Why::Stopped => None,
            Why::Quiesced => Some("quiesced by somebody else, and waits for another server"),
            Why::Removed => Some("removed by somebody else"),
        };
        if let Some(what) = by_somebody_else {
            self.say(Some(&export.name), &format!("/dev/ublkb{number} was {what}"));
        }
        if why != Why::Quiesced {
            self.delete(number);
        }
        outcome
    }

    /// Tells the driver to stop the device. Queues that are there serve the block device's last writes meanwhile.
    fn stop(&mut self, number: u32, export: &Export) -> DeviceState {
        if let Err(error) = self.control.stop(number) {
            self.say(Some(&export.name), &format!("/dev/ublkb{number} cannot be stopped: {error}"));
        }
        DeviceState::Stopped
    }

    /// A device whose queues have lost all their tags is not gone: a process told the driver to take it from this
    /// server (UBLK_U_CMD_QUIESCE_DEV). The driver calls it live until its last file is closed.
    fn is_quiesced(&mut self, number: u32) -> bool {
        self.control.info(number).is_ok_and(|info| {
            info.flags & feature::QUIESCE != 0 && matches!(info.state, state::LIVE | state::QUIESCED | state::FAIL_IO)
        })
    }

    fn resize(&mut self, number: u32, export: &Export, size_bytes: u64) {
        let sentence = match self.control.update_size(number, size_bytes / SECTOR_BYTES) {
            Ok(()) => format!("/dev/ublkb{number} has {size_bytes} bytes now"),
            Err(error) => format!(
                "/dev/ublkb{number} keeps its size in the kernel, which cannot change it (Linux 6.16 can): {error}; \
                 requests behind the new end fail"
            ),
        };
        self.say(Some(&export.name), &sentence);
    }

    fn delete(&mut self, number: u32) {
        if let Err(error) = self.control.delete(number) {
            self.say(None, &format!("ublk {number} cannot be deleted: {error}"));
        }
    }
}

/// Places for `places` requests of an export whose payloads are to stay in the kernel, among the first `within`.
///
/// # Errors
/// Why they cannot: the end of a sentence.
fn pages(export: &Export, places: u64, within: u16) -> Result<Arc<Pages>, String> {
    let align_bytes = export.block.pages_align_bytes;
    if align_bytes == 0 {
        return Err("its device needs their bytes, which a file device does not".to_owned());
    }
    if !export.offset_bytes.is_multiple_of(align_bytes.into()) {
        let offset_bytes = export.offset_bytes;
        return Err(format!("it begins at byte {offset_bytes}, which is no multiple of its device's {align_bytes}"));
    }
    let taken = u16::try_from(places).ok().and_then(|places| Pages::take(places, within));
    taken.ok_or_else(|| format!("the workers' rings have no {places} places left"))
}

/// Places for devices whose config does not ask for zero copy. The others are for those whose config does, and for
/// those that are taken over.
const AUTO_PLACES: u16 = PLACES / 2;

/// True if a device added with these parameters, in place of the usual ones, is as the config has it.
fn zero_copy_holds(zero_copy: ZeroCopy, usual: &Params, with_pages: &Params) -> bool {
    zero_copy == ZeroCopy::On || usual.logical_shift == with_pages.logical_shift
}

/// Features that a user without CAP_SYS_ADMIN lacks for a device with this recovery, and with payloads in the kernel.
///
/// # Errors
/// The recovery is refused to them.
fn without_privileges(recovery: Recovery, wants_pages: bool) -> Result<Option<&'static str>, &'static str> {
    match recovery {
        Recovery::None => Ok(wants_pages.then_some("zero copy needs CAP_SYS_ADMIN")),
        Recovery::Reissue | Recovery::Fail => Err("a ublk device with recovery"),
    }
}

/// A number in /sys/block/ublkbN/queue.
fn queue_setting(number: u32, name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/sys/block/ublkb{number}/queue/{name}")).ok()?.trim().parse().ok()
}

/// Size of a block device that a former server has left: the export may have had another size then.
fn kernel_bytes(number: u32) -> Option<u64> {
    let sectors = std::fs::read_to_string(format!("/sys/block/ublkb{number}/size")).ok()?;
    sectors.trim().parse::<u64>().ok()?.checked_mul(SECTOR_BYTES)
}

/// Parameters of an export's block device; `with_pages`: payloads stay in the kernel. Its requests and their memory are
/// then aligned as the device below wants them.
///
/// # Errors
/// One sentence: the kernel has no block device of this form.
pub(super) fn params(export: &Export, with_pages: bool) -> Result<Params, String> {
    let block = export.block;
    let align_bytes = if with_pages { block.pages_align_bytes } else { 1 };
    let logical_bytes = block.min_bytes.max(SECTOR_BYTES as u32).max(align_bytes);
    if logical_bytes > PAGE_BYTES {
        return Err(format!(
            "a block of {logical_bytes} bytes is too large for a ublk device, allowed is one up to {PAGE_BYTES}"
        ));
    }
    let largest_bytes = block.payload_bytes_max.min(crate::memory::PIECE_BYTES_MAX) / PAGE_BYTES * PAGE_BYTES;
    if largest_bytes == 0 {
        return Err(format!("its device takes no request of {PAGE_BYTES} bytes, which a ublk device must"));
    }
    let best_bytes = block.preferred_bytes.max(logical_bytes);
    Ok(Params {
        read_only: export.is_read_only(),
        volatile_cache: true,
        logical_shift: logical_bytes.ilog2() as u8,
        physical_shift: best_bytes.min(PAGE_BYTES).ilog2() as u8,
        best_shift: best_bytes.ilog2() as u8,
        sectors_max: largest_bytes / SECTOR_BYTES as u32,
        sectors: export.size_now_bytes() / u64::from(logical_bytes) * u64::from(logical_bytes) / SECTOR_BYTES,
        range_sectors_max: RANGE_BYTES_MAX / SECTOR_BYTES as u32,
        memory_align_bytes: if align_bytes > 1 { align_bytes } else { 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::export;
    use super::*;
    use crate::export::BlockSizes;

    #[test]
    fn a_block_device_has_the_blocks_of_its_export_and_no_request_larger_than_a_piece() {
        let of = |min_bytes, preferred_bytes, payload_bytes_max| {
            let block = BlockSizes { min_bytes, preferred_bytes, payload_bytes_max, pages_align_bytes: 0 };
            params(&Export { block, ..export() }, false)
        };
        let usual = of(1, 4096, 32 << 20).unwrap();
        assert_eq!((usual.logical_shift, usual.physical_shift, usual.best_shift), (9, 12, 12));
        assert_eq!((usual.sectors_max, usual.sectors, usual.range_sectors_max), (256, 2048, 8192));
        assert_eq!(of(4096, 8192, 70000).unwrap().sectors_max, 136, "whole pages");
        assert_eq!(of(512, 65536, 1 << 20).unwrap().best_shift, 16);
        assert!(of(8192, 8192, 1 << 20).unwrap_err().contains("a block of 8192 bytes is too large"));
        assert!(of(512, 512, 2048).unwrap_err().contains("takes no request of 4096 bytes"));
        let odd = Export { size_bytes: 5000, ..export() };
        assert_eq!(params(&odd, false).unwrap().sectors, 8, "a rest that is no block is left out");
    }

    #[test]
    fn zero_copy_is_for_an_export_that_its_device_can_take_as_it_is() {
        let of = |pages_align_bytes, offset_bytes| {
            let block = BlockSizes { min_bytes: 1, pages_align_bytes, ..export().block };
            Export { block, offset_bytes, ..export() }
        };
        let fits = of(4096, 8192);
        assert_eq!(pages(&fits, 256, PLACES).unwrap().count(), 256);
        let with_pages = params(&fits, true).unwrap();
        assert_eq!((with_pages.logical_shift, with_pages.memory_align_bytes), (12, 4096));
        let without = params(&fits, false).unwrap();
        assert_eq!((without.logical_shift, without.memory_align_bytes), (9, 0));
        let cached = params(&of(1, 0), true).unwrap();
        assert_eq!((cached.logical_shift, cached.memory_align_bytes), (9, 0), "the page cache takes any");
        let holds = |zero_copy, with_pages| zero_copy_holds(zero_copy, &without, with_pages);
        assert!(holds(ZeroCopy::On, &with_pages) && !holds(ZeroCopy::Auto, &with_pages), "a block of a page");
        assert!(holds(ZeroCopy::Auto, &cached) && holds(ZeroCopy::Auto, &params(&of(512, 0), true).unwrap()));
        assert!(pages(&of(0, 0), 1, PLACES).unwrap_err().contains("needs their bytes"));
        assert!(pages(&of(4096, 512), 1, PLACES).unwrap_err().contains("begins at byte 512"));
        assert!(pages(&fits, 1 << 20, PLACES).unwrap_err().contains("no 1048576 places left"));
    }

    #[test]
    fn a_user_without_privileges_has_devices_without_recovery_and_without_zero_copy() {
        assert_eq!(without_privileges(Recovery::None, false), Ok(None));
        assert_eq!(without_privileges(Recovery::None, true), Ok(Some("zero copy needs CAP_SYS_ADMIN")));
        for recovery in [Recovery::Reissue, Recovery::Fail] {
            assert_eq!(without_privileges(recovery, false), Err("a ublk device with recovery"));
        }
    }

    #[test]
    fn recovery_asks_for_what_the_kernel_has() {
        assert_eq!(Recovery::named("fail"), Some(Recovery::Fail));
        assert_eq!(Recovery::named("later"), None);
        assert_eq!(Recovery::None.flags(u64::MAX), 0);
        assert_eq!(Recovery::Reissue.flags(u64::MAX), 1 << 3 | 1 << 4 | 1 << 12);
        assert_eq!(Recovery::Reissue.flags(feature::OF_6_4), 0b1_1000, "before 6.16 nobody can quiesce it");
        assert_eq!(Recovery::Fail.flags(u64::MAX), 1 << 3 | 1 << 9 | 1 << 12);
        assert_eq!(Recovery::Fail.flags(feature::OF_6_1), 1 << 3, "before 6.13 requests wait");
    }

    #[test]
    fn a_device_stays_only_where_the_server_ends_and_recovery_is_asked_for() {
        let (orders, _taken) = mpsc::channel();
        let ending = Ending::default();
        let about = |recovery| {
            let stats = Stats::new(&super::super::NAMES);
            About::new(Arc::new(export()), stats, 1, recovery, ending.clone(), 1, orders.clone())
        };
        let (with, without) = (about(Recovery::Reissue), about(Recovery::None));
        assert!(!with.stays() && !without.stays(), "an export that is removed takes its device with it");
        ending.begin();
        assert!(with.stays() && !without.stays());
    }

    #[test]
    fn queues_that_go_before_the_thread_is_told_that_the_server_ends_leave_the_device_to_the_next_one() {
        let is_quiesced = || -> bool { panic!("the driver calls it live, so it would be taken for quiesced") };
        assert_eq!(why_queues_are_gone(false, true, is_quiesced), Why::Ending);
        assert_eq!(why_queues_are_gone(true, true, is_quiesced), Why::Stopped, "its export went before");
        assert_eq!(why_queues_are_gone(true, false, is_quiesced), Why::Stopped);
        assert_eq!(why_queues_are_gone(false, false, || true), Why::Quiesced);
        assert_eq!(why_queues_are_gone(false, false, || false), Why::Removed);
    }

    #[test]
    fn a_queue_of_a_device_that_was_given_up_is_no_queue_of_the_next_one() {
        let (orders, taken) = mpsc::channel();
        let of = |generation| {
            let (stats, ending) = (Stats::new(&super::super::NAMES), Ending::default());
            About::new(Arc::new(export()), stats, 1, Recovery::None, ending, generation, orders.clone())
        };
        let mut attached = Attached { generation: 2, left: 2 };
        for (generation, left) in [(1, 2), (2, 1), (1, 1), (2, 0)] {
            of(generation).queue_gone();
            let Ok(Order::QueueGone(gone)) = taken.recv() else { panic!("it said something else") };
            attached.lose(gone);
            assert_eq!(attached.left, left, "after one of generation {generation}");
        }
    }
}
