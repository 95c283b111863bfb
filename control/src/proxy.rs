//! How does a browser reach the page of a server whose address is a unix socket, or wants a token or a certificate?
//!
//! By a proxy on the loopback of the user's machine, which asks the server as `mqfq ctl` does. Every user of that
//! machine can connect to it, and so can every site in the browser, therefore
//!
//! * a browser comes with a key, 128 random bits in the address that is printed, and keeps it as a cookie that no other
//!   site can send (`SameSite=Strict`) and no script can read;
//! * the key for the browser that is opened counts once: the process list shows it;
//! * `Host` is the proxy's own address, so no other name can be made to lead here;
//! * only GET goes through, so nothing can be changed.

use crate::client::{Ask, Client};
use crate::problem::Problem;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use mqfq_report::{plain, print_line};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Headers of a request that the server is told.
const ASKED: [header::HeaderName; 2] = [header::ACCEPT, header::HeaderName::from_static("last-event-id")];

/// Headers of an answer that the browser is told.
const ANSWERED: [header::HeaderName; 2] = [header::CONTENT_TYPE, header::CONTENT_SECURITY_POLICY];

struct Shared {
    client: Client,
    /// Where the proxy listens.
    at: SocketAddr,
    key: String,
    /// The key of the browser that was opened, until it has come.
    once: Mutex<Option<String>>,
}

/// Prints the address of the server's page and lets browsers there until the process ends. `port` 0: the kernel
/// chooses. `opens`: the user's browser is opened if there is a display.
///
/// # Errors
/// One sentence: there is no server, or the port cannot be had.
pub fn serve(client: &Client, port: u16, opens: bool) -> Result<(), String> {
    client.ask(Ask::new(Method::GET, "/v1/status"))?.good().map_err(|problem| problem.detail)?;
    let failed = |error: std::io::Error| format!("cannot listen on tcp:127.0.0.1:{port}: {}", plain(&error));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    let (key, once) = (random()?, random()?);
    print_line(format!("http://{at}/?key={key}"))?;
    let shared = Shared { client: client.clone(), at, key, once: Mutex::new(None) };
    if opens && has_display() {
        *shared.once() = Some(once.clone());
        open(&format!("http://{at}/?key={once}"));
    }
    let router = Router::new().fallback(answer).with_state(Arc::new(shared));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        axum::serve(listener, router).await.map_err(failed)
    })
}

impl Shared {
    fn once(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.once.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cookie(&self) -> String {
        // Cookies know no ports.
        format!("mqfq-{}={}", self.at.port(), self.key)
    }

    /// The key in the query is right.
    fn has_key(&self, uri: &Uri) -> bool {
        let Some(said) = uri.query().and_then(|query| query.strip_prefix("key=")) else { return false };
        is_same(said, &self.key) || self.once().take_if(|once| is_same(said, once)).is_some()
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        cookies.flat_map(|cookies| cookies.split(';')).any(|cookie| is_same(cookie.trim(), &self.cookie()))
    }

    fn is_its_name(&self, headers: &HeaderMap) -> bool {
        let said = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        said.is_some_and(|said| said == self.at.to_string() || said == format!("localhost:{}", self.at.port()))
    }
}

/// Takes as long wherever the first difference is.
fn is_same(said: &str, wanted: &str) -> bool {
    let differs = said.bytes().zip(wanted.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    said.len() == wanted.len() && differs == 0
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    if !shared.is_its_name(headers) {
        return refused(StatusCode::FORBIDDEN, "the header Host is not the address that mqfq page has printed");
    }
    if shared.has_key(uri) {
        let cookie = format!("{}; HttpOnly; SameSite=Strict; Path=/", shared.cookie());
        return (StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, "/".to_owned())])
            .into_response();
    }
    if !shared.has_cookie(headers) {
        return refused(StatusCode::FORBIDDEN, "allowed is the whole address that mqfq page has printed, with its key");
    }
    if method != Method::GET {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "mqfq page shows and changes nothing, allowed is GET");
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let told = ASKED.into_iter().filter_map(|name| Some((name.clone(), headers.get(name)?.to_str().ok()?.to_owned())));
    let ask = told.fold(Ask::new(Method::GET, path), |ask, (name, value)| ask.header(name, value));
    match shared.client.begin(ask).await {
        Err(sentence) => refused(StatusCode::BAD_GATEWAY, &sentence),
        Ok(reply) => {
            let (parts, body) = reply.into_parts();
            let mut answer = (parts.status, Body::new(body)).into_response();
            for (name, value) in ANSWERED.into_iter().filter_map(|name| Some((name.clone(), parts.headers.get(name)?)))
            {
                answer.headers_mut().insert(name, value.clone());
            }
            answer
        }
    }
}

