//! Why an input could not be handled, in the terms that decide what happens next.

use std::fmt;

/// How far a message came before it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    ConsumerSerde,
    Business,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::ConsumerSerde => "CONSUMER_SERDE",
            Stage::Business => "BUSINESS",
        }
    }
}

/// What a handler answers when it cannot do its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// May succeed later: retried with backoff, its key waits meanwhile.
    Transient { code: String, message: String },
    /// Can never succeed: DEAD at once.
    Permanent { code: String, message: String },
    /// The bytes cannot be understood: SERDE_ERROR, kept for another try after a fix.
    Undecodable { code: String, message: String },
    /// Already overtaken, nothing to do: IGNORED with the reason.
    Stale { reason: String },
}

impl Failure {
    pub fn transient(code: &str, message: impl Into<String>) -> Self {
        Self::Transient { code: code.to_owned(), message: message.into() }
    }

    pub fn permanent(code: &str, message: impl Into<String>) -> Self {
        Self::Permanent { code: code.to_owned(), message: message.into() }
    }

    pub fn undecodable(code: &str, message: impl Into<String>) -> Self {
        Self::Undecodable { code: code.to_owned(), message: message.into() }
    }

    /// What user code that panicked has failed with.
    pub(crate) fn panicked() -> Self {
        Self::transient("PANIC", "user code panicked: the log has the message")
    }

    /// What happened, in words, without its kind.
    pub fn text(&self) -> &str {
        match self {
            Failure::Transient { message, .. }
            | Failure::Permanent { message, .. }
            | Failure::Undecodable { message, .. } => message,
            Failure::Stale { reason } => reason,
        }
    }

    pub fn stale(reason: impl Into<String>) -> Self {
        Self::Stale { reason: reason.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Transient { code, message } => write!(f, "transient {code}: {message}"),
            Failure::Permanent { code, message } => write!(f, "permanent {code}: {message}"),
            Failure::Undecodable { code, message } => write!(f, "undecodable {code}: {message}"),
            Failure::Stale { reason } => write!(f, "stale: {reason}"),
        }
    }
}

impl std::error::Error for Failure {}

/// So that `?` works on SQL in a handler: what the server may not refuse next time is transient.
impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return Failure::transient("DATABASE", error.to_string());
        };
        let code = db.code().code();
        // Connection, transaction rollback, resources, operator intervention, system, object in use.
        let passing = ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class));
        let message = db.message().to_owned();
        if passing { Failure::transient(code, message) } else { Failure::permanent(code, message) }
    }
}
