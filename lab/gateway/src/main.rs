//! An HTTP service whose clients share it by weight: a layer for axum and tower on the front door of `mqfq-sched`.
//!
//! ```sh
//! cargo run --release -p mqfq-gateway -- 127.0.0.1:8080 alice=300 bob=100
//! curl -H 'x-api-key: alice' '127.0.0.1:8080/?bytes=100000'
//! ```
//!
//! The cost of a request is the bytes of its response, which are known at the end: a request is announced at what its
//! client's last one cost. A client that goes away pays what it was sent. Clients without a known key are one tenant.

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::BodyExt;
use mqfq_sched::door::{Permit, Scheduler, Tenant};
use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes at which a client's first request is announced.
const FIRST_BYTES: u64 = 4096;

/// Bytes of a piece of a response.
const PIECE_BYTES: usize = 256;

/// A client, and what its last response cost.
struct Client {
    tenant: Tenant,
    last_bytes: AtomicU64,
}

/// The clients, by API key; those without a known one come under "".
struct Shares(HashMap<String, Client>);

impl Shares {
    fn new(scheduler: &Scheduler, weights: &[(String, u32)]) -> Result<Arc<Shares>, Box<dyn Error>> {
        let others = (String::new(), 100);
        let clients = weights.iter().chain([&others]).map(|(key, weight)| {
            let tenant = scheduler.add_tenant(*weight)?;
            Ok((key.clone(), Client { tenant, last_bytes: AtomicU64::new(FIRST_BYTES) }))
        });
        Ok(Arc::new(Shares(clients.collect::<Result<_, Box<dyn Error>>>()?)))
    }

    /// Key of the client that a request is of.
    fn key(&self, request: &Request) -> String {
        let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
        key.filter(|key| self.0.contains_key(*key)).unwrap_or_default().to_owned()
    }
}

/// The permit of a response that is being sent, and the bytes sent so far.
struct Charge {
    permit: Option<Permit>,
    bytes: u64,
    shares: Arc<Shares>,
    key: String,
}

impl Charge {
    fn sent(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let (Some(permit), Some(client)) = (self.permit.take(), self.shares.0.get(&self.key)) {
            // Relaxed: a guess for the next one.
            client.last_bytes.store(self.bytes.max(1), Ordering::Relaxed);
            permit.finish(self.bytes);
        }
    }
}

/// The layer: waits for a permit, and ends it when the response was sent or its client is gone.
async fn share(State(shares): State<Arc<Shares>>, request: Request, next: Next) -> Response {
    let key = shares.key(&request);
    let Some(client) = shares.0.get(&key) else { return StatusCode::UNAUTHORIZED.into_response() };
    // Relaxed: a guess.
    let permit = match client.tenant.acquire(client.last_bytes.load(Ordering::Relaxed)).await {
        Ok(permit) => permit,
        // Its client has as many waiting as it may.
        Err(_) => return StatusCode::TOO_MANY_REQUESTS.into_response(),
    };
    let mut charge = Charge { permit: Some(permit), bytes: 0, shares: shares.clone(), key };
    next.run(request).await.map(|body| {
        Body::new(body.map_frame(move |frame| {
            charge.sent(frame.data_ref().map_or(0, |data| data.len() as u64));
            frame
        }))
    })
}

/// The service below: `bytes` of zeroes, piece by piece; other requests have a turn between two.
async fn zeroes(Query(query): Query<HashMap<String, usize>>) -> Response {
    let left = query.get("bytes").copied().unwrap_or(PIECE_BYTES);
    let pieces = futures_util::stream::unfold(left, |left| async move {
        tokio::task::yield_now().await;
        let piece = left.min(PIECE_BYTES);
        (piece > 0).then(|| (Ok::<_, Infallible>(vec![0; piece]), left - piece))
    });
    Body::from_stream(pieces).into_response()
}

