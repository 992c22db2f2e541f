//! Time is the database's. A clock passes null to every statement, which then uses `now()`;
//! a manual clock, for tests, passes its own time instead.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use time::OffsetDateTime;

#[derive(Debug, Clone, Default)]
pub struct Clock {
    manual: Option<Arc<Mutex<OffsetDateTime>>>,
    skew: Duration,
}

impl Clock {
    /// The clock of the database server.
    pub fn database() -> Self {
        Self::default()
    }

    /// A clock that stands still until [`Clock::advance`] is called.
    pub fn manual(start: OffsetDateTime) -> Self {
        Self { manual: Some(Arc::new(Mutex::new(start))), skew: Duration::ZERO }
    }

    /// The clock of the database, on a node whose own clock is ahead of it: for tests, which show that
    /// nothing is decided by it.
    pub fn skewed(ahead: Duration) -> Self {
        Self { manual: None, skew: ahead }
    }

    /// What a statement gets for `coalesce($now, now())`: null unless the clock is manual.
    pub fn for_statement(&self) -> Option<OffsetDateTime> {
        self.manual.as_ref().map(|now| *now.lock().expect("no code panics while it holds the clock"))
    }

    /// This node's own idea of the time: good enough to measure with, never to decide by.
    pub fn now(&self) -> OffsetDateTime {
        self.for_statement().unwrap_or_else(|| OffsetDateTime::now_utc() + self.skew)
    }

    /// Moves a manual clock on; a database clock cannot be moved.
    pub fn advance(&self, by: Duration) {
        let manual = self.manual.as_ref().expect("only a manual clock is advanced");
        *manual.lock().expect("no code panics while it holds the clock") += by;
    }
}
