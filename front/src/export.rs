//! Exports: named windows onto devices, as clients see them.
//!
//! An export says whose flow is charged, which bytes of which device it shows, and with what sizes a client may ask.
//! A table is what one socket offers. It is checked once, when it is made, so that no request has to doubt it.
//!
//! # While clients use it
//! An export's [`ExportState`] is shared by all its clients. It says three things that change under them: whether it
//! takes new clients, how long it is, and whether it may be written to. Each request asks the state, when it is handed
//! to the block layer. So an export becomes shorter in this order (I11 of `docs/inside/invariants.md`, isolation):
//!
//! ```text
//!   the state has the new size     requests that are handed over from now on end before it
//!   wait until no request is left   of those that were admitted before, on any worker (`Engine::await_end`)
//!   the bytes are another's
//! ```
//! A table changes in one step ([`ExportTable::change`]); a client that negotiates sees the state before or after it.

use crate::identity::{Access, Peer};
use crate::memory::TenantMemory;
use mqfq_blk::FlowId;
use mqfq_blk::cap::Caps;
use mqfq_blk::client::DeviceIndex;
use mqfq_blk::device::DeviceInfo;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::slots::Slot;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Longest name or description, bytes. Source: NBD protocol, "strings".
pub const NAME_BYTES_MAX: usize = 4096;

/// Largest minimum block that the NBD protocol can state, bytes.
pub const MIN_BLOCK_BYTES_MAX: u32 = 1 << 16;

/// Largest payload that an export may allow, bytes: what every NBD client may count on (2^25).
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 25;

/// Smallest preferred block that the NBD protocol can state, bytes.
const PREFERRED_BLOCK_BYTES_MIN: u32 = 512;

/// Sizes that a client may ask with.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSizes {
    /// Offsets and lengths must be multiples of this: a power of two, 1..=65536.
    pub min_bytes: u32,
    /// Best size and alignment of a request: a power of two, at least `min_bytes` and 512.
    pub preferred_bytes: u32,
    /// Largest read or write: at least `preferred_bytes`, at most [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes_max: u32,
    /// The device takes payloads that stay in the kernel, of requests whose offset on it and length are multiples of
    /// this, a power of two; 0: it takes none.
    pub pages_align_bytes: u32,
}

impl BlockSizes {
    /// Sizes that a client may assume unless it was told others. Source: NBD protocol, "size constraints".
    pub const DEFAULT: BlockSizes =
        BlockSizes { min_bytes: 1, preferred_bytes: 4096, payload_bytes_max: PAYLOAD_BYTES_MAX, pages_align_bytes: 0 };

    /// The sizes that `device` takes, as far as the protocol can say them.
    pub fn of_device(device: &DeviceInfo) -> BlockSizes {
        let min_bytes = device.block_bytes.max(1);
        let preferred_bytes = device.preferred_bytes.max(min_bytes).max(PREFERRED_BLOCK_BYTES_MIN);
        let whole_blocks = device.transfer_bytes_max.min(PAYLOAD_BYTES_MAX) / min_bytes * min_bytes;
        BlockSizes {
            min_bytes,
            preferred_bytes: preferred_bytes.min(whole_blocks),
            payload_bytes_max: whole_blocks,
            pages_align_bytes: device.pages_align_bytes,
        }
    }

    /// A client that was told nothing may ask for something that these refuse.
    pub fn narrower_than_default(&self) -> bool {
        self.min_bytes > Self::DEFAULT.min_bytes || self.payload_bytes_max < Self::DEFAULT.payload_bytes_max
    }

