//! How does a server let another one take its place?
//!
//! A thread listens on the socket for upgrades, one process at a time, and does everything that touches no client. For
//! the rest it gives the connection to the main thread, by a signal, because changes of the config and the end of the
//! server are the main thread's as well: none of them happens in the middle.
//!
//! Limits: [`HELLO_MAX`] for the new process to introduce itself, [`READY_MAX`] to prepare itself, [`STILL_MAX`] for
//! requests that are under way on the devices, [`TAKEN_MAX`] for the new one to take over. Clients wait for the last
//! two at most.

use super::handover::{HandedClient, HandoverState, Opened, backing_key};
use super::store;
use super::wire::{DESCRIPTORS_MAX, Hello, Kind, Link, memory_file, monotonic_ns};
use crate::devices;
use crate::output::Output;
use crate::ownership::Ownership;
use crate::signals;
use mqfq_blk::client::PackedClient;
use mqfq_blk::device::Device;
use mqfq_blk::device::file::FileDevice;
use mqfq_blk::engine::Engine;
use mqfq_blk::state::{RECALLED_SINCE, VERSION, VERSIONS, agree};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// For the first message.
const HELLO_MAX: Duration = Duration::from_secs(5);

/// For opening devices and starting workers.
const READY_MAX: Duration = Duration::from_secs(120);

/// For requests under way on the devices.
const STILL_MAX: Duration = Duration::from_secs(5);

/// For reading the state and everything that it is about.
const TAKEN_MAX: Duration = Duration::from_secs(20);

/// The parts of the server that another process needs.
pub struct Serving {
    /// Devices and their names.
    pub devices: Mutex<Vec<(String, Arc<dyn Device>)>>,
    /// Numbers of the listeners, and names of their addresses ([`super::key`]).
    pub listeners: Mutex<BTreeMap<u64, String>>,
    /// Listening sockets that are not a front end's, by address.
    pub sockets: Vec<(String, OwnedFd)>,
    /// Owners of the devices' data.
    pub ownership: Arc<Mutex<Ownership>>,
}

impl Serving {
    /// Sets the devices.
    pub fn have(&self, devices: Vec<(String, Arc<dyn Device>)>) {
        *self.devices() = devices;
    }

    /// Removes all devices and listeners.
    pub fn clear(&self) {
        self.devices().clear();
        self.listeners().clear();
    }

    /// Names the listener of this number; `None` removes it.
    pub fn call(&self, listener: u64, key: Option<String>) {
        match key {
            Some(key) => drop(self.listeners().insert(listener, key)),
            None => drop(self.listeners().remove(&listener)),
        }
    }

    fn devices(&self) -> MutexGuard<'_, Vec<(String, Arc<dyn Device>)>> {
        // A list is whole whatever panicked; so is the other.
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Descriptors that can be opened only once.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn opened(&self) -> io::Result<Opened> {
        let mut files = BTreeMap::new();
        for (name, device) in self.devices().iter() {
            if let Some(file) = device.ring_file() {
                files.insert(name.clone(), file.try_clone_to_owned()?);
            }
            for (number, path, file) in devices::pool(&**device).map_or(Ok(Vec::new()), FileDevice::lend)? {
                files.insert(backing_key(name, number, &path), file.into());
            }
        }
        let socket = |(address, socket): &(String, OwnedFd)| Ok((address.clone(), socket.try_clone()?));
        Ok(Opened {
            pid: std::process::id(),
            files,
            sockets: self.sockets.iter().map(socket).collect::<io::Result<_>>()?,
            addresses: self.listeners().values().cloned().collect(),
        })
    }

    /// Tells the devices that the process that served before has ended.
    pub fn own(&self) {
        self.devices().iter().for_each(|(_, device)| device.own());
    }

    /// Leaves everything to systemd; returns the number of descriptors. The engine goes on after an error.
    ///
    /// # Errors
    /// One sentence.
    pub fn keep(&self, engine: &Engine) -> Result<usize, String> {
        // While clients are served: it may take as long as systemd is busy.
        store::forget_the_rest()?;
        let opened = self.opened().map_err(|error| mqfq_report::plain(&error))?;
        let handover = self.pack(engine, VERSION);
        let stored = handover.and_then(|handover| store::keep(opened, handover, VERSION));
        stored.inspect_err(|_| engine.resume())
    }

