//! What a saga is made of, as data: built in Rust, read from TOML, kept as JSON.
//!
//! Two definitions are the same version if their [`Definition::hash`] is the same. It is taken over the
//! canonical JSON, so the order of fields, comments and defaults written out do not change it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::wire;
use crate::backoff::RetryPolicy;
use crate::message::Destination;

/// How long a step waits for its answer unless it says otherwise.
pub(super) const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// A saga, or a single command that is run as a saga of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    pub name: String,
    #[serde(default, skip_serializing_if = "wire::is_default")]
    pub kind: Kind,
    pub steps: Vec<Step>,
    /// Where its events go; without it there are none.
    #[serde(default, with = "wire::destination_option", skip_serializing_if = "Option::is_none")]
    pub events: Option<Destination>,
    /// What the saga answers when it has succeeded: a mapping, as in [`Step::payload`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// JSON Schema of the input, or the path of a file that holds it. Not used here; kept for whoever
    /// accepts the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    #[default]
    Saga,
    /// Its one step has the command id of the saga, so that the caller and the worker know the same id.
    Command,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The state of the saga while it waits for this step.
    pub name: String,
    pub command: String,
    #[serde(with = "wire::destination")]
    pub to: Destination,
    /// The step is left out where this expression gives false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// A table, list or single text; every text in it is an expression. Without it the command gets the
    /// input of the saga.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// What order is kept by on the way to the worker: an expression, else the key of the saga.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default = "wire::timeout_default", with = "wire::span")]
    pub timeout: Duration,
    #[serde(default, with = "wire::retry", skip_serializing_if = "wire::is_default")]
    pub retry: RetryPolicy,
    #[serde(default, skip_serializing_if = "wire::is_default")]
    pub on_failure: OnFailure,
    /// A command that failed for good goes to the dead letters even where its worker said no for good.
    #[serde(default, skip_serializing_if = "wire::is_default")]
    pub park: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensation: Option<Compensation>,
}

/// What happens when a step has failed for good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Undo what was done, in reverse order, and end.
    #[default]
    Compensate,
    /// Wait for an operator.
    Pause,
}

/// How a step is undone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compensation {
    /// The state of the saga while it waits for this compensation.
    pub name: String,
    pub command: String,
    #[serde(with = "wire::destination")]
    pub to: Destination,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    #[serde(default = "wire::timeout_default", with = "wire::span")]
    pub timeout: Duration,
    #[serde(default, with = "wire::retry", skip_serializing_if = "wire::is_default")]
    pub retry: RetryPolicy,
    /// Sent also where nobody knows whether the step was done, because no answer came. Its worker must
    /// then accept that there is nothing to undo.
    #[serde(default, skip_serializing_if = "wire::is_default")]
    pub if_unknown: bool,
}

