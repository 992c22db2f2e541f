//! Undoing what was done, last first.

use serde_json::json;

use super::Turn;
use crate::process::Status;
use crate::saga::compiled::{Compiled, Place};
use crate::saga::data::{SagaData, StepStatus};

/// The step that is to be undone next. Looked up each time, so that a step which turns out to be done
/// while others are being undone has its turn too.
pub(in crate::saga) fn next_undo(compiled: &Compiled, data: &SagaData) -> Option<usize> {
    (0..compiled.steps.len()).rev().find(|n| needs_undo(compiled, data, *n))
}

fn needs_undo(compiled: &Compiled, data: &SagaData, n: usize) -> bool {
    let step = &compiled.steps[n];
    let (Some(undo), Some(record)) = (&step.undo, data.steps.get(&step.call.name)) else { return false };
    let undone = matches!(data.status(&undo.call.name), Some(StepStatus::Done | StepStatus::Skipped));
    let unknown = undo.if_unknown && record.unheard > 0;
    !undone && (record.status == StepStatus::Done || unknown)
}

impl Turn<'_> {
    /// Undoes the next step; when none is left the saga has ended.
    pub(super) fn undo(&mut self) {
        let compiled = self.context.compiled;
        match next_undo(compiled, &self.data) {
            Some(n) => {
                if self.status != Status::Compensating {
                    let error = self.error_payload();
                    self.status = Status::Compensating;
                    self.event("SagaCompensating", || json!({ "error": error }));
                }
                self.send_or_give_up(Place::Undo(n));
            }
            None if self.anything_undone() => self.fail(Status::Compensated),
            None => self.fail(Status::Failed),
        }
    }

    fn anything_undone(&self) -> bool {
        let undos = self.context.compiled.steps.iter().filter_map(|step| step.undo.as_ref());
        undos.into_iter().any(|undo| self.data.steps.contains_key(&undo.call.name))
    }
}
