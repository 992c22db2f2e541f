//! What comes with a request, read so that a mistake is told as a problem: query, path, body, reason.

use std::str::FromStr;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use dipmo::operator::{Change, Page};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::auth::Caller;
use super::problem::{INVALID, MEDIA_TYPE, Problem};

/// The query of the address. Names that the route does not know are refused: a filter with a typing error
/// would show everything.
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let read = Query::<T>::try_from_uri(&parts.uri);
        read.map(|Query(asked)| Self(asked)).map_err(|error| {
            Problem::new(INVALID, format!("the query: {}", inner(&error)), "see the parameters in /v1/openapi.json")
        })
    }
}

/// The parts of the path that vary.
pub(crate) struct Named<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let read = Path::<T>::from_request_parts(parts, state).await;
        read.map(|Path(named)| Self(named)).map_err(|error| {
            Problem::new(INVALID, format!("the address: {}", error.body_text()), "use ids as lists show them")
        })
    }
}

/// The body, as JSON. The guard has read it already, within its limit.
pub(crate) struct Json<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        is_json(request.headers())?;
        let bytes = Bytes::from_request(request, state).await.map_err(|error| {
            Problem::new(INVALID, format!("the body cannot be read: {}", error.body_text()), "send it again")
        })?;
        let hint = "see the body in /v1/openapi.json";
        if bytes.is_empty() {
            return Err(Problem::new(INVALID, "the request has no body", hint));
        }
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| Problem::new(INVALID, format!("the body: {error}"), hint))
    }
}

fn is_json(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = given.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    Err(Problem::new(MEDIA_TYPE, format!("the body is {kind:?}"), "send `Content-Type: application/json`"))
}

/// Why something is changed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Because {
    pub(crate) reason: String,
}

/// Who changes something, and why, for the audit trail.
pub(crate) fn change(caller: &Caller, reason: String) -> Result<Change, Problem> {
    Change::new(caller.name.clone(), reason)
        .map_err(|error| Problem::new(INVALID, error.to_string(), "say why in the field `reason`"))
}

/// The page that was asked for.
pub(crate) fn page<K: FromStr>(limit: Option<u32>, after: Option<String>) -> Result<Page<K>, Problem> {
    let wrong = |text: &String| {
        Problem::new(INVALID, format!("after={text:?} is not a row of this list"), "use `next` of the page before")
    };
    let after = after.as_ref().map(|text| text.parse().map_err(|_| wrong(text))).transpose()?;
    Ok(Page { limit: limit.unwrap_or(Page::<K>::default().limit), after })
}

/// The message at the bottom, without the words of the framework around it.
fn inner(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
