//! What becomes of a received message, and everything that one transaction writes about a batch.

mod settlement;
mod state;

pub(crate) use settlement::RELAY_SCOPE;
pub use settlement::{
    Arrival, Disposition, Fault, Fence, FiredTimer, Held, JournalEntry, Park, ProcessWrite, Settled, Settlement,
    Stored, TimerWrite,
};
pub use state::{IllegalTransition, InboxEvent, InboxState};