    /// Reason why these sizes are invalid, if they are.
    fn fault(&self) -> Option<String> {
        let BlockSizes { min_bytes, preferred_bytes, payload_bytes_max, .. } = *self;
        if !min_bytes.is_power_of_two() || min_bytes > MIN_BLOCK_BYTES_MAX {
            return Some(format!("minimum block {min_bytes} is not a power of two from 1 to {MIN_BLOCK_BYTES_MAX}"));
        }
        if !preferred_bytes.is_power_of_two() || preferred_bytes < min_bytes.max(PREFERRED_BLOCK_BYTES_MIN) {
            return Some(format!(
                "preferred block {preferred_bytes} is not a power of two of at least {}",
                min_bytes.max(PREFERRED_BLOCK_BYTES_MIN)
            ));
        }
        if payload_bytes_max < preferred_bytes || payload_bytes_max > PAYLOAD_BYTES_MAX {
            return Some(format!(
                "largest payload {payload_bytes_max} is not between {preferred_bytes} and {PAYLOAD_BYTES_MAX}"
            ));
        }
        None
    }
}

/// Names an export of the server, whatever comes and goes beside it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExportId(pub Slot);

impl ExportId {
    /// The identifier as one number, for [`mqfq_blk::client::Label::export`].
    pub fn number(self) -> u64 {
        u64::from(self.0.generation()) << 32 | self.0.place() as u64
    }
}

/// Names a tenant of the server, the same on every device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantId(pub Slot);

/// State of an export that changes while clients have it: open to new clients, size, writable. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct ExportState(Arc<SharedState>);

#[derive(Debug, Default)]
struct SharedState {
    is_closed: AtomicBool,
    /// 0: as it was when the state was made.
    size_bytes: AtomicU64,
    /// 0: as it was when the state was made; 1: it may be written to; 2: it may not.
    access: AtomicU32,
    /// [`Poll`] of its clients; 0: [`Poll::Auto`]; else 1 more than the time, ns.
    poll: AtomicU64,
    /// Held for a copy of the handle, at a handshake and when it is replaced.
    clients: Mutex<Arc<Access>>,
    /// Eventfds of clients that want to hear of another size.
    bells: Mutex<Vec<Weak<OwnedFd>>>,
}

impl ExportState {
    /// From now on no client finds the export. Those that have it keep it.
    pub fn close(&self) {
        // Release: pairs with the Acquire in `is_closed`. A worker that is told to drain the export's clients by a
        // message sent after this sees it closed from then on, and until then takes clients that the message finds.
        self.0.is_closed.store(true, Ordering::Release);
    }

    /// From now on it takes these clients alone. Those that have it keep it.
    pub fn admit(&self, clients: Arc<Access>) {
        *self.0.clients.lock().unwrap_or_else(PoisonError::into_inner) = clients;
    }

    /// It takes some clients and not others.
    pub fn asks_who(&self) -> bool {
        !self.0.clients.lock().unwrap_or_else(PoisonError::into_inner).is_open()
    }

    /// It takes `peer`.
    pub fn admits(&self, peer: &Peer) -> bool {
        // A handle is whole whatever panicked.
        let clients = self.0.clients.lock().unwrap_or_else(PoisonError::into_inner).clone();
        clients.admits(peer)
    }

    /// No client finds it.
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with the Release in `close`.
        self.0.is_closed.load(Ordering::Acquire)
    }

    /// From now on the export has so many bytes, not 0: for each request that a worker hands over once it has heard of
    /// anything that was done after this.
    pub fn resize(&self, size_bytes: u64) {
        assert!(size_bytes > 0, "an export of no bytes");
        // Release: pairs with the Acquire in `Export::size_now_bytes`.
        self.0.size_bytes.store(size_bytes, Ordering::Release);
        for bell in self.bells().iter().filter_map(Weak::upgrade) {
            // Full means rung.
            let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
        }
    }

    /// Adds 1 to `bell`, a non-blocking eventfd, after each [`ExportState::resize`] until the caller drops its `bell`.
    pub fn watch(&self, bell: &Arc<OwnedFd>) {
        let mut bells = self.bells();
        bells.retain(|other| other.strong_count() > 0);
        bells.push(Arc::downgrade(bell));
    }

    fn bells(&self) -> MutexGuard<'_, Vec<Weak<OwnedFd>>> {
        // A list is whole after each statement.
        self.0.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the export may be written to, or not, as [`ExportState::resize`] says.
    pub fn set_read_only(&self, read_only: bool) {
        // Release: pairs with the Acquire in `Export::is_read_only`.
        self.0.access.store(1 + u32::from(read_only), Ordering::Release);
    }
}

