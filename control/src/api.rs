//! Which routes are there, and what does each do?
//!
//! [`routes`] is the one list: the router is made of it, and the tests hold `openapi.json` against it. A handler reads
//! the request completely, asks the [`Server`] on a thread that may wait, and answers JSON; what is wrong is a
//! [`Problem`] with one sentence.

use crate::admission::Peer;
use crate::document::Document;
use crate::events::Event;
use crate::model::{Applied, By, Edit, Fault, Kind, Match, Proposal, Refusal, Reload, Server, Via};
use crate::problem::Problem;
use crate::strict::Strict;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{MatchedPath, Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use axum::{Extension, Json, Router};
use futures_util::stream;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use mqfq_config::text::did_you_mean;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest body about one thing, bytes.
pub const THING_BYTES_MAX: usize = 64 << 10;

/// Longest body that is a whole config, bytes: 400 for each of ten thousand tenants. One is read at a time.
pub const CONFIG_BYTES_MAX: usize = 4 << 20;

/// Parts of such a body, of which ten thousand tenants need 220,000 to 270,000: a value or an item is one, a table or a
/// list is three. Reading one part takes 1 KiB at most, so a body is counted before it is read.
pub const CONFIG_PARTS_MAX: usize = 300_000;

/// For a whole body, from its first byte on.
pub const BODY_WAIT: Duration = Duration::from_secs(30);

/// Streams of events that are open at once: each keeps a connection.
pub const STREAMS_MAX: usize = 16;

/// A stream of events is never silent for longer, so that a client and those between know that it lives.
const STREAM_SILENCE: Duration = Duration::from_secs(15);

/// How `mqfq ctl` names itself.
pub const CTL_AGENT: &str = "mqfq-ctl/";

const JSON: &str = "application/json";
const MERGE_PATCH_JSON: &str = "application/merge-patch+json";
const TOML: &str = "application/toml";

/// The API as a document that programs read.
pub const OPENAPI: &str = include_str!("openapi.json");

/// One method of one path. A server with more to serve (`/metrics`) makes more routes.
pub struct Route {
    /// Method of the request.
    pub method: Method,
    /// As axum writes it: `/v1/tenants/{name}`.
    pub path: &'static str,
    /// Handler of this method.
    pub service: MethodRouter,
}

struct Shared {
    server: Arc<dyn Server>,
    /// Turn of a request with a whole config.
    large: Arc<Semaphore>,
    /// Turn of the one change under way: the others wait here and take no thread.
    changes: Semaphore,
    streams: Arc<Semaphore>,
}

type Handler = State<Arc<Shared>>;
type Answer = Result<Response, Problem>;

/// All routes but those that others add.
pub fn routes(server: Arc<dyn Server>) -> Vec<Route> {
    let large = Arc::new(Semaphore::new(1));
    let streams = Arc::new(Semaphore::new(STREAMS_MAX));
    let shared = Arc::new(Shared { server, large, changes: Semaphore::new(1), streams });
    let route = |method: Method, path, service: MethodRouter<Arc<Shared>>| Route {
        method,
        path,
        service: service.with_state(shared.clone()),
    };
    let mut routes = vec![
        route(Method::GET, "/v1/status", routing::get(status)),
        route(Method::GET, "/v1/counters", routing::get(counters)),
        route(Method::GET, "/v1/events", routing::get(events)),
        route(Method::GET, "/v1/openapi.json", routing::get(openapi)),
        route(Method::GET, "/v1/config", routing::get(get_config)),
        route(Method::PUT, "/v1/config", routing::put(put_config)),
        route(Method::GET, "/v1/config/file", routing::get(get_file)),
        route(Method::POST, "/v1/config/reload", routing::post(reload)),
        route(Method::POST, "/v1/config/saved", routing::post(saved)),
        route(Method::POST, "/v1/devices/{name}/reopen", routing::post(reopen_device)),
        route(Method::POST, "/v1/exports/{name}/reopen", routing::post(reopen_export)),
        route(Method::POST, "/v1/exports/{name}/grow", routing::post(grow)),
    ];
    for kind in Kind::ALL {
        // A path lives as long as the program: there are as many as kinds.
        let (all, one) = match kind {
            Kind::Device => ("/v1/devices", "/v1/devices/{name}"),
            Kind::Group => ("/v1/groups", "/v1/groups/{name}"),
            Kind::Tenant => ("/v1/tenants", "/v1/tenants/{name}"),
            Kind::Export => ("/v1/exports", "/v1/exports/{name}"),
        };
        routes.push(route(Method::GET, all, routing::get(move |shared| list(kind, shared))));
        routes.push(route(Method::GET, one, routing::get(move |shared, name| get(kind, shared, name))));
        for (method, filter) in [
            (Method::PUT, routing::MethodFilter::PUT),
            (Method::PATCH, routing::MethodFilter::PATCH),
            (Method::DELETE, routing::MethodFilter::DELETE),
        ] {
            let handler = move |shared, peer, name, request| change(kind, shared, peer, name, request);
            routes.push(route(method, one, routing::on(filter, handler)));
        }
    }
    routes
}

/// Everything behind one door: these routes and `more`.
pub fn router(server: Arc<dyn Server>, more: Vec<Route>) -> Router {
    let all: Vec<Route> = routes(server).into_iter().chain(more).collect();
    let mut methods: BTreeMap<&str, String> = BTreeMap::new();
    for Route { method, path, .. } in &all {
        let known = methods.entry(path).or_default();
        *known += if known.is_empty() { "" } else { ", " };
        *known += method.as_str();
    }
    let methods = Arc::new(methods);
    let refuse_method = move |method: Method, path: MatchedPath| async move {
        let known = methods.get(path.as_str()).map_or("", String::as_str);
        let sentence = format!("{method} does not go with this path, allowed is {known}");
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, sentence)
    };
    all.into_iter()
        .fold(Router::new(), |router, Route { path, service, .. }| router.route(path, service))
        .fallback(|| async {
            Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path, /v1/openapi.json lists what is")
        })
        .method_not_allowed_fallback(refuse_method)
        .layer(middleware::from_fn(let_in))
}

