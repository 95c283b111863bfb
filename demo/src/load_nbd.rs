//! Carries a tenant's load over real NBD sockets: one thread, all connections, one wait.
//!
//! # Shape
//! Clients and server share the machine's cores, so what the client burns is missing from the server. The loop is
//! level-triggered epoll over all connections of the tenant; for each that is ready it makes one `read` into a buffer
//! that stays in the cache, refills what has ended, and makes one `write` for all new requests of that connection.
//!
//! # Cost
//! Per wake-up one `epoll_wait` and one clock reading; per ready connection one `read` and one `write`, whatever the
//! number of requests in them. At depth 1 that is three system calls per request, at depth 128 a fraction of one.

use crate::load::{Counted, Load, Requests, Step, Window};
use crate::nbd_client::{Connection, Done};
use rustix::event::{Timespec, epoll};
use std::path::Path;
use std::time::{Duration, Instant};

/// A server that leaves requests unanswered for this long after the end of a run is broken.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest time for a run of a given number of requests.
const REQUESTS_TIMEOUT_MS: u64 = 60_000;

/// Bytes taken from a socket at once: a unix socket's default buffer holds about as much.
const SCRATCH_BYTES: usize = 256 * 1024;

/// Random bytes for writes, so that nothing below can shortcut zeroes.
fn write_payload(load: &Load) -> Vec<u8> {
    if load.write_percent == 0 {
        return Vec::new();
    }
    let mut state = load.seed | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(load.request_bytes as usize)
    .collect()
}

struct Driven {
    connection: Connection,
    requests: Requests,
    wants_writable: bool,
    /// By index of a request: its begin, and its steps that have completed.
    begun: Vec<(u64, usize)>,
}

/// A tenant attached to its export, ready for any number of runs.
pub struct NbdTenant {
    load: Load,
    driven: Vec<Driven>,
    epoll: std::os::fd::OwnedFd,
    payload: Vec<u8>,
    scratch: Vec<u8>,
    done: Vec<Done>,
}