impl Definition {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), kind: Kind::Saga, steps: Vec::new(), events: None, output: None, schema: None }
    }

    /// A single command as a definition: a caller's command becomes a saga of one step.
    pub fn command(name: impl Into<String>, to: Destination) -> Self {
        let name = name.into();
        let step = Step::new(step_name(&name), name.clone(), to);
        Self { kind: Kind::Command, steps: vec![step], ..Self::new(name) }
    }

    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    #[must_use]
    pub fn events(mut self, to: Destination) -> Self {
        self.events = Some(to);
        self
    }

    #[must_use]
    pub fn output(mut self, mapping: Value) -> Self {
        self.output = Some(mapping);
        self
    }

    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(schema);
        self
    }

    /// The definition as JSON with every object's keys in order.
    pub fn canonical_json(&self) -> String {
        let value = serde_json::to_value(self).expect("a definition serialises without error");
        let mut text = String::new();
        wire::write_sorted(&value, &mut text);
        text
    }

    /// The version of the definition: 32 hex digits.
    pub fn hash(&self) -> String {
        let digest = Sha256::digest(self.canonical_json());
        digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Step {
    pub fn new(name: impl Into<String>, command: impl Into<String>, to: Destination) -> Self {
        Self {
            name: name.into(),
            command: command.into(),
            to,
            when: None,
            payload: None,
            key: None,
            timeout: TIMEOUT_DEFAULT,
            retry: RetryPolicy::default(),
            on_failure: OnFailure::Compensate,
            park: false,
            compensation: None,
        }
    }

    #[must_use]
    pub fn when(mut self, condition: impl Into<String>) -> Self {
        self.when = Some(condition.into());
        self
    }

    #[must_use]
    pub fn payload(mut self, mapping: Value) -> Self {
        self.payload = Some(mapping);
        self
    }

    #[must_use]
    pub fn key(mut self, expression: impl Into<String>) -> Self {
        self.key = Some(expression.into());
        self
    }

    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    #[must_use]
    pub fn park(mut self) -> Self {
        self.park = true;
        self
    }

    #[must_use]
    pub fn compensation(mut self, compensation: Compensation) -> Self {
        self.compensation = Some(compensation);
        self
    }
}

impl Compensation {
    pub fn new(name: impl Into<String>, command: impl Into<String>, to: Destination) -> Self {
        Self {
            name: name.into(),
            command: command.into(),
            to,
            payload: None,
            timeout: TIMEOUT_DEFAULT,
            retry: RetryPolicy::default(),
            if_unknown: false,
        }
    }

    #[must_use]
    pub fn payload(mut self, mapping: Value) -> Self {
        self.payload = Some(mapping);
        self
    }

    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    #[must_use]
    pub fn if_unknown(mut self) -> Self {
        self.if_unknown = true;
        self
    }
}

/// `SubmitPayment` becomes `STEP_SUBMIT_PAYMENT`.
pub(super) fn step_name(command: &str) -> String {
    let mut name = String::from("STEP");
    let mut after_small = true;
    for c in command.chars() {
        let word_begins = c.is_ascii_uppercase() && after_small;
        if !c.is_ascii_alphanumeric() || word_begins {
            if !name.ends_with('_') {
                name.push('_');
            }
        }
        if c.is_ascii_alphanumeric() {
            if name == "STEP" {
                name.push('_');
            }
            name.push(c.to_ascii_uppercase());
        }
        after_small = !c.is_ascii_uppercase();
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn to() -> Destination {
        "KAFKA:commands".parse().unwrap()
    }

    fn sample() -> Definition {
        let undo = Compensation::new("STEP_B", "UndoA", to()).timeout(Duration::from_millis(1500));
        let step = Step::new("STEP_A", "DoA", to()).payload(json!({ "b": "input.b", "a": "input.a" })).when("input.x");
        Definition::new("Sample").events(to()).step(step.compensation(undo))
    }

    #[test]
    fn a_definition_reads_back_from_its_json() {
        let json = sample().canonical_json();
        let back: Definition = serde_json::from_str(&json).unwrap();
        assert_eq!(back, sample());
        assert_eq!(back.canonical_json(), json);
    }

    #[test]
    fn the_hash_depends_on_the_content_and_on_nothing_else() {
        let reordered = r#"{ "steps": [{ "to": "KAFKA:commands", "timeout": "60s", "command": "DoA", "when": "input.x",
            "retry": { "attempts_max": 8 }, "payload": { "a": "input.a", "b": "input.b" }, "name": "STEP_A",
            "compensation": { "timeout": "1s500ms", "to": "KAFKA:commands", "command": "UndoA", "name": "STEP_B" } }],
            "events": "KAFKA:commands", "name": "Sample", "kind": "saga" }"#;
        let reordered: Definition = serde_json::from_str(reordered).unwrap();
        assert_eq!(reordered.hash(), sample().hash());
        assert_eq!(sample().hash().len(), 32);
        let mut other = sample();
        other.steps[0].timeout += Duration::from_secs(1);
        assert_ne!(other.hash(), sample().hash());
    }

    #[test]
    fn unknown_fields_are_refused() {
        let wrong = r#"{ "name": "X", "steps": [], "stps": 1 }"#;
        assert!(serde_json::from_str::<Definition>(wrong).unwrap_err().to_string().contains("stps"));
    }

    #[test]
    fn a_command_names_its_step() {
        for (command, step) in [
            ("SubmitPayment", "STEP_SUBMIT_PAYMENT"),
            ("BookFXContract", "STEP_BOOK_FXCONTRACT"),
            ("check-balance", "STEP_CHECK_BALANCE"),
        ] {
            assert_eq!(step_name(command), step);
        }
    }
}