/// Serves requests of clients that may come in.
async fn let_in(Extension(peer): Extension<Peer>, request: Request, next: Next) -> Response {
    match peer.let_in(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Asks the server where waiting is allowed.
async fn ask<T: Send + 'static>(shared: &Arc<Shared>, of: impl FnOnce(&dyn Server) -> T + Send + 'static) -> T {
    let server = shared.server.clone();
    // A panic there has ended the process; the runtime's end drops this future.
    tokio::task::spawn_blocking(move || of(&*server)).await.expect("it returns")
}

/// Asks the server for a change, one after the other.
async fn ask_for_change(
    shared: &Arc<Shared>,
    of: impl FnOnce(&dyn Server) -> Result<Applied, Refusal> + Send + 'static,
) -> Answer {
    let turn = shared.changes.acquire().await.expect("nobody closes it");
    let applied = ask(shared, of).await;
    drop(turn);
    answer(applied)
}

async fn status(State(shared): Handler) -> Answer {
    Ok(Json(ask(&shared, |server| server.status()).await).into_response())
}

async fn counters(State(shared): Handler) -> Answer {
    Ok(Json(ask(&shared, |server| server.counters()).await).into_response())
}

async fn openapi() -> Answer {
    Ok(([(header::CONTENT_TYPE, JSON)], OPENAPI).into_response())
}

async fn list(kind: Kind, State(shared): Handler) -> Answer {
    let answer = move |server: &dyn Server| {
        let state = server.state();
        let things = state.things.get(kind.plural()).map_or(&[][..], |things| &things[..]);
        // Made here: ten thousand of them take their time.
        serde_json::to_vec(&json!({ "revision": state.revision, "things": things }))
    };
    let body = ask(&shared, answer).await.map_err(|error| broken(&error))?;
    Ok(([(header::CONTENT_TYPE, JSON)], body).into_response())
}

async fn get(kind: Kind, State(shared): Handler, name: Result<Path<String>, PathRejection>) -> Answer {
    let name = name_of(name)?;
    let of = name.clone();
    let thing = ask(&shared, move |server| {
        let state = server.state();
        let things = || state.things.get(kind.plural()).into_iter().flatten();
        let hint = || did_you_mean(&of, things().map(|thing| thing.name.as_str()));
        things().find(|thing| thing.name == of).cloned().ok_or_else(hint)
    });
    let missing = |hint| Problem::new(StatusCode::NOT_FOUND, format!("there is no {} {name:?}{hint}", kind.section()));
    let thing = thing.await.map_err(missing)?;
    Ok((etag(thing.revision), Json(thing)).into_response())
}

async fn get_config(State(shared): Handler, headers: HeaderMap) -> Answer {
    let (document, revision) = ask(&shared, |server| server.configured()).await;
    let wants_toml = headers.get(header::ACCEPT).is_some_and(|accept| accept.as_bytes() == TOML.as_bytes());
    if wants_toml {
        return Ok((etag(revision), [(header::CONTENT_TYPE, TOML)], document.text().0).into_response());
    }
    Ok((etag(revision), Json(json!({ "revision": revision, "config": document.to_json() }))).into_response())
}

async fn get_file(State(shared): Handler) -> Answer {
    let missing = || Problem::new(StatusCode::NOT_FOUND, "the server was started without a config file");
    let file = ask(&shared, |server| server.file()).await.ok_or_else(missing)?;
    Ok(Json(file).into_response())
}

async fn reload(
    State(shared): Handler,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let by = by(&peer, &headers);
    let [discard_unsaved, dry_run] = flags(query.as_deref(), ["discard-unsaved", "dry-run"])?;
    ask_for_change(&shared, move |server| server.reload(&by, Reload { discard_unsaved, dry_run })).await
}

type Name = Result<Path<String>, PathRejection>;

async fn reopen_device(shared: Handler, peer: Extension<Peer>, name: Name, headers: HeaderMap) -> Answer {
    reopen(Kind::Device, shared, peer, name, headers).await
}

async fn reopen_export(shared: Handler, peer: Extension<Peer>, name: Name, headers: HeaderMap) -> Answer {
    reopen(Kind::Export, shared, peer, name, headers).await
}

async fn reopen(
    kind: Kind,
    State(shared): Handler,
    Extension(peer): Extension<Peer>,
    name: Name,
    headers: HeaderMap,
) -> Answer {
    let (name, by) = (name_of(name)?, by(&peer, &headers));
    ask_for_change(&shared, move |server| server.reopen(kind, &name, &by)).await
}

async fn grow(State(shared): Handler, Extension(peer): Extension<Peer>, name: Name, headers: HeaderMap) -> Answer {
    let (name, by) = (name_of(name)?, by(&peer, &headers));
    ask_for_change(&shared, move |server| server.grow(&name, &by)).await
}

async fn saved(State(shared): Handler, request: Request) -> Answer {
    let (parts, body) = request.into_parts();
    media_type(&parts.headers, &[TOML])?;
    let place = shared.large.clone().acquire_owned().await.expect("nobody closes it");
    let bytes = read(body, CONFIG_BYTES_MAX).await?;
    refuse_parts(&bytes)?;
    let text = utf8(bytes)?;
    let turn = shared.changes.acquire().await.expect("nobody closes it");
    ask(&shared, move |server| {
        let _place: OwnedSemaphorePermit = place;
        server.saved(text);
    })
    .await;
    drop(turn);
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn put_config(
    State(shared): Handler,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    let dry_run = dry_run(query.as_deref())?;
    let only_if = only_if(&parts.headers)?;
    let is_toml = media_type(&parts.headers, &[JSON, TOML])? == TOML;
    let place = shared.large.clone().acquire_owned().await.expect("nobody closes it");
    let bytes = read(body, CONFIG_BYTES_MAX).await?;
    refuse_parts(&bytes)?;
    let by = by(&peer, &parts.headers);
    let change = move |server: &dyn Server| {
        let _place: OwnedSemaphorePermit = place;
        let document = if is_toml {
            let text = utf8(bytes)?;
            Document::parse(&text).map_err(|fault| {
                // As the config's reader calls a document that came over the API.
                Refusal { line: Some(fault.line), ..bad(&format!("config:{fault}")) }
            })?
        } else {
            Document::from_json(&object(&bytes)?)?
        };
        server.propose(&Proposal { edit: Edit::Whole(document), by, only_if, dry_run })
    };
    let answer = ask_for_change(&shared, change).await;
    ask(&shared, |server| server.give_memory_back()).await;
    answer
}

async fn change(
    kind: Kind,
    State(shared): Handler,
    Extension(peer): Extension<Peer>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answer {
    let name = name_of(name)?;
    let (parts, body) = request.into_parts();
    let dry_run = dry_run(parts.uri.query())?;
    let only_if = only_if(&parts.headers)?;
    let edit = match parts.method {
        Method::DELETE => Edit::Delete(kind, name),
        Method::PATCH => {
            media_type(&parts.headers, &[JSON, MERGE_PATCH_JSON])?;
            Edit::Patch(kind, name, object(&read(body, THING_BYTES_MAX).await?)?)
        }
        _ => {
            media_type(&parts.headers, &[JSON])?;
            Edit::Put(kind, name, object(&read(body, THING_BYTES_MAX).await?)?)
        }
    };
    let by = by(&peer, &parts.headers);
    ask_for_change(&shared, move |server| server.propose(&Proposal { edit, by, only_if, dry_run })).await
}

/// The events after the one that the client has, as they come.
async fn events(State(shared): Handler, RawQuery(query): RawQuery, headers: HeaderMap) -> Answer {
    let [after] = parameters(query.as_deref(), ["after"])?;
    let after = match after {
        Some(after) => Some(after),
        None => headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().to_owned()),
    };
    let wrong = |after: &String| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            format!("after: {after:?} is not an event's number, allowed is a whole number"),
        )
    };
    let after = after.map(|after| after.parse::<u64>().map_err(|_| wrong(&after))).transpose()?;
    let full = |_| {
        let sentence = format!("{STREAMS_MAX} streams of events are open, which is the most that is allowed");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, sentence)
    };
    let place = shared.streams.clone().try_acquire_owned().map_err(full)?;
    // A number that is yet to come is one of another server's life: everything is new then.
    let last = shared.server.events().last();
    let from = after.map_or(last, |after| if after > last { 0 } else { after });
    let watch = shared.server.events().watch();
    let stream = stream::unfold((shared, place, watch, from), |(shared, place, mut watch, from)| async move {
        loop {
            // Before the look, so that what comes after it is seen.
            watch.mark_unchanged();
            if let Some((event, missed)) = shared.server.events().next(from) {
                let sent = Ok::<_, Infallible>(sent(&event, missed));
                return Some((sent, (shared, place, watch, event.id)));
            }
            watch.changed().await.ok()?;
        }
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(STREAM_SILENCE)).into_response())
}

