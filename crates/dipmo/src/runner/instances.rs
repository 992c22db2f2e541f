//! The process instances of a batch while it is folded: loaded, decided on, then written once each.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::inbox::{FiredTimer, JournalEntry, ProcessWrite, Settlement, TimerWrite};
use crate::message::{Message, OutMessage};
use crate::process::{DEADLINE, Decision, Failure, Instance, Status, StatusEvent, TimerChange, TimerDue};
use crate::store::Loaded;

/// What a decision adds to the settlement beside the instance itself.
#[derive(Debug)]
pub(super) struct Effects {
    pub(super) outbox: Vec<OutMessage>,
    pub(super) timers: Vec<TimerWrite>,
}

#[derive(Debug)]
pub(super) struct Instances<'a> {
    process_type: &'a str,
    loaded: &'a Loaded,
    touched: HashMap<(String, String), Touched>,
    /// In the order of the first touch, so that writes do not depend on a hash.
    order: Vec<(String, String)>,
    journal: Vec<JournalEntry>,
}

#[derive(Debug)]
struct Touched {
    instance: Instance,
    expected: Option<i64>,
}

/// Where a decision came from.
struct Cause<'a> {
    kind: &'static str,
    message_id: Option<&'a str>,
    timer: Option<&'a str>,
}

impl<'a> Instances<'a> {
    pub(super) fn new(process_type: &'a str, loaded: &'a Loaded) -> Self {
        Self { process_type, loaded, touched: HashMap::new(), order: Vec::new(), journal: Vec::new() }
    }

    pub(super) fn get(&self, tenant: &str, business_key: &str) -> Option<&Instance> {
        let key = (tenant.to_owned(), business_key.to_owned());
        self.touched.get(&key).map(|touched| &touched.instance).or_else(|| self.loaded.instances.get(&key))
    }

    pub(super) fn apply(
        &mut self,
        message: &Message,
        business_key: &str,
        decision: Decision,
    ) -> Result<Effects, Failure> {
        let key = (message.tenant.clone(), business_key.to_owned());
        let cause = Cause { kind: "MESSAGE", message_id: Some(&message.message_id), timer: None };
        let correlation = Some(message.correlation().to_owned());
        let id = self.advance(key, correlation, &decision, &cause)?;
        let mut outbox = decision.emit;
        outbox.iter_mut().for_each(|out| out.caused_by(message));
        Ok(Effects { outbox, timers: timers(id, &message.key, decision.timers) })
    }

    pub(super) fn apply_timer(
        &mut self,
        timer: &FiredTimer,
        instance: &Instance,
        decision: Decision,
    ) -> Result<Effects, Failure> {
        let key = (instance.tenant.clone(), instance.business_key.clone());
        let cause = Cause { kind: "TIMER", message_id: None, timer: Some(&timer.name) };
        let id = self.advance(key, instance.correlation_id.clone(), &decision, &cause)?;
        let mut outbox = decision.emit;
        for out in &mut outbox {
            if out.tenant.is_empty() {
                out.tenant.clone_from(&instance.tenant);
            }
            out.correlation_id = out.correlation_id.take().or_else(|| instance.correlation_id.clone());
        }
        Ok(Effects { outbox, timers: timers(id, &instance.business_key, decision.timers) })
    }

    fn advance(
        &mut self,
        key: (String, String),
        correlation_id: Option<String>,
        decision: &Decision,
        cause: &Cause<'_>,
    ) -> Result<Uuid, Failure> {
        let current = self.get(&key.0, &key.1);
        let status = next_status(current.map(|instance| instance.status), decision.status)?;
        let expected = match self.touched.get(&key) {
            Some(touched) => touched.expected,
            None => current.map(|instance| instance.version),
        };
        let from_state = current.map(|instance| instance.state.clone());
        let mut instance = current.cloned().unwrap_or_else(|| Instance {
            id: Uuid::now_v7(),
            tenant: key.0.clone(),
            business_key: key.1.clone(),
            state: String::new(),
            status: Status::New,
            version: 0,
            data: Value::Null,
            deadline: None,
            correlation_id,
        });
        instance.version += 1;
        instance.status = status;
        decision.state().clone_into(&mut instance.state);
        if let Some(data) = &decision.data {
            instance.data.clone_from(data);
        }
        set_deadline(&mut instance, decision);
        self.journal(&instance, from_state, decision, cause);
        let id = instance.id;
        if self.touched.insert(key.clone(), Touched { instance, expected }).is_none() {
            self.order.push(key);
        }
        Ok(id)
    }

