//! The inbox on a real PostgreSQL: exactly once, in order per key, failure per key.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod any_language;
mod crash;
mod enlisted;
mod failures;
mod hot_key;
mod poison;
mod process;
mod statements;
mod timers;
mod traces;
mod versions;
mod workers;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::{Message, OutMessage};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// Keeps the payloads it saw, in order, and says each of them on.
#[derive(Default, Clone)]
pub struct Diary {
    /// By payload: what it meets, and how often before it succeeds.
    refusals: Arc<Mutex<HashMap<String, (Failure, usize)>>>,
}

#[derive(Default, Serialize, Deserialize)]
struct Pages {
    pages: Vec<serde_json::Value>,
}

impl Diary {
    /// Refuses a payload until it is healed.
    pub fn refusing(payload: &str, failure: Failure) -> Self {
        Self::refusing_times(payload, failure, usize::MAX)
    }

    pub fn refusing_times(payload: &str, failure: Failure, times: usize) -> Self {
        let diary = Self::default();
        diary.refuse(payload, failure, times);
        diary
    }

    pub fn refuse(&self, payload: &str, failure: Failure, times: usize) {
        self.refusals.lock().unwrap().insert(payload.to_owned(), (failure, times));
    }

    pub fn check(&self, message: &Message) -> Result<(), Failure> {
        let payload = String::from_utf8_lossy(message.payload.as_deref().unwrap_or_default()).into_owned();
        match self.refusals.lock().unwrap().get_mut(&payload) {
            Some((failure, times)) if *times > 0 => {
                *times -= 1;
                Err(failure.clone())
            }
            _ => Ok(()),
        }
    }

    pub fn heal(&self) {
        self.refusals.lock().unwrap().clear();
    }
}

impl Process for Diary {
    fn name(&self) -> &str {
        "diary"
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        let mut pages: Pages = current.map(Instance::data).transpose()?.unwrap_or_default();
        match input {
            Input::Message(message) => {
                self.check(message)?;
                pages.pages.push(message.json()?);
                let said = OutMessage::internal(("Diary", &message.key), "Said").json(&pages.pages.last());
                Ok(Decision::go("WRITING").data(&pages).emit(said))
            }
            Input::Timer { name } => {
                pages.pages.push(name.into());
                Ok(Decision::go("CLOSED").data(&pages).succeed())
            }
            Input::Operator(_) => Err(Failure::stale("no operators here")),
        }
    }
}

/// What the diary of a key holds.
pub async fn pages(world: &support::World, key: &str) -> String {
    let sql = format!("select (data -> 'pages')::text from dipmo.process where business_key = '{key}'");
    world.texts(&sql).await.pop().unwrap_or_else(|| "-".into())
}
