//! Where connections come from: a listening socket that is itself a client of a worker.
//!
//! Each connection accepted is handed to the engine, which chooses the worker where it lives.

use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::export::ExportTable;
use crate::front_end::{HandedOver, ListenOptions, Listener, LogLine};
use crate::socket::{Listening, SocketAddress};
use crate::stats::{Names, Stats};
use crate::takeover::Inherited;
use mqfq_blk::client::{Client, Context, Event, Label, MakeClient, Packed, PackedClient};
use mqfq_blk::passed::{self, Door, Passed};
use mqfq_blk::state::{StateReader, StateWriter};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

/// From an accept that found no descriptor, with the reserve given up already, to the next one.
const RETRY_NS: u64 = 10_000_000;

const UNTAKEN: &str = "its connections cannot be taken over";

/// Makes the client of a connection that was accepted, from its place among the handshakes (which holds its socket).
pub type MakeConnection = Box<dyn Fn(ConnectionSlot) -> Box<dyn Client + Send> + Send>;

/// Makes the client of a connection that another process had, from its place and its state there; or says why not.
pub type MakeTravelled =
    Box<dyn Fn(ConnectionSlot, &mut StateReader<'_>) -> Result<Box<dyn Client + Send>, String> + Send>;

/// A listening socket whose connections live on the engine's workers.
///
/// Another process gets the socket, and connections that are accepted and not begun.
pub struct SocketListener {
    listening: Listening,
    /// Door for clients that pass descriptors.
    door: Option<Behind>,
    /// The socket is a service manager's as well, which goes on with it: it is not shut down, and its file stays.
    lent: Option<Lent>,
    connection: MakeConnection,
    handed_over: Option<MakeTravelled>,
    /// Accepted and not begun: while it is paused, or by another process.
    waiting: Vec<OwnedFd>,
    accepting: bool,
    paused: bool,
    options: ListenOptions,
    stats: Arc<Stats>,
    places: Arc<ConnectionSlots>,
    done: bool,
}

/// The door of a listener, and a copy of its socket, which is closed after the socket itself: connections not yet
/// accepted, and everything sent on them, go with the last one.
struct Behind {
    door: Arc<Door>,
    /// `None`: no descriptor is left.
    _socket: Option<Passed>,
    /// It was full, and is looked at again.
    is_timed: bool,
}

/// A socket of a service manager. Dropped, it is there for the next listener at its address: after a drain, and when
/// the change that wanted the listener has failed.
struct Lent {
    /// The socket, until `Lent` is dropped.
    socket: Option<OwnedFd>,
    by: Arc<Inherited>,
}

impl Lent {
    /// The one at `address`, if there is one.
    fn take(by: &Arc<Inherited>, address: &SocketAddress) -> Option<Lent> {
        by.take(address).map(|socket| Lent { socket: Some(socket), by: by.clone() })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.socket.take().into_iter().for_each(|socket| self.by.give_back(socket));
    }
}

impl SocketListener {
    /// Listens on `address` for clients of `exports`, which a front end with these names makes of connections. A stale
    /// socket file is replaced.
    ///
    /// # Errors
    /// One sentence for the user, which names the address.
    pub fn bind(
        address: &SocketAddress,
        exports: &ExportTable,
        options: ListenOptions,
        names: &'static Names,
        connection: MakeConnection,
    ) -> Result<SocketListener, String> {
        // One waiting place for each client that may be served, within what kernels commonly allow.
        let backlog = options.connections_max.clamp(128, 4096) as i32;
        let lent = Lent::take(&options.inherited, address);
        let listening = match lent.as_ref().and_then(|lent| lent.socket.as_ref()) {
            Some(socket) => {
                let socket = socket.try_clone();
                address.adopt(socket.map_err(|error| format!("cannot listen on {address}: {error}"))?)?
            }
            None => address.listen(options.socket_mode_now(), backlog)?,
        };
        Ok(SocketListener { lent, ..SocketListener::of(listening, exports, options, names, connection) })
    }

    /// Goes on with the packed listener of another process.
    ///
    /// # Errors
    /// One sentence for the user, which names the address.
    pub fn adopt(
        address: &SocketAddress,
        handed_over: HandedOver,
        exports: &ExportTable,
        options: ListenOptions,
        names: &'static Names,
        connection: MakeConnection,
    ) -> Result<SocketListener, String> {
        let HandedOver { packed: Packed { state, descriptors }, version } = handed_over;
        StateReader::new(version, &state).end().map_err(|fault| format!("{address}: {fault}"))?;
        let mut descriptors = descriptors.into_iter();
        let socket = descriptors.next().ok_or_else(|| format!("{address}: its socket was not handed over"))?;
        let listening = address.adopt(socket)?;
        let mut listener = SocketListener::of(listening, exports, options, names, connection);
        listener.waiting = descriptors.collect();
        // A second copy of this socket, if a service manager has passed it to this process, too.
        listener.lent = Lent::take(&listener.options.inherited, address);
        Ok(listener)
    }

    fn of(
        listening: Listening,
        exports: &ExportTable,
        options: ListenOptions,
        names: &'static Names,
        connection: MakeConnection,
    ) -> SocketListener {
        options.reserve.take_back();
        let stats = Stats::new(names);
        let places = ConnectionSlots::new(exports, &options, stats.clone());
        SocketListener {
            listening,
            door: None,
            lent: None,
            connection,
            handed_over: None,
            waiting: Vec::new(),
            accepting: false,
            paused: false,
            options,
            stats,
            places,
            done: false,
        }
    }

    /// Returns this listener, which takes over another process's connections with `handed_over`.
    #[must_use]
    pub fn with_travelled(self, handed_over: MakeTravelled) -> SocketListener {
        SocketListener { handed_over: Some(handed_over), ..self }
    }

    /// Returns this listener for clients that pass descriptors by `door`: while that is full, none is accepted.
    #[must_use]
    pub fn with_door(self, door: Arc<Door>) -> SocketListener {
        let socket = self.listening.socket.try_clone().ok().map(|socket| door.pass(socket));
        SocketListener { door: Some(Behind { door, _socket: socket, is_timed: false }), ..self }
    }

    /// Where it listens, with the port that the kernel chose.
    pub fn address(&self) -> &SocketAddress {
        &self.listening.address
    }

    /// Counters of its connections.
    pub fn stats(&self) -> Arc<Stats> {
        self.stats.clone()
    }

    /// The client that accepts, as the engine wants it.
    pub fn into_client(self) -> MakeClient {
        Box::new(move || Box::new(self))
    }

    /// Begins with connections that wait, then accepts the next one.
    fn accept(&mut self, context: &mut dyn Context) {
        if self.paused || self.done {
            return;
        }
        for socket in std::mem::take(&mut self.waiting) {
            self.accepted(context, socket);
        }
        if let Some(Behind { door, is_timed, .. }) = &mut self.door
            && door.is_full(1)
        {
            // A closed descriptor is not signalled, so look again later.
            if !std::mem::replace(is_timed, true) {
                context.timer(context.now_ns().saturating_add(RETRY_NS), 0);
            }
            return;
        }
        if !std::mem::replace(&mut self.accepting, true) {
            context.accept(self.listening.socket.as_raw_fd(), 0);
        }
    }

    fn accepted(&mut self, context: &mut dyn Context, socket: OwnedFd) {
        let reserve = &self.options.reserve;
        if !reserve.take_back() {
            // This client got the reserve's descriptor, and there is still no other: turn it away, and have a reserve
            // again.
            drop(socket);
            reserve.take_back();
            self.stats.count_refused();
            self.say("no file descriptor is left: a client was turned away");
            return;
        }
        if let SocketAddress::Tcp { .. } = self.listening.address {
            // Replies leave when they are gathered; and a peer that vanished shall be noticed. Neither can be refused
            // by a socket that is connected, and if it is not, the first receive says so.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
        }
        let place = match &self.door {
            // Its close may wait for what lies unread in it.
            Some(Behind { door, .. }) => self.places.enter_by_door(door.pass(socket)),
            None => {
                // Descriptors of a client that connected before the listener refused them.
                passed::refuse(&socket);
                self.places.enter(socket)
            }
        };
        let client = (self.connection)(place);
        context.attach(Box::new(move || client));
    }

    fn say(&self, what: impl fmt::Display) {
        if let Some(log) = &self.options.log {
            let text = format!("{}: {}: {what}", self.stats.names().front_end, Listener::address(self));
            log(LogLine { text: &text, export: None });
        }
    }
}

impl Listener for SocketListener {
    fn address(&self) -> String {
        self.listening.address.to_string()
    }

    fn stats(&self) -> Arc<Stats> {
        self.stats.clone()
    }

    fn number(&self) -> u64 {
        self.places.number()
    }

    fn places(&self) -> Option<Arc<ConnectionSlots>> {
        Some(self.places.clone())
    }

    fn file(&self) -> Option<PathBuf> {
        match &self.listening.address {
            SocketAddress::Unix(path) if self.lent.is_none() => Some(path.clone()),
            _ => None,
        }
    }

    fn adopt(&self, HandedOver { packed, version }: HandedOver) -> Result<MakeClient, String> {
        let address = &self.listening.address;
        let Some(handed_over) = &self.handed_over else { return Err(format!("{address}: {UNTAKEN}")) };
        let [socket] = <[OwnedFd; 1]>::try_from(packed.descriptors)
            .map_err(|_| format!("{address}: a connection was not handed over with one socket"))?;
        let client = handed_over(self.places.enter_handed_over(socket), &mut StateReader::new(version, &packed.state))
            .map_err(|why| format!("a connection to {address} cannot be taken over: {why}"))?;
        Ok(Box::new(move || client))
    }

    fn into_clients(self: Box<Self>) -> Vec<MakeClient> {
        vec![self.into_client()]
    }
}

impl Client for SocketListener {
    fn start(&mut self, context: &mut dyn Context) {
        if self.lent.is_none() {
            self.listening.own();
        }
        if self.door.is_none() {
            passed::refuse(&self.listening.socket);
        }
        self.accept(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        self.accepting &= !matches!(event, Event::Accepted { .. });
        let result = match event {
            _ if self.done => return,
            Event::Accepted { result: Ok(socket), .. } if self.paused => return self.waiting.push(socket),
            Event::Accepted { result, .. } => result,
            Event::Timer { .. } => {
                self.door.iter_mut().for_each(|behind| behind.is_timed = false);
                return self.accept(context);
            }
            other => unreachable!("a listener only accepts, yet got {other:?}"),
        };
        match result.map_err(Errno::from_raw_os_error) {
            Ok(socket) => self.accepted(context, socket),
            // The kernel takes the descriptor before it looks for a client, so this says nothing of whether one waits.
            Err(Errno::MFILE | Errno::NFILE) => {
                if !self.options.reserve.give_up() {
                    // A free descriptor is not signalled, so look again later.
                    return context.timer(context.now_ns().saturating_add(RETRY_NS), 0);
                }
            }
            // It was paused, the client gave up first, or the kernel was short of memory for a moment.
            Err(
                Errno::CANCELED
                | Errno::CONNABORTED
                | Errno::INTR
                | Errno::AGAIN
                | Errno::PROTO
                | Errno::NOMEM
                | Errno::NOBUFS,
            ) => {}
            // Errors that Linux hands over from the new connection's network. Source: accept(2).
            Err(
                Errno::NETDOWN
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
                | Errno::PERM,
            ) => {}
            Err(errno) => {
                self.done = true;
                self.say(format_args!("no longer listening: {errno}"));
                return;
            }
        }
        self.accept(context);
    }

    fn completed(&mut self, _context: &mut dyn Context, completion: mqfq_blk::request::Completion) {
        unreachable!("a listener submits nothing, yet got {completion:?}");
    }

    fn turn_end(&mut self, _context: &mut dyn Context) {}

    fn room(&mut self, _context: &mut dyn Context) {}

    fn drain(&mut self, context: &mut dyn Context) {
        self.done = true;
        // The kernel tries an accept at a unix socket that is shut down 128 times, because the socket is readable and
        // no client waits (Linux 6.18: `APOLL_MAX_RETRY` of io_uring; a call that does not wait never looks at the
        // shutdown). A cancelled accept ends at once.
        context.interrupt();
        match self.lent.take() {
            None => context.shutdown(self.listening.socket.as_raw_fd()),
            Some(lent) => drop(lent),
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn label(&self) -> Label {
        Label { client: Some(self.places.number()), export: None }
    }

    /// It has none.
    fn takes_back(&self) -> bool {
        true
    }

    fn pause(&mut self, context: &mut dyn Context) {
        self.paused = true;
        context.interrupt();
    }

    fn is_paused(&self) -> bool {
        self.done || (self.paused && !self.accepting)
    }

    fn pack(&self, version: u16) -> io::Result<Option<PackedClient>> {
        if self.done {
            return Ok(None);
        }
        let sockets = std::iter::once(&self.listening.socket).chain(&self.waiting);
        let descriptors = sockets.map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let packed = Packed { state: StateWriter::new(version).into_bytes(), descriptors };
        Ok(Some(PackedClient { listener: self.places.number(), is_listener: true, packed }))
    }

    fn resume(&mut self, context: &mut dyn Context) {
        self.paused = false;
        self.accept(context);
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;

/// A descriptor to give up when the process has no other left, so that a client that waits can be turned away.
///
/// A process without descriptors cannot accept, and so cannot refuse either: its clients would hang. With one that is
/// given up, the next client is accepted in its place. By then others may have been closed. So a listener that accepts
/// while the reserve is given up takes it back first: if that succeeds there are descriptors, and the client stays.
#[derive(Debug)]
pub struct Reserve {
    open: fn() -> Option<OwnedFd>,
    held: Mutex<Option<OwnedFd>>,
}

impl Default for Reserve {
    /// Nothing is held before the first [`Reserve::take_back`].
    fn default() -> Reserve {
        Reserve::opened_by(|| File::open("/dev/null").ok().map(OwnedFd::from))
    }
}

impl Reserve {
    pub(crate) fn opened_by(open: fn() -> Option<OwnedFd>) -> Reserve {
        Reserve { open, held: Mutex::new(None) }
    }

    /// True: there is one descriptor more now. False: another listener has given it up already.
    pub fn give_up(&self) -> bool {
        self.held().take().is_some()
    }

    /// True: it is held. False: no descriptor is left.
    pub fn take_back(&self) -> bool {
        let mut held = self.held();
        if held.is_none() {
            *held = (self.open)();
        }
        held.is_some()
    }

    fn held(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
