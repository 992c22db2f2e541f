//! From a message of an AMQP 1.0 broker to a message of the inbox.
//!
//! Names of application properties are those that every client can write (JMS knows no `-` in them):
//! `messageId`, `eventType` and so on, unless the consumer names others.

use uuid::Uuid;

use super::decode::decode_at;
use crate::consumer::{Envelope, Field, Format};
use crate::inbox::Fault;
use crate::message::Message;
use crate::transport::amqp_message::Letter;

fn property(field: Field) -> &'static str {
    match field {
        Field::MessageId => "messageId",
        Field::EventType => "eventType",
        Field::EventVersion => "eventVersion",
        Field::Tenant => "tenantId",
        Field::AggregateId => "aggregateId",
        Field::AggregateVersion => "aggregateVersion",
        Field::CorrelationId => "correlationId",
        Field::CausationId => "causationId",
        Field::Traceparent => "traceparent",
    }
}

/// Where the fields are looked for: in the properties the consumer names, else in the usual ones; then in the
/// payload, by the consumer's pointers, and for the id also where most envelopes have it.
pub(super) fn envelope_of(consumer: &Envelope) -> Envelope {
    let mut envelope = consumer.clone();
    for (field, kafka) in Field::ALL {
        let header = envelope.headers.entry(field).or_insert_with(|| property(field).to_owned());
        if header == kafka {
            property(field).clone_into(header);
        }
    }
    if envelope.format == Format::Json {
        envelope.pointers.entry(Field::MessageId).or_insert_with(|| "/messageId".to_owned());
    }
    envelope
}

/// A message that nobody gave an id cannot be told from its repetition: it gets a new one, so that it is never
/// taken for another.
pub(super) fn decode_letter(letter: Letter, envelope: &Envelope) -> (Message, Option<Fault>) {
    let Letter { record, message_id, correlation_id } = letter;
    let usable = |id: &String| !id.contains('\0') && id.len() <= 1_000;
    let id = message_id.filter(usable).unwrap_or_else(|| Uuid::now_v7().to_string());
    let (mut message, fault) = decode_at(&record, None, envelope, ((None, None), id));
    if message.correlation_id.is_none() {
        message.correlation_id = correlation_id.filter(usable);
    }
    (message, fault)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::transport::Record;

    fn letter(payload: &str, properties: &[(&str, &str)], message_id: Option<&str>) -> Letter {
        let header = |(name, value): &(&str, &str)| ((*name).to_owned(), Some(Bytes::from((*value).to_owned())));
        let headers = properties.iter().map(header).collect();
        let payload = Some(Bytes::from(payload.to_owned()));
        let record = Record { topic: "Q".into(), headers, payload, ..Record::default() };
        Letter { record, message_id: message_id.map(str::to_owned), correlation_id: Some("corr".to_owned()) }
    }

    fn id(letter: Letter) -> String {
        decode_letter(letter, &envelope_of(&Envelope::default())).0.message_id
    }

    #[test]
    fn the_id_is_the_property_else_the_envelopes_else_the_brokers() {
        let body = r#"{"messageId": "of the envelope"}"#;
        assert_eq!(id(letter(body, &[("messageId", "of the property")], Some("of the broker"))), "of the property");
        assert_eq!(id(letter(body, &[], Some("of the broker"))), "of the envelope");
        assert_eq!(id(letter("[1]", &[], Some("of the broker"))), "of the broker");
        assert_ne!(id(letter("{}", &[], None)), id(letter("{}", &[], None)), "never taken for another");
    }

    #[test]
    fn fields_come_from_the_usual_properties_and_from_those_the_consumer_names() {
        let mut envelope = Envelope::default();
        envelope.headers.insert(Field::Tenant, "country".into());
        let properties =
            [("eventType", "Placed"), ("country", "NL"), ("aggregateVersion", "7"), ("correlationId", "c-1")];
        let (message, fault) = decode_letter(letter("{}", &properties, Some("m")), &envelope_of(&envelope));
        assert_eq!((message.event_type(), message.tenant.as_str(), fault), ("Placed", "NL", None));
        assert_eq!((message.aggregate_version, message.correlation()), (Some(7), "c-1"));
        assert_eq!((message.partition, message.offset, message.topic.as_str()), (None, None, "Q"));
    }

    #[test]
    fn what_is_not_json_keeps_its_bytes_and_the_correlation_of_the_broker() {
        let (message, fault) = decode_letter(letter("{oops", &[], Some("m")), &envelope_of(&Envelope::default()));
        assert_eq!(message.payload.as_deref(), Some(&b"{oops"[..]));
        assert_eq!((message.correlation(), fault.map(|fault| fault.code)), ("corr", Some("NOT_JSON".to_owned())));
    }
}
