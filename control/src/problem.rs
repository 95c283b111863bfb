//! A refusal as an answer of HTTP: RFC 9457, `application/problem+json`.

use crate::model::{Fault, Refusal};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
pub use mqfq_config::text::did_you_mean;
use mqfq_config::text::sentence;
use serde::{Deserialize, Serialize};

/// The media type.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Error answer to a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// Always `about:blank`: the status says the kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The status.
    pub status: u16,
    /// One sentence: place, fault, what is allowed.
    pub detail: String,
    /// The key of the config that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The line of a body that is TOML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
}

impl Problem {
    /// A problem that is about no key.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or_default().into(),
            status: status.as_u16(),
            // Refusals of a change may hold an error of the operating system.
            detail: sentence(&detail.into()),
            key: None,
            line: None,
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let Refusal { fault, sentence, key, line } = refusal;
        let status = match fault {
            Fault::Bad => StatusCode::BAD_REQUEST,
            Fault::Missing => StatusCode::NOT_FOUND,
            Fault::Conflict => StatusCode::CONFLICT,
            Fault::Stale => StatusCode::PRECONDITION_FAILED,
            Fault::Broken => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem { key, line, ..Problem::new(status, sentence) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = (status, axum::Json(&self)).into_response();
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
            // The client is not let in, or there is no room: its place is for another one.
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}
