//! The one error of the library: a kind that says what the caller should do, our words, the cause.

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do. A new kind needs a new answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The other side is away or overloaded: try the same again later.
    Unavailable,
    /// Another node owns the bucket now: drop the work, nothing was written.
    LeaseLost,
    /// This input can never succeed as it is: park it for an operator.
    Poison,
    /// The request or the configuration is wrong: tell whoever asked.
    Invalid,
    /// The thing asked for does not exist.
    NotFound,
    /// The thing changed in the meantime: look again, then decide again.
    Conflict,
    /// A broken invariant of ours: stop, loudly.
    Bug,
}

/// Carries no payload and no secret, so that it may be logged as it is.
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    pub fn invalid(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, context)
    }

    pub fn not_found(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, context)
    }

    pub fn lease_lost(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::LeaseLost, context)
    }

    #[must_use]
    pub fn source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same, where the caller knows better what is to be done.
    #[must_use]
    pub(crate) fn into_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub fn is_unavailable(&self) -> bool {
        self.kind == ErrorKind::Unavailable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        let mut cause = self.source.as_deref().map(|s| s as &dyn std::error::Error);
        while let Some(error) = cause {
            match error.downcast_ref::<tokio_postgres::Error>().and_then(|e| e.as_db_error()) {
                // The server's message without its detail: details quote row values.
                Some(db) => return write!(f, ": {} ({})", db.message(), db.code().code()),
                None => write!(f, ": {error}")?,
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as &(dyn std::error::Error + 'static))
    }
}
