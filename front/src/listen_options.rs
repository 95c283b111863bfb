//! Options of every listener: limits of its clients, parts of the process that all listeners share, and a log.

use crate::listener::Reserve;
use crate::memory::MemoryLimits;
use crate::takeover::Inherited;
use crate::tls::Offer;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Takes one line about a client that was refused, or closed for a broken rule. Called on workers: it neither waits nor
/// panics.
pub type Log = Arc<dyn Fn(LogLine<'_>) + Send + Sync>;

/// A line of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLine<'a> {
    /// A sentence.
    pub text: &'a str,
    /// The export that the client has or wants, if it has said so.
    pub export: Option<&'a str>,
}

/// Mark that the server ends, which tells a device that outlives it from one that goes while it serves others. Clones
/// share one mark.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<AtomicBool>);

impl Ending {
    /// It ends: all clients will be drained.
    pub fn begin(&self) {
        // Release: pairs with the Acquire in `has_begun`. Drains are asked for by messages sent after this.
        self.0.store(true, Ordering::Release);
    }

    /// It ends.
    pub fn has_begun(&self) -> bool {
        // Acquire: pairs with the Release in `begin`.
        self.0.load(Ordering::Acquire)
    }
}

/// Limits that hold for the clients of one listener, whatever they speak.
#[derive(Clone)]
pub struct ListenOptions {
    /// Connections that have chosen an export; half of them are guaranteed to the tenants, in equal parts
    /// ([`crate::connection_slots`]). Handshakes have places of their own,
    /// [`crate::connection_slots::handshakes_max`]. Default 1024.
    pub connections_max: usize,
    /// Memory of the payloads of one connection, bytes; one request or piece always fits. Default
    /// [`MemoryLimits::CONNECTION_BYTES`].
    pub bytes_in_flight_max: u64,
    /// From the start of a connection to the end of its handshake; one that takes longer is closed, so that silent
    /// clients do not stay. Default 10 s.
    pub handshake_timeout: Duration,
    /// From the moment that a client is waited for in the middle of something (a reply that it takes, the rest of a
    /// request) to its next byte; one that takes longer is closed. For front ends that have such clients. Default 60 s.
    pub stall_timeout: Duration,
    /// Permissions of a unix socket. Default 0o600: the administrator grants access to a tenant's bytes.
    pub socket_mode: u32,
    /// For all listeners of a process; each [`Default`] has its own.
    pub reserve: Arc<Reserve>,
    /// Sockets that are listened on already, for all listeners of a process. Default: none.
    pub inherited: Arc<Inherited>,
    /// Encryption, for front ends that can. Default: none.
    pub tls: Option<Offer>,
    /// Limits changed since, for all listeners of a process.
    pub since: Arc<LimitsSince>,
    /// Workers of the engine. Default 1.
    pub workers: usize,
    /// The process takes the place of another one, which serves until then. Default: no.
    pub replaces: bool,
    /// For all listeners of a process: whether it ends. Default: it does not.
    pub ending: Ending,
    /// Where lines about broken connections and refused clients go. Default: nowhere; [`crate::stats::Stats`] counts
    /// them anyway.
    pub log: Option<Log>,
}

impl ListenOptions {
    /// [`ListenOptions::bytes_in_flight_max`] of a connection that begins now.
    pub fn bytes_in_flight_max_now(&self) -> u64 {
        self.since.bytes_in_flight_max.now().unwrap_or(self.bytes_in_flight_max)
    }

    /// [`ListenOptions::handshake_timeout`] of a connection that begins now.
    pub fn handshake_timeout_now(&self) -> Duration {
        self.since.handshake_timeout_ns.now().map_or(self.handshake_timeout, Duration::from_nanos)
    }

    /// [`ListenOptions::stall_timeout`] from now on.
    pub fn stall_timeout_now(&self) -> Duration {
        self.since.stall_timeout_ns.now().map_or(self.stall_timeout, Duration::from_nanos)
    }

    /// [`ListenOptions::socket_mode`] of a socket that is made now.
    pub fn socket_mode_now(&self) -> u32 {
        self.since.socket_mode.now().map_or(self.socket_mode, |mode| mode as u32)
    }
}

/// Limits that were changed while clients are served. Earlier clients keep their limits.
#[derive(Debug, Default)]
pub struct LimitsSince {
    bytes_in_flight_max: Since,
    handshake_timeout_ns: Since,
    stall_timeout_ns: Since,
    socket_mode: Since,
}

impl LimitsSince {
    /// Sets the limits from now on.
    pub fn set(
        &self,
        bytes_in_flight_max: u64,
        handshake_timeout: Duration,
        stall_timeout: Duration,
        socket_mode: u32,
    ) {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1);
        self.bytes_in_flight_max.set(bytes_in_flight_max);
        self.handshake_timeout_ns.set(ns(handshake_timeout));
        self.stall_timeout_ns.set(ns(stall_timeout));
        self.socket_mode.set(socket_mode.into());
    }
}

/// A number that was set, below `u64::MAX`.
#[derive(Debug)]
struct Since(AtomicU64);

impl Default for Since {
    fn default() -> Since {
        Since(AtomicU64::new(u64::MAX))
    }
}

impl Since {
    fn now(&self) -> Option<u64> {
        // Relaxed: a number that nothing else is ordered by; a connection that begins meanwhile has either.
        Some(self.0.load(Ordering::Relaxed)).filter(|number| *number != u64::MAX)
    }

    fn set(&self, number: u64) {
        // Relaxed: see `now`.
        self.0.store(number, Ordering::Relaxed);
    }
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions {
            connections_max: 1024,
            bytes_in_flight_max: MemoryLimits::CONNECTION_BYTES,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            socket_mode: 0o600,
            reserve: Arc::default(),
            inherited: Arc::default(),
            tls: None,
            since: Arc::default(),
            workers: 1,
            replaces: false,
            ending: Ending::default(),
            log: None,
        }
    }
}

impl fmt::Debug for ListenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenOptions")
            .field("connections_max", &self.connections_max)
            .field("bytes_in_flight_max", &self.bytes_in_flight_max)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("stall_timeout", &self.stall_timeout)
            .field("socket_mode", &format_args!("{:#o}", self.socket_mode))
            .field("tls", &self.tls)
            .field("log", &self.log.is_some())
            .finish()
    }
}

/// A number for a client's label, another one at each call.
pub fn next_client() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only that it is another one matters.
    NEXT.fetch_add(1, Ordering::Relaxed)
}
