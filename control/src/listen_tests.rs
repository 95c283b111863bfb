//! Clients that hang, in virtual time: each is let go when its time is over, and costs nobody else anything.

use super::*;
use crate::api::tests::OnPaper;
use crate::stream::WRITE_WAIT;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

/// A client of a connection whose buffers hold `bytes`.
fn connected(router: &Router, bytes: usize, token: Option<&str>) -> DuplexStream {
    let (ours, theirs) = duplex(bytes);
    let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let peer = Peer { by: By::via(Via::Http), token: token.map(Arc::from) };
    tokio::spawn(connection(theirs, peer, router.clone(), place));
    ours
}

fn router() -> Router {
    api::router(OnPaper::new("[tenant.web]\nweight = 3\n"), Vec::new())
}

/// All that comes until the connection ends, and after how long it does.
async fn rest(client: &mut DuplexStream) -> (String, Duration) {
    let (start, mut text) = (Instant::now(), Vec::new());
    client.read_to_end(&mut text).await.unwrap();
    (String::from_utf8(text).unwrap(), start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_or_half_a_header_is_let_go() {
    for said in ["", "GET /v1/sta", "GET /v1/status HTTP/1.1\r\nHost: x\r\n"] {
        let mut client = connected(&router(), 4096, None);
        client.write_all(said.as_bytes()).await.unwrap();
        let (_, after) = rest(&mut client).await;
        assert!(after >= HEADER_WAIT && after < 2 * HEADER_WAIT, "{said:?}: {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asked_once_and_says_no_more_is_let_go() {
    let mut client = connected(&router(), 4096, None);
    client.write_all(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let (answer, after) = rest(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(after >= HEADER_WAIT && after < 2 * HEADER_WAIT, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_waited_for_so_long() {
    let mut client = connected(&router(), 4096, None);
    let head = b"PUT /v1/tenants/web HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{\"weight\":";
    client.write_all(head).await.unwrap();
    let (answer, after) = rest(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("the body was not there within 30 s"), "{answer}");
    assert!(after >= api::BODY_WAIT && after < 2 * api::BODY_WAIT, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_answer_is_let_go() {
    // Less room than an answer has bytes.
    let mut client = connected(&router(), 128, None);
    client.write_all(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(2 * WRITE_WAIT).await;
    let (answer, after) = rest(&mut client).await;
    assert_eq!((answer.len(), after), (128, Duration::ZERO), "it was over before: {answer}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_says_it_is_too_long_is_refused_before_it_comes() {
    let mut client = connected(&router(), 4096, None);
    let length = api::THING_BYTES_MAX + 1;
    let head = format!("PUT /v1/tenants/web HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
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
    let (mut deaf, mut live) = (connected(&router, 256, None), connected(&router, 256, None));
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
async fn a_tcp_client_without_the_token_is_told_so_and_learns_nothing() {
    let router = router();
    let ask = |token: &str| format!("GET /v1/tenants/web HTTP/1.1\r\nHost: x\r\n{token}\r\n");
    for (token, status) in [
        ("", "401"),
        ("Authorization: Bearer secret-secret-secrex\r\n", "401"),
        ("Authorization: Bearer secret-secret-secret1\r\n", "401"),
        ("Authorization: Basic secret-secret-secret\r\n", "401"),
        ("Authorization: Bearer secret-secret-secret\r\n", "200"),
    ] {
        let mut client = connected(&router, 4096, Some("secret-secret-secret"));
        client.write_all(ask(token).as_bytes()).await.unwrap();
        let (answer, _) = rest(&mut client).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{token}: {answer}");
        assert_eq!(answer.contains("configured"), status == "200", "{answer}");
    }
}