impl ExportState {
    /// Another [`Poll`] for its clients from now on.
    pub fn set_poll(&self, poll: Poll) {
        let poll = match poll {
            Poll::Auto => 0,
            Poll::For(ns) => ns.saturating_add(1),
        };
        // Relaxed: the next look reads it, or the one after that.
        self.0.poll.store(poll, Ordering::Relaxed);
    }
}

/// Time for which the server looks for a client's next requests before it waits for a kick.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Poll {
    /// As long as that pays: at most a few times what a wake-up takes on this machine.
    #[default]
    Auto,
    /// For this time after the last request or its end, ns; 0: not at all.
    For(u64),
}

/// A named window onto a device.
#[derive(Clone, Debug)]
pub struct Export {
    /// Its name on the server.
    pub id: ExportId,
    /// Name that clients ask for, UTF-8 without NUL, at most 4096 bytes. "" is the protocol's default export.
    pub name: String,
    /// For humans; may be empty. Same limits as the name.
    pub description: String,
    /// Device that holds the bytes.
    pub device: DeviceIndex,
    /// Flow that is charged on that device.
    pub flow: FlowId,
    /// Tenant that the clients belong to.
    pub tenant: TenantId,
    /// Its state, closed to new clients while the export is drained.
    pub state: ExportState,
    /// First byte, on the device; a multiple of the minimum block.
    pub offset_bytes: u64,
    /// Length; not 0, a multiple of the minimum block.
    pub size_bytes: u64,
    /// Refuse everything that changes data.
    pub read_only: bool,
    /// Sizes that clients may ask with.
    pub block: BlockSizes,
    /// Payload memory of the tenant whose export it is.
    pub memory: Arc<TenantMemory>,
    /// Caps on its clients' requests, together with caps of the tenant's other exports.
    pub caps: Arc<Caps>,
}

impl Export {
    /// Its length now: [`Export::size_bytes`], or what its state says since.
    pub fn size_now_bytes(&self) -> u64 {
        // Acquire: pairs with the Release in `ExportState::resize`.
        match self.state.0.size_bytes.load(Ordering::Acquire) {
            0 => self.size_bytes,
            size_bytes => size_bytes,
        }
    }

    /// It may not be written to now: [`Export::read_only`], or what its state says since.
    pub fn is_read_only(&self) -> bool {
        // Acquire: pairs with the Release in `ExportState::set_read_only`.
        match self.state.0.access.load(Ordering::Acquire) {
            0 => self.read_only,
            access => access == 2,
        }
    }

    /// [`Poll`] of its clients.
    pub fn poll(&self) -> Poll {
        // Relaxed: as in `ExportState::set_poll`.
        match self.state.0.poll.load(Ordering::Relaxed) {
            0 => Poll::Auto,
            more => Poll::For(more - 1),
        }
    }

    /// A request of `length_bytes` bytes of the device, which was valid when it came, still is: it may be handed to the
    /// block layer. `None`: it is; else the status that it ends with.
    pub fn refusal(&self, op: Op, device_offset_bytes: u64, length_bytes: u32) -> Option<Status> {
        let changes = !matches!(op, Op::Read | Op::Flush | Op::Extents);
        if op == Op::Flush {
            return None;
        }
        if changes && self.is_read_only() {
            return Some(Status::Invalid);
        }
        let end_bytes = device_offset_bytes + u64::from(length_bytes);
        let is_inside =
            device_offset_bytes >= self.offset_bytes && end_bytes - self.offset_bytes <= self.size_now_bytes();
        let fills = matches!(op, Op::Write | Op::WriteZeroes { .. } | Op::FastZeroes { .. });
        let status = if fills { Status::NoSpace } else { Status::Invalid };
        (!is_inside).then_some(status)
    }

