//! The process manager that runs every saga: finds the definition, then decides.

use std::sync::{Arc, PoisonError, RwLock};

use time::OffsetDateTime;
use uuid::Uuid;

use super::REPLY_QUEUE;
use super::compiled::Compiled;
use super::data::SagaData;
use super::decide::{self, Context};
use super::registry::Registry;
use crate::command::Envelope;
use crate::command::envelope::{Heading, kind};
use crate::failure::Failure;
use crate::message::{Destination, Message};
use crate::process::{Address, Decision, Input, Instance, Process};

/// Where answers come and go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Workers answer to this queue.
    pub reply_queue: String,
    /// The transport of a queue that a start names in `replyTo` without one: `INTERNAL`, `AMQP` or `KAFKA`.
    pub answer_transport: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { reply_queue: REPLY_QUEUE.to_owned(), answer_transport: "INTERNAL".to_owned() }
    }
}

impl Options {
    /// `AMQP:queue` is taken as it is; a bare queue is on the configured transport.
    pub(super) fn answer_to(&self, reply_to: &str) -> Option<Destination> {
        if reply_to.contains(':') {
            return reply_to.parse().ok();
        }
        format!("{}:{reply_to}", self.answer_transport).parse().ok()
    }
}

/// Drives the sagas of every definition it knows. Its definitions can be exchanged while it runs.
#[derive(Debug)]
pub struct Orchestrator {
    registry: RwLock<Arc<Registry>>,
    options: Options,
}

impl Orchestrator {
    pub fn new(registry: Registry) -> Self {
        Self::with_options(registry, Options::default())
    }

    pub fn with_options(registry: Registry, options: Options) -> Self {
        Self { registry: RwLock::new(Arc::new(registry)), options }
    }

    /// What it knows now; does not change under the caller.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From the next decision on these are the definitions.
    pub fn replace(&self, registry: Registry) {
        *self.registry.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(registry);
    }

    fn start(&self, message: &Message, envelope: &Envelope, now: OffsetDateTime) -> Result<Decision, Failure> {
        if envelope.key.is_empty() {
            let message = "a start without a key: all of its name would be one saga";
            return Err(Failure::permanent("NO_KEY", message));
        }
        let registry = self.registry();
        let Some(compiled) = registry.current(&envelope.name) else {
            let known: Vec<&str> = registry.names().collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("there is no saga or command named {:?}; known are: {known}", envelope.name);
            return Err(Failure::permanent("UNKNOWN_DEFINITION", message));
        };
        Ok(decide::start(&Context { compiled, options: &self.options, now }, message, envelope))
    }

    /// The version that a running saga keeps to, and what it remembers.
    fn pinned(&self, current: &Instance) -> Result<(Arc<Compiled>, SagaData), Failure> {
        let data: SagaData = current.data()?;
        let registry = self.registry();
        match registry.version(&current.process_type, &data.definition) {
            Some(compiled) => Ok((compiled.clone(), data)),
            None => {
                let (name, hash) = (&current.process_type, &data.definition);
                let message = format!("version {hash} of {name} is not registered on this node");
                Err(Failure::transient("UNKNOWN_DEFINITION", message))
            }
        }
    }
}

impl Process for Orchestrator {
    fn name(&self) -> &str {
        "saga"
    }

    fn address(&self, message: &Message) -> Address {
        // Answers say whom they are for in a column of their own; only a start must be read.
        let correlation = message.correlation_id.as_deref().and_then(|text| Uuid::try_parse(text).ok());
        if let (true, Some(id)) = (is_answer(message.event_type()), correlation) {
            return Address::Id(id);
        }
        match Heading::of(message.payload.as_deref()) {
            Some(heading) if is_answer(&heading.kind) => Address::Id(heading.correlation_id),
            Some(Heading { name, key, .. }) => {
                Address::Key { process_type: name.into_owned(), business_key: key.into_owned() }
            }
            // Cannot be decided on either, which is where it is refused.
            None => Address::Key { process_type: self.name().to_owned(), business_key: message.key.clone() },
        }
    }

    fn new_id(&self, message: &Message) -> Option<Uuid> {
        Heading::of(message.payload.as_deref()).map(|heading| heading.command_id)
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, now: OffsetDateTime) -> Result<Decision, Failure> {
        let envelope = match input {
            Input::Message(message) => Some((message, Envelope::of(message)?)),
            _ => None,
        };
        let Some(current) = current else {
            return match &envelope {
                Some((message, envelope)) if envelope.kind == kind::REQUESTED => self.start(message, envelope, now),
                Some((_, envelope)) if is_answer(&envelope.kind) => {
                    Err(Failure::stale(format!("there is no saga {}", envelope.correlation_id)))
                }
                Some((_, envelope)) => Err(unexpected(&envelope.kind)),
                None => Err(Failure::stale("there is no such saga")),
            };
        };
        let (compiled, data) = self.pinned(current)?;
        let context = Context { compiled: &compiled, options: &self.options, now };
        match (input, &envelope) {
            (Input::Timer { name }, _) => decide::timer(&context, current, data, name),
            (Input::Operator(action), _) => decide::operator(&context, current, data, action),
            (_, Some((message, envelope))) if envelope.kind == kind::REQUESTED => {
                Ok(decide::start_again(&context, current, data, message, envelope))
            }
            (_, Some((message, envelope))) if is_answer(&envelope.kind) => {
                Ok(decide::reply(&context, current, data, message, envelope))
            }
            (_, Some((_, envelope))) => Err(unexpected(&envelope.kind)),
            (Input::Message(_), None) => Err(Failure::stale("a message without an envelope")),
        }
    }
}

fn is_answer(event_type: &str) -> bool {
    [kind::STARTED, kind::COMPLETED, kind::FAILED, kind::TIMED_OUT].contains(&event_type)
}

fn unexpected(kind: &str) -> Failure {
    let message = format!("a saga understands commands and their answers, not the type {kind:?}");
    Failure::permanent("UNEXPECTED_TYPE", message)
}
