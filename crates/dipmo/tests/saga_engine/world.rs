//! A world in memory: one orchestrator, its instances, timers and command rows, and everything it sends.
//!
//! It keeps the rules that the store keeps: dedupe by message id, versions that grow by one, statuses that
//! only move as the enum allows. It moves nothing by itself; a test says what is delivered when.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use dipmo::Message;
use dipmo::command::envelope::{header, kind};
use dipmo::command::{BatchItemChange, CommandChange, CommandEvent, CommandStatus, Envelope};
use dipmo::failure::Failure;
use dipmo::process::{
    Address, Data, Decision, Input, Instance, OperatorAction, OperatorVerb, Process, Status, StatusEvent, TimerChange,
    TimerDue,
};
use dipmo::saga::{Compiled, Definition, Orchestrator, Registry, SagaData};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::macros::datetime;
use uuid::Uuid;

pub(crate) const SAGA: Uuid = Uuid::from_u128(0x018f_0000_0000_7000_8000_0000_0000_0001);
pub(crate) const CALLER: &str = "KAFKA:callers";
pub(crate) const NOON: OffsetDateTime = datetime!(2025-11-02 12:00 UTC);

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) status: CommandStatus,
    pub(crate) parked: bool,
    pub(crate) attempts: u32,
    pub(crate) result: Option<Value>,
    pub(crate) error: Option<String>,
}

pub(crate) struct World {
    pub(crate) orchestrator: Orchestrator,
    pub(crate) now: OffsetDateTime,
    pub(crate) instance: Option<Instance>,
    pub(crate) timers: BTreeMap<String, OffsetDateTime>,
    /// Everything ever sent, in order: where to, and what.
    pub(crate) sent: Vec<(String, Envelope)>,
    pub(crate) commands: BTreeMap<Uuid, Row>,
    pub(crate) batch_items: Vec<BatchItemChange>,
    /// States and notes as the journal shows them.
    pub(crate) path: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// How many commands the workers have seen.
    pub(crate) handled: usize,
    seen: HashSet<String>,
    answers: u128,
}

impl World {
    pub(crate) fn new(definition: Definition) -> Self {
        let mut registry = Registry::new();
        registry.add(compiled(definition), true);
        Self {
            orchestrator: Orchestrator::new(registry),
            now: NOON,
            instance: None,
            timers: BTreeMap::new(),
            sent: Vec::new(),
            commands: BTreeMap::new(),
            batch_items: Vec::new(),
            path: Vec::new(),
            notes: Vec::new(),
            handled: 0,
            seen: HashSet::new(),
            answers: 0,
        }
    }

    pub(crate) fn started(definition: Definition, input: Value) -> Self {
        let mut world = Self::new(definition);
        let start = world.start_envelope(input);
        world.deliver(&start).unwrap();
        world
    }

    pub(crate) fn start_envelope(&self, input: Value) -> Envelope {
        let registry = self.orchestrator.registry();
        let name = registry.names().next().unwrap_or("None").to_owned();
        Envelope {
            message_id: Uuid::from_u128(77),
            kind: kind::REQUESTED.to_owned(),
            name,
            command_id: SAGA,
            correlation_id: SAGA,
            causation_id: None,
            occurred_at: NOON,
            key: "P-1".to_owned(),
            headers: Map::new(),
            payload: input,
            rest: Map::new(),
        }
        .with_header(header::REPLY_TO, CALLER)
        .with_header(header::TENANT_ID, "acme")
        .with_header(header::BATCH_ID, Uuid::from_u128(5).to_string())
        .with_header(header::BATCH_ITEM, "P-1")
    }

    /// A message as the ingress makes it of an envelope.
    pub(crate) fn message(envelope: &Envelope) -> Message {
        Message {
            inbox_id: 0,
            source: "test".to_owned(),
            message_id: envelope.message_id.to_string(),
            topic: "test".to_owned(),
            partition: None,
            offset: None,
            key: envelope.key.clone(),
            key_bytes: None,
            tenant: envelope.header(header::TENANT_ID).unwrap_or_default().to_owned(),
            aggregate_id: None,
            aggregate_version: None,
            event_type: Some(envelope.kind.clone()),
            event_version: None,
            correlation_id: Some(envelope.correlation_id.to_string()),
            causation_id: envelope.causation_id.clone(),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            headers: None,
            payload: Some(serde_json::to_vec(envelope).unwrap().into()),
            event_time: None,
            attempt: 1,
        }
    }