    /// Both show some byte of the same device.
    pub fn overlaps(&self, other: &Export) -> bool {
        self.device == other.device
            && self.offset_bytes < other.offset_bytes.saturating_add(other.size_bytes)
            && other.offset_bytes < self.offset_bytes.saturating_add(self.size_bytes)
    }

    /// `length_bytes`, not 0, at `offset_bytes` are whole blocks that it could have. Whether it has them now, and lets
    /// them be written to, is asked when a request is handed over ([`Export::refusal`]): it may have become shorter
    /// since the request came.
    pub fn could_hold(&self, offset_bytes: u64, length_bytes: u64) -> bool {
        let end_bytes =
            self.offset_bytes.checked_add(offset_bytes).and_then(|at_bytes| at_bytes.checked_add(length_bytes));
        // A power of two, so its lower bits are what may not be set.
        let below_block = u64::from(self.block.min_bytes) - 1;
        length_bytes > 0 && end_bytes.is_some() && (offset_bytes | length_bytes) & below_block == 0
    }

    /// # Errors
    /// One sentence: what is wrong with it.
    fn refuse(&self) -> Result<(), String> {
        let refused = |fault| Err(format!("export {:?} cannot be served: {fault}", self.name));
        self.fault().map_or(Ok(()), refused)
    }

    /// Reason why the export cannot be served, if there is one.
    fn fault(&self) -> Option<String> {
        for (what, text) in [("name", &self.name), ("description", &self.description)] {
            if text.len() > NAME_BYTES_MAX {
                return Some(format!("its {what} has {} bytes, allowed are {NAME_BYTES_MAX}", text.len()));
            }
            if text.contains('\0') {
                return Some(format!("its {what} holds a NUL character"));
            }
        }
        if let Some(fault) = self.block.fault() {
            return Some(fault);
        }
        let min_bytes = u64::from(self.block.min_bytes);
        if self.size_bytes == 0 {
            return Some("its size is 0".to_owned());
        }
        if !self.offset_bytes.is_multiple_of(min_bytes) || !self.size_bytes.is_multiple_of(min_bytes) {
            return Some(format!(
                "offset {} and size {} are not both multiples of its minimum block {min_bytes}",
                self.offset_bytes, self.size_bytes
            ));
        }
        if self.offset_bytes.checked_add(self.size_bytes).is_none() {
            return Some(format!("offset {} plus size {} exceeds 64 bits", self.offset_bytes, self.size_bytes));
        }
        None
    }
}

/// The exports of one socket: one list of them after another.
#[derive(Debug)]
pub struct ExportTable {
    /// Held for a copy of the handle, at a handshake and when the list is replaced.
    list: Mutex<Arc<List>>,
}

/// Exports that a table offers at one time; immutable once made.
#[derive(Clone, Debug, Default)]
struct List {
    /// In the order of names: one address may offer tens of thousands, and each handshake asks for one.
    exports: Vec<Arc<Export>>,
    /// Number of exports of each tenant here.
    tenants: HashMap<TenantId, usize>,
}

impl ExportTable {
    /// A table of `exports`. That each fits its device, and which of them may overlap, is for the caller to check: it
    /// knows the devices.
    ///
    /// # Errors
    /// One sentence that names the export and what is wrong with it.
    pub fn new(exports: impl IntoIterator<Item = Export>) -> Result<ExportTable, String> {
        let mut list = List::default();
        for export in exports {
            export.refuse()?;
            if list.at(&export.name).is_ok() {
                return Err(format!("two exports of one socket are named {:?}", export.name));
            }
            list.set(export);
        }
        Ok(ExportTable { list: Mutex::new(Arc::new(list)) })
    }

