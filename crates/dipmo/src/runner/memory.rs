//! Instances as this process last wrote them, so that most need not be read before the next decision.
//!
//! Nothing rests on it. Whoever decides on an instance from here writes it under the version that it has here,
//! which is refused if somebody else moved it meanwhile; and a decision that writes nothing is made again on
//! what the database holds.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::inbox::ProcessWrite;
use crate::process::Instance;
use crate::store::{InstanceKey, LoadRequest, Loaded};

/// When so many are remembered, those that were not asked for since the last time are forgotten.
const KEPT_MAX: usize = 5_000;
/// What is larger is read again.
const DATA_BYTES_MAX: usize = 4 * 1024;

#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Uuid, Instance>,
    old: HashMap<Uuid, Instance>,
    /// Of all in both; it may name some that are gone.
    ids: HashMap<InstanceKey, Uuid>,
}

impl Memory {
    /// Takes what is remembered out of the request. Returns the instances and how they were asked for.
    pub(super) fn recall(&self, request: &mut LoadRequest) -> Recalled {
        let mut generations = self.generations();
        let mut recalled = Recalled::default();
        request.ids.retain(|id| recalled.take(generations.get(*id), true));
        request.instances.retain(|key| recalled.take(generations.by_key(key), false));
        recalled
    }

    /// They were committed so. Those that have ended are not asked for again, as a rule.
    pub(super) fn keep(&self, written: Vec<ProcessWrite>) {
        let mut generations = self.generations();
        for ProcessWrite { instance, .. } in written {
            if instance.status.is_final() || instance.data.as_str().len() > DATA_BYTES_MAX {
                generations.forget(&instance);
            } else {
                generations.keep(instance);
            }
        }
    }

    /// None of it changes by panicking half-way: a lock that was poisoned holds what it held.
    fn generations(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn get(&mut self, id: Uuid) -> Option<Instance> {
        if let Some(instance) = self.old.remove(&id) {
            self.young.insert(id, instance);
        }
        self.young.get(&id).cloned()
    }

    fn by_key(&mut self, key: &InstanceKey) -> Option<Instance> {
        let id = *self.ids.get(key)?;
        self.get(id)
    }

    fn keep(&mut self, instance: Instance) {
        if self.young.len() >= KEPT_MAX {
            self.old = std::mem::take(&mut self.young);
            self.ids.retain(|_, id| self.old.contains_key(id));
        }
        let known = self.old.remove(&instance.id).is_some() || self.young.contains_key(&instance.id);
        if !known {
            self.ids.insert(InstanceKey::of(&instance), instance.id);
        }
        self.young.insert(instance.id, instance);
    }

    fn forget(&mut self, instance: &Instance) {
        self.young.remove(&instance.id);
        self.old.remove(&instance.id);
        self.ids.remove(&InstanceKey::of(instance));
    }
}

/// What was remembered of a batch.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    /// And whether it was asked for by its id.
    instances: Vec<(Instance, bool)>,
}

impl Recalled {
    /// True if it is still to be read.
    fn take(&mut self, found: Option<Instance>, by_id: bool) -> bool {
        let Some(instance) = found else { return true };
        self.instances.push((instance, by_id));
        false
    }

    /// Adds them to what was read. Returns their ids.
    pub(super) fn add_to(self, loaded: &mut Loaded) -> HashSet<Uuid> {
        let ids = self.instances.iter().map(|(instance, _)| instance.id).collect();
        for (instance, by_id) in self.instances {
            let key = InstanceKey::of(&instance);
            if by_id {
                loaded.by_id.insert(instance.id, key.clone());
            }
            loaded.instances.insert(key, instance);
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Data, Status};

    fn written(key: usize, status: Status, data: &str) -> ProcessWrite {
        let instance = Instance {
            id: Uuid::from_u128(key as u128),
            process_type: "T".into(),
            tenant: String::new(),
            business_key: key.to_string(),
            state: "S".into(),
            status,
            version: 1,
            data: Data::of(&data),
            deadline: None,
            correlation_id: None,
        };
        ProcessWrite { instance, expected: None }
    }

    fn open(key: usize) -> ProcessWrite {
        written(key, Status::Running, "")
    }

    /// What is left to be read of an instance that is asked for by its id and another by its key.
    fn left(memory: &Memory, id: usize, key: usize) -> (usize, usize) {
        let mut request =
            LoadRequest { ids: vec![Uuid::from_u128(id as u128)], instances: Vec::new(), ..LoadRequest::default() };
        request.instances.push(InstanceKey::of(&open(key).instance));
        let recalled = memory.recall(&mut request);
        let mut loaded = Loaded::nothing(time::OffsetDateTime::UNIX_EPOCH);
        let ids = recalled.add_to(&mut loaded);
        assert_eq!(ids.len() + request.ids.len() + request.instances.len(), 2);
        assert_eq!(loaded.instances.len(), ids.len());
        assert_eq!(loaded.by_id.len(), 1 - request.ids.len(), "found by its id if it was asked for so");
        (request.ids.len(), request.instances.len())
    }

    #[test]
    fn what_is_open_and_small_is_remembered() {
        let memory = Memory::default();
        memory.keep(vec![open(1), open(2)]);
        assert_eq!(left(&memory, 1, 2), (0, 0));
        assert_eq!(left(&memory, 3, 4), (1, 1));
        memory.keep(vec![written(1, Status::Succeeded, ""), written(2, Status::Running, &"x".repeat(DATA_BYTES_MAX))]);
        assert_eq!(left(&memory, 1, 2), (1, 1), "one has ended, one has grown");
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let memory = Memory::default();
        memory.keep(vec![open(0), open(1)]);
        for key in 2..=KEPT_MAX {
            memory.keep(vec![open(key)]);
        }
        assert_eq!(left(&memory, 0, 2), (0, 0), "asked for, so it stays");
        for key in KEPT_MAX..KEPT_MAX * 2 {
            memory.keep(vec![open(key)]);
        }
        assert_eq!(left(&memory, 1, 0), (1, 0));
        let generations = memory.generations();
        assert!(generations.young.len() + generations.old.len() <= KEPT_MAX * 2);
        assert!(generations.ids.len() <= KEPT_MAX * 2);
    }
}
