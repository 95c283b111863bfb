//! Where connections come from: a listening socket that is itself a client of a worker.
//!
//! Each connection accepted is handed to the engine, which chooses the worker where it lives.

use crate::export::ExportTable;
use crate::front_end::{ListenOptions, Listener};
use crate::places::{Place, Places};
use crate::socket::{Listening, SocketAddress};
use crate::stats::{Names, Stats};
use mqfq_blk::client::{Client, Context, Event, MakeClient};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// From an accept that found no descriptor, with the reserve given up already, to the next one.
const RETRY_NS: u64 = 10_000_000;

/// Makes the client of a connection that was accepted, from its place among the handshakes (which holds its socket).
pub type MakeConnection = Box<dyn Fn(Place) -> Box<dyn Client + Send> + Send>;

/// A listening socket whose connections live on the engine's workers.
pub struct SocketListener {
    listening: Listening,
    connection: MakeConnection,
    options: ListenOptions,
    stats: Arc<Stats>,
    places: Arc<Places>,
    /// Its address in reports and the log, if that is not its socket's.
    shown: Option<String>,
    done: bool,
}

impl SocketListener {
    /// Listens on `address` for clients of `exports`, which a front end with these names makes of connections. A socket
    /// file that nobody listens on any more is replaced.
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
        let listening = address.listen(options.socket_mode, backlog)?;
        options.reserve.take_back();
        let stats = Stats::new(names);
        let places = Places::new(exports, &options, stats.clone());
        Ok(SocketListener { listening, connection, options, stats, places, shown: None, done: false })
    }

    /// The same, called `address` in reports and the log: for a front end whose addresses have a scheme of their own.
    #[must_use]
    pub fn shown_as(self, address: String) -> SocketListener {
        SocketListener { shown: Some(address), ..self }
    }

    /// Where it listens, with the port that the kernel chose.
    pub fn address(&self) -> &SocketAddress {
        &self.listening.address
    }

    /// Counters of its connections.
    pub fn stats(&self) -> Arc<Stats> {
        self.stats.clone()
    }

    /// As the engine wants it.
    pub fn into_client(self) -> MakeClient {
        Box::new(move || Box::new(self))
    }

    fn accept(&self, context: &mut dyn Context) {
        context.accept(self.listening.socket.as_raw_fd(), 0);
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
        let client = (self.connection)(self.places.enter(socket));
        context.attach(Box::new(move || client));
    }

    fn say(&self, what: impl fmt::Display) {
        if let Some(log) = &self.options.log {
            log(&format!("{}: {}: {what}", self.stats.names().front_end, Listener::address(self)));
        }
    }
}

impl Listener for SocketListener {
    fn address(&self) -> String {
        self.shown.clone().unwrap_or_else(|| self.listening.address.to_string())
    }

    fn stats(&self) -> Arc<Stats> {
        self.stats.clone()
    }

    fn into_clients(self: Box<Self>) -> Vec<MakeClient> {
        vec![self.into_client()]
    }
}

impl Client for SocketListener {
    fn start(&mut self, context: &mut dyn Context) {
        self.accept(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        let result = match event {
            _ if self.done => return,
            Event::Accepted { result, .. } => result,
            Event::Timer { .. } => return self.accept(context),
            other => unreachable!("a listener only accepts, yet got {other:?}"),
        };
        match result.map_err(Errno::from_raw_os_error) {
            Ok(socket) => self.accepted(context, socket),
            // The kernel takes the descriptor before it looks for a client, so this says nothing of whether one waits.
            Err(Errno::MFILE | Errno::NFILE) => {
                if !self.options.reserve.give_up() {
                    // Nobody tells when a descriptor comes back.
                    return context.timer(context.now_ns().saturating_add(RETRY_NS), 0);
                }
            }
            // The client gave up first, or the kernel was short of memory for a moment.
            Err(Errno::CONNABORTED | Errno::INTR | Errno::AGAIN | Errno::PROTO | Errno::NOMEM | Errno::NOBUFS) => {}
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
        context.shutdown(self.listening.socket.as_raw_fd());
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
