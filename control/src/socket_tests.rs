//! Requests of this crate's client to a server at real sockets: what the server hears, and what the client.

use super::*;
use crate::api::tests::OnPaper;
use crate::client::{Address, Ask, Client};
use axum::http::{Method, header};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener as Socket;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

const JSON: &str = "application/json";
const TOML: &str = "application/toml";
const TOKEN: &str = "secret-secret-secret";

/// A folder of one test, which goes with it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("mqfq-socket-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    /// A socket that listens.
    fn listen(&self, name: &str) -> (Socket, Client) {
        let path = self.0.join(name);
        (Socket::bind(&path).unwrap(), client(Address::Unix(path), None))
    }

    /// Serves at a socket of the folder until the first is dropped.
    pub(crate) fn serve(&self, server: Arc<OnPaper>) -> (Control, Client) {
        let (socket, client) = self.listen("s");
        let listen =
            Listen { socket: socket.into(), address: String::new(), transport: Transport::Unix, keep: Box::new(()) };
        (start(vec![listen], server, Vec::new()).unwrap(), client)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn client(address: Address, token: Option<&str>) -> Client {
    Client { address, token: token.map(str::to_owned), trust: None, patience: None }
}

/// Says that it was dropped.
struct Keep(Arc<AtomicBool>);

impl Drop for Keep {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn each_socket_hands_on_what_its_clients_ask_and_who_they_are() {
    let folder = Folder::new("server");
    let (first, second) = (folder.listen("a"), folder.listen("b"));
    let tcp = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = tcp.local_addr().unwrap();
    let is_gone = Arc::new(AtomicBool::new(false));
    let listen = |socket: OwnedFd, transport| Listen {
        socket,
        address: String::new(),
        transport,
        keep: Box::new(Keep(is_gone.clone())),
    };
    let names: IsOwnName = Arc::new(|name| name == "mine");
    let transport = Transport::Tcp { token: Some(TOKEN.into()), tls: None, names };
    let sockets = vec![
        listen(first.0.into(), Transport::Unix),
        listen(second.0.into(), Transport::Unix),
        listen(tcp.into(), transport),
    ];
    let server = OnPaper::new("[tenant.web]\nweight = 3\n");
    let control = start(sockets, server.clone(), Vec::new()).unwrap();

    let by_tcp = client(Address::Tcp(at.to_string()), Some(TOKEN));
    let own = (std::fs::metadata(&folder.0).unwrap().uid(), std::process::id() as i32);
    for (client, is_tcp) in [(&first.1, false), (&second.1, false), (&by_tcp, true)] {
        let put = Ask::new(Method::PUT, "/v1/tenants/db?dry-run").header(header::CONTENT_TYPE, JSON);
        let put = put.bytes("{\"weight\": 7}").header(header::IF_NONE_MATCH, "*");
        let reply = client.ask(put).unwrap();
        assert!(reply.status.is_success() && reply.headers.contains_key(header::ETAG), "{reply:?}");
        assert_eq!(serde_json::from_slice::<Value>(&reply.body).unwrap()["changes"][0]["key"], "tenant.db.weight");
        let [(what, by)] = &server.heard()[..] else { panic!("one proposal") };
        assert_eq!(what, "propose Some(Absent), dry run: true");
        let from = by.address.as_ref().map(|address| address.split(':').next().unwrap_or_default());
        let expected = if is_tcp { (None, None, Some("127.0.0.1")) } else { (Some(own.0), Some(own.1), None) };
        assert_eq!((by.uid, by.pid, from), expected);
        let gone = client.ask(Ask::new(Method::DELETE, "/v1/tenants/db")).unwrap();
        assert!(gone.status.is_success(), "{gone:?}");
        assert_eq!(server.heard()[0].0, "propose None, dry run: false");
    }

    // By TCP: strangers learn nothing, by their name for the server or by their token, and are closed.
    for (host, token, status) in [("mine", TOKEN, "200"), ("evil", TOKEN, "403"), ("mine", "another", "401")] {
        let mut stream = net::TcpStream::connect(at).unwrap();
        let close = if status == "200" { "Connection: close\r\n" } else { "" };
        let ask = format!("GET /v1/status HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n{close}\r\n");
        stream.write_all(ask.as_bytes()).unwrap();
        let mut answer = String::new();
        if status == "401" {
            stream.read_to_string(&mut answer).unwrap();
        } else {
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap();
            answer += &String::from_utf8_lossy(&bytes[..read]);
        }
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}, {token}: {answer}");
    }

    drop(control);
    assert!(is_gone.load(Ordering::SeqCst), "its sockets are gone with it");
    assert!(first.1.ask(Ask::new(Method::GET, "/v1/status")).is_err());
}

#[test]
fn what_a_request_says_reaches_the_server_and_what_does_not_fit_is_refused() {
    let folder = Folder::new("requests");
    let server = OnPaper::new("[tenant.web]\nweight = 3\n");
    let (_control, client) = folder.serve(server.clone());
    let ask = |method: Method, path: &str, kind: &str, body: &str| {
        client.ask(Ask::new(method, path).body(kind, body)).unwrap().good()
    };
    let heard = || server.heard().into_iter().map(|(what, _)| what).collect::<Vec<_>>();

    for (query, discard, dry_run) in [
        ("", false, false),
        ("?discard-unsaved", true, false),
        ("?dry-run", false, true),
        ("?discard-unsaved=false&dry-run=true", false, true),
        ("?dry-run=false&discard-unsaved", true, false),
    ] {
        let path = format!("/v1/config/reload{query}");
        assert!(ask(Method::POST, &path, JSON, "").is_err(), "there is no file");
        assert_eq!(heard(), [format!("reload, discard: {discard}, dry run: {dry_run}")], "{query}");
    }

    ask(Method::POST, "/v1/config/saved", TOML, "a = 1\n").unwrap();
    assert_eq!(heard(), ["saved a = 1\n"]);
    assert_eq!(ask(Method::POST, "/v1/config/saved", JSON, "{}").unwrap_err().status, 415);
    let many = "a=[".to_owned() + &"0,".repeat(api::CONFIG_PARTS_MAX) + "]";
    assert_eq!(ask(Method::POST, "/v1/config/saved", TOML, &many).unwrap_err().status, 413);
    assert_eq!(ask(Method::PATCH, "/v1/tenants/web", "text/plain", "{}").unwrap_err().status, 415);
    assert_eq!(heard(), Vec::<String>::new());

    let problem = ask(Method::PUT, "/v1/config", TOML, "[tenant.web]\n= 3\n").unwrap_err();
    assert_eq!((problem.status, problem.line), (400, Some(2)));
    let whole = Ask::new(Method::PUT, "/v1/config?dry-run").body(TOML, "[tenant.web]\nweight = 3\n");
    assert!(client.ask(whole.header(header::IF_MATCH, "\"1\"")).unwrap().good().is_ok());
    assert_eq!(heard(), ["propose Some(Revision(Some([1]))), dry run: true"]);
}

#[test]
fn events_come_one_by_one_and_a_refusal_is_its_sentence() {
    let folder = Folder::new("events");
    let (socket, client) = folder.listen("s");
    let problem = crate::problem::Problem::new(axum::http::StatusCode::NOT_FOUND, "it is elsewhere");
    let body = serde_json::to_string(&problem).unwrap();
    let stream = "data: 1\n\ndata: 2\n\ndata: 3\n\n";
    let answers = [("200 OK", stream.to_owned()), ("404 Not Found", body)];
    let serve = std::thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = socket.accept().unwrap();
            let mut asked = [0; 4096];
            assert!(stream.read(&mut asked).unwrap() > 0);
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        }
    });
    let mut seen = Vec::new();
    let each = |event: Value| {
        seen.push(event);
        Ok(seen.len() < 2)
    };
    client.events(Ask::new(Method::GET, "/v1/events"), each).unwrap();
    assert_eq!(seen, [json!(1), json!(2)], "both of one piece, and none after it has enough");
    let refused = client.events(Ask::new(Method::GET, "/v1/events"), |_: Value| Ok(true));
    assert_eq!(refused, Err("it is elsewhere".to_owned()));
    serve.join().unwrap();
}

#[test]
fn guests_beyond_the_places_of_a_tcp_address_are_told_to_try_again() {
    let tcp = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = tcp.local_addr().unwrap();
    let transport = Transport::Tcp { token: Some(TOKEN.into()), tls: None, names: Arc::new(|_| false) };
    let listen = Listen { socket: tcp.into(), address: String::new(), transport, keep: Box::new(()) };
    let _control = start(vec![listen], OnPaper::new(""), Vec::new()).unwrap();
    let mut guests = Vec::new();
    for number in 0..=CONNECTIONS_MAX {
        let mut stream = net::TcpStream::connect(at).unwrap();
        let ask = format!("GET /v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
        stream.write_all(ask.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        let expected = if number < CONNECTIONS_MAX { "HTTP/1.1 200" } else { "HTTP/1.1 503" };
        assert_eq!(String::from_utf8_lossy(&status), expected, "guest {number}");
        guests.push(stream);
    }
}