impl NbdTenant {
    /// Opens the tenant's connections to `export` on `socket`.
    ///
    /// # Errors
    /// One sentence, see [`Connection::connect`] and [`Requests::new`].
    pub fn attach(socket: &Path, export: &str, load: &Load) -> Result<NbdTenant, String> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| format!("epoll failed: {error}"))?;
        let mut driven = Vec::with_capacity(usize::from(load.connections));
        for number in 0..load.connections {
            // Simple replies: 16 bytes instead of 20 and the same work, and every server has them.
            let connection = Connection::connect(socket, export, load.depth, false)?;
            let requests = Requests::new(load, number, connection.info().size_bytes)?;
            let data = epoll::EventData::new_u64(u64::from(number));
            epoll::add(&epoll, connection.as_fd(), data, epoll::EventFlags::IN)
                .map_err(|error| format!("epoll failed: {error}"))?;
            let begun = vec![(0, 0); usize::from(load.depth)];
            driven.push(Driven { connection, requests, wants_writable: false, begun });
        }
        Ok(NbdTenant {
            load: *load,
            driven,
            epoll,
            payload: write_payload(load),
            scratch: vec![0; SCRATCH_BYTES],
            done: Vec::with_capacity(usize::from(load.depth)),
        })
    }

    /// Runs the load from `start` on, for `window`, and leaves nothing in flight.
    ///
    /// # Errors
    /// One sentence, if a connection broke or the server left requests unanswered.
    pub fn run(&mut self, start: Instant, window: Window) -> Result<Counted, String> {
        self.drive(start, window, u64::MAX)
    }

    /// Runs the load for exactly `requests` requests (at least one per request in flight), from now on. A sequential
    /// load of one connection with as many requests as fit in the export touches each byte once.
    ///
    /// # Errors
    /// As [`NbdTenant::run`], or if it takes longer than [`REQUESTS_TIMEOUT_MS`].
    pub fn run_requests(&mut self, requests: u64) -> Result<Counted, String> {
        let counted = self.drive(Instant::now(), Window::from_ms(0, REQUESTS_TIMEOUT_MS), requests)?;
        if counted.requests + counted.errors < requests {
            return Err(format!("{requests} requests took longer than {REQUESTS_TIMEOUT_MS} ms"));
        }
        Ok(counted)
    }

    fn drive(&mut self, start: Instant, window: Window, requests_max: u64) -> Result<Counted, String> {
        let mut counted = Counted::new(window);
        let now_ns = |at: Instant| at.saturating_duration_since(start).as_nanos() as u64;
        if let Some(wait) = start.checked_duration_since(Instant::now()) {
            std::thread::sleep(wait);
        }
        let begin_ns = now_ns(Instant::now());
        let (load, depth) = (self.load, self.load.depth);
        for number in 0..self.driven.len() {
            for index in 0..depth {
                self.driven[number].issue(index, &load, &self.payload, begin_ns);
            }
            self.send(number)?;
        }
        let give_up_ns = window.end_ns + DRAIN_TIMEOUT.as_nanos() as u64;
        let mut events = Vec::with_capacity(self.driven.len());
        let mut live = self.driven.len() * usize::from(depth);
        let mut left = requests_max.saturating_sub(live as u64);
        while live > 0 {
            self.wait(&mut events, Duration::from_secs(1))?;
            let at_ns = now_ns(Instant::now());
            let in_time = at_ns < window.end_ns;
            if at_ns > give_up_ns {
                return Err(format!("the server left {live} requests unanswered"));
            }
            for event in &events {
                let number = event.data.u64() as usize;
                self.done.clear();
                let driven = &mut self.driven[number];
                let flags = event.flags;
                if flags != epoll::EventFlags::OUT {
                    driven.connection.receive(&mut self.scratch, &mut self.done)?;
                }
                for done in &self.done {
                    if done.error == 0 && driven.goes_on(done.index, &load, &self.payload, at_ns) {
                        continue;
                    }
                    match done.error {
                        0 => counted.record(at_ns, at_ns - driven.begun_ns(done.index), load.counted_bytes()),
                        _ => counted.errors += 1,
                    }
                    if in_time && left > 0 {
                        left -= 1;
                        driven.issue(done.index, &load, &self.payload, at_ns);
                    } else {
                        live -= 1;
                    }
                }
                self.send(number)?;
            }
        }
        Ok(counted)
    }

    /// Closes the connections.
    pub fn detach(self) {
        for driven in self.driven {
            driven.connection.disconnect();
        }
    }

    fn wait(&self, events: &mut Vec<epoll::Event>, timeout: Duration) -> Result<(), String> {
        events.clear();
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(format!("epoll failed: {error}")),
        }
    }

    /// Sends what has gathered, and asks to hear of room only while some is left.
    fn send(&mut self, number: usize) -> Result<(), String> {
        let driven = &mut self.driven[number];
        driven.connection.flush()?;
        let unsent = driven.connection.has_unsent();
        if unsent != driven.wants_writable {
            driven.wants_writable = unsent;
            let flags = if unsent { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            let data = epoll::EventData::new_u64(number as u64);
            epoll::modify(&self.epoll, driven.connection.as_fd(), data, flags)
                .map_err(|error| format!("epoll failed: {error}"))?;
        }
        Ok(())
    }
}

impl Driven {
    /// Begins the next request as number `index`.
    fn issue(&mut self, index: u16, load: &Load, payload: &[u8], now_ns: u64) {
        self.begun[usize::from(index)] = (now_ns, 0);
        self.submit(index, load, payload, now_ns);
    }

    /// A step of request `index` has completed: submits the next one. False: it was the last.
    fn goes_on(&mut self, index: u16, load: &Load, payload: &[u8], now_ns: u64) -> bool {
        let (_, done) = &mut self.begun[usize::from(index)];
        *done += 1;
        let goes_on = load.step(*done).is_some();
        if goes_on {
            self.submit(index, load, payload, now_ns);
        }
        goes_on
    }

    fn begun_ns(&self, index: u16) -> u64 {
        self.begun[usize::from(index)].0
    }

    fn submit(&mut self, index: u16, load: &Load, payload: &[u8], now_ns: u64) {
        if load.step(self.begun[usize::from(index)].1) == Some(Step::Flush) {
            self.connection.request_flush(index, now_ns);
            return;
        }
        let next = self.requests.advance();
        let payload = next.write.then_some(payload);
        self.connection.request(index, next.offset_bytes, load.request_bytes, payload, now_ns);
    }
}
