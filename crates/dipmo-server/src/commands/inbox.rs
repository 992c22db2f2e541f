//! `dipmo inbox`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use dipmo::Message;
use dipmo::consumer::Envelope;
use dipmo::ingress::decode;
use dipmo::operator::inbox::{self, InboxFilter, InboxRow, StoredRecord};
use dipmo::process::Failure;
use dipmo::transport::Record;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;

use super::{Context, change_each, confirm_discard, page, show_list, show_one};
use crate::cli::{InboxVerb, ShowArgs};
use crate::config::ConsumerConfig;
use crate::exit::{Exit, Quit};
use crate::output::{self, Row};

pub(super) async fn run(context: &Context, verb: InboxVerb) -> Result<Exit, Quit> {
    let db = context.db()?;
    match verb {
        InboxVerb::List { consumer, state, key, page: part } => {
            let filter = InboxFilter { consumer, state, key };
            show_list(context, &inbox::list(&db, &filter, &page(&part)?).await?)
        }
        InboxVerb::Show(ShowArgs { id, payload }) => show_one(context, id, &inbox::show(&db, id, payload).await?),
        InboxVerb::Seen { consumer, source, message_id } => {
            let seen = inbox::seen(&db, &consumer, &source, &message_id).await?;
            let Some(at) = seen.and_then(|at| at.format(&Rfc3339).ok()) else {
                let text = format!("consumer {consumer:?} has not seen {message_id:?} of {source:?}");
                return Err(Quit::new(Exit::NotFound, text).hint("older than retention.dedupe would be forgotten"));
            };
            output::one(context.format, &json!({ "message_id": message_id, "seen_at": at }), &message_id)?;
            Ok(Exit::Ok)
        }
        InboxVerb::Retry(these) => change_each(context, &these, async |id, by| inbox::retry(&db, id, by).await).await,
        InboxVerb::Discard(these) => {
            confirm_discard("inbox", &these)?;
            change_each(context, &these, async |id, by| inbox::discard(&db, id, by).await).await
        }
        InboxVerb::Redecode(these) => {
            let decode = |stored: &StoredRecord| redecode(&context.config.consumer, stored);
            change_each(context, &these, async |id, by| inbox::redecode(&db, id, by, decode).await).await
        }
    }
}

/// Decodes by the rules that the configuration has for the consumer.
pub(crate) fn redecode(consumers: &[ConsumerConfig], stored: &StoredRecord) -> Result<Message, Failure> {
    let rules = consumers.iter().find(|consumer| consumer.name == stored.consumer);
    let Some(rules) = rules else {
        let why = format!("the configuration has no consumer {:?}, so its rules are not known", stored.consumer);
        return Err(Failure::undecodable("NO_RULES", why));
    };
    decode_stored(stored, &rules.envelope())
}

fn decode_stored(stored: &StoredRecord, envelope: &Envelope) -> Result<Message, Failure> {
    // A key that was only the message's own id was no key: another may be found now.
    let key = match &stored.key_bytes {
        Some(bytes) => Some(bytes.clone()),
        None if stored.key == stored.message_id => None,
        None => Some(Bytes::from(stored.key.clone())),
    };
    let record = Record {
        topic: stored.topic.clone(),
        partition: stored.partition.unwrap_or_default(),
        offset: stored.offset.unwrap_or_default(),
        key,
        headers: stored.headers.iter().flatten().flat_map(|(name, value)| header(name, value)).collect(),
        payload: stored.payload.clone(),
        timestamp: stored.event_time,
    };
    match decode(&record, Some(&stored.source), envelope) {
        (message, None) => Ok(message),
        (_, Some(fault)) => Err(Failure::undecodable(&fault.code, fault.message)),
    }
}

/// The bytes of a header from the form they are stored in; a repeated header is a list.
fn header(name: &str, value: &Value) -> Vec<(String, Option<Bytes>)> {
    let bytes = |value: &Value| match value {
        Value::String(text) => Some(Bytes::from(text.clone())),
        Value::Object(map) => {
            map.get("base64").and_then(Value::as_str).and_then(|text| STANDARD.decode(text).ok()).map(Bytes::from)
        }
        _ => None,
    };
    match value {
        Value::Array(values) => values.iter().map(|value| (name.to_owned(), bytes(value))).collect(),
        value => vec![(name.to_owned(), bytes(value))],
    }
}

impl Row for InboxRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "consumer",
        "state",
        "key",
        "type:event_type",
        "attempts",
        "age:age_seconds",
        "code:error_code",
        "error:error_message",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_the_bytes_they_were() {
        assert_eq!(header("a", &json!("x")), [("a".to_owned(), Some(Bytes::from_static(b"x")))]);
        assert_eq!(header("a", &json!({ "base64": "/wA=" })), [("a".to_owned(), Some(Bytes::from_static(&[0xff, 0])))]);
        assert_eq!(header("a", &json!(["x", null])).len(), 2);
    }

    #[test]
    fn a_stored_record_is_decoded_by_the_rules_of_today() {
        let stored = StoredRecord {
            id: 1,
            consumer: "c".into(),
            source: "ihub".into(),
            message_id: "hits/0/7".into(),
            topic: "hits".into(),
            partition: Some(0),
            offset: Some(7),
            key: "k".into(),
            key_bytes: None,
            headers: json!({ "x-id": "e-1" }).as_object().cloned(),
            payload: Some(Bytes::from_static(b"\xff")),
            event_time: None,
        };
        let mut envelope = Envelope::default();
        assert!(decode_stored(&stored, &envelope).is_err(), "not JSON");
        envelope.format = dipmo::consumer::Format::Bytes;
        envelope.headers.insert(dipmo::consumer::Field::MessageId, "x-id".into());
        let message = decode_stored(&stored, &envelope).unwrap();
        assert_eq!((message.message_id.as_str(), message.source.as_str(), message.key.as_str()), ("e-1", "ihub", "k"));
    }
}
