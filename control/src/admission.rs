//! May a client of a TCP address come in, and for how long may it be a stranger?
//!
//! ```text
//!   connect ─▶ stranger: one of STRANGERS_MAX ──first request that is let in──▶ guest: one of CONNECTIONS_MAX
//!                  └─ STRANGER_WAIT is over, or newer strangers need the place ─▶ closed
//! ```
//! A stranger takes no place of a guest, so clients without the token keep no guest out. A new connection is accepted
//! at once: if all places of strangers are taken, the oldest stranger goes.
//!
//! A browser sends requests that its user did not ask for. Three rules refuse them ([`Peer::refuse_forged`]): `Origin`
//! names the host of the request; `Sec-Fetch-Site` is not another site; at a TCP address `Host` is a name of this
//! server, so a name that an attacker points to this address (DNS rebinding) is not served.
//!
//! Sources: Fetch, 3.1 (`Origin`); Fetch Metadata, 2.4 (`Sec-Fetch-Site`); RFC 9110, 7.2 (`Host`) and 11.1 (schemes).

use crate::model::By;
use crate::problem::Problem;
use axum::http::{HeaderMap, StatusCode, header};
use mqfq_config::text::quoted;
use std::collections::VecDeque;
use std::future::pending;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Connections of a TCP address that have not sent a request that was let in.
pub const STRANGERS_MAX: usize = 64;

/// From the connection to the first request that is let in, a handshake of TLS included.
pub const STRANGER_WAIT: Duration = Duration::from_secs(10);

/// Whether a name of a host is one of the server's.
pub type IsOwnName = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The client of a connection.
#[derive(Clone)]
pub struct Peer {
    /// The client; the request itself names its way (`ctl`).
    pub by: By,
    /// Token that it must present.
    pub(crate) token: Option<Arc<str>>,
    /// Names in `Host` besides addresses and localhost. `None`: it came by a unix socket, and any name will do.
    pub(crate) names: Option<IsOwnName>,
    /// `None`: it came by a unix socket, whose permissions let it in.
    pub(crate) stranger: Option<Arc<Stranger>>,
}

impl Peer {
    /// Lets a request in.
    ///
    /// # Errors
    /// 401 without the token, 403 if a browser sends it for another site, 503 if all places are taken.
    pub(crate) fn let_in(&self, headers: &HeaderMap) -> Result<(), Problem> {
        self.refuse_forged(headers)?;
        if !self.has_token(headers) {
            let sentence = "this address wants the token of control.token-file, as \"Authorization: Bearer TOKEN\"; \
                            mqfq ctl and mqfq top send it with --token-file FILE";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, sentence));
        }
        if self.stranger.as_ref().is_some_and(|stranger| !stranger.become_guest()) {
            let sentence = "as many clients as fit are connected, allowed is to try again in some seconds";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, sentence));
        }
        Ok(())
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let said = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, rest) = value.as_bytes().split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(rest)
        });
        said.is_some_and(|said| {
            // Takes as long wherever the first difference is.
            let differs = said.iter().zip(token.as_bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
            said.len() == token.len() && differs == 0
        })
    }

    fn refuse_forged(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let forbidden = |sentence: String| Err(Problem::new(StatusCode::FORBIDDEN, sentence));
        let host = text("host").unwrap_or_default();
        let name = host_name(host);
        let is_own = |names: &IsOwnName| {
            let is_local = name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok();
            is_local || names(name)
        };
        if self.names.as_ref().is_some_and(|names| !is_own(names)) {
            return forbidden(format!(
                "Host: {} is not a name of this server, allowed are an IP address, localhost, a host of \
                 control.listen and a name of its certificate",
                quoted(host)
            ));
        }
        let is_of_host = |origin: &str| origin.split_once("://").is_some_and(|(_, at)| at.eq_ignore_ascii_case(host));
        if let Some(origin) = text("origin").filter(|origin| !is_of_host(origin)) {
            let sentence =
                format!("Origin: {} is another site, allowed are requests of this server's page", quoted(origin));
            return forbidden(sentence);
        }
        if let Some(site) = text("sec-fetch-site").filter(|site| !["same-origin", "none"].contains(site)) {
            let sentence = format!("Sec-Fetch-Site: {}, allowed are requests of this server's page", quoted(site));
            return forbidden(sentence);
        }
        Ok(())
    }
}

/// The name in `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
pub(crate) fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(name, _)| name),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// The strangers of one TCP address, and the places of its guests.
pub(crate) struct Strangers {
    guests: Arc<Semaphore>,
    all: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Number of the last one.
    last: u64,
    /// From the oldest to the newest: number, and what is told to leave.
    queue: VecDeque<(u64, Arc<Notify>)>,
}

