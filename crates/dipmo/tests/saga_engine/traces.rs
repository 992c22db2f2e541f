//! What a saga leaves behind, and what it must not.

use dipmo::command::envelope::kind;
use dipmo::command::{BatchItemStatus, CommandStatus};
use dipmo::process::Status;

use crate::world::{CALLER, SAGA, World};

impl World {
    /// Nothing that the saga began is left open: commands, timers, the caller, the item of the batch.
    pub(crate) fn assert_nothing_open(&self, about: &str) {
        assert!(self.status().is_final(), "{about}: {} {}", self.status().name(), self.state());
        assert!(self.timers.is_empty(), "{about}: {:?}", self.timers);
        for row in self.commands.values() {
            assert!(row.status.is_ended(), "{about}: {row:?}");
        }
        let succeeded = self.status() == Status::Succeeded;
        assert_eq!(self.commands[&SAGA].status == CommandStatus::Succeeded, succeeded, "{about}");
        let (_, answer) =
            self.sent.iter().rfind(|(to, _)| to == CALLER).unwrap_or_else(|| panic!("{about}: no answer"));
        assert_eq!(answer.kind == kind::COMPLETED, succeeded, "{about}");
        let item = self.batch_items.last().unwrap().status;
        assert_eq!(item == BatchItemStatus::Succeeded, succeeded, "{about}");
        assert!(item != BatchItemStatus::Running, "{about}");
    }

    /// The steps whose commands were sent, each once, in the order of the first send.
    pub(crate) fn sent_steps(&self) -> Vec<String> {
        let mut steps: Vec<String> = Vec::new();
        for request in self.requests() {
            let step = Self::step_of(&request);
            if !steps.contains(&step) {
                steps.push(step);
            }
        }
        steps
    }
}