    /// A line for each state passed through; what the decision did stands in the last.
    fn journal(&mut self, instance: &Instance, from: Option<String>, decision: &Decision, cause: &Cause<'_>) {
        let mut from_state = from;
        let last = decision.path.len() - 1;
        for (n, to_state) in decision.path.iter().enumerate() {
            metrics::counter!("dipmo_process_transitions_total",
                "type" => self.process_type.to_owned(), "state" => to_state.clone())
            .increment(1);
            self.journal.push(JournalEntry {
                process_id: instance.id,
                version: instance.version,
                kind: cause.kind,
                from_state: from_state.replace(to_state.clone()),
                to_state: to_state.clone(),
                status: if n == last { instance.status } else { Status::Running },
                message_id: cause.message_id.map(str::to_owned),
                detail: (n == last).then(|| detail(decision, cause)).flatten(),
            });
        }
    }

    pub(super) fn into_settlement(mut self, settlement: &mut Settlement) {
        for key in &self.order {
            let Touched { instance, expected } =
                self.touched.remove(key).expect("order and touched are filled together");
            settlement.processes.push(ProcessWrite {
                id: instance.id,
                tenant: instance.tenant,
                business_key: instance.business_key,
                state: instance.state,
                status: instance.status,
                expected,
                version: instance.version,
                data: instance.data,
                deadline: instance.deadline,
                correlation_id: instance.correlation_id,
            });
        }
        settlement.journal = self.journal;
        keep_last(&mut settlement.timers);
    }
}

fn next_status(current: Option<Status>, wanted: Status) -> Result<Status, Failure> {
    let event = match wanted {
        Status::Succeeded => StatusEvent::Succeed,
        Status::Failed => StatusEvent::Fail,
        Status::Compensating => StatusEvent::Compensate,
        Status::Compensated => StatusEvent::Compensated,
        Status::New | Status::Running | Status::Paused => StatusEvent::Advance,
    };
    let current = current.unwrap_or(Status::New);
    current.next(event).map_err(|illegal| Failure::permanent("ILLEGAL_STATUS", illegal.to_string()))
}

fn set_deadline(instance: &mut Instance, decision: &Decision) {
    for change in &decision.timers {
        match change {
            TimerChange::Set { name, due: TimerDue::At(at) } if name == DEADLINE => instance.deadline = Some(*at),
            TimerChange::Cancel { name } if name == DEADLINE => instance.deadline = None,
            _ => {}
        }
    }
    if instance.status.is_final() {
        instance.deadline = None;
    }
}

fn detail(decision: &Decision, cause: &Cause<'_>) -> Option<Value> {
    let emitted: Vec<Value> =
        decision.emit.iter().map(|m| json!({ "type": m.event_type, "to": m.destination.to_string() })).collect();
    let mut detail = serde_json::Map::new();
    if !emitted.is_empty() {
        detail.insert("emitted".to_owned(), emitted.into());
    }
    if let Some(timer) = cause.timer {
        detail.insert("timer".to_owned(), timer.into());
    }
    if let Some(note) = &decision.note {
        detail.insert("note".to_owned(), note.as_str().into());
    }
    (!detail.is_empty()).then_some(Value::Object(detail))
}

/// Of several changes to one timer the last counts.
fn keep_last(changes: &mut Vec<TimerWrite>) {
    let mut seen = HashSet::new();
    changes.reverse();
    changes.retain(|change| seen.insert((change.process_id, change.name.clone())));
    changes.reverse();
}

fn timers(process_id: Uuid, key: &str, changes: Vec<TimerChange>) -> Vec<TimerWrite> {
    let write = |change| match change {
        TimerChange::Set { name, due } => TimerWrite { process_id, name, key: key.to_owned(), due: Some(due) },
        TimerChange::Cancel { name } => TimerWrite { process_id, name, key: key.to_owned(), due: None },
    };
    changes.into_iter().map(write).collect()
}