/// An event as server-sent events have it.
fn sent(event: &Event, missed: u64) -> sse::Event {
    let mut data = json!(event);
    if missed > 0 {
        data["missed"] = missed.into();
    }
    sse::Event::default().id(event.id.to_string()).event(&event.kind).data(data.to_string())
}

fn broken(error: &dyn std::error::Error) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

fn bad(sentence: &str) -> Refusal {
    Refusal::new(Fault::Bad, sentence)
}

fn etag(revision: u64) -> [(header::HeaderName, HeaderValue); 1] {
    [(header::ETAG, HeaderValue::from_str(&format!("\"{revision}\"")).expect("digits"))]
}

fn answer(applied: Result<Applied, Refusal>) -> Answer {
    let applied = applied?;
    let status = if applied.created && !applied.dry_run { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, etag(applied.revision), Json(applied)).into_response())
}

fn by(peer: &Peer, headers: &HeaderMap) -> By {
    let is_ctl =
        headers.get(header::USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(CTL_AGENT.as_bytes()));
    By { via: if is_ctl { Via::Ctl } else { Via::Http }, ..peer.by.clone() }
}

fn name_of(name: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    name.map(|Path(name)| name)
        .map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "the name in the path is not UTF-8 in percent encoding"))
}

/// The values of the parameters that a query may have: a name alone is the empty one.
fn parameters<const N: usize>(query: Option<&str>, names: [&str; N]) -> Result<[Option<String>; N], Problem> {
    let mut found = [const { None }; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(at) = names.iter().position(|name| *name == key) else {
            let sentence = format!("{key:?} is no parameter of this path, allowed is {}", names.join(", "));
            return Err(Problem::new(StatusCode::BAD_REQUEST, sentence));
        };
        found[at] = Some(value.to_owned());
    }
    Ok(found)
}