    /// True if it was new.
    pub(crate) fn deliver(&mut self, envelope: &Envelope) -> Result<bool, Failure> {
        let message = Self::message(envelope);
        if !self.seen.insert(message.message_id.clone()) {
            return Ok(false);
        }
        match self.orchestrator.address(&message) {
            Address::Id(id) => assert_eq!(Some(id), self.instance.as_ref().map(|instance| instance.id)),
            Address::Key { process_type, business_key } => {
                if let Some(instance) = &self.instance {
                    assert_eq!((&process_type, &business_key), (&instance.process_type, &instance.business_key));
                }
            }
        }
        let decision = self.decide(Input::Message(&message))?;
        let new_id = self.orchestrator.new_id(&message);
        self.apply(decision, new_id);
        Ok(true)
    }

    /// Deciding is pure: a second time gives the same.
    fn decide(&self, input: Input<'_>) -> Result<Decision, Failure> {
        let first = self.orchestrator.decide(self.instance.as_ref(), input, self.now);
        let second = self.orchestrator.decide(self.instance.as_ref(), input, self.now);
        assert_eq!(first, second, "deciding twice gives two decisions");
        first
    }

    pub(crate) fn operator(&mut self, verb: OperatorVerb) -> Result<(), Failure> {
        let action = OperatorAction { verb, actor: "ann".to_owned(), reason: "test".to_owned() };
        let decision = self.decide(Input::Operator(&action))?;
        self.apply(decision, None);
        Ok(())
    }

    /// Moves the clock to the next timer and fires it. False if there is none.
    pub(crate) fn fire(&mut self) -> bool {
        let Some((name, due)) = self.timers.iter().min_by_key(|(_, due)| **due).map(|(name, due)| (name.clone(), *due))
        else {
            return false;
        };
        self.now = self.now.max(due);
        self.timers.remove(&name);
        match self.decide(Input::Timer { name: &name }) {
            // Set for something earlier: it is set anew.
            Ok(decision) if decision.remark => {
                self.apply(decision, None);
                return self.fire();
            }
            Ok(decision) => self.apply(decision, None),
            Err(Failure::Stale { .. }) => panic!("{name} was set and not cancelled, yet nothing waits for it"),
            Err(other) => panic!("{name}: {other}"),
        }
        true
    }

    fn apply(&mut self, decision: Decision, new_id: Option<Uuid>) {
        let before = self.instance.as_ref().map_or(Status::New, |instance| instance.status);
        let status = if decision.remark { before } else { next_status(before, decision.status) };
        let mut instance = self.instance.clone().unwrap_or_else(|| Instance {
            id: new_id.unwrap(),
            process_type: self.orchestrator.registry().names().next().unwrap().to_owned(),
            tenant: "acme".to_owned(),
            business_key: "P-1".to_owned(),
            state: String::new(),
            status: Status::New,
            version: 0,
            data: Data::default(),
            deadline: None,
            correlation_id: None,
        });
        if !decision.remark && decision.path != [instance.state.clone()] {
            self.path.extend(decision.path.iter().cloned());
        }
        instance.version += 1;
        instance.status = status;
        instance.state = decision.state().to_owned();
        instance.data = decision.data.unwrap_or(instance.data);
        self.notes.extend(decision.note);
        self.instance = Some(instance);
        self.apply_timers(decision.timers, status);
        decision.commands.into_iter().for_each(|change| self.apply_command(change));
        self.batch_items.extend(decision.batch_item);
        for message in decision.emit {
            let envelope = serde_json::from_slice(message.payload.as_deref().unwrap()).unwrap();
            self.sent.push((message.destination.to_string(), envelope));
        }
    }

