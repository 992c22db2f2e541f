//! What a broker's refusals and the library's errors mean for a row, its queue, or the connection.

use fe2o3_amqp::connection::OpenError;
use fe2o3_amqp::link::{LinkStateError, SendError};
use fe2o3_amqp::types::definitions::{self, AmqpError, ErrorCondition};
use fe2o3_amqp::types::messaging::Outcome as Answered;

use super::amqp::AmqpOptions;
use super::{Outcome, Refusal};

/// Why something did not work, by what it is the trouble of.
#[derive(Debug)]
pub(super) enum Trouble {
    /// This row, or its queue; others may pass.
    Row(Outcome),
    Connection(Refusal),
}

pub(super) fn lost() -> Refusal {
    Refusal::new("AMQP_LOST", "the connection to the broker was lost")
}

pub(super) fn not_opened(options: &AmqpOptions, error: &OpenError) -> Refusal {
    let at = format!("{}:{}", options.host, options.port);
    match error {
        OpenError::SaslError { .. } => {
            let user = options.user.as_deref().unwrap_or("");
            Refusal::new("AMQP_LOGIN", format!("{at} refuses user {user:?}: check user and password"))
        }
        OpenError::RemoteClosedWithError(error) => refusal(error, &format!("{at} refuses the connection")),
        other => Refusal::new("AMQP_OPEN", format!("opening a connection to {at}: {other}")),
    }
}

pub(super) fn stopped(error: LinkStateError) -> Refusal {
    match error {
        LinkStateError::RemoteClosedWithError(error) | LinkStateError::RemoteDetachedWithError(error) => {
            refusal(&error, "the broker ended the link")
        }
        other => Refusal::new("AMQP_LOST", other.to_string()),
    }
}

pub(super) fn judge_outcome(answered: Answered) -> Outcome {
    match answered {
        Answered::Accepted(_) => Outcome::Done,
        Answered::Rejected(rejected) => match rejected.error {
            // What passes by itself.
            Some(error) if matches!(condition(&error), "amqp:resource-limit-exceeded" | "amqp:internal-error") => {
                Outcome::Retry(refusal(&error, "the broker does not take the message now"))
            }
            Some(error) => Outcome::Rejected(refusal(&error, "the broker rejects the message")),
            None => {
                Outcome::Rejected(Refusal::new("AMQP_REJECTED", "the broker rejects the message and does not say why"))
            }
        },
        _ => Outcome::Retry(Refusal::new("AMQP_RELEASED", "the broker gave the message back")),
    }
}

pub(super) fn judge_send(error: SendError, queue: &str) -> Trouble {
    let told = error.to_string();
    let of_queue = |error: &definitions::Error| {
        Trouble::Row(Outcome::Retry(refusal(error, &format!("the broker ended the link to queue {queue}"))))
    };
    match error {
        SendError::MessageSizeExceeded(_) => Trouble::Row(Outcome::Rejected(Refusal::new("AMQP_TOO_LARGE", told))),
        SendError::MessageEncodeError => Trouble::Row(Outcome::Rejected(Refusal::new("AMQP_ENCODE", told))),
        SendError::LinkStateError(
            LinkStateError::RemoteClosedWithError(error) | LinkStateError::RemoteDetachedWithError(error),
        ) => of_queue(&error),
        _ => Trouble::Connection(Refusal::new("AMQP_LOST", told)),
    }
}

/// `amqp:not-found` becomes `AMQP_NOT_FOUND`.
pub(super) fn refusal(error: &definitions::Error, what: &str) -> Refusal {
    let condition = condition(error);
    let code = condition.replace([':', '-'], "_").to_uppercase();
    let why = error.description.as_deref().unwrap_or("without a reason");
    Refusal::new(code, format!("{what}: {condition}: {why}"))
}

fn condition(error: &definitions::Error) -> &str {
    match &error.condition {
        ErrorCondition::Custom(symbol) => symbol.as_str(),
        ErrorCondition::AmqpError(error) => amqp_condition(error),
        ErrorCondition::ConnectionError(_) => "amqp:connection-error",
        ErrorCondition::SessionError(_) => "amqp:session-error",
        ErrorCondition::LinkError(_) => "amqp:link-error",
    }
}

fn amqp_condition(error: &AmqpError) -> &'static str {
    match error {
        AmqpError::InternalError => "amqp:internal-error",
        AmqpError::NotFound => "amqp:not-found",
        AmqpError::UnauthorizedAccess => "amqp:unauthorized-access",
        AmqpError::DecodeError => "amqp:decode-error",
        AmqpError::ResourceLimitExceeded => "amqp:resource-limit-exceeded",
        AmqpError::NotAllowed => "amqp:not-allowed",
        AmqpError::InvalidField => "amqp:invalid-field",
        AmqpError::NotImplemented => "amqp:not-implemented",
        AmqpError::ResourceLocked => "amqp:resource-locked",
        AmqpError::PreconditionFailed => "amqp:precondition-failed",
        AmqpError::ResourceDeleted => "amqp:resource-deleted",
        AmqpError::IllegalState => "amqp:illegal-state",
        AmqpError::FrameSizeTooSmall => "amqp:frame-size-too-small",
    }
}
