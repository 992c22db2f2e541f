//! What is wrong with a request, as `application/problem+json` (RFC 9457): what, where, why, what next.
//!
//! A handler returns a [`Problem`]; it travels as an extension of the response, and the outermost layer
//! writes it down, because only that layer knows which request it answers.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dipmo::{Error, ErrorKind};
use serde_json::{Map, Value};
use tracing::error;

use crate::exit::sqlstate_of;

/// What the types of problems begin with; docs/api.md explains each.
const TYPE_PREFIX: &str = "urn:dipmo:problem:";

/// A kind of problem: what programs tell it by, its status and its title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind(pub(crate) &'static str, pub(crate) StatusCode, pub(crate) &'static str);

pub(crate) const INVALID: Kind = Kind("invalid-request", StatusCode::BAD_REQUEST, "The request is not valid");
pub(crate) const UNAUTHORIZED: Kind = Kind("unauthorized", StatusCode::UNAUTHORIZED, "A valid token is needed");
pub(crate) const FORBIDDEN: Kind = Kind("forbidden", StatusCode::FORBIDDEN, "The token's role does not allow this");
pub(crate) const NOT_FOUND: Kind = Kind("not-found", StatusCode::NOT_FOUND, "There is no such thing");
pub(crate) const UNKNOWN_COMMAND: Kind =
    Kind("unknown-command", StatusCode::NOT_FOUND, "There is no command of this name");
pub(crate) const NO_ROUTE: Kind = Kind("no-such-route", StatusCode::NOT_FOUND, "There is nothing at this address");
pub(crate) const METHOD: Kind =
    Kind("method-not-allowed", StatusCode::METHOD_NOT_ALLOWED, "The address does not take this method");
pub(crate) const CONFLICT: Kind = Kind("conflict", StatusCode::CONFLICT, "Its state does not allow this");
pub(crate) const IN_FLIGHT: Kind =
    Kind("request-in-flight", StatusCode::CONFLICT, "The same request is being accepted right now");
pub(crate) const KEY_TAKEN: Kind = Kind("key-taken", StatusCode::CONFLICT, "There is a command for this key already");
pub(crate) const TOO_LARGE: Kind = Kind("too-large", StatusCode::PAYLOAD_TOO_LARGE, "The body is too large");
pub(crate) const MEDIA_TYPE: Kind = Kind("media-type", StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body must be JSON");
pub(crate) const SCHEMA: Kind =
    Kind("payload-invalid", StatusCode::UNPROCESSABLE_ENTITY, "The payload does not fit the command's schema");
pub(crate) const KEY_REUSED: Kind =
    Kind("idempotency-key-reused", StatusCode::UNPROCESSABLE_ENTITY, "The idempotency key belongs to another request");
pub(crate) const UNPROCESSABLE: Kind =
    Kind("unprocessable", StatusCode::UNPROCESSABLE_ENTITY, "The input can never succeed as it is");
pub(crate) const INTERNAL: Kind = Kind("internal", StatusCode::INTERNAL_SERVER_ERROR, "Something broke in dipmo");
pub(crate) const UNAVAILABLE: Kind =
    Kind("unavailable", StatusCode::SERVICE_UNAVAILABLE, "The database cannot answer right now");
pub(crate) const NOT_CONFIGURED: Kind =
    Kind("api-not-configured", StatusCode::SERVICE_UNAVAILABLE, "The API has no tokens");

/// Every kind there is, for the OpenAPI document.
pub(crate) const KINDS: [Kind; 18] = [
    INVALID,
    UNAUTHORIZED,
    FORBIDDEN,
    NOT_FOUND,
    UNKNOWN_COMMAND,
    NO_ROUTE,
    METHOD,
    CONFLICT,
    IN_FLIGHT,
    KEY_TAKEN,
    TOO_LARGE,
    MEDIA_TYPE,
    SCHEMA,
    KEY_REUSED,
    UNPROCESSABLE,
    INTERNAL,
    UNAVAILABLE,
    NOT_CONFIGURED,
];

#[derive(Debug, Clone)]
pub(crate) struct Problem(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    kind: Kind,
    detail: String,
    hint: String,
    more: Map<String, Value>,
    headers: HeaderMap,
}

impl Problem {
    /// `detail` is what is wrong this time, `hint` is what to do about it.
    pub(crate) fn new(kind: Kind, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        let (detail, hint) = (detail.into(), hint.into());
        Self(Box::new(Parts { kind, detail, hint, more: Map::new(), headers: HeaderMap::new() }))
    }

    /// A member of its own, for programs.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.more.insert(name.to_owned(), value.into());
        self
    }

    #[must_use]
    pub(crate) fn header(mut self, name: header::HeaderName, value: &'static str) -> Self {
        self.0.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = hint.into();
        self
    }

    fn body(&self, instance: &str) -> Value {
        let mut body = Map::new();
        body.insert("type".to_owned(), format!("{TYPE_PREFIX}{}", self.0.kind.0).into());
        body.insert("title".to_owned(), self.0.kind.2.into());
        body.insert("status".to_owned(), self.0.kind.1.as_u16().into());
        body.insert("detail".to_owned(), self.0.detail.as_str().into());
        body.insert("instance".to_owned(), instance.into());
        body.insert("hint".to_owned(), self.0.hint.as_str().into());
        body.extend(self.0.more.clone());
        Value::Object(body)
    }
}

/// Until it is written down by [`written`], a problem has a status and no body.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.0.kind.1, self.0.headers.clone()).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the problem of a response down, if it has one.
pub(crate) fn written(mut response: Response, instance: &str) -> Response {
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let body = problem.body(instance).to_string();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(body);
    }
    response
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let said = error.to_string();
        match (sqlstate_of(&error).as_deref(), error.kind()) {
            (Some("55P03"), _) => {
                Problem::new(CONFLICT, said, "a worker or another operator holds it: try again in a moment")
            }
            (_, ErrorKind::NotFound) => {
                Problem::new(NOT_FOUND, said, "check the id; what is old is removed by retention")
            }
            (_, ErrorKind::Conflict | ErrorKind::LeaseLost) => {
                Problem::new(CONFLICT, said, "look at it again, then decide again")
            }
            (None, ErrorKind::Invalid) => Problem::new(INVALID, said, "mend the request and send it again"),
            (_, ErrorKind::Poison) => Problem::new(UNPROCESSABLE, said, "change the input: the same again fails again"),
            (_, ErrorKind::Unavailable) => unavailable(&said),
            // The schema is missing or old, or the role lacks a privilege: the daemon's operator must act.
            (Some(_), ErrorKind::Invalid) => unavailable(&said).hint("run `dipmo doctor` on the server"),
            (_, ErrorKind::Bug) => {
                error!(error = said, "a request failed");
                Problem::new(INTERNAL, "the request failed for a reason of ours", "see the log of the daemon")
            }
        }
    }
}

/// What the database said goes to the log: it may name hosts and users.
fn unavailable(said: &str) -> Problem {
    tracing::warn!(error = said, "a request found the database unavailable");
    Problem::new(UNAVAILABLE, "the database did not answer, or refused to", "try again; if it lasts, see /readyz")
        .header(header::RETRY_AFTER, "1")
}
