//! Envelopes, whole and broken.

use time::macros::datetime;

use super::*;

fn content(envelope: &str, payload: &[u8]) -> Bytes {
    let len = i32::try_from(envelope.len()).expect("a short envelope").to_be_bytes();
    [&len[..], envelope.as_bytes(), payload].concat().into()
}

fn read(content: Bytes) -> WalRow {
    row("dipmo.outbox", Lsn(7), content, 1_000_000)
}

#[test]
fn every_field_of_an_envelope_is_taken() {
    let envelope = r#"{"message_id": "00000000-0000-7000-8000-000000000001", "destination": "KAFKA:t", "key": "k\n",
        "tenant": "acme", "aggregate_type": "order", "aggregate_id": "o", "aggregate_version": 5,
        "event_type": "placed", "event_version": 2, "correlation_id": "cor", "causation_id": "cau",
        "traceparent": "tp", "headers": {"x":1}, "occurred_at": "2024-01-01T02:00:00+02:00"}"#;
    let row = read(content(envelope, b"\x00payload"));
    assert_eq!(row.message_id(), Uuid::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0001));
    assert_eq!([row.destination(), row.key(), row.tenant()], ["KAFKA:t", "k\n", "acme"]);
    assert_eq!([row.aggregate_type(), row.aggregate_id(), row.event_type()], ["order", "o", "placed"]);
    assert_eq!((row.aggregate_version(), row.event_version()), (Some(5), 2));
    assert_eq!(
        [row.correlation_id(), row.causation_id(), row.traceparent(), row.headers()],
        [Some("cor"), Some("cau"), Some("tp"), Some(r#"{"x":1}"#)]
    );
    assert_eq!(row.payload(), Some(&b"\x00payload"[..]));
    assert_eq!(row.occurred_at(), datetime!(2024-01-01 0:00 UTC));
    assert_eq!(row.created_at(), datetime!(2000-01-01 0:00:01 UTC));
}

#[test]
fn what_an_envelope_leaves_out_has_a_stable_default() {
    let envelope =
        r#"{"destination": "KAFKA:t", "aggregate_id": "o", "key": null, "headers": null, "message_id": null}"#;
    let (row, again) = (read(content(envelope, b"")), read(content(envelope, b"")));
    assert_eq!((row.key(), row.tenant(), row.event_version()), ("o", "", 1));
    assert_eq!((row.headers(), row.payload()), (None, Some(&b""[..])));
    assert_eq!(row.occurred_at(), datetime!(2000-01-01 0:00:01 UTC));
    assert_eq!(row.message_id(), again.message_id());
    let elsewhere = super::row("dipmo.outbox", Lsn(8), content(envelope, b""), 0);
    assert_ne!(row.message_id(), elsewhere.message_id());
}

#[test]
fn what_is_no_envelope_is_kept_whole_and_has_no_destination() {
    let broken = [
        Bytes::new(),
        Bytes::from_static(b"\x00\x00"),
        Bytes::from_static(b"\xff\xff\xff\xff{}"),
        Bytes::from_static(b"\x00\x00\x00\x09{}"),
        content("not json", b""),
        content("{}", b"x"),
        content(r#"{"destination": null}"#, b"x"),
        content(r#"{"destination": ""}"#, b"x"),
        content(r#"{"destination": "KAFKA:t", "headers": [1]}"#, b"x"),
        content(r#"{"destination": "KAFKA:t", "occurred_at": "yesterday"}"#, b"x"),
        content(r#"{"destination": "KAFKA:t", "message_id": "7"}"#, b"x"),
    ];
    for content in broken {
        let row = read(content.clone());
        assert_eq!((row.destination(), row.payload(), row.origin()), ("", Some(&content[..]), Origin::Emitted));
        assert_eq!(row.message_id(), read(content).message_id());
    }
}