fn refused(status: StatusCode, sentence: &str) -> Response {
    Problem::new(status, sentence).into_response()
}

fn random() -> Result<String, String> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| format!("cannot read /dev/urandom: {}", plain(&error)))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn has_display() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// A browser that cannot be opened is no fault: the address is printed.
fn open(address: &str) {
    let mut command = Command::new("xdg-open");
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        std::thread::spawn(move || child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Address;
    use axum::http::HeaderValue;

    fn shared() -> Shared {
        let client = Client { address: Address::Unix("/nowhere".into()), token: None, trust: None, patience: None };
        let at = SocketAddr::from(([127, 0, 0, 1], 9118));
        Shared { client, at, key: "a".repeat(32), once: Mutex::new(Some("b".repeat(32))) }
    }

    async fn status(shared: &Arc<Shared>, method: Method, path: &str, headers: &[(&str, &str)]) -> StatusCode {
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        answer(State(shared.clone()), request.body(Body::empty()).unwrap()).await.status()
    }

    #[tokio::test]
    async fn a_browser_needs_the_key_then_its_cookie_under_the_own_name_and_only_gets() {
        let shared = Arc::new(shared());
        let host = ("host", "127.0.0.1:9118");
        let key = format!("/?key={}", "a".repeat(32));
        let cookie = format!("x=1; mqfq-9118={}", "a".repeat(32));
        let cookie = ("cookie", cookie.as_str());
        for (method, path, headers, wanted) in [
            (Method::GET, "/", vec![host], 403),
            (Method::GET, "/?key=aaaa", vec![host], 403),
            (Method::GET, &*key, vec![], 403),
            (Method::GET, &*key, vec![("host", "evil.example:9118")], 403),
            (Method::GET, &*key, vec![host], 303),
            (Method::GET, "/", vec![host, ("cookie", "mqfq-9118=bbbb")], 403),
            (Method::GET, "/", vec![("host", "evil.example:9118"), cookie], 403),
            (Method::POST, "/v1/config/reload", vec![host, cookie], 405),
            // An allowed request gets as far as the server, which is not there.
            (Method::GET, "/v1/live", vec![host, cookie], 502),
            (Method::GET, "/", vec![("host", "localhost:9118"), cookie], 502),
        ] {
            assert_eq!(status(&shared, method.clone(), path, &headers).await, wanted, "{method} {path} {headers:?}");
        }
    }

    #[tokio::test]
    async fn the_key_of_the_opened_browser_counts_once_and_the_printed_one_always() {
        let shared = Arc::new(shared());
        for (key, wanted) in [("b", 303), ("b", 403), ("a", 303), ("a", 303)] {
            let path = format!("/?key={}", key.repeat(32));
            assert_eq!(status(&shared, Method::GET, &path, &[("host", "localhost:9118")]).await, wanted, "{path}");
        }
        let request = Request::builder().uri(format!("/?key={}", "a".repeat(32))).header("host", "localhost:9118");
        let answer = answer(State(shared), request.body(Body::empty()).unwrap()).await;
        let cookie = format!("mqfq-9118={}; HttpOnly; SameSite=Strict; Path=/", "a".repeat(32));
        assert_eq!(answer.headers()[header::SET_COOKIE], HeaderValue::from_str(&cookie).unwrap());
        assert_eq!(answer.headers()[header::LOCATION], "/");
    }
}
