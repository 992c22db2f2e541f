//! The process instances of a batch while it is folded: loaded, decided on, then written once each.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::command::{BatchItemChange, CommandChange};
use crate::inbox::{FiredTimer, JournalEntry, ProcessWrite, Settlement, TimerWrite};
use crate::message::{Message, OutMessage};
use crate::process::{
    Address, DEADLINE, Data, Decision, Failure, Instance, OperatorAction, OperatorVerb, Status, StatusEvent,
    TimerChange, TimerDue,
};
use crate::store::{InstanceKey, Loaded};

/// What a decision adds to the settlement beside the instance itself.
#[derive(Debug)]
pub(super) struct Effects {
    pub(super) outbox: Vec<OutMessage>,
    pub(super) timers: Vec<TimerWrite>,
    commands: Vec<CommandChange>,
    batch_item: Option<BatchItemChange>,
}

impl Effects {
    fn new(process_id: Uuid, key: &str, decision: Decision) -> Self {
        Self {
            outbox: decision.emit,
            timers: timers(process_id, key, decision.timers),
            commands: decision.commands,
            batch_item: decision.batch_item,
        }
    }

    pub(super) fn add_to(self, settlement: &mut Settlement) {
        settlement.outbox.extend(self.outbox);
        settlement.timers.extend(self.timers);
        settlement.commands.extend(self.commands);
        settlement.batch_items.extend(self.batch_item);
    }
}

#[derive(Debug)]
pub(super) struct Instances<'a> {
    loaded: &'a Loaded,
    touched: HashMap<InstanceKey, Touched>,
    /// In the order of the first touch, so that writes do not depend on a hash.
    order: Vec<InstanceKey>,
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
    action: Option<&'a OperatorAction>,
}

impl<'a> Instances<'a> {
    pub(super) fn new(loaded: &'a Loaded) -> Self {
        Self { loaded, touched: HashMap::new(), order: Vec::new(), journal: Vec::new() }
    }

    /// The key behind an address; `None` for an id that nobody has.
    pub(super) fn key(&self, address: Address, tenant: &str) -> Option<InstanceKey> {
        match address {
            Address::Key { process_type, business_key } => {
                Some(InstanceKey { process_type, tenant: tenant.to_owned(), business_key })
            }
            Address::Id(id) => self.loaded.by_id.get(&id).cloned(),
        }
    }

    pub(super) fn get(&self, key: &InstanceKey) -> Option<&Instance> {
        self.touched.get(key).map(|touched| &touched.instance).or_else(|| self.loaded.instances.get(key))
    }

    pub(super) fn apply(
        &mut self,
        message: &Message,
        key: Option<InstanceKey>,
        new_id: Option<Uuid>,
        mut decision: Decision,
    ) -> Result<Effects, Failure> {
        let Some(key) = key else {
            return Err(Failure::permanent("NO_INSTANCE", "decided on an instance that is not there"));
        };
        let cause = Cause { kind: "MESSAGE", message_id: Some(&message.message_id), timer: None, action: None };
        let new = (new_id, Some(message.correlation().to_owned()));
        let id = self.advance(key, new, &decision, &cause)?;
        decision.emit.iter_mut().for_each(|out| out.caused_by(message));
        Ok(Effects::new(id, &message.key, decision))
    }

    pub(super) fn apply_timer(
        &mut self,
        timer: &FiredTimer,
        instance: &Instance,
        decision: Decision,
    ) -> Result<Effects, Failure> {
        let cause = Cause { kind: "TIMER", message_id: None, timer: Some(&timer.name), action: None };
        self.apply_by_itself(instance, decision, &cause)
    }

    fn apply_operator(
        &mut self,
        action: &OperatorAction,
        instance: &Instance,
        decision: Decision,
    ) -> Result<Effects, Failure> {
        let cause = Cause { kind: "OPERATOR", message_id: None, timer: None, action: Some(action) };
        self.apply_by_itself(instance, decision, &cause)
    }