    /// Has the engine hold still, and packs everything. It holds still after an error as well, unless that came of the
    /// pause itself.
    ///
    /// # Errors
    /// One sentence.
    pub fn pack(&self, engine: &Engine, version: u16) -> Result<HandoverState, String> {
        let since_ns = monotonic_ns();
        engine.pause(version >= RECALLED_SINCE, STILL_MAX)?;
        let address = |number| self.listeners().get(&number).cloned();
        let handed = |client: PackedClient| {
            let PackedClient { listener, is_listener, packed } = client;
            let address = address(listener).ok_or("a connection came by no listener")?;
            Ok::<_, String>(HandedClient { address, is_listener, packed })
        };
        let clients = engine.pack(version, STILL_MAX)?.into_iter().map(handed).collect::<Result<_, _>>()?;
        let device = |(name, device): &(String, Arc<dyn Device>)| match device.pack(version) {
            Ok(packed) => Ok((name.clone(), packed)),
            Err(why) => Err(format!("device {name} {why}")),
        };
        let devices = self.devices().iter().map(device).collect::<Result<_, _>>()?;
        let ownership = self.ownership.lock().unwrap_or_else(PoisonError::into_inner).pack();
        Ok(HandoverState { since_ns, ownership, devices, clients })
    }
}

/// The result of an attempt.
#[derive(Debug)]
pub enum Outcome {
    /// The other process, of this number, serves: this one ends, and drops nothing that the other one has now.
    Replaced(Option<u32>),
    /// This one serves on, for this reason.
    RolledBack(String),
}

/// A process that is ready, and which version of the state it knows.
type Ready = (Link, u16);

/// A process that is ready, and a sender that is dropped when the main thread is done with it.
type Visit = (Ready, mpsc::Sender<()>);

/// The socket for upgrades and its thread.
#[derive(Clone)]
pub struct Upgrades {
    ready: Arc<Mutex<Option<Visit>>>,
}

