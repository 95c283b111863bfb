//! At which paths is it served?
//!
//! | path | answers |
//! |---|---|
//! | `/` | the page |
//! | `/metrics` | the counters, in the format that the client accepts |
//! | `/v1/history` | the last hour, in [points](crate::past::Point) of a second and of ten |
//! | `/v1/shares` | what each tenant [received](crate::live::Received) over the last 10 s |
//! | `/v1/live` | server-sent events, a [`Snapshot`](crate::live::Snapshot) each second |
//! | `/v1/why`, `/v1/why/{tenant}` | verdicts |
//!
//! A request that reads counters goes to a thread that may wait, not to the one that serves.

use crate::live::Received;
use crate::metrics::Format;
use crate::watcher::{Watcher, give_way};
use crate::why;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use futures_util::stream;
use mqfq_control::Route;
use mqfq_control::problem::{Problem, did_you_mean};
use serde::Serialize;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::thread;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;

/// The page: one file, without anything from elsewhere.
pub const PAGE: &str = include_str!("page.html");

/// Content policy of the page: it may load only itself and this server's answers.
const PAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

/// Streams of snapshots at once.
pub const STREAMS_MAX: usize = 16;

/// Scrapes at once, and readings of the history; others wait for one of them.
const SCRAPES_MAX: usize = 2;

/// A slice of the history ends after the first point that ends beyond so many bytes.
const SLICE_BYTES: usize = 64 << 10;

/// Slices of a scrape that are rendered before a client has taken the ones before.
const SLICES_AHEAD: usize = 2;

/// All of them, about what `watcher` sees.
pub fn routes(watcher: &Arc<Watcher>) -> Vec<Route> {
    let (streams, scrapes) = (Arc::new(Semaphore::new(STREAMS_MAX)), Arc::new(Semaphore::new(SCRAPES_MAX)));
    let places = Arc::new(Semaphore::new(SCRAPES_MAX));
    let all: [(&str, MethodRouter); 7] = [
        ("/", get(|| async { ([(header::CONTENT_SECURITY_POLICY, PAGE_POLICY)], Html(PAGE)) })),
        ("/metrics", {
            let watcher = watcher.clone();
            get(move |headers: HeaderMap| metrics(watcher.clone(), scrapes.clone(), Format::accepted(&headers)))
        }),
        ("/v1/history", of(watcher, move |watcher| history(watcher, places.clone()))),
        ("/v1/shares", of(watcher, shares)),
        ("/v1/live", of(watcher, move |watcher| live(watcher, streams.clone()))),
        ("/v1/why", of(watcher, |watcher| why_all(watcher, None))),
        ("/v1/why/{tenant}", {
            let watcher = watcher.clone();
            get(move |Path(tenant): Path<String>| why_all(watcher.clone(), Some(tenant)))
        }),
    ];
    all.into_iter().map(|(path, service)| Route { method: Method::GET, path, service }).collect()
}

fn of<F, Answer>(watcher: &Arc<Watcher>, answer: F) -> MethodRouter
where
    F: Fn(Arc<Watcher>) -> Answer + Clone + Send + Sync + 'static,
    Answer: Future<Output = Response> + Send + 'static,
{
    let watcher = watcher.clone();
    get(move || answer(watcher.clone()))
}

/// Takes a slice of a body; false: the client has left.
type Take<'t> = dyn FnMut(Vec<u8>) -> bool + 't;

/// A body that a thread of its own renders slice by slice, which gives way to workers and waits for a client that is
/// slower.
async fn sliced(
    watcher: Arc<Watcher>,
    places: Arc<Semaphore>,
    kind: &'static str,
    render: impl FnOnce(Arc<Watcher>, &mut Take<'_>) + Send + 'static,
) -> Response {
    let Ok(place) = places.acquire_owned().await else { return broken() };
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(SLICES_AHEAD);
    let body = move || {
        give_way();
        // A client that leaves takes the receiver with it.
        render(watcher, &mut |slice| sender.blocking_send(Ok(slice.into())).is_ok());
        drop(place);
    };
    if thread::Builder::new().name("mqfq-scrape".into()).spawn(body).is_err() {
        return broken();
    }
    let slices = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    ([(header::CONTENT_TYPE, kind), (header::VARY, "accept")], Body::from_stream(slices)).into_response()
}

async fn metrics(watcher: Arc<Watcher>, places: Arc<Semaphore>, format: Format) -> Response {
    let render = move |watcher: Arc<Watcher>, take: &mut Take<'_>| {
        let mut text = watcher.scrape(format);
        // The watcher is not kept by a client that takes its time.
        drop(watcher);
        let mut slice = Vec::new();
        while text.slice(&mut slice) && take(std::mem::take(&mut slice)) {}
    };
    sliced(watcher, places, format.content_type(), render).await
}

