//! One request to a server's control plane, and its answer: over a unix socket or TCP, by hyper.
//!
//! Blocking: a command asks, waits and ends. Connecting has a deadline, an answer has none, since a change may wait for
//! a device to run empty; a caller with less patience says so ([`Client::patience`]).

use crate::api::CTL_AGENT;
use crate::api::{CONFIG_BYTES_MAX, too_long};
use crate::problem::Problem;
use crate::stream::Stream;
use crate::tls::Trust;
use axum::http::{HeaderName, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mqfq_config::text::quoted;
use mqfq_report::plain;
use serde::de::DeserializeOwned;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// For the connection.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Where a control plane listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// `unix:PATH`, or a path with a slash.
    Unix(PathBuf),
    /// `tcp:HOST:PORT`.
    Tcp(String),
}

impl Address {
    /// Reads one.
    ///
    /// # Errors
    /// One sentence.
    pub fn parse(text: &str) -> Result<Address, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
            Some(("tcp", rest)) if rest.contains(':') && !rest.contains('/') => Ok(Address::Tcp(rest.to_owned())),
            // As of a URL: a path with a scheme before it is meant for something else.
            _ if text.contains('/') && !text.contains("://") => Ok(Address::Unix(text.into())),
            _ => Err(format!("{} is not an address, allowed is unix:PATH or tcp:HOST:PORT", quoted(text))),
        }
    }
}

impl Address {
    /// `Host` of a request.
    fn host(&self) -> &str {
        match self {
            Address::Unix(_) => "mqfq",
            Address::Tcp(rest) => rest,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(rest) => write!(f, "tcp:{rest}"),
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    method: Method,
    path: String,
    headers: Vec<(HeaderName, String)>,
    body: Vec<u8>,
}

impl Ask {
    /// Without a body. `path` is percent-encoded where it must be ([`encoded`]).
    pub fn new(method: Method, path: impl Into<String>) -> Ask {
        Ask { method, path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// With a body of this media type.
    #[must_use]
    pub fn body(self, media_type: &str, body: impl Into<Vec<u8>>) -> Ask {
        Ask { body: body.into(), ..self.header(header::CONTENT_TYPE, media_type) }
    }

    /// With a body; a header of the request says its media type, if any.
    #[must_use]
    pub fn bytes(self, body: impl Into<Vec<u8>>) -> Ask {
        Ask { body: body.into(), ..self }
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: impl Into<String>) -> Ask {
        self.headers.push((name, value.into()));
        self
    }
}

/// `name` as a part of a path.
pub fn encoded(name: &str) -> String {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte: u8| if unreserved(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(encode).collect()
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: axum::http::HeaderMap,
    /// All of its body.
    pub body: Vec<u8>,
}

impl Reply {
    /// The answer, if it is none of a problem.
    ///
    /// # Errors
    /// The problem.
    pub fn good(self) -> Result<Reply, Problem> {
        if self.status.is_success() {
            return Ok(self);
        }
        let said = String::from_utf8_lossy(&self.body);
        let unreadable = |_| Problem::new(self.status, format!("the server answered {}: {said}", self.status));
        Err(serde_json::from_slice(&self.body).unwrap_or_else(unreadable))
    }

    /// Value of a good answer.
    ///
    /// # Errors
    /// One sentence: the problem's, or it is not what is expected.
    pub fn json<T: DeserializeOwned>(self) -> Result<T, String> {
        let reply = self.good().map_err(|problem| problem.detail)?;
        serde_json::from_slice(&reply.body).map_err(|error| format!("the server's answer cannot be read: {error}"))
    }
}

/// Client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    /// Where it listens.
    pub address: Address,
    /// Token that it presents on TCP.
    pub token: Option<String>,
    /// TLS trust for TCP; `None`: the connection is in the clear.
    pub trust: Option<Trust>,
    /// For a whole answer; `None`: as long as it takes.
    pub patience: Option<Duration>,
}

impl Client {
    /// Asks.
    ///
    /// # Errors
    /// One sentence: there is no server, or no answer.
    pub fn ask(&self, ask: Ask) -> Result<Reply, String> {
        self.wait(async {
            let answer = self.begin(ask).await?;
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.map_err(|error| self.broke(&error))?.to_bytes();
            Ok(Reply { status: parts.status, headers: parts.headers, body: body.into() })
        })
    }

    /// Hands `each` the data of the server-sent events that are asked for as they come, until it says false.
    ///
    /// # Errors
    /// One sentence: as of [`Client::ask`], or the server has ended.
    pub fn events<T>(&self, ask: Ask, mut each: impl FnMut(T) -> Result<bool, String>) -> Result<(), String>
    where
        T: DeserializeOwned,
    {
        self.wait(async {
            let mut answer = self.begin(ask).await?;
            if !answer.status().is_success() {
                let (parts, body) = answer.into_parts();
                let body = body.collect().await.map_err(|error| self.broke(&error))?.to_bytes().into();
                let reply = Reply { status: parts.status, headers: parts.headers, body };
                return reply.good().map(drop).map_err(|problem| problem.detail);
            }
            let mut lines = Lines::default();
            while let Some(frame) = answer.body_mut().frame().await {
                let frame = frame.map_err(|_| "the server has ended".to_owned())?;
                for data in frame.data_ref().into_iter().flat_map(|data| lines.take(data)) {
                    let event =
                        serde_json::from_str(&data).map_err(|error| format!("an event is unreadable: {error}"))?;
                    if !each(event)? {
                        return Ok(());
                    }
                }
            }
            Err("the server has ended".to_owned())
        })
    }

    fn wait<T>(&self, of: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start a runtime: {}", plain(&error)))?;
        let late = |patience: Duration| format!("{} did not answer within {} s", self.address, patience.as_secs_f64());
        runtime.block_on(async {
            match self.patience {
                Some(patience) => tokio::time::timeout(patience, of).await.map_err(|_| late(patience))?,
                None => of.await,
            }
        })
    }

    /// Asks on a runtime of the caller; the body comes as it comes.
    ///
    /// A body that no route takes is not sent: the server would answer in the middle of it, and close.
    pub(crate) async fn begin(&self, ask: Ask) -> Result<hyper::Response<Incoming>, String> {
        if ask.body.len() > CONFIG_BYTES_MAX {
            return Err(too_long(CONFIG_BYTES_MAX));
        }
        let failed = |error: std::io::Error| {
            if error.kind() == std::io::ErrorKind::WouldBlock {
                let full = "as many clients wait there as fit, allowed is to try again in some seconds";
                return format!("cannot reach a server at {}: {full}", self.address);
            }
            let why = plain(&error);
            format!("cannot reach a server at {}: {why}; it listens where [control] of its config says", self.address)
        };
        let late = |_| format!("cannot reach a server at {}: it does not accept", self.address);
        let connect = async {
            match &self.address {
                Address::Unix(path) => self.send(Box::new(UnixStream::connect(path).await.map_err(failed)?), ask).await,
                Address::Tcp(at) => {
                    let stream = tokio::time::timeout(CONNECT_WAIT, TcpStream::connect(at)).await.map_err(late)?;
                    let stream = stream.map_err(failed)?;
                    let Some(trust) = &self.trust else { return self.send(Box::new(stream), ask).await };
                    let handshake = tokio::time::timeout(CONNECT_WAIT, trust.connect(at, stream)).await;
                    let refused = |error| format!("no TLS with {}: {}", self.address, plain(&error));
                    let late = |_| format!("no TLS with {}: the handshake did not end", self.address);
                    self.send(Box::new(handshake.map_err(late)?.map_err(refused)?), ask).await
                }
            }
        };
        connect.await
    }

    async fn send(&self, stream: Stream, ask: Ask) -> Result<hyper::Response<Incoming>, String> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broke(&error))?;
        tokio::spawn(connection);
        let Ask { method, path, headers, body } = ask;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.address.host())
            .header(header::USER_AGENT, format!("{CTL_AGENT}{}", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| format!("cannot be asked: {error}"))?;
        sender.send_request(request).await.map_err(|error| self.broke(&error))
    }

    fn broke(&self, error: &dyn std::error::Error) -> String {
        let cause = std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error);
        let is_in_the_clear = matches!(self.address, Address::Tcp(_)) && self.trust.is_none();
        let cause = cause.to_string();
        let hint = match is_in_the_clear {
            true => "; a server with a certificate wants --ca",
            // The alert's name: RFC 8446, 6.2.
            false if cause.contains("CertificateRequired") => "; the server wants --cert and --key",
            false => "",
        };
        format!("the connection to {} broke: {cause}{hint}", self.address)
    }
}

/// Server-sent events, put together from what comes.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
    data: String,
}