impl Upgrades {
    /// Listens on `socket`, once `before` has returned, if that says that the server is there. A new process gets
    /// `opened` first. `refuse_loss` says why changes that are not saved are not given up.
    ///
    /// # Errors
    /// One sentence: the thread cannot be started.
    pub fn start(
        socket: OwnedFd,
        before: impl FnOnce() -> bool + Send + 'static,
        opened: impl Fn() -> io::Result<Opened> + Send + 'static,
        refuse_loss: impl Fn() -> Result<(), String> + Send + 'static,
        output: Output,
    ) -> Result<Upgrades, String> {
        let upgrades = Upgrades { ready: Arc::default() };
        let of_thread = upgrades.clone();
        let listener = UnixListener::from(socket);
        let serve = move || {
            if !before() {
                return;
            }
            for stream in listener.incoming() {
                let link = stream.and_then(Link::new);
                let Ok(mut link) = link else {
                    // No descriptor is left, and nothing tells when there is one again.
                    std::thread::park_timeout(Duration::from_millis(100));
                    continue;
                };
                match meet(&mut link, &opened, &refuse_loss) {
                    Ok(version) => of_thread.give(link, version),
                    Err(sentence) => {
                        link.say_no(&sentence);
                        output.note(&format!("not replaced: {sentence}"));
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("mqfq-upgrade".into()).spawn(serve);
        thread.map(|_| upgrades).map_err(|error| format!("cannot start a thread: {}", mqfq_report::plain(&error)))
    }

    /// Gives a process that is ready to the main thread, and waits until that is done with it.
    fn give(&self, link: Link, version: u16) {
        let (done, is_done) = mpsc::channel();
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = Some(((link, version), done));
        signals::ask_for_upgrade();
        // An error says the same: the sender is gone.
        let _ = is_done.recv();
    }

    /// The process that is ready, if there is one. The next one is met when the second value is dropped.
    pub fn take(&self) -> Option<Visit> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Does everything before the server holds still; returns the version of the state that both know.
pub(super) fn meet(
    link: &mut Link,
    opened: &impl Fn() -> io::Result<Opened>,
    refuse_loss: &impl Fn() -> Result<(), String>,
) -> Result<u16, String> {
    let user = link.user().map_err(|error| format!("the user of the other process is not known: {error}"))?;
    // SAFETY: the call has no memory effects and cannot fail.
    let own = unsafe { libc::geteuid() };
    if user != own && user != 0 {
        return Err(format!("user {user} may not replace a server of user {own}, allowed is that user, or root"));
    }
    let hello = Hello::decode(&link.expect(Kind::Hello, HELLO_MAX)?.body)?;
    let Hello { versions: (oldest, newest), pid, discards_unsaved } = hello;
    let refuse_loss = || if discards_unsaved { Ok(()) } else { refuse_loss() };
    refuse_loss()?;
    let version = agree(VERSIONS, oldest..=newest).ok_or_else(|| {
        let (from, to) = (VERSIONS.start(), VERSIONS.end());
        format!(
            "process {pid} knows versions {oldest} to {newest} of the state, the server that runs knows {from} to {to}"
        )
    })?;
    let failed = |error: io::Error| format!("process {pid} did not take its Welcome: {}", mqfq_report::plain(&error));
    let (bytes, descriptors) = opened().map_err(failed)?.encode(version);
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let (first, more) = descriptors.split_at(descriptors.len().min(DESCRIPTORS_MAX));
    let mut body = version.to_be_bytes().to_vec();
    body.extend((descriptors.len() as u32).to_be_bytes());
    body.extend(bytes);
    link.send(Kind::Welcome, &body, first).map_err(failed)?;
    for part in more.chunks(DESCRIPTORS_MAX) {
        link.send(Kind::More, &[], part).map_err(failed)?;
    }
    link.expect(Kind::Ready, READY_MAX).map_err(|why| format!("process {pid} gave up: {why}"))?;
    // Once more: it has taken its time, and has read the config before.
    refuse_loss()?;
    Ok(version)
}

/// Hands everything over to a process that is ready. On the main thread: nothing else changes the server meanwhile.
pub fn hand_over(ready: Ready, engine: &Engine, serving: &Serving) -> Outcome {
    hand_over_within(TAKEN_MAX, ready, engine, serving)
}

/// [`hand_over`] to a process that has `patience` to take over.
pub(super) fn hand_over_within(
    patience: Duration,
    (mut link, version): Ready,
    engine: &Engine,
    serving: &Serving,
) -> Outcome {
    let handover = match serving.pack(engine, version) {
        Ok(handover) => handover,
        Err(sentence) => return roll_back(link, engine, None, sentence),
    };
    let (file, descriptors) = match packed(handover, version) {
        Ok(packed) => packed,
        Err(sentence) => return roll_back(link, engine, None, sentence),
    };
    match send(&mut link, &file, descriptors).and_then(|()| link.expect(Kind::Taken, patience)) {
        Ok(_) => Outcome::Replaced(link.process()),
        Err(sentence) => roll_back(link, engine, Some(file), sentence),
    }
}

/// Serves on, unless the new one was faster (see the file's head). `state` is emptied first: a process that reads it
/// later, and has not heard the No, finds that it is of the past.
pub(super) fn roll_back(mut link: Link, engine: &Engine, state: Option<File>, sentence: String) -> Outcome {
    link.hear_no_more();
    let until = Instant::now() + HELLO_MAX;
    // Messages that it sent before.
    while let Ok(Some(message)) = link.receive(until.saturating_duration_since(Instant::now())) {
        if message.kind == Kind::Taken {
            return Outcome::Replaced(link.process());
        }
    }
    if let Some(state) = state
        && let Err(error) = state.set_len(0)
    {
        // Nothing forbids it for a file in memory. A process that has not heard the No would not know.
        debug_assert!(false, "{error}");
    }
    link.say_no(&sentence);
    engine.resume();
    Outcome::RolledBack(sentence)
}

pub(super) fn packed(handover: HandoverState, version: u16) -> Result<(File, Vec<OwnedFd>), String> {
    let (bytes, descriptors) = handover.encode(version);
    let file =
        memory_file(&bytes).map_err(|error| format!("no memory for the state: {}", mqfq_report::plain(&error)))?;
    Ok((file, descriptors))
}

pub(super) fn send(link: &mut Link, file: &File, descriptors: Vec<OwnedFd>) -> Result<(), String> {
    let failed = |error: io::Error| format!("the other process did not take the state: {}", mqfq_report::plain(&error));
    let count = u32::try_from(descriptors.len()).map_err(|_| "too many descriptors".to_owned())?;
    link.send(Kind::State, &count.to_be_bytes(), &[file.as_fd()]).map_err(failed)?;
    for part in descriptors.chunks(DESCRIPTORS_MAX) {
        let part: Vec<BorrowedFd<'_>> = part.iter().map(AsFd::as_fd).collect();
        link.send(Kind::More, &[], &part).map_err(failed)?;
    }
    Ok(())
}