/// Parameters that are said or not.
fn flags<const N: usize>(query: Option<&str>, names: [&str; N]) -> Result<[bool; N], Problem> {
    let mut said = [false; N];
    for ((value, name), said) in parameters(query, names)?.into_iter().zip(names).zip(&mut said) {
        *said = match value.as_deref() {
            None | Some("false") => false,
            Some("" | "true") => true,
            Some(other) => {
                let sentence = format!("{name}: {other:?} is not known, allowed are true, false");
                return Err(Problem::new(StatusCode::BAD_REQUEST, sentence));
            }
        };
    }
    Ok(said)
}

fn dry_run(query: Option<&str>) -> Result<bool, Problem> {
    flags(query, ["dry-run"]).map(|[dry_run]| dry_run)
}

/// `If-Match` and `If-None-Match`.
fn only_if(headers: &HeaderMap) -> Result<Option<Match>, Problem> {
    let wrong = |name: &str, allowed: &str| {
        Problem::new(StatusCode::BAD_REQUEST, format!("the header {name} cannot be read, allowed is {allowed}"))
    };
    let absent = match headers.get(header::IF_NONE_MATCH).map(HeaderValue::as_bytes) {
        None => None,
        Some(b"*") => Some(Match::Absent),
        Some(_) => return Err(wrong("If-None-Match", "*")),
    };
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(absent) };
    if absent.is_some() {
        let sentence = "If-Match and If-None-Match exclude each other, allowed is one of them";
        return Err(Problem::new(StatusCode::BAD_REQUEST, sentence));
    }
    if value.as_bytes() == b"*" {
        return Ok(Some(Match::Revision(None)));
    }
    let revision = |tag: &str| tag.trim().strip_prefix('"')?.strip_suffix('"')?.parse().ok();
    let revisions: Option<Vec<u64>> = value.to_str().ok().and_then(|tags| tags.split(',').map(revision).collect());
    let revisions = revisions.ok_or_else(|| wrong("If-Match", "* or a revision in double quotes, as ETag has it"))?;
    Ok(Some(Match::Revision(Some(revisions))))
}

