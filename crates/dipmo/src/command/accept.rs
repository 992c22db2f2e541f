//! Takes commands from outside: a request becomes a command and the message that starts its saga, in one
//! transaction, or nothing at all.
//!
//! Promise: what was accepted is carried out even if the caller never hears of it, and the same
//! idempotency key again gets the first answer, for as long as the dedupe window. Nobody waits for
//! another's request: one with the same key that is still under way is told so.
//! Not promised: that the command will succeed; its status tells.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::envelope::{SCHEMA_VERSION, header, kind};
use super::{Envelope, START_QUEUE, has_nul};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Destination, OutMessage};
use crate::store::postgres::command_accept::{self as store, NewCommand, Requested};
use crate::store::postgres::{Db, Tx};

/// Whose messages they are, in the outbox.
const AGGREGATE_TYPE: &str = "Command";
/// As in the table of requests.
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 200;
/// Well below what fits into the indexes of processes and of the outbox.
const TEXT_BYTES_MAX: usize = 500;

/// A command that somebody outside wants to be carried out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// The definition that carries it out.
    pub name: String,
    pub tenant: String,
    /// What it is about: there is one command of a name for each key.
    pub business_key: String,
    pub payload: Value,
    /// The same again is the same request.
    pub idempotency_key: Option<String>,
    /// The queue that gets the answer at the end.
    pub reply_to: Option<String>,
    /// Travel with the start message; those with a meaning are set by us.
    pub headers: Map<String, Value>,
    /// The trace that the request belongs to, in the form of the W3C.
    pub traceparent: Option<String>,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Acceptance {
    Accepted(Accepted),
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    pub command_id: Uuid,
    /// The answer that was kept with the idempotency key: a repetition has the same.
    pub response: Value,
    /// This request had been accepted before; nothing was done now.
    pub repeated: bool,
}

/// Why a well-formed request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The idempotency key belongs to a request that asked for something else.
    AnotherRequest { command_id: Uuid },
    /// A request with this idempotency key, or for this business key, is being accepted right now.
    InFlight,
    /// There is a command of this name for this business key.
    KeyTaken { command_id: Uuid },
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::AnotherRequest { command_id } => {
                write!(f, "the idempotency key was used for another request, which became command {command_id}")
            }
            Refusal::InFlight => f.write_str("the same request is being accepted at this moment"),
            Refusal::KeyTaken { command_id } => {
                write!(f, "there is a command of this name for this key already: {command_id}")
            }
        }
    }
}

/// Writes the command, the message that starts it and the memory of the request in one transaction.
pub async fn accept(db: &Db, request: &Request) -> Result<Acceptance> {
    request.validate()?;
    let destination = Destination::InternalQueue { queue: START_QUEUE.to_owned() };
    let fingerprint = request.fingerprint();
    let mut client = db.client().await?;
    let tx = Tx::begin(&mut client)?;
    if let Some(key) = &request.idempotency_key {
        match store::find_request(db, &tx, &request.tenant, key).await? {
            Requested::InFlight => return Ok(Acceptance::Refused(Refusal::InFlight)),
            Requested::Before { command_id, response, fingerprint: first } if first == fingerprint => {
                return Ok(Acceptance::Accepted(Accepted { command_id, response, repeated: true }));
            }
            Requested::Before { command_id, .. } => {
                return Ok(Acceptance::Refused(Refusal::AnotherRequest { command_id }));
            }
            Requested::Never => {}
        }
    }
    let (name, tenant, business_key) = (&*request.name, &*request.tenant, &*request.business_key);
    match store::find_command(db, &tx, (name, tenant, business_key)).await? {
        Requested::InFlight => return Ok(Acceptance::Refused(Refusal::InFlight)),
        Requested::Before { command_id, .. } => return Ok(Acceptance::Refused(Refusal::KeyTaken { command_id })),
        Requested::Never => {}
    }
    let id = Uuid::now_v7();
    let idempotency_key = request.idempotency_key.clone().unwrap_or_else(|| id.to_string());
    let command = NewCommand { id, name, tenant, business_key, idempotency_key: &idempotency_key };
    let accepted_at = store::insert(db, &tx, &command).await?;
    let response = response(id, accepted_at)?;
    if request.idempotency_key.is_some() {
        store::remember(db, &tx, &command, &fingerprint, &response).await?;
    }
    db.append_in(&tx, &[request.start(id, &idempotency_key, destination, accepted_at)]).await?;
    tx.commit().await?;
    Ok(Acceptance::Accepted(Accepted { command_id: id, response, repeated: false }))
}