impl Strangers {
    pub(crate) fn new(guests: Arc<Semaphore>) -> Arc<Strangers> {
        Arc::new(Strangers { guests, all: Mutex::default() })
    }

    fn all(&self) -> MutexGuard<'_, Waiting> {
        // A list is whole whatever panicked.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more; if there are too many, the oldest is told to leave.
    pub(crate) fn admit(self: &Arc<Self>) -> Arc<Stranger> {
        let leave = Arc::new(Notify::new());
        let mut all = self.all();
        all.last += 1;
        let number = all.last;
        if all.queue.len() == STRANGERS_MAX
            && let Some((_, oldest)) = all.queue.pop_front()
        {
            oldest.notify_one();
        }
        all.queue.push_back((number, leave.clone()));
        Arc::new(Stranger { strangers: self.clone(), number, leave, place: Mutex::default() })
    }

    fn forget(&self, number: u64) {
        self.all().queue.retain(|(other, _)| *other != number);
    }
}

/// A connection of a TCP address, from its accept to its end.
pub(crate) struct Stranger {
    strangers: Arc<Strangers>,
    number: u64,
    leave: Arc<Notify>,
    /// Permit of the guest's place.
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Stranger {
    /// From now on it is a guest. False: all places of guests are taken.
    pub(crate) fn become_guest(&self) -> bool {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place = self.strangers.guests.clone().try_acquire_owned().ok();
            if place.is_some() {
                self.strangers.forget(self.number);
            }
        }
        place.is_some()
    }

    /// Returns when it must leave, which a guest need not.
    pub(crate) async fn must_leave(&self) {
        tokio::select! {
            () = tokio::time::sleep(STRANGER_WAIT) => {}
            () = self.leave.notified() => {}
        }
        let is_guest = self.place.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if is_guest {
            pending::<()>().await;
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.strangers.forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Via;
    use axum::http::{HeaderName, HeaderValue};

    #[tokio::test(start_paused = true)]
    async fn a_stranger_that_leaves_makes_room_for_another() {
        let strangers = Strangers::new(Arc::new(Semaphore::new(1)));
        let first = strangers.admit();
        (0..STRANGERS_MAX).for_each(|_| drop(strangers.admit()));
        assert!(tokio::time::timeout(STRANGER_WAIT / 2, first.must_leave()).await.is_err(), "no other is there");
        assert!(tokio::time::timeout(STRANGER_WAIT, first.must_leave()).await.is_ok(), "its time is over");
    }

    #[test]
    fn requests_that_another_site_forges_are_refused() {
        let tcp = |names: Option<IsOwnName>| Peer { by: By::via(Via::Http), token: None, names, stranger: None };
        let named = tcp(Some(Arc::new(|name: &str| name == "storage.example")));
        let refused = |peer: &Peer, headers: &[(&'static str, &'static str)]| {
            let headers =
                headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            peer.let_in(&headers.collect()).err().map(|problem| (problem.status, problem.detail))
        };
        for host in
            ["storage.example", "storage.example:7000", "127.0.0.1:1", "[::1]:1", "[::1]", "localhost", "LocalHost:1"]
        {
            assert_eq!(refused(&named, &[("host", host)]), None, "{host}");
        }
        for host in ["evil.example", "evil.example:7000", "storage.example.evil", "", "127.0.0.1.evil:1"] {
            let (status, sentence) = refused(&named, &[("host", host)]).unwrap();
            assert!(status == 403 && sentence.starts_with(&format!("Host: \"{host}\" is not a name")), "{sentence}");
        }
        let unix = tcp(None);
        assert_eq!(refused(&unix, &[("host", "mqfq")]), None, "no browser reaches a unix socket by itself");
        for peer in [&named, &unix] {
            let with = |name, value| refused(peer, &[("host", "localhost:80"), (name, value)]);
            assert_eq!(with("origin", "http://localhost:80"), None);
            assert_eq!(with("sec-fetch-site", "same-origin"), None);
            assert_eq!(with("sec-fetch-site", "none"), None, "typed by a user");
            for (name, value) in [
                ("origin", "https://evil.example"),
                ("origin", "null"),
                ("origin", "http://localhost:8080"),
                ("origin", "http://localhost:80.evil.example"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-site", "same-site"),
            ] {
                assert_eq!(with(name, value).map(|(status, _)| status), Some(403), "{name}: {value}");
            }
        }
    }
}
