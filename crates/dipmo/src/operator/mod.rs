//! What an operator can see and do: the console, the command line and tests call these functions.
//!
//! Reads are bounded: lists are keyset pages, counts stop at 10 000, statements have a time limit.
//! Every change is one transaction that also writes who did it and why; it is guarded by the state
//! that the operator was shown, and a refusal says what to do instead.
//! Not promised: that a list is a snapshot; messages move while one looks.

pub mod audit;
pub mod batches;
pub mod doctor;
mod doctor_readers;
pub mod inbox;
pub mod journey;
pub mod keys;
pub mod outbox;
pub mod processes;
pub mod relay;
pub mod sagas;
mod status;

pub use status::{Status, status};

pub use crate::store::postgres::operator::{COUNT_MAX, Count, Payload};
pub use crate::store::postgres::operator_status::{
    ConsumerStatus, ExceptionStatus, LaneStatus, NodeStatus, ProcessStatus,
};

use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};

const PAGE_LIMIT_DEFAULT: u32 = 50;
/// A page is for eyes; whoever wants everything follows the pages.
const PAGE_LIMIT_MAX: u32 = 1_000;
const TEXT_CHARS_MAX: usize = 1_000;

/// A part of a list: at most `limit` rows after the row `after`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<K> {
    pub limit: u32,
    pub after: Option<K>,
}

impl<K> Default for Page<K> {
    fn default() -> Self {
        Self { limit: PAGE_LIMIT_DEFAULT, after: None }
    }
}

impl<K> Page<K> {
    /// One row more than the page, to see whether there is a next one.
    fn probe(&self) -> Result<i64> {
        if self.limit == 0 || self.limit > PAGE_LIMIT_MAX {
            return Err(Error::invalid(format!("a page has 1 to {PAGE_LIMIT_MAX} rows, not {}", self.limit)));
        }
        Ok(i64::from(self.limit) + 1)
    }

    fn listing<T>(&self, mut items: Vec<T>, key: impl Fn(&T) -> String) -> Listing<T> {
        let more = items.len() > self.limit as usize;
        items.truncate(self.limit as usize);
        let next = if more { items.last().map(key) } else { None };
        Listing { items, next }
    }
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listing<T> {
    pub items: Vec<T>,
    /// Where the next page begins: the `after` of the next request.
    pub next: Option<String>,
}

/// Who changes something, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    actor: String,
    reason: String,
}

impl Change {
    /// Refuses a change that nobody answers for.
    pub fn new(actor: impl Into<String>, reason: impl Into<String>) -> Result<Self> {
        let (actor, reason) = (actor.into().trim().to_owned(), reason.into().trim().to_owned());
        for (what, text) in [("actor", &actor), ("reason", &reason)] {
            if text.is_empty() {
                return Err(Error::invalid(format!("a change needs its {what}")));
            }
            if text.chars().count() > TEXT_CHARS_MAX || text.contains('\0') {
                return Err(Error::invalid(format!(
                    "the {what} must have at most {TEXT_CHARS_MAX} characters and no NUL"
                )));
            }
        }
        Ok(Self { actor, reason })
    }

    pub fn actor(&self) -> &str {
        &self.actor
    }

    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Changed {
    pub action: &'static str,
    pub target: String,
    /// What happens next, in a sentence.
    pub note: String,
    /// As in the audit row.
    pub detail: Value,
}

fn conflict(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Conflict, why)
}

/// Between look and change, somebody else was quicker.
fn moved(target: &str) -> Error {
    conflict(format!("{target} changed in the meantime: look at it again, then decide again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_without_actor_or_reason_is_refused() {
        assert!(Change::new("ann", " ").is_err());
        assert!(Change::new("", "because").is_err());
        assert!(Change::new("ann", "x".repeat(1_001)).is_err());
        assert_eq!(Change::new(" ann ", " because ").unwrap().actor(), "ann");
    }

    #[test]
    fn a_page_knows_whether_there_is_a_next_one() {
        let page: Page<i64> = Page { limit: 2, after: None };
        assert_eq!(page.listing(vec![1, 2, 3], i32::to_string).next.as_deref(), Some("2"));
        assert_eq!(page.listing(vec![1, 2], i32::to_string).next, None);
        assert!(Page::<i64> { limit: 0, after: None }.probe().is_err());
    }
}
