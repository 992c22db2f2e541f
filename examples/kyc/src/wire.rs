//! How the modules of this example talk to each other: keys, bodies, and failures in dipmo's terms.

use dipmo::process::Failure;
use dipmo::{Message, OutMessage};
use serde::{Deserialize, Serialize};

use crate::hits::domain::Verdict;
use crate::transition::IllegalTransition;

/// The body of `HitQualified`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Qualified {
    pub(crate) verdict: Verdict,
}

/// The body of `HitRefused` and `CustomerRefused`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) why: String,
}

/// For events that say it all by their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nothing {}

/// A message to another module in the same database. Everything about a customer has the customer as
/// its key, so that it is handled in order.
pub(crate) fn internal(aggregate: (&str, &str), event_type: &str, customer: &str, body: &impl Serialize) -> OutMessage {
    keyed(OutMessage::internal(aggregate, event_type).json(body), customer)
}

/// The same, to a Kafka topic.
pub(crate) fn kafka(
    topic: &str,
    aggregate: (&str, &str),
    event_type: &str,
    customer: &str,
    body: &impl Serialize,
) -> OutMessage {
    keyed(OutMessage::kafka(topic, aggregate, event_type).json(body), customer)
}

fn keyed(mut message: OutMessage, customer: &str) -> OutMessage {
    message.key = Some(customer.to_owned());
    message
}

/// The id of the case that a message is about.
pub(crate) fn case(message: &Message) -> &str {
    message.aggregate_id.as_deref().unwrap_or(&message.key)
}

/// A repetition is ignored; an event that comes before its time is a mistake that must be seen.
pub(crate) fn illegal(illegal: IllegalTransition) -> Failure {
    if illegal.overtaken {
        Failure::stale(illegal.to_string())
    } else {
        Failure::permanent("ILLEGAL_TRANSITION", illegal.to_string())
    }
}

pub(crate) fn unknown_type(message: &Message) -> Failure {
    Failure::permanent("UNKNOWN_TYPE", format!("nothing here handles {:?}", message.event_type()))
}