    /// No message caused it: what is sent belongs to the instance.
    fn apply_by_itself(
        &mut self,
        instance: &Instance,
        mut decision: Decision,
        cause: &Cause<'_>,
    ) -> Result<Effects, Failure> {
        let new = (None, instance.correlation_id.clone());
        let id = self.advance(InstanceKey::of(instance), new, &decision, cause)?;
        for out in &mut decision.emit {
            if out.tenant.is_empty() {
                out.tenant.clone_from(&instance.tenant);
            }
            out.correlation_id = out.correlation_id.take().or_else(|| instance.correlation_id.clone());
        }
        Ok(Effects::new(id, &instance.business_key, decision))
    }

    fn advance(
        &mut self,
        key: InstanceKey,
        (new_id, correlation_id): (Option<Uuid>, Option<String>),
        decision: &Decision,
        cause: &Cause<'_>,
    ) -> Result<Uuid, Failure> {
        let current = self.get(&key);
        let status = next_status(current.map(|instance| instance.status), decision)?;
        let expected = match self.touched.get(&key) {
            Some(touched) => touched.expected,
            None => current.map(|instance| instance.version),
        };
        let from_state = current.map(|instance| instance.state.clone());
        let was = current.map(|instance| instance.status);
        let mut instance = current.cloned().unwrap_or_else(|| Instance {
            id: new_id.unwrap_or_else(Uuid::now_v7),
            process_type: key.process_type.clone(),
            tenant: key.tenant.clone(),
            business_key: key.business_key.clone(),
            state: String::new(),
            status: Status::New,
            version: 0,
            data: Data::default(),
            deadline: None,
            correlation_id,
        });
        instance.version += 1;
        instance.status = status;
        decision.state().clone_into(&mut instance.state);
        if let Some(data) = &decision.data {
            instance.data.clone_from(data);
        }
        if status == Status::Compensating && was != Some(Status::Compensating) {
            metrics::counter!("compensations_total", "type" => instance.process_type.clone()).increment(1);
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
                "type" => instance.process_type.clone(), "state" => to_state.clone())
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
                by: cause.action.map(|action| (action.actor.clone(), action.reason.clone())),
            });
        }
    }

    pub(super) fn into_settlement(mut self, settlement: &mut Settlement) {
        for key in &self.order {
            let Touched { instance, expected } =
                self.touched.remove(key).expect("order and touched are filled together");
            settlement.processes.push(ProcessWrite { instance, expected });
        }
        settlement.journal = self.journal;
        keep_last(&mut settlement.timers);
    }
}

/// What an operator's action on an instance writes.
pub(crate) fn settle_operator(
    instance: &Instance,
    action: &OperatorAction,
    decision: Decision,
    now: OffsetDateTime,
) -> Result<Settlement, Failure> {
    let mut loaded = Loaded::nothing(now);
    loaded.instances.insert(InstanceKey::of(instance), instance.clone());
    let mut instances = Instances::new(&loaded);
    let mut settlement = Settlement::default();
    instances.apply_operator(action, instance, decision)?.add_to(&mut settlement);
    instances.into_settlement(&mut settlement);
    Ok(settlement)
}

fn next_status(current: Option<Status>, decision: &Decision) -> Result<Status, Failure> {
    let current = current.unwrap_or(Status::New);
    if decision.remark {
        return Ok(current);
    }
    let event = match (decision.status, current) {
        (Status::Succeeded, _) => StatusEvent::Succeed,
        (Status::Failed, _) => StatusEvent::Fail,
        (Status::Compensated, _) => StatusEvent::Compensated,
        (Status::Compensating, Status::Compensating) => StatusEvent::Advance,
        (Status::Compensating, _) => StatusEvent::Compensate,
        (Status::Paused, Status::Paused) => StatusEvent::Advance,
        (Status::Paused, _) => StatusEvent::Pause,
        (Status::Running, Status::Paused | Status::Failed) => StatusEvent::Resume,
        (Status::New | Status::Running, _) => StatusEvent::Advance,
    };
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
    if let Some(action) = cause.action {
        detail.insert("verb".to_owned(), action.verb.name().into());
        if let OperatorVerb::ForceComplete { evidence } = &action.verb {
            detail.insert("evidence".to_owned(), evidence.as_str().into());
        }
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