async fn history(watcher: Arc<Watcher>, places: Arc<Semaphore>) -> Response {
    let render = |watcher: Arc<Watcher>, take: &mut Take<'_>| {
        let points = watcher.past();
        drop(watcher);
        let mut slice = b"{\"points\":[".to_vec();
        for (at, point) in points.iter().enumerate() {
            slice.extend_from_slice(if at == 0 { b"" } else { b"," });
            slice.extend(serde_json::to_vec(&**point).unwrap_or_default());
            if slice.len() >= SLICE_BYTES && !take(std::mem::take(&mut slice)) {
                return;
            }
        }
        slice.extend_from_slice(b"]}");
        take(slice);
    };
    sliced(watcher, places, "application/json", render).await
}

/// Answers with each tenant's service, made on a thread that may wait.
async fn shares(watcher: Arc<Watcher>) -> Response {
    #[derive(Serialize)]
    struct Shares {
        shares: Vec<Received>,
    }
    let body = spawn_blocking(move || serde_json::to_vec(&Shares { shares: watcher.received() })).await;
    let Ok(Ok(body)) = body else { return broken() };
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn why_all(watcher: Arc<Watcher>, tenant: Option<String>) -> Response {
    let asked = tenant.clone();
    let find = move || {
        let (found, known) = (watcher.why(asked.as_deref()), watcher.received());
        let names = known.iter().flat_map(|received| received.tenant.split('/'));
        (found, did_you_mean(&asked.unwrap_or_default(), names))
    };
    match (spawn_blocking(find).await, tenant) {
        (Err(_), _) => broken(),
        (Ok((found, hint)), Some(tenant)) if found.is_empty() => {
            let sentence = format!(
                "there is no tenant or export {tenant}, or nothing is known of it yet: a verdict takes readings of up \
                 to {} s{hint}",
                why::SECONDS
            );
            Problem::new(StatusCode::NOT_FOUND, sentence).into_response()
        }
        (Ok((verdicts, _)), Some(_)) => {
            let sentences: Vec<&str> = verdicts.iter().map(|verdict| &*verdict.sentence).collect();
            Json(json!({ "sentence": sentences.join("\n"), "verdicts": verdicts })).into_response()
        }
        (Ok((found, _)), None) => Json(found).into_response(),
    }
}

async fn live(watcher: Arc<Watcher>, streams: Arc<Semaphore>) -> Response {
    let Ok(place) = streams.try_acquire_owned() else {
        let sentence = format!("{STREAMS_MAX} streams of figures are open, which is the most that is allowed");
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, sentence).into_response();
    };
    let mut watch = watcher.watch();
    watch.mark_unchanged();
    // The watcher is not kept: a stream ends with it.
    drop(watcher);
    let stream = stream::unfold((watch, place), |(mut watch, place)| async move {
        watch.changed().await.ok()?;
        let snapshot = watch.borrow_and_update().clone();
        let event = Event::default().event("snapshot").json_data(&*snapshot).unwrap_or_default();
        Some((Ok::<_, Infallible>(event), (watch, place)))
    });
    Sse::new(stream).keep_alive(KeepAlive::new()).into_response()
}

fn broken() -> Response {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the counters could not be read").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl crate::source::Source for Nothing {
        fn stats(&self) -> mqfq_blk::engine::EngineStats {
            mqfq_blk::engine::EngineStats { at_ns: 0, devices: Vec::new(), workers: Vec::new() }
        }

        fn sums(&self) -> mqfq_blk::engine::EngineStats {
            self.stats()
        }

        fn limited(&self) -> Vec<crate::source::Limited> {
            Vec::new()
        }

        fn export(&self, _: &str) -> Option<(String, String)> {
            None
        }

        fn exports(&self, _: &str) -> Vec<(String, u64)> {
            Vec::new()
        }
    }

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(mqfq_control::api::OPENAPI).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let documented: Vec<&str> = paths
            .filter(|(_, path)| path["get"]["tags"] == json!(["observe"]))
            .map(|(path, _)| path.as_str())
            .collect();
        let routes = routes(&Arc::new(Watcher::new(Arc::new(Nothing))));
        assert!(routes.iter().all(|route| route.method == Method::GET));
        let mut served: Vec<&str> = routes.iter().map(|route| route.path).collect();
        served.sort();
        assert_eq!(documented, served);
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for address in ["http://", "https://", "//cdn", "@import", "src="] {
            assert!(!PAGE.replace("http://www.w3.org/2000/svg", "").contains(address), "{address}");
        }
        assert!(PAGE.contains("prefers-color-scheme") && PAGE.contains("/v1/live"));
    }
}