fn response(id: Uuid, accepted_at: OffsetDateTime) -> Result<Value> {
    let at = accepted_at.format(&Rfc3339).map_err(|e| Error::new(ErrorKind::Bug, "formatting a time").source(e))?;
    Ok(json!({ "commandId": id, "status": "PENDING", "acceptedAt": at }))
}

impl Request {
    fn validate(&self) -> Result<()> {
        for (what, text) in [("name", &self.name), ("key", &self.business_key)] {
            if text.is_empty() {
                return Err(Error::invalid(format!("{what} is empty")));
            }
        }
        let texts = [
            ("name", Some(&self.name), TEXT_BYTES_MAX),
            ("key", Some(&self.business_key), TEXT_BYTES_MAX),
            ("tenant", Some(&self.tenant), TEXT_BYTES_MAX),
            ("replyTo", self.reply_to.as_ref(), TEXT_BYTES_MAX),
            ("the idempotency key", self.idempotency_key.as_ref(), IDEMPOTENCY_KEY_BYTES_MAX),
        ];
        for (what, text, bytes_max) in texts {
            let Some(text) = text else { continue };
            if text.len() > bytes_max || text.chars().any(char::is_control) {
                return Err(Error::invalid(format!(
                    "{what} must have at most {bytes_max} bytes, none of them control"
                )));
            }
        }
        if self.idempotency_key.as_deref() == Some("") || self.reply_to.as_deref() == Some("") {
            return Err(Error::invalid("an idempotency key or replyTo that is given must not be empty"));
        }
        if !self.payload.is_object() {
            return Err(Error::invalid("payload must be a JSON object"));
        }
        if has_nul(&self.payload) {
            return Err(Error::invalid("payload holds the character U+0000, which PostgreSQL cannot keep"));
        }
        Ok(())
    }

    /// What makes two requests the same: everything that decides what is done, not how it was written.
    fn fingerprint(&self) -> Vec<u8> {
        let said = json!([self.name, self.tenant, self.business_key, self.reply_to, self.headers, self.payload]);
        Sha256::digest(said.to_string()).to_vec()
    }

    /// The message that starts the saga.
    fn start(&self, id: Uuid, key: &str, destination: Destination, occurred_at: OffsetDateTime) -> OutMessage {
        let mut envelope = Envelope {
            message_id: Uuid::now_v7(),
            kind: kind::REQUESTED.to_owned(),
            name: self.name.clone(),
            command_id: id,
            correlation_id: id,
            causation_id: None,
            occurred_at,
            key: self.business_key.clone(),
            headers: self.headers.clone(),
            payload: self.payload.clone(),
            rest: Map::new(),
        };
        let mut known = vec![(header::SCHEMA_VERSION, SCHEMA_VERSION), (header::IDEMPOTENCY_KEY, key)];
        known.extend(self.reply_to.as_deref().map(|queue| (header::REPLY_TO, queue)));
        known.extend(Some(&*self.tenant).filter(|tenant| !tenant.is_empty()).map(|tenant| (header::TENANT_ID, tenant)));
        let trace = self.traceparent.as_deref().and_then(trace_and_span);
        known.extend(trace.iter().flat_map(|(trace, span)| [(header::TRACE_ID, *trace), (header::SPAN_ID, *span)]));
        for (name, value) in known {
            envelope = envelope.with_header(name, value);
        }
        let mut message = envelope.into_message(destination, AGGREGATE_TYPE);
        message.traceparent = self.traceparent.clone().filter(|_| trace.is_some());
        message
    }
}

