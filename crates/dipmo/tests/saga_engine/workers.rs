//! Workers with a script: what each does with each message that reaches it. They keep a ledger by
//! idempotency key, as real ones do: what was done or refused for good is answered the same again.

use std::collections::{BTreeMap, VecDeque};

use dipmo::command::Envelope;
use dipmo::command::envelope::{header, kind};
use serde_json::{Value, json};

use crate::payment::result_of;
use crate::world::World;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Complete,
    /// Fails, but may do better next time.
    Retryable,
    Permanent,
    /// Neither does nor says anything.
    Silent,
    /// Does it, but the answer is under way for longer than anybody waits.
    Late,
}

#[derive(Debug, Default)]
pub(crate) struct Workers {
    scripts: BTreeMap<String, VecDeque<Act>>,
    ledger: BTreeMap<String, (&'static str, Value)>,
    /// Steps that took effect, in order.
    pub(crate) effects: Vec<String>,
    pub(crate) delayed: Vec<Envelope>,
    /// Answers again by the script and not by the ledger: the answers are lost on the way.
    pub(crate) forgetful: bool,
}

impl Workers {
    pub(crate) fn script(mut self, step: &str, acts: impl IntoIterator<Item = Act>) -> Self {
        self.scripts.insert(step.to_owned(), acts.into_iter().collect());
        self
    }

    /// From now on everything is well.
    pub(crate) fn heal(&mut self) {
        self.scripts.clear();
    }

    /// What the worker answers at once to one delivery.
    pub(crate) fn handle(&mut self, world: &mut World, command: &Envelope) -> Option<Envelope> {
        let key = command.header(header::IDEMPOTENCY_KEY).unwrap().to_owned();
        if let Some((kind, payload)) = self.ledger.get(&key).cloned().filter(|_| !self.forgetful) {
            return Some(world.answer(command, kind, payload));
        }
        let step = World::step_of(command);
        let act = self.scripts.get_mut(&step).and_then(VecDeque::pop_front).unwrap_or(Act::Complete);
        let error = |retryable| json!({ "code": "SCRIPTED", "message": "by the script", "retryable": retryable });
        match act {
            Act::Silent => None,
            Act::Retryable => Some(world.answer(command, kind::FAILED, error(true))),
            Act::Permanent => {
                self.ledger.insert(key, (kind::FAILED, error(false)));
                Some(world.answer(command, kind::FAILED, error(false)))
            }
            Act::Complete | Act::Late => {
                let result = result_of(&command.name);
                self.ledger.insert(key, (kind::COMPLETED, result.clone()));
                self.effects.push(step);
                let answer = world.answer(command, kind::COMPLETED, result);
                if act == Act::Complete {
                    return Some(answer);
                }
                self.delayed.push(answer);
                None
            }
        }
    }
}

/// When the answers that are late arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrive {
    /// As soon as somebody has stopped waiting for them.
    AfterTimer,
    /// When nothing else is left to happen.
    AtTheEnd,
}

/// Lets everything happen in order until nothing does. Where `doubled`, every message arrives twice.
pub(crate) fn play(world: &mut World, workers: &mut Workers, doubled: bool, arrive: Arrive) {
    let times = if doubled { 2 } else { 1 };
    let mut handled = world.handled;
    for _ in 0..1_000 {
        let requests = world.requests();
        if let Some(command) = requests.get(handled) {
            handled += 1;
            world.handled = handled;
            let answers: Vec<Envelope> = (0..times).filter_map(|_| workers.handle(world, command)).collect();
            for answer in answers {
                deliver(world, &answer, times);
            }
        } else if world.fire() {
            if arrive == Arrive::AfterTimer {
                let delayed = std::mem::take(&mut workers.delayed);
                delayed.iter().for_each(|answer| deliver(world, answer, times));
            }
        } else if !workers.delayed.is_empty() {
            let delayed = std::mem::take(&mut workers.delayed);
            delayed.iter().for_each(|answer| deliver(world, answer, times));
        } else {
            return;
        }
    }
    panic!("it does not come to rest");
}

fn deliver(world: &mut World, answer: &Envelope, times: usize) {
    for _ in 0..times {
        world.deliver(answer).unwrap();
    }
}