fn router(shares: Arc<Shares>) -> Router {
    Router::new().route("/", get(zeroes)).layer(from_fn_with_state(shares, share))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let address = words.next().ok_or("mqfq-gateway ADDRESS KEY=WEIGHT...")?;
    let weight = |word: String| -> Result<(String, u32), Box<dyn Error>> {
        let (key, weight) = word.split_once('=').ok_or("KEY=WEIGHT is expected")?;
        Ok((key.to_owned(), weight.parse()?))
    };
    let weights = words.map(weight).collect::<Result<Vec<_>, _>>()?;
    let shares = Shares::new(&Scheduler::builder().permits(4).build()?, &weights)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        axum::serve(tokio::net::TcpListener::bind(address).await?, router(shares)).await?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::client::conn::http1::handshake;
    use hyper_util::rt::TokioIo;
    use tokio::io::DuplexStream;
    use tokio::sync::mpsc;

    /// Bytes of a connection on their way in one direction.
    const WAY_BYTES: usize = 65_536;

    /// Connections within this process: by sockets, the kernel of a busy machine says when a request arrives, and a
    /// client whose requests are on their way has none that waits.
    struct Accepted(mpsc::UnboundedReceiver<DuplexStream>);

    impl axum::serve::Listener for Accepted {
        type Io = DuplexStream;
        type Addr = ();

        async fn accept(&mut self) -> (DuplexStream, ()) {
            match self.0.recv().await {
                Some(stream) => (stream, ()),
                None => std::future::pending().await,
            }
        }

        fn local_addr(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Asks for as many bytes, again and again; counts those that came.
    async fn client(stream: DuplexStream, key: &str, bytes: u64, received: &AtomicU64) -> Result<(), Box<dyn Error>> {
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        loop {
            let request = hyper::Request::get(format!("/?bytes={bytes}")).header("host", "here");
            let response = sender.send_request(request.header("x-api-key", key).body(Body::empty())?).await?;
            assert_eq!(response.status(), StatusCode::OK);
            let body = response.into_body().collect().await?.to_bytes();
            assert_eq!(body.len() as u64, bytes);
            received.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn clients_share_a_service_by_bytes() {
        const CLIENTS: usize = 32;
        const BYTES: u64 = 20 << 20;
        let scheduler = Scheduler::builder().permits(2).build().unwrap();
        let weights = [("alice".to_owned(), 300), ("bob".to_owned(), 100)];
        let shares = Shares::new(&scheduler, &weights).unwrap();
        let received: &'static [AtomicU64; 2] = Box::leak(Box::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let [alice, bob] = runtime.block_on(async {
            let (connecting, accepted) = mpsc::unbounded_channel();
            tokio::spawn(async { axum::serve(Accepted(accepted), router(shares)).await });
            let connect = || {
                let (here, there) = tokio::io::duplex(WAY_BYTES);
                connecting.send(there).map(|()| here).unwrap()
            };
            for _ in 0..CLIENTS {
                // Bob asks for twice as much at a time.
                let (alice, bob) = (connect(), connect());
                tokio::spawn(async move { client(alice, "alice", 16_384, &received[0]).await.unwrap() });
                tokio::spawn(async move { client(bob, "bob", 32_768, &received[1]).await.unwrap() });
            }
            let all = || received.each_ref().map(|received| received.load(Ordering::Relaxed));
            let until = |bytes: u64| async move {
                while all().iter().sum::<u64>() < bytes {
                    tokio::task::yield_now().await;
                }
                all()
            };
            let before = until(BYTES / 10).await;
            let after = until(BYTES).await;
            [0, 1].map(|at| (after[at] - before[at]) as f64)
        });
        let ratio = alice / bob;
        println!("{alice} bytes to {bob}, a ratio of {ratio:.3}");
        assert!((2.91..=3.09).contains(&ratio), "{alice} bytes to {bob}: {ratio}");
        drop(runtime);
        assert_eq!(scheduler.free_permits(), 2, "connections that were cut gave theirs back");
    }
}
