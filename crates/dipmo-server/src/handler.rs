//! Handlers of the daemon: a SQL function that is called inside the inbox transaction.
//!
//! The function gets the message as one jsonb object and returns anything. What it raises decides what
//! becomes of the message: SQLSTATE `DP001` is tried again later, `DP002` is DEAD at once, `DP003` is
//! IGNORED as stale, and any other error is judged by its class, as for handlers written in Rust.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::Failure;
use dipmo::store::postgres::Db;
use dipmo::{Error, ErrorKind, Message};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use time::format_description::well_known::Rfc3339;

const RETRY_LATER: &str = "DP001";
const PERMANENT: &str = "DP002";
const STALE: &str = "DP003";

const FUNCTION_EXISTS: &str = "
-- server.function_exists
select to_regprocedure($1) is not null";

/// `function` or `schema.function`, of plain lower-case identifiers, so that it needs no quoting.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct FunctionName(String);

impl FromStr for FunctionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let identifier = |part: &str| {
            part.len() <= 63
                && part.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        let parts: Vec<&str> = text.split('.').collect();
        if parts.len() > 2 || !parts.iter().all(|part| identifier(part)) {
            return Err(format!(
                "{text:?} is not the name of a function: write function or schema.function, in lower case"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for FunctionName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Calls a SQL function for each message.
#[derive(Debug)]
pub(crate) struct SqlHandler {
    call: String,
}

impl SqlHandler {
    pub(crate) fn new(function: &FunctionName) -> Self {
        // As text, because the numbers of a payload would lose digits on the way through floats.
        Self { call: format!("select {function}($1::text::jsonb)") }
    }

    /// Refuses a function that is not there, before any message is taken.
    pub(crate) async fn checked(db: &Db, function: &FunctionName) -> Result<Self, Error> {
        let client = db.client().await?;
        let signature = format!("{function}(jsonb)");
        let row = client
            .query_one(FUNCTION_EXISTS, &[&signature])
            .await
            .map_err(|e| Error::new(ErrorKind::Unavailable, "looking for the handler's function").source(e))?;
        if !row.get::<_, bool>(0) {
            return Err(Error::invalid(format!(
                "there is no SQL function {signature}: create it, or name its schema in handler.sql"
            )));
        }
        Ok(Self::new(function))
    }
}

#[async_trait]
impl EnlistedHandler for SqlHandler {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        let statement = enlisted.tx().prepare_cached(&self.call).await.map_err(judge)?;
        enlisted.tx().query(&statement, &[&argument(message)]).await.map(drop).map_err(judge)
    }
}

/// The documented codes first, then the class of the code.
fn judge(error: tokio_postgres::Error) -> Failure {
    let Some(db) = error.as_db_error() else { return error.into() };
    by_code(db.code().code(), db.message()).unwrap_or_else(|| error.into())
}

fn by_code(code: &str, message: &str) -> Option<Failure> {
    match code {
        RETRY_LATER => Some(Failure::transient(code, message)),
        PERMANENT => Some(Failure::permanent(code, message)),
        STALE => Some(Failure::stale(message)),
        _ => None,
    }
}

/// What the function is given.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Argument<'a> {
    message_id: &'a str,
    source: &'a str,
    topic: &'a str,
    partition: Option<i32>,
    offset: Option<i64>,
    key: &'a str,
    tenant: &'a str,
    #[serde(rename = "type")]
    event_type: Option<&'a str>,
    version: Option<i32>,
    aggregate_id: Option<&'a str>,
    aggregate_version: Option<i64>,
    correlation_id: Option<&'a str>,
    causation_id: Option<&'a str>,
    traceparent: Option<&'a str>,
    headers: Option<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    event_time: Option<String>,
    attempt: u32,
}

fn argument(m: &Message) -> String {
    // The payload goes in as it came, so that no digit of a number is lost.
    let payload = m.payload.as_deref().and_then(|bytes| serde_json::from_slice::<&RawValue>(bytes).ok());
    let payload_base64 = match (&m.payload, payload) {
        (Some(bytes), None) => Some(STANDARD.encode(bytes)),
        _ => None,
    };
    let argument = Argument {
        message_id: &m.message_id,
        source: &m.source,
        topic: &m.topic,
        partition: m.partition,
        offset: m.offset,
        key: &m.key,
        tenant: &m.tenant,
        event_type: m.event_type.as_deref(),
        version: m.event_version,
        aggregate_id: m.aggregate_id.as_deref(),
        aggregate_version: m.aggregate_version,
        correlation_id: m.correlation_id.as_deref(),
        causation_id: m.causation_id.as_deref(),
        traceparent: m.traceparent.as_deref(),
        headers: m.headers.as_ref(),
        payload,
        payload_base64,
        event_time: m.event_time.and_then(|at| at.format(&Rfc3339).ok()),
        attempt: m.attempt,
    };
    serde_json::to_string(&argument).expect("an envelope of text and numbers serialises")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: &'static [u8]) -> Message {
        Message {
            inbox_id: 1,
            source: "orders".into(),
            message_id: "m-1".into(),
            topic: "orders".into(),
            partition: Some(3),
            offset: Some(9),
            key: "k".into(),
            key_bytes: None,
            tenant: String::new(),
            aggregate_id: Some("o-1".into()),
            aggregate_version: Some(4),
            event_type: Some("OrderPlaced".into()),
            event_version: Some(2),
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            headers: None,
            payload: Some(payload.into()),
            event_time: Some(time::macros::datetime!(2026-01-02 03:04:05 UTC)),
            attempt: 2,
        }
    }

    #[test]
    fn the_function_gets_the_envelope_and_the_payload_digit_for_digit() {
        let text = argument(&message(br#"{"amount": 12345678901234567890.123456789}"#));
        assert!(text.contains(r#""payload":{"amount": 12345678901234567890.123456789}"#), "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["type"], &value["version"], &value["attempt"]),
            (&"OrderPlaced".into(), &2.into(), &2.into())
        );
        assert_eq!((&value["partition"], &value["eventTime"]), (&3.into(), &"2026-01-02T03:04:05Z".into()));
        assert!(value.get("payloadBase64").is_none());
    }

    #[test]
    fn a_payload_that_is_not_json_comes_as_base64() {
        let value: Value = serde_json::from_str(&argument(&message(b"\xff\x00"))).unwrap();
        assert_eq!(value["payloadBase64"], "/wA=");
        assert!(value.get("payload").is_none());
    }

    #[test]
    fn the_documented_codes_decide_and_others_do_not() {
        assert_eq!(by_code("DP001", "later"), Some(Failure::transient("DP001", "later")));
        assert_eq!(by_code("DP002", "never"), Some(Failure::permanent("DP002", "never")));
        assert_eq!(by_code("DP003", "old"), Some(Failure::stale("old")));
        assert_eq!(by_code("23505", "twice"), None);
    }

    #[test]
    fn only_plain_identifiers_name_a_function() {
        for good in ["f", "app.on_order", "_a1.b2"] {
            assert!(good.parse::<FunctionName>().is_ok(), "{good}");
        }
        for bad in ["", "a.b.c", "A", "f()", "a b", "a;drop table x", "1f", ".f", "a.", "\"q\""] {
            assert!(bad.parse::<FunctionName>().is_err(), "{bad}");
        }
    }
}
