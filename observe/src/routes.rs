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
//! What reads counters goes to a thread that may wait, not to the one that serves.

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
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::thread;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;

/// The page: one file, without anything from elsewhere.
pub const PAGE: &str = include_str!("page.html");

/// What the page may load: nothing but itself and what this server says.
const PAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

/// Streams of snapshots at once.
pub const STREAMS_MAX: usize = 16;

/// Scrapes at once; others wait for one of them.
const SCRAPES_MAX: usize = 2;

/// Slices of a scrape that are rendered before a client has taken the ones before.
const SLICES_AHEAD: usize = 2;

/// All of them, about what `watcher` sees.
pub fn routes(watcher: &Arc<Watcher>) -> Vec<Route> {
    let (streams, scrapes) = (Arc::new(Semaphore::new(STREAMS_MAX)), Arc::new(Semaphore::new(SCRAPES_MAX)));
    let all: [(&str, MethodRouter); 7] = [
        ("/", get(|| async { ([(header::CONTENT_SECURITY_POLICY, PAGE_POLICY)], Html(PAGE)) })),
        ("/metrics", {
            let watcher = watcher.clone();
            get(move |headers: HeaderMap| metrics(watcher.clone(), scrapes.clone(), Format::accepted(&headers)))
        }),
        ("/v1/history", of(watcher, |watcher| read(watcher, history))),
        ("/v1/shares", of(watcher, |watcher| read(watcher, |watcher| json!({ "shares": watcher.received() })))),
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

/// A thread of its own reads and renders it, which gives way to workers and waits for a client that is slower.
async fn metrics(watcher: Arc<Watcher>, scrapes: Arc<Semaphore>, format: Format) -> Response {
    let Ok(place) = scrapes.acquire_owned().await else { return broken() };
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(SLICES_AHEAD);
    let render = move || {
        give_way();
        let mut text = watcher.scrape(format);
        // The watcher is not kept by a client that takes its time.
        drop(watcher);
        let mut slice = Vec::new();
        // A client that leaves takes the receiver with it.
        while text.slice(&mut slice) && sender.blocking_send(Ok(std::mem::take(&mut slice).into())).is_ok() {}
        drop(place);
    };
    if thread::Builder::new().name("mqfq-scrape".into()).spawn(render).is_err() {
        return broken();
    }
    let slices = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    (headers, Body::from_stream(slices)).into_response()
}

fn history(watcher: &Watcher) -> Value {
    let points = watcher.past();
    json!({ "points": points.iter().map(|point| &**point).collect::<Vec<_>>() })
}

/// What `of` says, on a thread that may wait.
async fn read(watcher: Arc<Watcher>, of: impl FnOnce(&Watcher) -> Value + Send + 'static) -> Response {
    spawn_blocking(move || of(&watcher)).await.map_or_else(|_| broken(), |said| Json(said).into_response())
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
