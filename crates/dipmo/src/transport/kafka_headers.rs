//! The headers of a message on its way to Kafka: the envelope, then what the writer gave.

use std::fmt::Write as _;

use rdkafka::message::{Header, OwnedHeaders};
use serde_json::{Map, Value};

use super::{DEBEZIUM_HEADERS, Outcome, Outgoing, Refusal};

/// Names that the envelope owns: a header of the row by such a name is left out.
const ENVELOPE: [&str; 12] = [
    "event-id",
    "event-type",
    "event-version",
    "tenant-id",
    "correlation-id",
    "causation-id",
    "trace-id",
    "traceparent",
    "aggregate-type",
    "aggregate-id",
    "aggregate-version",
    "producer",
];

/// Headers as section 10.1 of the event format names them, and the rest of the envelope.
pub(super) fn headers(row: &Outgoing<'_>, producer: Option<&str>) -> Result<OwnedHeaders, Outcome> {
    let mut text = String::with_capacity(40);
    if row.headers == Some(DEBEZIUM_HEADERS) {
        let _ = write!(text, "{}", row.message_id);
        let headers = OwnedHeaders::new_with_capacity(2).insert(Header { key: "id", value: Some(&text) });
        return Ok(headers.insert(Header { key: "event_type", value: Some(row.event_type) }));
    }
    let mut headers = OwnedHeaders::new_with_capacity(ENVELOPE.len());
    let add = |headers: OwnedHeaders, key: &str, value: &str| headers.insert(Header { key, value: Some(value) });
    let _ = write!(text, "{}", row.message_id);
    headers = add(headers, "event-id", &text);
    headers = add(headers, "event-type", row.event_type);
    text.clear();
    let _ = write!(text, "{}", row.event_version);
    headers = add(headers, "event-version", &text);
    let trace_id = row.traceparent.and_then(trace_id);
    let optional = [
        ("tenant-id", Some(row.tenant).filter(|tenant| !tenant.is_empty())),
        ("correlation-id", row.correlation_id),
        ("causation-id", row.causation_id),
        ("trace-id", trace_id),
        ("traceparent", row.traceparent),
        ("aggregate-type", Some(row.aggregate_type)),
        ("aggregate-id", Some(row.aggregate_id)),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            headers = add(headers, name, value);
        }
    }
    if let Some(version) = row.aggregate_version {
        text.clear();
        let _ = write!(text, "{version}");
        headers = add(headers, "aggregate-version", &text);
    }
    let own = row.headers.map(own_headers).transpose()?.unwrap_or_default();
    if let Some(producer) = producer.or_else(|| own.get("producer").and_then(Value::as_str)) {
        headers = add(headers, "producer", producer);
    }
    for (name, value) in own.iter().filter(|(name, _)| !ENVELOPE.contains(&name.as_str())) {
        headers = match value {
            Value::String(value) => add(headers, name, value),
            Value::Null => headers.insert(Header::<&str> { key: name, value: None }),
            other => add(headers, name, &other.to_string()),
        };
    }
    Ok(headers)
}

/// The row's own headers: an object whose names Kafka can carry.
fn own_headers(text: &str) -> Result<Map<String, Value>, Outcome> {
    let wrong = |what: &str| Outcome::Rejected(Refusal::new("HEADERS_INVALID", what));
    let Ok(Value::Object(own)) = serde_json::from_str(text) else {
        return Err(wrong("the headers are not a JSON object"));
    };
    if own.keys().any(|name| name.contains('\0')) {
        return Err(wrong("the name of a header holds a NUL"));
    }
    Ok(own)
}

/// The trace id inside a W3C traceparent: `00-<trace id>-<span id>-<flags>`.
fn trace_id(traceparent: &str) -> Option<&str> {
    let id = traceparent.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(id)
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers as _;
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    fn row(headers: Option<&'static str>) -> Outgoing<'static> {
        Outgoing {
            id: 1,
            shard: 16,
            transaction: 0,
            message_id: Uuid::nil(),
            topic: "t",
            key: "k",
            tenant: "acme",
            aggregate_type: "quote",
            aggregate_id: "q1",
            aggregate_version: Some(3),
            event_type: "QuoteSubmitted",
            event_version: 2,
            correlation_id: Some("corr"),
            causation_id: None,
            traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            headers,
            payload: None,
            occurred_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    fn pairs(headers: &OwnedHeaders) -> Vec<(String, String)> {
        let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap_or(b"(null)").to_vec()).unwrap();
        headers.iter().map(|h| (h.key.to_owned(), text(h.value))).collect()
    }

    #[test]
    fn the_envelope_comes_first_and_absent_fields_have_no_header() {
        let expected = [
            ("event-id", "00000000-0000-0000-0000-000000000000"),
            ("event-type", "QuoteSubmitted"),
            ("event-version", "2"),
            ("tenant-id", "acme"),
            ("correlation-id", "corr"),
            ("trace-id", "4bf92f3577b34da6a3ce929d0e0e4736"),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("aggregate-type", "quote"),
            ("aggregate-id", "q1"),
            ("aggregate-version", "3"),
            ("producer", "quote-service"),
        ];
        let expected: Vec<(String, String)> = expected.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec();
        assert_eq!(pairs(&headers(&row(None), Some("quote-service")).unwrap()), expected);
    }

    #[test]
    fn headers_of_the_row_travel_but_cannot_replace_the_envelope() {
        let own = r#"{"schema-id": "s1", "event-id": "forged", "producer": "mine", "n": 1, "none": null}"#;
        let all = pairs(&headers(&row(Some(own)), None).unwrap());
        let value = |name: &str| all.iter().filter(|(k, _)| k == name).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
        assert_eq!(value("schema-id"), ["s1"]);
        assert_eq!(value("event-id"), ["00000000-0000-0000-0000-000000000000"]);
        assert_eq!((value("producer"), value("n"), value("none")), (vec!["mine"], vec!["1"], vec!["(null)"]));
    }

    #[test]
    fn headers_that_are_no_object_are_poison() {
        assert!(matches!(headers(&row(Some("[1]")), None), Err(Outcome::Rejected(_))));
    }
}
