//! Batches: many sagas that are started together and watched as one.
//!
//! [`BatchStarter`] turns lists of items into sagas, [`BatchWatcher`] says how far a batch is and when it
//! has ended. How an item fares is written by the decisions of its saga.

mod request;
mod starter;
mod watcher;

pub use request::{BatchItem, BatchItemsRequested};
pub use starter::BatchStarter;
pub use watcher::{BATCH_COMPLETED, BatchWatcher};

/// Where lists of items are sent to.
pub const BATCH_QUEUE: &str = "APP.BATCH.START.Q";
/// The consumer that takes them.
pub const BATCH_CONSUMER: &str = "batches";

/// How a batch stands: one enum, repeated by a CHECK in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchStatus {
    New,
    Running,
    Succeeded,
    /// Not one item succeeded.
    Failed,
    /// Some did, some did not.
    Partial,
}

impl BatchStatus {
    pub const ALL: [BatchStatus; 5] =
        [BatchStatus::New, BatchStatus::Running, BatchStatus::Succeeded, BatchStatus::Failed, BatchStatus::Partial];

    pub fn name(self) -> &'static str {
        match self {
            BatchStatus::New => "NEW",
            BatchStatus::Running => "RUNNING",
            BatchStatus::Succeeded => "SUCCEEDED",
            BatchStatus::Failed => "FAILED",
            BatchStatus::Partial => "PARTIAL",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    pub fn is_ended(self) -> bool {
        matches!(self, BatchStatus::Succeeded | BatchStatus::Failed | BatchStatus::Partial)
    }

    /// What the items make of their batch; `expected` is how many there will be, once that is known.
    pub fn of(items: Items, expected: Option<i64>) -> Self {
        let all_here = expected.is_some_and(|expected| items.all() >= expected);
        match items {
            _ if !all_here || items.open > 0 => BatchStatus::Running,
            Items { failed: 0, .. } => BatchStatus::Succeeded,
            Items { succeeded: 0, .. } => BatchStatus::Failed,
            _ => BatchStatus::Partial,
        }
    }
}

/// The items of a batch, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Items {
    pub open: i64,
    pub succeeded: i64,
    /// Those that timed out included.
    pub failed: i64,
}

impl Items {
    pub fn all(self) -> i64 {
        self.open + self.succeeded + self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_ends_when_all_its_items_are_here_and_have_ended() {
        let of = |open, succeeded, failed, expected| BatchStatus::of(Items { open, succeeded, failed }, expected);
        assert_eq!(of(0, 3, 0, None), BatchStatus::Running, "more may come");
        assert_eq!(of(0, 3, 0, Some(4)), BatchStatus::Running, "one is missing");
        assert_eq!(of(1, 3, 0, Some(4)), BatchStatus::Running);
        assert_eq!(of(0, 4, 0, Some(4)), BatchStatus::Succeeded);
        assert_eq!(of(0, 0, 4, Some(4)), BatchStatus::Failed);
        assert_eq!(of(0, 1, 3, Some(4)), BatchStatus::Partial);
        assert_eq!(of(0, 0, 0, Some(0)), BatchStatus::Succeeded, "nothing was to be done");
    }
}
