//! The end of a saga: its own command ends, its caller is answered, its item of a batch is counted.

use serde_json::{Value, json};

use super::Turn;
use crate::command::envelope::kind;
use crate::command::{BatchItemStatus, CommandChange, CommandError, CommandStatus, End};
use crate::process::Status;
use crate::saga::data::StepStatus;
use crate::saga::definition::Kind;
use crate::saga::end_state;

impl Turn<'_> {
    pub(super) fn succeed(&mut self) {
        let result = self.output();
        self.data.result = Some(result.clone());
        self.go(end_state::SUCCEEDED, Status::Succeeded);
        self.end_own_command(CommandStatus::Succeeded, Some(result.clone()), None);
        self.batch_item(BatchItemStatus::Succeeded, None);
        self.finished("SagaSucceeded", || json!({ "result": result }));
    }

    /// Ends as FAILED or, where something was undone, as COMPENSATED.
    pub(super) fn fail(&mut self, status: Status) {
        let (state, event) = match status {
            Status::Compensated => (end_state::COMPENSATED, "SagaCompensated"),
            _ => (end_state::FAILED, "SagaFailed"),
        };
        self.go(state, status);
        let timed_out = self.data.given_up.as_ref().is_some_and(|given_up| given_up.timed_out);
        let error = self.data.given_up.as_ref().map(|given_up| given_up.error.clone());
        let (command, item) = match timed_out {
            true => (CommandStatus::TimedOut, BatchItemStatus::TimedOut),
            false => (CommandStatus::Failed, BatchItemStatus::Failed),
        };
        self.batch_item(item, error.as_ref().map(ToString::to_string));
        self.end_own_command(command, None, error);
        let error = self.error_payload();
        self.finished(event, || json!({ "error": error }));
    }

    fn finished(&mut self, event: &str, detail: impl FnOnce() -> Value) {
        let (kind, payload) = self.last_word();
        self.answer(kind, payload);
        self.event(event, detail);
    }

    /// What the caller is told.
    pub(super) fn last_word(&self) -> (&'static str, Value) {
        match (self.status, &self.data.given_up) {
            (Status::Succeeded, _) => (kind::COMPLETED, self.data.result.clone().unwrap_or(Value::Null)),
            (_, Some(given_up)) if given_up.timed_out => (kind::TIMED_OUT, self.error_payload()),
            _ => (kind::FAILED, self.error_payload()),
        }
    }

    fn end_own_command(&mut self, status: CommandStatus, result: Option<Value>, error: Option<CommandError>) {
        let said = |change: &CommandChange| matches!(change, CommandChange::End(End { id, status: given, .. }) if *id == self.id && *given == status);
        // A saga of one command ends with it, and that may be said already.
        if !self.commands.iter().any(said) {
            self.end_command(self.id, status, result, error, false);
        }
    }

    /// What the saga answers. That its steps are done is not undone by a mapping that does not fit.
    fn output(&mut self) -> Value {
        let compiled = self.context.compiled;
        if let Some(output) = &compiled.output {
            return output.value(&self.scope()).unwrap_or_else(|why| {
                self.note(format!("the output cannot be evaluated: {why}"));
                Value::Null
            });
        }
        match compiled.definition().kind {
            Kind::Saga => json!({}),
            Kind::Command => {
                let step = self.data.steps.values().find(|record| record.status == StepStatus::Done);
                step.and_then(|record| record.result.clone()).unwrap_or_else(|| json!({}))
            }
        }
    }
}