    fn apply_timers(&mut self, changes: Vec<TimerChange>, status: Status) {
        for change in changes {
            match change {
                TimerChange::Set { name, due: TimerDue::At(due) } => {
                    self.timers.insert(name, due);
                }
                TimerChange::Set { due: TimerDue::After(_), .. } => panic!("a saga knows when its timer fires"),
                TimerChange::Cancel { name } => {
                    self.timers.remove(&name);
                }
            }
        }
        if status.is_final() {
            self.timers.clear();
        }
    }

    fn apply_command(&mut self, change: CommandChange) {
        match change {
            CommandChange::Issue(issue) => {
                let row = self.commands.entry(issue.id).or_insert_with(|| Row {
                    status: CommandStatus::Pending,
                    parked: false,
                    attempts: 0,
                    result: None,
                    error: None,
                });
                row.status = row.status.next(CommandEvent::Reissue).unwrap();
                assert!(issue.attempt > row.attempts, "{}: an attempt is counted twice", issue.step);
                row.attempts = issue.attempt;
                row.parked = false;
            }
            CommandChange::Run { id, .. } => {
                let row = self.commands.get_mut(&id).unwrap();
                row.status = row.status.next(CommandEvent::Start).unwrap();
            }
            CommandChange::End(end) => {
                if let Some(row) = self.commands.get_mut(&end.id) {
                    row.status = end.status;
                    row.parked = end.park;
                    row.result = end.result;
                    row.error = end.error.map(|error| error.code);
                }
            }
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.instance.as_ref().unwrap().status
    }

    pub(crate) fn state(&self) -> &str {
        &self.instance.as_ref().unwrap().state
    }

    pub(crate) fn data(&self) -> SagaData {
        self.instance.as_ref().unwrap().data().unwrap()
    }

    /// The commands that workers have got, in order.
    pub(crate) fn requests(&self) -> Vec<Envelope> {
        self.sent.iter().filter(|(_, envelope)| envelope.kind == kind::REQUESTED).map(|(_, e)| e.clone()).collect()
    }

    pub(crate) fn last_request(&self) -> Envelope {
        self.requests().pop().unwrap()
    }

    /// The step that a command belongs to.
    pub(crate) fn step_of(envelope: &Envelope) -> String {
        envelope.header(header::IDEMPOTENCY_KEY).unwrap().split_once(':').unwrap().1.to_owned()
    }

    /// Types of what was sent to a place.
    pub(crate) fn kinds_to(&self, to: &str) -> Vec<String> {
        self.sent.iter().filter(|(place, _)| place == to).map(|(_, envelope)| envelope.kind.clone()).collect()
    }

    pub(crate) fn answer(&mut self, command: &Envelope, kind: &str, payload: Value) -> Envelope {
        self.answers += 1;
        command.answer(Uuid::from_u128(1_000_000 + self.answers), kind, payload, self.now)
    }

    pub(crate) fn completes(&mut self, command: &Envelope, result: Value) {
        let answer = self.answer(command, kind::COMPLETED, result);
        self.deliver(&answer).unwrap();
    }

    pub(crate) fn fails(&mut self, command: &Envelope, code: &str, retryable: bool) {
        let error = serde_json::json!({ "code": code, "message": "scripted", "retryable": retryable });
        let answer = self.answer(command, kind::FAILED, error);
        self.deliver(&answer).unwrap();
    }
}

/// Compiled once for all tests, as a node does for all sagas.
fn compiled(definition: Definition) -> Arc<Compiled> {
    static KNOWN: Mutex<BTreeMap<String, Arc<Compiled>>> = Mutex::new(BTreeMap::new());
    let compile = || Arc::new(Compiled::new(definition.clone()).unwrap_or_else(|flaws| panic!("{flaws:?}")));
    KNOWN.lock().unwrap().entry(definition.hash()).or_insert_with(compile).clone()
}

/// As the runner does it.
fn next_status(current: Status, wanted: Status) -> Status {
    let event = match (wanted, current) {
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
    current.next(event).unwrap()
}