/// The two ids of `00-<trace>-<span>-<flags>`; one that is not of this form is not passed on.
fn trace_and_span(traceparent: &str) -> Option<(&str, &str)> {
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let parts: Vec<&str> = traceparent.split('-').collect();
    match parts[..] {
        [version, trace, span, flags] if hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2) => {
            Some((trace, span))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            name: "SubmitPayment".to_owned(),
            business_key: "P-1".to_owned(),
            payload: json!({ "amount": { "value": "1.00", "currency": "EUR" } }),
            ..Request::default()
        }
    }

    #[test]
    fn the_same_request_written_otherwise_is_the_same_request() {
        let other = Request {
            payload: serde_json::from_str(r#"{ "amount": {"currency": "EUR",  "value": "1.00"} }"#).unwrap(),
            idempotency_key: Some("k".to_owned()),
            traceparent: Some("x".to_owned()),
            ..request()
        };
        assert_eq!(request().fingerprint(), other.fingerprint());
    }

    #[test]
    fn whatever_decides_what_is_done_makes_another_request() {
        let others = [
            Request { name: "Other".to_owned(), ..request() },
            Request { tenant: "t".to_owned(), ..request() },
            Request { business_key: "P-2".to_owned(), ..request() },
            Request { reply_to: Some("Q".to_owned()), ..request() },
            Request { payload: json!({ "amount": { "value": "2.00", "currency": "EUR" } }), ..request() },
        ];
        for other in others {
            assert_ne!(request().fingerprint(), other.fingerprint(), "{other:?}");
        }
    }

    #[test]
    fn a_request_that_cannot_be_kept_is_refused_with_the_name_of_what_is_wrong() {
        let cases = [
            (Request { name: String::new(), ..request() }, "name is empty"),
            (Request { business_key: String::new(), ..request() }, "key is empty"),
            (Request { business_key: "k".repeat(501), ..request() }, "key must have at most 500 bytes"),
            (Request { tenant: "a\nb".to_owned(), ..request() }, "tenant must"),
            (Request { idempotency_key: Some("k".repeat(201)), ..request() }, "idempotency key must have at most 200"),
            (Request { idempotency_key: Some(String::new()), ..request() }, "must not be empty"),
            (Request { payload: json!([1]), ..request() }, "payload must be a JSON object"),
            (Request { payload: json!({ "a": ["\0"] }), ..request() }, "U+0000"),
        ];
        for (request, expected) in cases {
            let why = request.validate().unwrap_err().to_string();
            assert!(why.contains(expected), "{why:?} should contain {expected:?}");
        }
    }

    #[test]
    fn the_start_message_carries_what_the_saga_needs() {
        let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let request = Request {
            tenant: "acme".to_owned(),
            reply_to: Some("SHOP.REPLY.Q".to_owned()),
            traceparent: Some(traceparent.to_owned()),
            ..request()
        };
        let id = Uuid::now_v7();
        let message = request.start(id, "k-1", Destination::Internal, OffsetDateTime::UNIX_EPOCH);
        let envelope: Envelope = serde_json::from_slice(message.payload.as_deref().unwrap()).unwrap();
        assert_eq!((envelope.command_id, envelope.correlation_id, &*envelope.key), (id, id, "P-1"));
        let headers = [header::TENANT_ID, header::REPLY_TO, header::IDEMPOTENCY_KEY, header::TRACE_ID, header::SPAN_ID];
        assert_eq!(
            headers.map(|name| envelope.header(name).unwrap()),
            ["acme", "SHOP.REPLY.Q", "k-1", "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"]
        );
        assert_eq!((message.key(), message.traceparent.as_deref()), ("P-1", Some(traceparent)));
        let mut odd = request;
        odd.traceparent = Some("garbage".to_owned());
        assert_eq!(odd.start(id, "k", Destination::Internal, OffsetDateTime::UNIX_EPOCH).traceparent, None);
    }
}
