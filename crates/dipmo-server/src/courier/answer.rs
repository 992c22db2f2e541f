//! What the answer of a worker means: status and body in, the fate of the command out.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, Response, StatusCode, header};
use dipmo::command::CommandError;
use dipmo::command::remote::{Delivered, LEASE_MAX};
use serde_json::Value;
use tracing::warn;

/// How long a worker that took a command wants before it is given up.
pub(super) const LEASE_SECONDS: HeaderName = HeaderName::from_static("dipmo-lease-seconds");
const CODE_CHARS_MAX: usize = 100;
const MESSAGE_CHARS_MAX: usize = 1_000;

/// The body of an answer.
pub(super) enum Answered {
    Whole(Bytes),
    /// It has more than this many bytes, and was not read.
    TooLarge(usize),
}

pub(super) fn read(worker: &str, response: &Response<Answered>) -> Delivered {
    let (status, headers) = (response.status(), response.headers());
    let error = match status {
        StatusCode::OK => return Delivered::Answered(result(worker, response.body())),
        StatusCode::ACCEPTED => return Delivered::Taken { lease: lease(worker, headers) },
        // It was not done: the worker says that it has no time for it.
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            CommandError::retryable(code_of(status), said(worker, status, headers))
        }
        _ if status.is_server_error() => CommandError::unknown(code_of(status), said(worker, status, headers)),
        _ if status.is_client_error() => refusal(worker, status, response.body()),
        _ => {
            let why = format!("worker {worker} answered {status}: 200 says done, 202 says that an answer follows");
            CommandError::permanent("UNEXPECTED_STATUS", why)
        }
    };
    Delivered::Answered(Err(error))
}

fn result(worker: &str, body: &Answered) -> Result<Value, CommandError> {
    match body {
        Answered::Whole(bytes) => serde_json::from_slice(bytes).map_err(|error| {
            let why = format!("worker {worker} answered 200 with a body that is not JSON: {error}");
            CommandError::permanent("ANSWER_NOT_JSON", why)
        }),
        Answered::TooLarge(bytes_max) => {
            let why = format!("worker {worker} answered 200 with a body of more than {bytes_max} bytes");
            Err(CommandError::permanent("ANSWER_TOO_LARGE", why))
        }
    }
}

fn lease(worker: &str, headers: &HeaderMap) -> Option<Duration> {
    let given = headers.get(LEASE_SECONDS)?;
    let seconds = given.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    if seconds.is_none() {
        warn!(worker, "{LEASE_SECONDS} is not a whole number: the timeout of the step holds");
    }
    seconds.map(|seconds| Duration::from_secs(seconds.max(1)).min(LEASE_MAX))
}

/// `{code, message}`, or a problem of RFC 9457.
fn refusal(worker: &str, status: StatusCode, body: &Answered) -> CommandError {
    let body = match body {
        Answered::Whole(bytes) => serde_json::from_slice(bytes).unwrap_or(Value::Null),
        Answered::TooLarge(_) => Value::Null,
    };
    let text = |name: &str| body[name].as_str().filter(|text| !text.trim().is_empty());
    let kind = text("type").filter(|kind| *kind != "about:blank").and_then(|kind| kind.rsplit([':', '/', '#']).next());
    let code = text("code").or(kind).filter(|code| !code.is_empty());
    let message = ["message", "detail", "title"].into_iter().find_map(text);
    CommandError::permanent(
        code.map_or_else(|| code_of(status), |code| plain(code, CODE_CHARS_MAX)),
        message
            .map_or_else(|| format!("worker {worker} answered {status}"), |message| plain(message, MESSAGE_CHARS_MAX)),
    )
}

fn said(worker: &str, status: StatusCode, headers: &HeaderMap) -> String {
    let after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let after = after.map(|after| format!(" (Retry-After: {})", plain(after, CODE_CHARS_MAX)));
    format!("worker {worker} answered {status}{}", after.unwrap_or_default())
}

fn code_of(status: StatusCode) -> String {
    format!("HTTP_{}", status.as_u16())
}

/// One line, of bounded length, that every table can keep.
fn plain(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answered(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Delivered {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        read("fx", &response.body(Answered::Whole(Bytes::copy_from_slice(body.as_bytes()))).unwrap())
    }

    fn error(delivered: Delivered) -> CommandError {
        match delivered {
            Delivered::Answered(Err(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn done_is_200_with_json_and_nothing_else() {
        assert_eq!(answered(200, &[], r#"{"rate":"1.08"}"#), Delivered::Answered(Ok(json!({ "rate": "1.08" }))));
        for body in ["", "done", "{"] {
            let error = error(answered(200, &[], body));
            assert_eq!((&*error.code, error.retryable), ("ANSWER_NOT_JSON", false));
        }
        for status in [201, 204, 302] {
            assert_eq!(error(answered(status, &[("location", "/")], "{}")).code, "UNEXPECTED_STATUS");
        }
        let large = Response::new(Answered::TooLarge(7));
        assert_eq!(error(read("fx", &large)).code, "ANSWER_TOO_LARGE");
    }

    #[test]
    fn a_lease_is_bounded_and_one_that_cannot_be_read_is_none() {
        let lease = |seconds| answered(202, &[("dipmo-lease-seconds", seconds)], "");
        assert_eq!(lease("60"), Delivered::Taken { lease: Some(Duration::from_secs(60)) });
        assert_eq!(lease("0"), Delivered::Taken { lease: Some(Duration::from_secs(1)) });
        assert_eq!(lease("18446744073709551615"), Delivered::Taken { lease: Some(LEASE_MAX) });
        assert_eq!(lease("soon"), Delivered::Taken { lease: None });
        assert_eq!(answered(202, &[], ""), Delivered::Taken { lease: None });
    }

    #[test]
    fn a_refusal_tells_its_reason_in_either_form() {
        let own = error(answered(422, &[], r#"{"code":"NO_FUNDS","message":"too\nlittle"}"#));
        assert_eq!(own, CommandError::permanent("NO_FUNDS", "too little"));
        let problem = r#"{"type":"https://fx.example/problems/closed","title":"Closed","detail":"until Monday"}"#;
        assert_eq!(error(answered(409, &[], problem)), CommandError::permanent("closed", "until Monday"));
        for body in ["", "<html>", "[]", r#"{"code":7}"#, r#"{"type":"about:blank"}"#] {
            let bare = error(answered(404, &[], body));
            assert_eq!(bare, CommandError::permanent("HTTP_404", "worker fx answered 404 Not Found"));
        }
    }

    #[test]
    fn what_may_pass_is_worth_sending_again() {
        for (status, unknown) in [(408, false), (429, false), (503, false), (500, true), (502, true), (504, true)] {
            let error = error(answered(status, &[("retry-after", "30")], "busy"));
            assert!(error.retryable && error.message.contains("Retry-After: 30"), "{error:?}");
            assert_eq!((error.unknown, error.code), (unknown, format!("HTTP_{status}")));
        }
    }
}
