//! A saga begins, or is told to begin once more.

use serde_json::{Value, json};
use uuid::Uuid;

use super::turn::Cause;
use super::{Context, Turn};
use crate::command::envelope::{header, kind};
use crate::command::{
    BatchItemChange, BatchItemStatus, CommandChange, CommandError, CommandStatus, End, Envelope, Issue,
};
use crate::message::Message;
use crate::process::{Decision, Instance, Status};
use crate::saga::data::{BatchRef, SagaData};

pub(in crate::saga) fn start(context: &Context<'_>, message: &Message, envelope: &Envelope) -> Decision {
    let data = SagaData {
        definition: context.compiled.hash().to_owned(),
        input: envelope.payload.clone(),
        headers: envelope.headers.clone(),
        started_by: envelope.message_id,
        steps: Default::default(),
        batch: batch_of(envelope),
        given_up: None,
        paused: None,
        held: None,
        alarm: None,
        result: None,
    };
    let identity = (envelope.command_id, message.tenant.as_str(), envelope.key.as_str());
    let mut turn = Turn::new(context, identity, data, Cause::of(message));
    turn.status = Status::Running;
    turn.batch_item(BatchItemStatus::Running, None);
    turn.event("SagaStarted", || json!({ "input": envelope.payload }));
    turn.open_own_command(1);
    turn.advance(0);
    turn.into_decision()
}

impl Turn<'_> {
    /// The command that started the saga runs until the saga ends. A saga of one command shares its row
    /// with the step, which issues it itself.
    pub(super) fn open_own_command(&mut self, attempt: u32) {
        if self.context.compiled.definition().kind == crate::saga::Kind::Command {
            return;
        }
        let own_key = || self.id.to_string();
        self.commands.push(CommandChange::Issue(Issue {
            id: self.id,
            name: self.context.compiled.name().to_owned(),
            tenant: self.tenant.clone(),
            business_key: self.key.clone(),
            process_id: self.id,
            step: String::new(),
            destination: None,
            idempotency_key: self.data.header(header::IDEMPOTENCY_KEY).map_or_else(own_key, str::to_owned),
            attempt,
            lease: None,
        }));
        self.commands.push(CommandChange::Run { id: self.id, lease: None });
    }
}

/// The saga is there already. The same start again changes nothing, and where the saga has ended it is
/// answered again; another command for the same key is refused, so that its caller does not wait for ever.
pub(in crate::saga) fn start_again(
    context: &Context<'_>,
    current: &Instance,
    data: SagaData,
    message: &Message,
    envelope: &Envelope,
) -> Decision {
    let mut turn = Turn::on(context, current, data, Cause::of(message));
    if envelope.command_id == current.id {
        if current.status.is_final() {
            turn.answer_again(envelope);
        }
        return turn.into_remark(current, "started again: the first start counts");
    }
    let what = format!("saga {} has the key {:?} already", current.id, current.business_key);
    turn.refuse_start(envelope, CommandError::permanent("KEY_TAKEN", what));
    let batch_item = batch_of(envelope).map(|batch| BatchItemChange {
        batch_id: batch.id,
        item_id: batch.item,
        status: BatchItemStatus::Failed,
        error: Some("KEY_TAKEN: another saga has this key".to_owned()),
        reopens: false,
    });
    let note = format!("command {} wanted to start the same: refused", envelope.command_id);
    Decision { batch_item, ..turn.into_remark(current, note) }
}

impl Turn<'_> {
    fn answer_again(&mut self, envelope: &Envelope) {
        self.data
            .headers
            .extend(envelope.headers.get(header::REPLY_TO).map(|to| (header::REPLY_TO.to_owned(), to.clone())));
        let (kind, payload) = self.last_word();
        self.answer(kind, payload);
    }

    fn refuse_start(&mut self, envelope: &Envelope, error: CommandError) {
        if let Some(reply_to) = envelope.header(header::REPLY_TO) {
            let id = super::outgoing::send_id(envelope.command_id, 0);
            let payload = serde_json::to_value(&error).unwrap_or(Value::Null);
            self.send_answer(reply_to, envelope.answer(id, kind::FAILED, payload, self.context.now));
        }
        let end = End {
            id: envelope.command_id,
            status: CommandStatus::Failed,
            result: None,
            error: Some(error),
            park: false,
        };
        self.commands.push(CommandChange::End(end));
    }
}

fn batch_of(envelope: &Envelope) -> Option<BatchRef> {
    let id = Uuid::try_parse(envelope.header(header::BATCH_ID)?).ok()?;
    Some(BatchRef { id, item: envelope.header(header::BATCH_ITEM)?.to_owned() })
}
