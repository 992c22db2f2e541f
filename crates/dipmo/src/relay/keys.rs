//! The keys of a lane that are not in order: one of their rows failed and later ones wait behind it.
//!
//! A copy of what the database holds, read when shards are taken, every second, and after each change.

use std::collections::{HashMap, HashSet};

use super::state::OutboxState;
use crate::store::postgres::relay_rows::OpenHead;

/// How many keys a step re-sends at most.
const REOPEN_MAX: usize = 500;
/// With more open keys than this, new rows wait.
const KEYS_MAX: usize = 20_000;

#[derive(Debug, Default)]
pub(crate) struct OpenKeys {
    /// By destination, then key: so that a look-up borrows.
    heads: HashMap<String, HashMap<String, OpenHead>>,
    full: bool,
    /// Keys whose waiting rows are all in the batch at hand.
    pub(crate) drained: HashSet<Key>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    destination: String,
    key: String,
}

impl Key {
    pub(crate) fn of(head: &OpenHead) -> Self {
        Self { destination: head.destination.clone(), key: head.key.clone() }
    }
}

impl OpenKeys {
    #[allow(clippy::cast_possible_wrap)] // A small constant.
    pub(crate) const READ_MAX: i64 = KEYS_MAX as i64 + 1;
    /// How many rows of a key a step re-sends at most.
    pub(crate) const DRAIN_MAX: i64 = 100;

    pub(crate) fn new(heads: Vec<OpenHead>) -> Self {
        let full = heads.len() > KEYS_MAX;
        let mut by_destination: HashMap<String, HashMap<String, OpenHead>> = HashMap::new();
        for head in heads {
            by_destination.entry(head.destination.clone()).or_default().insert(head.key.clone(), head);
        }
        Self { heads: by_destination, full, drained: HashSet::new() }
    }

    /// A new row of this key has to wait behind those that are open.
    pub(crate) fn blocks(&self, destination: &str, key: &str) -> bool {
        let open = self.heads.get(destination).is_some_and(|keys| keys.contains_key(key));
        let name = || Key { destination: destination.to_owned(), key: key.to_owned() };
        open && (self.drained.is_empty() || !self.drained.contains(&name()))
    }

    /// There are more open keys than were read, so no key is known not to be one.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Failed heads whose time has come.
    pub(crate) fn due(&self) -> Vec<&OpenHead> {
        self.all().filter(|head| head.due && head.state == OutboxState::Retry.name()).take(REOPEN_MAX).collect()
    }

    /// Keys whose first row only waits: what it waited for is settled.
    pub(crate) fn released(&self) -> Vec<&OpenHead> {
        self.all().filter(|head| head.state == OutboxState::Parked.name()).take(REOPEN_MAX).collect()
    }

    fn all(&self) -> impl Iterator<Item = &OpenHead> {
        self.heads.values().flat_map(HashMap::values)
    }
}