/// The media type of the body, which is one of these. A header must say it: browsers send a body without a type, or as
/// a form, to any site without asking first.
fn media_type(headers: &HeaderMap, allowed: &[&'static str]) -> Result<&'static str, Problem> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        let sentence = format!("Content-Type: the header is missing, allowed is {}", allowed.join(" or "));
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, sentence));
    };
    let said = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    allowed.iter().find(|known| **known == said).copied().ok_or_else(|| {
        let sentence =
            format!("Content-Type: {said:?} does not go with this path, allowed is {}", allowed.join(" or "));
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, sentence)
    })
}

/// The sentence that refuses a body of more than `bytes_max` bytes.
pub(crate) fn too_long(bytes_max: usize) -> String {
    format!("the body has more than {bytes_max} bytes, which is the most that is allowed")
}

async fn read(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let late = |_| {
        let sentence = format!("the body was not there within {} s", BODY_WAIT.as_secs());
        Problem::new(StatusCode::REQUEST_TIMEOUT, sentence)
    };
    let long = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, too_long(bytes_max));
    if body.size_hint().lower() > bytes_max as u64 {
        // It says so itself: nothing of it is waited for.
        return Err(long());
    }
    let read = tokio::time::timeout(BODY_WAIT, Limited::new(body, bytes_max).collect()).await.map_err(late)?;
    let body = read.map_err(|error| match error.is::<LengthLimitError>() {
        true => long(),
        false => Problem::new(StatusCode::BAD_REQUEST, "the body ended too early"),
    })?;
    Ok(body.to_bytes())
}

/// Refuses a body that would take much memory to read. Counts the signs of TOML and JSON before a value, an item, a
/// table or a list, also in texts. A dot begins a table in a key of TOML.
fn refuse_parts(bytes: &[u8]) -> Result<(), Problem> {
    let part = |byte: &u8| match byte {
        b'=' | b':' | b',' => 1,
        b'.' | b'[' | b'{' => 3,
        _ => 0,
    };
    let parts: usize = bytes.iter().map(part).sum();
    if parts <= CONFIG_PARTS_MAX {
        return Ok(());
    }
    let sentence = format!(
        "the config has {parts} parts, of which a value is one and a table or a list three, allowed are \
         {CONFIG_PARTS_MAX}"
    );
    Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, sentence))
}

