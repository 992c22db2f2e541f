//! `dipmo command` and `dipmo dlq`.

use dipmo::command::accept::{Acceptance, Request, accept};
use dipmo::operator::commands::{self, CommandFilter, CommandRow, DeadLetterRow};
use serde_json::Value;

use super::{Context, intervene, page, show_list, show_one};
use crate::catalog::Unfit;
use crate::cli::{CommandVerb, DlqVerb, SendArgs};
use crate::definitions;
use crate::exit::{Exit, Quit};
use crate::output::Row;

pub(super) async fn run(context: &Context, verb: CommandVerb) -> Result<Exit, Quit> {
    match verb {
        CommandVerb::Send(args) => send(context, args).await,
        CommandVerb::Show { id } => show_one(context, id, &commands::show(&context.db()?, id).await?),
        CommandVerb::List { status, name, process, page: part } => {
            let filter = CommandFilter { status, name, process_id: process };
            show_list(context, &commands::list(&context.db()?, &filter, &page(&part)?).await?)
        }
    }
}

pub(super) async fn dead_letters(context: &Context, verb: DlqVerb) -> Result<Exit, Quit> {
    match verb {
        DlqVerb::List { name, page: part } => {
            show_list(context, &commands::dead_letters(&context.db()?, name.as_deref(), &page(&part)?).await?)
        }
        DlqVerb::Resubmit(args) => intervene::resubmit(context, args).await,
    }
}

/// Checks against the definitions of the configuration, as the API does.
async fn send(context: &Context, args: SendArgs) -> Result<Exit, Quit> {
    let payload = payload(&args.payload)?;
    let commands = definitions::configured(&context.config.sagas)?.take_commands();
    commands.check(&args.name, &payload).map_err(unfit)?;
    let SendArgs { name, key, tenant, idempotency_key, reply_to, .. } = args;
    let request = Request { name, tenant, business_key: key, payload, idempotency_key, reply_to, ..Request::default() };
    match accept(&context.db()?, &request).await? {
        Acceptance::Accepted(accepted) => {
            let mut answer = accepted.response;
            answer["repeated"] = accepted.repeated.into();
            show_one(context, accepted.command_id, &answer)
        }
        Acceptance::Refused(refusal) => Err(Quit::new(Exit::Conflict, refusal.to_string())
            .hint("look at it with `dipmo command show`, or send with another key")),
    }
}

fn payload(given: &str) -> Result<Value, Quit> {
    let wrong = |why: String| Quit::new(Exit::Usage, format!("--payload: {why}"));
    let text = match given.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).map_err(|e| wrong(format!("cannot read {file}: {e}")))?,
        None => given.to_owned(),
    };
    serde_json::from_str(&text).map_err(|e| wrong(format!("not JSON: {e}")).hint("write a JSON object, or @FILE"))
}

fn unfit(unfit: Unfit) -> Quit {
    let (mut message, hint) = (unfit.to_string(), unfit.hint());
    let exit = match &unfit {
        Unfit::Unknown { .. } => Exit::NotFound,
        Unfit::Payload { violations, .. } => {
            for violation in violations {
                message.push_str(&format!("\n{}: {}", violation.pointer, violation.message));
            }
            Exit::Usage
        }
    };
    Quit::new(exit, message).hint(hint)
}

impl Row for CommandRow {
    const COLUMNS: &'static [&'static str] =
        &["id:commandId", "name", "tenant", "key", "status", "step", "attempts", "requested:requestedAt", "error"];

    fn name(&self) -> String {
        self.command_id.to_string()
    }
}

impl Row for DeadLetterRow {
    const COLUMNS: &'static [&'static str] =
        &["id:commandId", "name", "key", "step", "saga:processId", "attempts", "parked:parkedAt", "error"];

    fn name(&self) -> String {
        self.command.command_id.to_string()
    }
}