    /// Offers these exports from now on, by name, or none of the name, to clients that have not chosen one yet. A
    /// client that negotiates sees all of the change or nothing; the exports that stay cost nothing.
    ///
    /// # Errors
    /// As [`ExportTable::new`]; then it offers what it did.
    pub fn change<'n>(&self, changed: impl IntoIterator<Item = (&'n str, Option<Export>)>) -> Result<(), String> {
        let changed: Vec<(&str, Option<Export>)> = changed.into_iter().collect();
        changed.iter().filter_map(|(_, export)| export.as_ref()).try_for_each(Export::refuse)?;
        let mut list = self.lock();
        // A copy of it if a handshake looks at it in this moment.
        let list = Arc::make_mut(&mut list);
        for (name, export) in changed {
            list.take(name);
            export.into_iter().for_each(|export| list.set(export));
        }
        Ok(())
    }

    /// Offers the export of this name no more.
    pub fn take(&self, name: &str) {
        Arc::make_mut(&mut self.lock()).take(name);
    }

    /// Tenants that have an export here.
    pub fn tenants(&self) -> usize {
        self.lock().tenants.len()
    }

    /// The export that a client means by `name`. "" means the export of that name or else the only export; with
    /// several to choose from it means none, so that a client without a name cannot reach another's data. A closed
    /// export is not found.
    pub fn lookup(&self, name: &str) -> Option<Arc<Export>> {
        self.now().lookup(name).cloned()
    }

    /// All of them, in the order of names.
    pub fn all(&self) -> Vec<Arc<Export>> {
        self.now().exports.clone()
    }

    fn now(&self) -> Arc<List> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Arc<List>> {
        // A handle is whole whatever panicked.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    /// Place of the export of this name, or the place that it would have.
    fn at(&self, name: &str) -> Result<usize, usize> {
        self.exports.binary_search_by(|export| export.name.as_str().cmp(name))
    }

    /// No export has its name.
    fn set(&mut self, export: Export) {
        let (Ok(at) | Err(at)) = self.at(&export.name);
        *self.tenants.entry(export.tenant).or_default() += 1;
        self.exports.insert(at, Arc::new(export));
    }

    fn take(&mut self, name: &str) {
        let Ok(at) = self.at(name) else { return };
        let gone = self.exports.remove(at);
        if let Entry::Occupied(mut count) = self.tenants.entry(gone.tenant) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn lookup(&self, name: &str) -> Option<&Arc<Export>> {
        let found = match (self.at(name), &self.exports[..]) {
            (Ok(at), exports) => Some(&exports[at]),
            (Err(_), [only]) if name.is_empty() => Some(only),
            (Err(_), _) => None,
        };
        found.filter(|export| !export.state.is_closed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, offset_bytes: u64, size_bytes: u64) -> Export {
        Export {
            name: name.to_owned(),
            description: String::new(),
            device: DeviceIndex(0),
            flow: FlowId(0),
            id: crate::export::ExportId(mqfq_blk::slots::Slot::first(0)),
            tenant: crate::export::TenantId(mqfq_blk::slots::Slot::first(0)),
            state: crate::export::ExportState::default(),
            offset_bytes,
            size_bytes,
            read_only: false,
            block: BlockSizes::DEFAULT,
            memory: TenantMemory::unbounded(),
            caps: Caps::none(),
        }
    }

    fn device(block_bytes: u32, preferred_bytes: u32, transfer_bytes_max: u32) -> DeviceInfo {
        DeviceInfo {
            size_bytes: 1 << 30,
            block_bytes,
            preferred_bytes,
            transfer_bytes_max,
            volatile_cache: false,
            pages_align_bytes: 0,
        }
    }

    #[test]
    fn windows_that_only_touch_do_not_overlap() {
        assert!(!export("a", 0, 4096).overlaps(&export("b", 4096, 4096)));
        assert!(!export("a", 4096, 4096).overlaps(&export("b", 0, 4096)));
        assert!(export("a", 0, 4097).overlaps(&export("b", 4096, 4096)));
        assert!(export("a", 0, 1 << 20).overlaps(&export("b", 4096, 1)), "one inside the other");
        let elsewhere = Export { device: DeviceIndex(1), ..export("b", 0, 4096) };
        assert!(!export("a", 0, 4096).overlaps(&elsewhere), "same bytes of another device");
    }

    #[test]
    fn the_empty_name_finds_the_only_export_but_never_one_of_several() {
        let one = ExportTable::new([export("a", 0, 1)]).unwrap();
        assert_eq!(one.lookup("").unwrap().name, "a");
        assert!(one.lookup("b").is_none());
        let two = ExportTable::new([export("a", 0, 1), export("b", 1, 1)]).unwrap();
        assert!(two.lookup("").is_none());
        assert_eq!(two.lookup("b").unwrap().offset_bytes, 1);
        let with_default = ExportTable::new([export("a", 0, 1), export("", 1, 1)]).unwrap();
        assert_eq!(with_default.lookup("").unwrap().offset_bytes, 1);
    }

    #[test]
    fn a_bell_rings_at_each_new_size_as_long_as_somebody_holds_it() {
        let bell = || {
            let flags = rustix::event::EventfdFlags::NONBLOCK;
            Arc::new(rustix::event::eventfd(0, flags).unwrap())
        };
        let rung = |bell: &OwnedFd| {
            let mut bytes = [0; 8];
            rustix::io::read(bell, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
        };
        let (state, first, second) = (ExportState::default(), bell(), bell());
        state.watch(&first);
        state.watch(&second);
        state.resize(4096);
        assert_eq!([rung(&first), rung(&second), rung(&second)], [1, 1, 0]);
        drop(first);
        let third = bell();
        state.watch(&third);
        assert_eq!(state.bells().len(), 2, "one that nobody holds is forgotten");
        state.resize(8192);
        assert_eq!([rung(&second), rung(&third)], [1, 1]);
    }

    #[test]
    fn a_closed_export_is_found_by_nobody() {
        let exports = [export("a", 0, 1), export("b", 1, 1)];
        let state = exports[0].state.clone();
        let table = ExportTable::new(exports).unwrap();
        assert!(table.lookup("a").is_some());
        state.close();
        assert!(table.lookup("a").is_none() && table.lookup("b").is_some());
        let only = ExportTable::new([export("a", 0, 1)]).unwrap();
        only.lookup("").unwrap().state.close();
        assert!(only.lookup("").is_none());
    }

    #[test]
    fn a_table_takes_a_whole_change_or_nothing_of_it_and_lists_exports_in_the_order_of_names() {
        let of = |name: &str, tenant: u32, size_bytes| {
            let tenant = TenantId(mqfq_blk::slots::Slot::first(tenant));
            Export { tenant, ..export(name, 0, size_bytes) }
        };
        let table = ExportTable::new([of("c", 1, 4096), of("a", 1, 4096)]).unwrap();
        let shown = || {
            let all = table.all().into_iter().map(|export| format!("{} {}", export.name, export.size_bytes));
            (all.collect::<Vec<_>>().join(", "), table.tenants())
        };
        let held = table.lookup("a").unwrap();
        table.change([("b", Some(of("b", 2, 4096))), ("d", None)]).unwrap();
        assert_eq!(shown(), ("a 4096, b 4096, c 4096".into(), 2));
        table.change([("a", Some(of("a", 3, 8192)))]).unwrap();
        assert_eq!(shown(), ("a 8192, b 4096, c 4096".into(), 3));
        assert_eq!(held.size_bytes, 4096, "a client that has one keeps it");
        let refused = table.change([("a", Some(of("a", 1, 4096))), ("b", Some(of("b", 1, 0)))]).unwrap_err();
        assert_eq!(refused, "export \"b\" cannot be served: its size is 0");
        assert_eq!(shown(), ("a 8192, b 4096, c 4096".into(), 3), "it offers all as before");
        table.change([("a", Some(of("a", 3, 512))), ("b", Some(of("b", 2, 512))), ("none", None)]).unwrap();
        assert_eq!(shown(), ("a 512, b 512, c 4096".into(), 3), "both changed");
        let described = Export { description: "x".repeat(NAME_BYTES_MAX + 1), ..of("b", 2, 512) };
        let refused = table.change([("b", Some(described))]).unwrap_err();
        assert_eq!(refused, "export \"b\" cannot be served: its description has 4097 bytes, allowed are 4096");
        table.change([("b", None), ("none", None)]).unwrap();
        table.take("a");
        assert_eq!((shown(), table.lookup("a").is_none()), (("c 4096".into(), 1), true));
    }

    #[test]
    fn i11_request_is_refused_by_the_size_and_the_access_in_force_when_it_is_handed_over() {
        let export = export("a", 4096, 8192);
        let refusal = |op, offset, length| export.refusal(op, offset, length);
        assert_eq!(refusal(Op::Read, 4096, 8192), None);
        assert_eq!(refusal(Op::Read, 4095, 1), Some(Status::Invalid), "the byte before it");
        assert_eq!(refusal(Op::Write, 12_287, 2), Some(Status::NoSpace));
        export.state.resize(4096);
        assert_eq!(export.size_now_bytes(), 4096);
        assert_eq!((refusal(Op::Read, 4096, 4096), refusal(Op::Read, 8192, 1)), (None, Some(Status::Invalid)));
        assert_eq!(refusal(Op::WriteZeroes { may_unmap: true }, 8191, 2), Some(Status::NoSpace));
        assert!(export.could_hold(0, 8192) && !export.could_hold(u64::MAX - 4096, 1), "that is asked for later");
        assert_eq!(refusal(Op::Flush, 0, 0), None);
        export.state.set_read_only(true);
        assert_eq!((refusal(Op::Write, 4096, 1), refusal(Op::Read, 4096, 1)), (Some(Status::Invalid), None));
        export.state.set_read_only(false);
        export.state.resize(1 << 20);
        assert_eq!(refusal(Op::Write, 4096, 1 << 20), None);
    }

    #[test]
    fn block_sizes_are_taken_up_to_their_limits_and_no_further() {
        let fits = |min_bytes, preferred_bytes, payload_bytes_max| {
            BlockSizes { min_bytes, preferred_bytes, payload_bytes_max, pages_align_bytes: 0 }.fault().is_none()
        };
        let (least, most) = (PREFERRED_BLOCK_BYTES_MIN, MIN_BLOCK_BYTES_MAX);
        assert!(fits(1, least, least) && fits(most, most.max(least), PAYLOAD_BYTES_MAX));
        assert!(!fits(2 * most, 2 * most.max(least), PAYLOAD_BYTES_MAX) && !fits(0, least, least));
        assert!(!fits(1, least / 2, PAYLOAD_BYTES_MAX) && !fits(2 * least, least, PAYLOAD_BYTES_MAX));
        assert!(!fits(1, least, least - 1) && !fits(1, least, PAYLOAD_BYTES_MAX + 1));
    }

    #[test]
    fn a_faulty_export_is_named_with_its_fault() {
        let refused = |export: Export| ExportTable::new([export]).unwrap_err();
        assert!(refused(export("a", 0, 0)).contains("export \"a\" cannot be served: its size is 0"));
        assert!(refused(export("a", u64::MAX, 2)).contains("exceeds 64 bits"));
        assert!(refused(export("a\0b", 0, 1)).contains("NUL"));
        assert!(refused(export(&"x".repeat(4097), 0, 1)).contains("4097 bytes"));
        let block = BlockSizes { min_bytes: 512, ..BlockSizes::DEFAULT };
        assert!(refused(Export { block, ..export("a", 0, 513) }).contains("multiples of its minimum block 512"));
        assert!(refused(Export { block, ..export("a", 1, 512) }).contains("multiples of its minimum block 512"));
        let block = BlockSizes { min_bytes: 3, ..BlockSizes::DEFAULT };
        assert!(refused(Export { block, ..export("a", 0, 3) }).contains("minimum block 3"));
        let block = BlockSizes { preferred_bytes: 256, ..BlockSizes::DEFAULT };
        assert!(refused(Export { block, ..export("a", 0, 1) }).contains("preferred block 256"));
        let block = BlockSizes { payload_bytes_max: 1024, ..BlockSizes::DEFAULT };
        assert!(refused(Export { block, ..export("a", 0, 1) }).contains("largest payload 1024"));
        let twice = ExportTable::new([export("a", 0, 1), export("a", 1, 1)]).unwrap_err();
        assert_eq!(twice, "two exports of one socket are named \"a\"");
    }

    #[test]
    fn sizes_follow_the_device_within_what_the_protocol_can_say() {
        let sizes = BlockSizes::of_device(&device(512, 4096, 1 << 20));
        assert_eq!(
            sizes,
            BlockSizes { min_bytes: 512, preferred_bytes: 4096, payload_bytes_max: 1 << 20, pages_align_bytes: 0 }
        );
        assert!(sizes.narrower_than_default());
        // The largest payload is whole blocks: 1 MiB less one byte holds 255 of 4 KiB.
        let sizes = BlockSizes::of_device(&device(4096, 512, (1 << 20) - 1));
        assert_eq!(
            sizes,
            BlockSizes { min_bytes: 4096, preferred_bytes: 4096, payload_bytes_max: 255 << 12, pages_align_bytes: 0 }
        );
        // Any byte may be addressed and 1 GiB at once: the default, cut to 32 MiB.
        let sizes = BlockSizes::of_device(&device(1, 1, 1 << 30));
        assert_eq!(
            sizes,
            BlockSizes { min_bytes: 1, preferred_bytes: 512, payload_bytes_max: 32 << 20, pages_align_bytes: 0 }
        );
        assert!(!sizes.narrower_than_default());
    }

    #[test]
    fn an_export_could_hold_whole_blocks_alone() {
        let block = BlockSizes { min_bytes: 512, ..BlockSizes::DEFAULT };
        let export = Export { block, ..export("a", 4096, 8192) };
        assert!(export.could_hold(512, 512) && export.could_hold(0, 1024));
        for (offset_bytes, length_bytes) in [(256, 512), (512, 256), (1, 1), (0, 0), (512, 0), (u64::MAX - 511, 512)] {
            assert!(!export.could_hold(offset_bytes, length_bytes), "{length_bytes} at {offset_bytes}");
        }
    }

    #[test]
    fn a_client_that_was_told_nothing_may_ask_too_much_of_large_blocks_or_of_small_payloads() {
        let narrower = |min_bytes, payload_bytes_max| {
            BlockSizes { min_bytes, payload_bytes_max, ..BlockSizes::DEFAULT }.narrower_than_default()
        };
        assert!(narrower(2, PAYLOAD_BYTES_MAX) && narrower(1, PAYLOAD_BYTES_MAX - 1));
        assert!(!narrower(1, PAYLOAD_BYTES_MAX));
    }

    #[test]
    fn two_exports_that_had_one_place_have_two_numbers() {
        let mut slots = mqfq_blk::slots::Slots::new(4);
        let mut next = || {
            let slot = slots.insert(()).unwrap();
            slots.remove(slot);
            slot
        };
        let (first, second) = (next(), next());
        assert_eq!((first.place(), second.place()), (0, 0));
        assert_eq!([first, second].map(|slot| ExportId(slot).number()), [0, 1 << 32]);
        assert_eq!(ExportId(mqfq_blk::slots::Slot::first(7)).number(), 7);
    }

    #[test]
    fn a_door_asks_who_comes_as_long_as_it_takes_some_and_not_others() {
        let state = ExportState::default();
        assert!(!state.asks_who() && state.admits(&Peer::default()));
        state.admit(Arc::new(Access { uids: vec![7], ..Access::default() }));
        assert!(state.asks_who() && !state.admits(&Peer::default()));
        state.admit(Arc::default());
        assert!(!state.asks_who() && state.admits(&Peer::default()));
    }
}
