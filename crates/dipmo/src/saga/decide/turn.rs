//! One decision in the making.

use std::cell::OnceCell;

use serde_json::{Value, json};
use time::OffsetDateTime;
use uuid::Uuid;

use super::Context;
use crate::command::{BatchItemChange, BatchItemStatus, CommandChange};
use crate::message::{Message, OutMessage};
use crate::process::{Decision, Instance, Status, TimerChange, TimerDue};
use crate::saga::data::{SagaData, StepRecord};
use crate::saga::expression::Scope;

/// The name of a saga's timer.
pub(super) const ALARM: &str = "alarm";

/// What led to the decision, as far as messages tell it on.
#[derive(Debug, Clone, Default)]
pub(super) struct Cause {
    pub(super) message_id: Option<String>,
    /// Trace id and span id.
    pub(super) trace: Option<(String, String)>,
}

impl Cause {
    pub(super) fn of(message: &Message) -> Self {
        let trace = message.traceparent.as_deref().and_then(|parent| {
            let mut parts = parent.split('-').skip(1);
            Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
        });
        Self { message_id: Some(message.message_id.clone()), trace }
    }
}

#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) context: Context<'a>,
    pub(super) id: Uuid,
    pub(super) tenant: String,
    pub(super) key: String,
    /// The variable `saga` of expressions, once one is evaluated.
    saga: OnceCell<Value>,
    pub(super) data: SagaData,
    pub(super) cause: Cause,
    /// The version that the decision makes; whatever it sends once has an id made from it.
    pub(super) version: i64,
    pub(super) state: String,
    pub(super) status: Status,
    path: Vec<String>,
    pub(super) emit: Vec<OutMessage>,
    pub(super) commands: Vec<CommandChange>,
    batch_item: Option<BatchItemChange>,
    /// The saga had ended, and goes on.
    pub(super) reopens: bool,
    notes: Vec<String>,
}

impl<'a> Turn<'a> {
    pub(super) fn new(
        context: &Context<'a>,
        (id, tenant, key): (Uuid, &str, &str),
        data: SagaData,
        cause: Cause,
    ) -> Self {
        Self {
            context: *context,
            id,
            tenant: tenant.to_owned(),
            key: key.to_owned(),
            saga: OnceCell::new(),
            data,
            cause,
            version: 1,
            state: String::new(),
            status: Status::New,
            path: Vec::new(),
            emit: Vec::new(),
            commands: Vec::new(),
            batch_item: None,
            reopens: false,
            notes: Vec::new(),
        }
    }

    pub(super) fn on(context: &Context<'a>, current: &Instance, data: SagaData, cause: Cause) -> Self {
        let identity = (current.id, current.tenant.as_str(), current.business_key.as_str());
        let turn = Self::new(context, identity, data, cause);
        Self { version: current.version + 1, state: current.state.clone(), status: current.status, ..turn }
    }

    pub(super) fn scope(&self) -> Scope<'_> {
        Scope {
            input: &self.data.input,
            records: &self.data.steps,
            saga: self.saga.get_or_init(|| json!({ "id": self.id, "key": self.key, "tenant": self.tenant })),
            steps: &self.context.compiled.step_names,
        }
    }

    pub(super) fn record(&mut self, name: &str) -> &mut StepRecord {
        if !self.data.steps.contains_key(name) {
            let command_id = self.context.compiled.command_id(self.id, name);
            self.data.steps.insert(name.to_owned(), StepRecord::new(command_id));
        }
        self.data.steps.get_mut(name).expect("it is there by now")
    }

    pub(super) fn go(&mut self, state: &str, status: Status) {
        state.clone_into(&mut self.state);
        self.path.push(state.to_owned());
        self.status = status;
    }

    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Nothing waits for the step any more.
    pub(super) fn stop_waiting(&mut self, step: &str) {
        if let Some(record) = self.data.steps.get_mut(step) {
            record.due = None;
        }
    }

    /// When time moves the saga on, if nothing else does before.
    pub(super) fn due(&self) -> Option<OffsetDateTime> {
        let waits = matches!(self.status, Status::Running | Status::Compensating);
        self.data.steps.get(&self.state).filter(|record| waits && record.is_open())?.due
    }

    /// The one timer of a saga. It is left where it is when something later is waited for, and set anew if it
    /// fires before that: most sagas have ended by then, and moving it would cost a row with every step.
    pub(super) fn set_alarm(&mut self) -> Vec<TimerChange> {
        let (due, alarm) = (self.due(), self.data.alarm);
        if due.is_some() && alarm.is_some() && alarm <= due {
            return Vec::new();
        }
        self.data.alarm = due;
        match (due, alarm) {
            (Some(due), _) => vec![TimerChange::Set { name: ALARM.to_owned(), due: TimerDue::At(due) }],
            (None, Some(_)) => vec![TimerChange::Cancel { name: ALARM.to_owned() }],
            (None, None) => Vec::new(),
        }
    }

    pub(super) fn batch_item(&mut self, status: BatchItemStatus, error: Option<String>) {
        self.batch_item = self.data.batch.as_ref().map(|batch| BatchItemChange {
            batch_id: batch.id,
            item_id: batch.item.clone(),
            status,
            error,
            reopens: self.reopens,
        });
    }

    pub(super) fn into_decision(mut self) -> Decision {
        if self.path.is_empty() {
            self.path.push(self.state.clone());
        }
        let timers = self.set_alarm();
        let mut decision = Decision::go(String::new()).data(&self.data);
        decision.path = self.path;
        decision.status = self.status;
        decision.emit = self.emit;
        decision.timers = timers;
        decision.commands = self.commands;
        decision.batch_item = self.batch_item;
        decision.note = (!self.notes.is_empty()).then(|| self.notes.join("; "));
        decision
    }

    /// Nothing moves; what was learnt is kept.
    pub(super) fn into_remark(self, current: &Instance, note: impl Into<String>) -> Decision {
        let mut decision = Decision::remark(current, note).data(&self.data);
        decision.emit = self.emit;
        decision.commands = self.commands;
        decision
    }
}