impl Lines {
    /// The data of each event that ends in `bytes`. Source: WHATWG, server-sent events.
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut whole = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            match line.strip_prefix("data:") {
                Some(data) => self.data.push_str(data.strip_prefix(' ').unwrap_or(data)),
                None if line.is_empty() && !self.data.is_empty() => whole.push(std::mem::take(&mut self.data)),
                None => {}
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_however_the_bytes_come() {
        let text = b"id: 1\nevent: note\ndata: {\"a\":1}\n\n:\n\ndata:x\ndata: y\n\n";
        for step in [1, 2, 3, 7, text.len()] {
            let mut lines = Lines::default();
            let taken: Vec<String> = text.chunks(step).flat_map(|part| lines.take(part)).collect();
            assert_eq!(taken, ["{\"a\":1}", "xy"], "in steps of {step}");
        }
    }

    #[test]
    fn an_address_is_a_path_or_a_host_and_a_name_in_a_path_is_encoded() {
        assert_eq!(Address::parse("unix:/a"), Ok(Address::Unix("/a".into())));
        assert_eq!(Address::parse("./a"), Ok(Address::Unix("./a".into())));
        assert_eq!(Address::parse("tcp:[::1]:80").unwrap().to_string(), "tcp:[::1]:80");
        assert_eq!(Address::parse("a").unwrap_err(), "\"a\" is not an address, allowed is unix:PATH or tcp:HOST:PORT");
        for url in ["http://localhost:7000", "https://a/b", "tcp://a:1", "http://a"] {
            assert!(Address::parse(url).unwrap_err().ends_with("allowed is unix:PATH or tcp:HOST:PORT"), "{url}");
        }
        assert_eq!(encoded("a/b c-ü"), "a%2Fb%20c-%C3%BC");
    }
}
