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
#[path = "socket_tests.rs"]
pub(crate) mod socket_tests;

#[cfg(test)]
mod tests {
    //! Clients that hang, in virtual time: each is closed when its time is over, and costs other clients nothing.

    use super::*;
    use crate::admission::{STRANGER_WAIT, STRANGERS_MAX};
    use crate::api::tests::OnPaper;
    use crate::stream::WRITE_WAIT;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;
    use tokio_rustls::rustls::crypto;
    use tokio_rustls::rustls::server::ResolvesServerCertUsingSni;

    /// A client of a unix socket whose buffers hold `bytes`.
    fn connected(router: &Router, bytes: usize) -> DuplexStream {
        let (ours, theirs) = duplex(bytes);
        let peer = Peer { by: By::via(Via::Http), token: None, names: None, stranger: None };
        tokio::spawn(connection(Box::new(theirs), peer, router.clone()));
        ours
    }

    /// A TCP address with a token and so many places for guests.
    struct Tcp(Arc<Strangers>);

    const TOKEN: &str = "secret-secret-secret";

    impl Tcp {
        fn new(guests: usize) -> Tcp {
            Tcp(Strangers::new(Arc::new(Semaphore::new(guests))))
        }

        /// A client of it.
        fn connect(&self, router: &Router) -> DuplexStream {
            self.connect_with(None, router)
        }

        /// A client of it, whose connection is to be encrypted with these keys.
        fn connect_with(&self, with: Option<Arc<tls::ServerConfig>>, router: &Router) -> DuplexStream {
            let (ours, theirs) = duplex(4096);
            let (by, token) = (By::via(Via::Http), Some(Arc::from(TOKEN)));
            let peer = Peer { by, token, names: Some(Arc::new(|_| false)), stranger: Some(self.0.admit()) };
            tokio::spawn(stranger_of_tcp(Box::new(theirs), with, peer, router.clone()));
            ours
        }
    }

    /// A request with the token, as a client of TCP sends it.
    fn with_token(token: &str) -> String {
        format!("GET /v1/tenants/web HTTP/1.1\r\nHost: localhost\r\n{token}\r\n")
    }

    /// The answer's first line, of a connection that stays.
    async fn status_line(client: &mut DuplexStream) -> String {
        let mut bytes = [0; 4096];
        let read = client.read(&mut bytes).await.unwrap();
        String::from_utf8_lossy(&bytes[..read]).lines().next().unwrap_or_default().to_owned()
    }

    fn router() -> Router {
        api::router(OnPaper::new("[tenant.web]\nweight = 3\n"), Vec::new())
    }