fn utf8(bytes: Bytes) -> Result<String, Refusal> {
    String::from_utf8(bytes.into()).map_err(|_| bad("the body is not UTF-8, allowed is TOML"))
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if bytes.trim_ascii().is_empty() {
        return Err(bad("the body is empty, allowed is a JSON object of keys, {} for none"));
    }
    match serde_json::from_slice(bytes) {
        Ok(Strict(Value::Object(object))) => Ok(object),
        Ok(_) => Err(bad("the body is no JSON object, allowed is an object of keys")),
        Err(error) if error.is_data() => Err(bad(&format!("{error}, allowed is each key once"))),
        Err(error) => Err(bad(&format!("the body is not JSON: {error}"))),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    //! The document and the router name the same routes, and the document is whole.

    use super::*;
    use crate::ledger::Ledger;
    use crate::model::{ConfigFile, State as All, Status};
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::time::SystemTime;

    /// A server that runs nothing: a ledger alone.
    pub(crate) struct OnPaper {
        ledger: Mutex<Ledger>,
        events: crate::events::Events,
        file: Mutex<Option<ConfigFile>>,
        /// Calls that it had, in words, each with its caller.
        heard: Mutex<Vec<(String, By)>>,
    }

    impl OnPaper {
        pub(crate) fn new(text: &str) -> Arc<OnPaper> {
            let ledger = Ledger::new(Document::parse(text).unwrap(), By::via(Via::File), SystemTime::UNIX_EPOCH);
            let (ledger, events) = (Mutex::new(ledger), Default::default());
            Arc::new(OnPaper { ledger, events, file: Mutex::default(), heard: Mutex::default() })
        }

        /// Takes this file for the one that the server was started with.
        pub(crate) fn set_file(&self, file: ConfigFile) {
            *self.file.lock().unwrap() = Some(file);
        }

        fn hear(&self, what: String, by: &By) {
            self.heard.lock().unwrap().push((what, by.clone()));
        }

        /// Calls since this was last asked.
        pub(crate) fn heard(&self) -> Vec<(String, By)> {
            std::mem::take(&mut self.heard.lock().unwrap())
        }
    }

    impl Server for OnPaper {
        fn status(&self) -> Status {
            let revision = self.ledger.lock().unwrap().revision();
            let (version, config, things) = (String::new(), None, Default::default());
            let (listen, troubled, draining) = (vec![], Default::default(), false);
            let (pid, uptime_s, workers, unsaved) = (1, 0, 0, 0);
            Status { version, pid, uptime_s, workers, revision, unsaved, draining, config, listen, things, troubled }
        }

        fn state(&self) -> Arc<All> {
            Arc::new(self.ledger.lock().unwrap().state(|_, _| Map::new()))
        }

        fn configured(&self) -> (Arc<Document>, u64) {
            let ledger = self.ledger.lock().unwrap();
            (ledger.document(), ledger.revision())
        }

        fn propose(&self, proposal: &Proposal) -> Result<Applied, Refusal> {
            let (by, only_if, dry_run) = (&proposal.by, &proposal.only_if, proposal.dry_run);
            self.hear(format!("propose {only_if:?}, dry run: {dry_run}"), by);
            let mut ledger = self.ledger.lock().unwrap();
            let candidate = ledger.candidate(proposal)?;
            let (changes, created) = (candidate.changes.clone(), candidate.created);
            ledger.accept(candidate, &proposal.by, SystemTime::UNIX_EPOCH);
            Ok(ledger.applied(changes, created, false))
        }

        fn file(&self) -> Option<ConfigFile> {
            self.file.lock().unwrap().clone()
        }

        fn reload(&self, by: &By, how: Reload) -> Result<Applied, Refusal> {
            self.hear(format!("reload, discard: {}, dry run: {}", how.discard_unsaved, how.dry_run), by);
            Err(Refusal::new(Fault::Broken, "it has no file"))
        }

        fn reopen(&self, _: Kind, _: &str, _: &By) -> Result<Applied, Refusal> {
            Err(Refusal::new(Fault::Missing, "it has no device"))
        }

        fn grow(&self, _: &str, _: &By) -> Result<Applied, Refusal> {
            Err(Refusal::new(Fault::Missing, "it has no export"))
        }

        fn saved(&self, text: String) {
            self.hear(format!("saved {text}"), &By::via(Via::Http));
        }

        fn counters(&self) -> Value {
            Value::Null
        }

        fn events(&self) -> &crate::events::Events {
            &self.events
        }
    }

    fn document() -> Value {
        serde_json::from_str(OPENAPI).unwrap()
    }

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let document = document();
        let methods = |(path, methods): (&String, &Value)| {
            let methods = methods.as_object().unwrap().keys().map(|method| method.to_uppercase());
            methods.map(|method| format!("{method} {path}")).collect::<Vec<_>>()
        };
        // The crate that watches adds routes of its own, and holds them against the document as well.
        let is_ours = |(_, path): &(&String, &Value)| path["get"]["tags"] != serde_json::json!(["observe"]);
        let documented: BTreeSet<String> =
            document["paths"].as_object().unwrap().iter().filter(is_ours).flat_map(methods).collect();
        let routes = routes(OnPaper::new(""));
        let served: BTreeSet<String> = routes.iter().map(|route| format!("{} {}", route.method, route.path)).collect();
        assert_eq!(documented, served);
        assert_eq!(served.len(), routes.len(), "each once");
    }

    #[test]
    fn the_page_for_users_has_every_route() {
        let page = include_str!("../../docs/use/control.md");
        for Route { method, path, .. } in routes(OnPaper::new("")) {
            let kinds = Kind::ALL.iter().map(|kind| format!("/v1/{}", kind.plural()));
            let general = kinds.fold(path.to_owned(), |path, kind| path.replacen(&kind, "/v1/KINDS", 1));
            let row = format!("| `{method} {}` |", general.replace("{name}", "NAME"));
            assert!(page.contains(&row), "docs/use/control.md lacks {row}");
        }
    }

    #[test]
    fn every_reference_of_the_document_leads_somewhere_and_every_operation_has_a_name() {
        fn references<'d>(value: &'d Value, found: &mut Vec<&'d str>) {
            match value {
                Value::Object(object) => {
                    found.extend(object.get("$ref").and_then(Value::as_str));
                    object.values().for_each(|inner| references(inner, found));
                }
                Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 50);
        for reference in found {
            assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
        }
        let operations =
            document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
        let names: Vec<&str> = operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }

    #[test]
    fn headers_that_make_no_sense_are_refused_in_a_sentence() {
        let headers = |name: header::HeaderName, value: &'static str| {
            HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
        };
        let matched = |value| only_if(&headers(header::IF_MATCH, value)).map_err(|problem| problem.detail);
        assert_eq!(matched("*"), Ok(Some(Match::Revision(None))));
        assert_eq!(matched("\"3\", \"5\""), Ok(Some(Match::Revision(Some(vec![3, 5])))));
        let wrong = "the header If-Match cannot be read, allowed is * or a revision in double quotes, as ETag has it";
        for value in ["3", "W/\"3\"", "\"x\"", ""] {
            assert_eq!(matched(value), Err(wrong.into()), "{value}");
        }
        assert_eq!(only_if(&headers(header::IF_NONE_MATCH, "*")), Ok(Some(Match::Absent)));
        assert!(only_if(&headers(header::IF_NONE_MATCH, "\"3\"")).is_err());
        let typed =
            |value| media_type(&headers(header::CONTENT_TYPE, value), &[JSON, TOML]).map_err(|problem| problem.status);
        assert_eq!(typed("application/JSON; charset=utf-8"), Ok(JSON));
        assert_eq!(typed("application/toml"), Ok(TOML));
        assert_eq!(typed("application/x-www-form-urlencoded"), Err(415));
        assert_eq!(
            (dry_run(None), dry_run(Some("dry-run")), dry_run(Some("dry-run=false"))),
            (Ok(false), Ok(true), Ok(false))
        );
        assert_eq!(
            dry_run(Some("dryrun")).unwrap_err().detail,
            "\"dryrun\" is no parameter of this path, allowed is dry-run"
        );
    }
}
