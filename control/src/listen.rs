//! Connections of clients, and the limits on a client's time.
//!
//! One thread runs a current-thread runtime of tokio and everything of HTTP. What may wait (a change that drains a
//! tenant, counters that every worker is asked for) goes to a few threads of the same runtime ([`WAITING_MAX`]), so
//! that a long change holds no reader up.
//!
//! | a client that | costs | until |
//! |---|---|---|
//! | has not shown at a TCP address that it may come in | one of `STRANGERS_MAX` places | `STRANGER_WAIT` of `admission` |
//! | connects and says nothing, or its header slowly | one of [`CONNECTIONS_MAX`] places | [`HEADER_WAIT`] |
//! | sends its body slowly | the same, and at most the body's bound | `BODY_WAIT` of `api` |
//! | does not read its answer | the same, and the answer | `WRITE_WAIT` of `stream` |
//!
//! A unix socket is protected by its permissions, a TCP socket by a token, by certificates of clients or by both, also
//! on the loopback: every user of the machine can connect there.

use crate::admission::{IsOwnName, Peer, Strangers};
use crate::api::{self, Route};
use crate::model::{By, Server, Via};
use crate::stream::{Patient, Stream};
use crate::tls;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, net};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_rustls::TlsAcceptor;

/// Connections of an address that are served at once. More of a unix socket wait in the kernel; more of a TCP address
/// are strangers, and told to try again.
pub const CONNECTIONS_MAX: usize = 64;

/// From the connection, or the answer before, to the end of a request's header.
pub const HEADER_WAIT: Duration = Duration::from_secs(10);

/// Longest header of a request, bytes.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// Threads for calls that may wait: one for the change under way, the others for queries. More would compete with the
/// workers for cores.
const WAITING_MAX: usize = 3;

/// From an accept that failed for want of something (a descriptor) to the next.
const RETRY: Duration = Duration::from_millis(100);

/// At the end, for calls of the server that are under way.
const END_WAIT: Duration = Duration::from_secs(1);

/// A socket to listen on.
pub struct Listen {
    /// It listens already.
    pub socket: OwnedFd,
    /// Where, as clients write it.
    pub address: String,
    /// How clients are told apart there.
    pub transport: Transport,
    /// Dropped when the listener has ended; removes the socket's file.
    pub keep: Box<dyn Send>,
}

/// How clients of a socket are told apart.
#[derive(Clone)]
pub enum Transport {
    /// A unix socket: file permissions admit clients, the kernel identifies them.
    Unix,
    /// A TCP socket: clients present the token, and a certificate where TLS wants one.
    Tcp {
        /// `Authorization: Bearer TOKEN`. `None`: TLS asks for certificates.
        token: Option<Arc<str>>,
        /// With what connections are encrypted. `None`: not at all.
        tls: Option<tls::Present>,
        /// The server's names, by which browsers may call it.
        names: IsOwnName,
    },
}

/// The control plane of a running server; dropping it ends it.
pub struct Control {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Serves `server` on `sockets`, with `more` routes besides those of [`api::routes`].
///
/// # Errors
/// One sentence: no runtime, or no thread.
pub fn start(sockets: Vec<Listen>, server: Arc<dyn Server>, more: Vec<Route>) -> Result<Control, String> {
    let failed = |error: io::Error| format!("cannot start the control plane: {}", mqfq_report::plain(&error));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("mqfq-waiting")
        .max_blocking_threads(WAITING_MAX)
        // For ever: later the system may have no thread for another one.
        .thread_keep_alive(Duration::MAX)
        .build()
        .map_err(failed)?;
    let router = api::router(server, more);
    let (stop, stopped) = oneshot::channel();
    // The first one is made now: where there is none, and none can be made, the runtime panics.
    runtime.spawn_blocking(|| ());
    let body = move || {
        runtime.block_on(async {
            for listen in sockets {
                let accepting = accept(listen, router.clone(), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
                tokio::spawn(async move {
                    // A socket that cannot be listened on is a bug: it listens already.
                    accepting.await.expect("a listening socket");
                });
            }
            let _ = stopped.await;
        });
        runtime.shutdown_timeout(END_WAIT);
    };
    let thread = std::thread::Builder::new().name("mqfq-control".into()).spawn(body).map_err(failed)?;
    Ok(Control { stop: Some(stop), thread: Some(thread) })
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked: that ends the process.
            let _ = thread.join();
        }
    }
}

async fn accept(listen: Listen, router: Router, places: Arc<Semaphore>) -> io::Result<()> {
    let Listen { socket, transport, keep: _keep, .. } = listen;
    match transport {
        Transport::Unix => {
            let listener = StdUnixListener::from(socket);
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            loop {
                let place = places.clone().acquire_owned().await.expect("nobody closes it");
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let who = stream.peer_cred().ok();
                        let (uid, pid) = (who.map(|who| who.uid()), who.and_then(|who| who.pid()));
                        let by = By { uid, pid, ..By::via(Via::Http) };
                        let peer = Peer { by, token: None, names: None, stranger: None };
                        let router = router.clone();
                        tokio::spawn(async move {
                            let _place: OwnedSemaphorePermit = place;
                            connection(Box::new(stream), peer, router).await;
                        });
                    }
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
        }
        Transport::Tcp { token, tls, names } => {
            let listener = net::TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            let strangers = Strangers::new(places);
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => {
                        // A peer that vanished is noticed by what cannot be written.
                        let _ = stream.set_nodelay(true);
                        let by = By { address: Some(from.to_string()), ..By::via(Via::Http) };
                        let stranger = Some(strangers.admit());
                        let peer = Peer { by, token: token.clone(), names: Some(names.clone()), stranger };
                        tokio::spawn(stranger_of_tcp(
                            Box::new(stream),
                            tls.as_ref().map(|tls| tls()),
                            peer,
                            router.clone(),
                        ));
                    }
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
        }
    }
}

/// A connection of a TCP address, until its end or until it must leave.
async fn stranger_of_tcp(stream: Stream, with: Option<Arc<tls::ServerConfig>>, peer: Peer, router: Router) {
    let stranger = peer.stranger.clone();
    let served = async {
        match with {
            None => connection(stream, peer, router).await,
            Some(with) => encrypted(stream, with, peer, router).await,
        }
    };
    let must_leave = async {
        match &stranger {
            Some(stranger) => stranger.must_leave().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = served => {}
        () = must_leave => {}
    }
}

/// A connection, after its handshake.
async fn encrypted(stream: Stream, with: Arc<tls::ServerConfig>, peer: Peer, router: Router) {
    match TlsAcceptor::from(with).accept(Patient::new(stream)).into_fallible().await {
        Ok(stream) => {
            // Without a token TLS has asked for a certificate. If no place is free, the first request is told.
            if let (None, Some(stranger)) = (&peer.token, &peer.stranger) {
                stranger.become_guest();
            }
            connection(Box::new(stream), peer, router).await;
        }
        Err((_, mut stream)) => {
            // The alert is sent. A close with unread bytes would take it back (RST), so they are read.
            let mut bytes = [0; 1024];
            if stream.shutdown().await.is_ok() {
                while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
            }
        }
    }
}

async fn connection(stream: Stream, peer: Peer, router: Router) {
    let service = TowerToHyperService::new(router.layer(Extension(peer)));
    // The end of a connection, an error too, concerns only its client.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WAIT)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream)), service)
        .await;
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "socket_tests.rs"]
pub(crate) mod socket_tests;