    /// All that comes until the connection ends, and after how long it does.
    async fn rest(client: &mut DuplexStream) -> (String, Duration) {
        let (start, mut text) = (Instant::now(), Vec::new());
        client.read_to_end(&mut text).await.unwrap();
        (String::from_utf8_lossy(&text).into_owned(), start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_or_half_a_header_is_let_go() {
        for said in ["", "GET /v1/sta", "GET /v1/status HTTP/1.1\r\nHost: x\r\n"] {
            let mut client = connected(&router(), 4096);
            client.write_all(said.as_bytes()).await.unwrap();
            let (_, after) = rest(&mut client).await;
            assert!(after >= HEADER_WAIT && after < 2 * HEADER_WAIT, "{said:?}: {after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asked_once_and_says_no_more_is_let_go() {
        let mut client = connected(&router(), 4096);
        client.write_all(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let (answer, after) = rest(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(after >= HEADER_WAIT && after < 2 * HEADER_WAIT, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_waited_for_so_long() {
        let mut client = connected(&router(), 4096);
        let head = b"PUT /v1/tenants/web HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{\"weight\":";
        client.write_all(head).await.unwrap();
        let (answer, after) = rest(&mut client).await;
        assert!(
            answer.starts_with("HTTP/1.1 408 ") && answer.contains("the body was not there within 30 s"),
            "{answer}"
        );
        assert!(after >= api::BODY_WAIT && after < 2 * api::BODY_WAIT, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_answer_is_let_go() {
        // Less room than an answer has bytes.
        let mut client = connected(&router(), 128);
        client.write_all(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        tokio::time::sleep(2 * WRITE_WAIT).await;
        let (answer, after) = rest(&mut client).await;
        assert_eq!((answer.len(), after), (128, Duration::ZERO), "it was over before: {answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_says_it_is_too_long_is_refused_before_it_comes() {
        let mut client = connected(&router(), 4096);
        let length = api::THING_BYTES_MAX + 1;
        let head = format!(
            "PUT /v1/tenants/web HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let (answer, after) = rest(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("the body has more than 65536 bytes, which is the most that is allowed"), "{answer}");
        assert!(after < HEADER_WAIT, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_events_that_nobody_reads_is_let_go_and_one_that_is_read_lives() {
        let server = OnPaper::new("");
        let router = api::router(server.clone(), Vec::new());
        let ask = b"GET /v1/events?after=0 HTTP/1.1\r\nHost: x\r\n\r\n";
        let (mut deaf, mut live) = (connected(&router, 256), connected(&router, 256));
        deaf.write_all(ask).await.unwrap();
        live.write_all(ask).await.unwrap();
        for _ in 0..20 {
            server.events().push("note", "something", serde_json::Value::Null);
        }
        let mut seen = String::new();
        while !seen.contains("id: 20\n") {
            let mut bytes = [0; 64];
            let read = live.read(&mut bytes).await.unwrap();
            assert!(read > 0, "it ended after {seen}");
            seen += std::str::from_utf8(&bytes[..read]).unwrap();
        }
        tokio::time::sleep(2 * WRITE_WAIT).await;
        assert_eq!(rest(&mut deaf).await.0.len(), 256);
        server.events().push("note", "later", serde_json::Value::Null);
        let mut byte = [0];
        assert_eq!(live.read(&mut byte).await.unwrap(), 1, "the other one still hears");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tcp_client_without_the_token_is_told_so_learns_nothing_and_is_closed() {
        let router = router();
        for (token, status) in [
            ("", "401"),
            ("Authorization: Bearer secret-secret-secrex\r\n", "401"),
            ("Authorization: Bearer secret-secret-secret1\r\n", "401"),
            ("Authorization: Bearer\r\n", "401"),
            ("Authorization: Basic secret-secret-secret\r\n", "401"),
            ("Authorization: Bearer secret-secret-secret\r\n", "200"),
            ("Authorization: bearer secret-secret-secret\r\n", "200"),
            ("Authorization: BEARER secret-secret-secret\r\n", "200"),
        ] {
            let mut client = Tcp::new(1).connect(&router);
            client.write_all(with_token(token).as_bytes()).await.unwrap();
            let (answer, after) = rest(&mut client).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{token}: {answer}");
            assert_eq!(answer.contains("configured"), status == "200", "{answer}");
            assert_eq!(after < Duration::from_secs(1), status == "401", "{token}: closed after {after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_without_the_token_keep_nobody_out_who_has_it() {
        let (tcp, router) = (Tcp::new(CONNECTIONS_MAX), router());
        let mut strangers = Vec::new();
        for _ in 0..2 * STRANGERS_MAX {
            strangers.push(tcp.connect(&router));
        }
        let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
        let mut operator = tcp.connect(&router);
        operator.write_all(with_token(&bearer).as_bytes()).await.unwrap();
        assert_eq!(status_line(&mut operator).await, "HTTP/1.1 200 OK");
        let mut oldest = [0];
        assert_eq!(strangers[0].read(&mut oldest).await.unwrap(), 0, "the oldest has made room");
        // However many come later, and however long it takes: a guest stays.
        for _ in 0..2 * STRANGERS_MAX {
            strangers.push(tcp.connect(&router));
        }
        tokio::time::sleep(HEADER_WAIT / 2).await;
        operator.write_all(with_token(&bearer).as_bytes()).await.unwrap();
        assert_eq!(status_line(&mut operator).await, "HTTP/1.1 200 OK");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_has_so_long_however_busy_it_keeps_its_connection() {
        let (tcp, router) = (Tcp::new(1), router());
        let mut client = tcp.connect(&router);
        let start = Instant::now();
        // A byte of a header now and then.
        while client.write_all(b"G").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(start.elapsed() <= STRANGER_WAIT + Duration::from_secs(2), "it is still there");
        }
    }

    /// Certificate and key of a TLS server.
    fn keys() -> Arc<tls::ServerConfig> {
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = tls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new())))
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_of_tls_that_does_not_end_has_the_time_of_a_stranger() {
        let (tcp, router) = (Tcp::new(1), router());
        // Silence; a record of 16 KiB that comes byte by byte; no TLS at all, of a client that goes on behind the
        // alert.
        for (said, goes_on) in [(&b""[..], false), (&[22, 3, 1, 64, 0], true), (b"GET / HTTP/1.1\r\n\r\n", true)] {
            let mut client = tcp.connect_with(Some(keys()), &router);
            let start = Instant::now();
            client.write_all(said).await.unwrap();
            while goes_on && client.write_all(b"1").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert!(start.elapsed() <= STRANGER_WAIT + Duration::from_secs(2), "it is still there");
            }
            let end = tokio::time::timeout(2 * STRANGER_WAIT, rest(&mut client)).await;
            let after = start.elapsed();
            assert!(end.is_ok() && after >= STRANGER_WAIT && after < 2 * STRANGER_WAIT, "{said:?}: {after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn places_of_guests_are_counted_and_given_back() {
        let (tcp, router) = (Tcp::new(1), router());
        let bearer = with_token(&format!("Authorization: Bearer {TOKEN}\r\n"));
        let mut first = tcp.connect(&router);
        first.write_all(bearer.as_bytes()).await.unwrap();
        assert_eq!(status_line(&mut first).await, "HTTP/1.1 200 OK");
        let mut second = tcp.connect(&router);
        second.write_all(bearer.as_bytes()).await.unwrap();
        let (answer, _) = rest(&mut second).await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("allowed is to try again"), "{answer}");
        drop(first);
        // Its end is seen at the next turn of the runtime.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut third = tcp.connect(&router);
        third.write_all(bearer.as_bytes()).await.unwrap();
        assert_eq!(status_line(&mut third).await, "HTTP/1.1 200 OK");
    }

    #[tokio::test(start_paused = true)]
    async fn a_path_that_has_not_the_method_names_those_that_it_has() {
        let mut client = connected(&router(), 4096);
        client.write_all(b"POST /v1/tenants/web HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let (answer, _) = rest(&mut client).await;
        assert!(
            answer.starts_with("HTTP/1.1 405 ") && answer.contains("\r\nallow: GET,HEAD,PUT,PATCH,DELETE\r\n"),
            "{answer}"
        );
        assert!(answer.contains("POST does not go with this path, allowed is GET, PUT, PATCH, DELETE"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_without_a_type_and_an_empty_one_are_refused_in_a_sentence() {
        for (path, head, status, sentence) in [
            ("/v1/tenants/web", "", "415", "Content-Type: the header is missing, allowed is application/json"),
            (
                "/v1/config",
                "",
                "415",
                "Content-Type: the header is missing, allowed is application/json or application/toml",
            ),
            (
                "/v1/tenants/web",
                "Content-Type: application/json\r\n",
                "400",
                "the body is empty, allowed is a JSON object",
            ),
        ] {
            let mut client = connected(&router(), 4096);
            let ask = format!("PUT {path} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 0\r\n\r\n");
            client.write_all(ask.as_bytes()).await.unwrap();
            let (answer, _) = rest(&mut client).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(sentence),
                "{path}: {answer}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_config_of_more_parts_than_ten_thousand_tenants_have_is_not_even_read() {
        let many = "a=[".to_owned() + &"0,".repeat(api::CONFIG_PARTS_MAX) + "]";
        // Each of few keys makes sixteen tables.
        let deep: String = (0..10_000).map(|key| format!("k{key}{}=0\n", ".a".repeat(16))).collect();
        // One of ten thousand tenants, each with an export.
        let tenant = |number: usize| {
            format!(
                "[tenant.tenant-{number:05}]\nweight = 300\nclass = \"idle\"\nmax-iops = 5000\nmemory = \"64MiB\"\n\
             [export.export-{number:05}]\ndevice = \"fast\"\ntenant = \"tenant-{number:05}\"\noffset = {number}\n\
             size = \"512MiB\"\nnbd = \"unix:/run/mqfq/exports/export-{number:05}.sock\"\n"
            )
        };
        let enough: String = (0..10_000).map(tenant).collect();
        for (body, status) in [(many, "413"), (deep, "413"), (enough, "200")] {
            let mut client = connected(&router(), 1 << 23);
            let (head, length) =
                ("PUT /v1/config?dry-run HTTP/1.1\r\nHost: x\r\nContent-Type: application/toml", body.len());
            client.write_all(format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes()).await.unwrap();
            let line = status_line(&mut client).await;
            assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{length} bytes: {line}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_config_is_read_once_the_first_one_is_answered() {
        let router = router();
        let [mut first, mut second] = [(); 2].map(|()| connected(&router, 4096));
        let ask = "PUT /v1/config HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n";
        first.write_all(format!("{ask}{{").as_bytes()).await.unwrap();
        // The first one has the only place by now.
        tokio::time::sleep(Duration::from_millis(1)).await;
        second.write_all(format!("{ask}{{}}").as_bytes()).await.unwrap();
        let early = tokio::time::timeout(Duration::from_secs(1), status_line(&mut second)).await;
        assert!(early.is_err(), "two configs are held at a time: {early:?}");
        first.write_all(b"}").await.unwrap();
        for client in [&mut first, &mut second] {
            assert_eq!(status_line(client).await, "HTTP/1.1 200 OK");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn places_of_streams_are_counted_and_given_back() {
        let router = router();
        let listen = async || {
            let mut client = connected(&router, 4096);
            client.write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            (status_line(&mut client).await, client)
        };
        let mut all = Vec::new();
        for _ in 0..api::STREAMS_MAX {
            let (line, client) = listen().await;
            assert_eq!(line, "HTTP/1.1 200 OK");
            all.push(client);
        }
        assert_eq!(listen().await.0, "HTTP/1.1 503 Service Unavailable");
        all.pop();
        // Its end is seen at the latest when something is sent.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(listen().await.0, "HTTP/1.1 200 OK");
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_of_a_server_that_ended_hears_all_events_of_the_next_one() {
        let server = OnPaper::new("");
        server.events().push("note", "something", serde_json::Value::Null);
        let mut client = connected(&api::router(server, Vec::new()), 4096);
        client.write_all(b"GET /v1/events?after=7 HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut seen = String::new();
        while !seen.contains("id: 1\n") {
            let mut bytes = [0; 4096];
            let read = tokio::time::timeout(Duration::from_secs(1), client.read(&mut bytes)).await;
            seen += std::str::from_utf8(&bytes[..read.expect("the first event comes").unwrap()]).unwrap();
        }
    }
}
