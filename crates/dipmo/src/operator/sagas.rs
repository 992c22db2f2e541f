//! What an operator can do to a saga: pause, resume, resubmit, skip, compensate, force-complete.
//!
//! The saga decides itself whether it may be done, as it decides on everything else; the decision is
//! written with its journal line, its audit row and what it sends, in one transaction. Two operators at
//! once: the second one decides on what the first one left, and is refused if that does not allow it.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Change, Changed, audit, conflict, moved};
use crate::command::envelope::Heading;
use crate::error::{Error, Result};
use crate::inbox::Settlement;
use crate::process::{Decision, Failure, Input, Instance, OperatorAction, OperatorVerb, Process};
use crate::runner::instances::settle_operator;
use crate::store::postgres::operator::change;
use crate::store::postgres::{Db, operator_outbox, operator_saga as store};

/// What is to be done to which saga.
#[derive(Debug, Clone)]
pub struct Intervention {
    pub saga: Uuid,
    pub verb: OperatorVerb,
    /// The version that the operator was shown: refused if it has moved on since.
    pub seen_version: Option<i64>,
    /// The step that it is about: refused if the saga is elsewhere.
    pub at_step: Option<String>,
    /// Say what would happen, and do nothing.
    pub dry_run: bool,
}

impl Intervention {
    pub fn new(saga: Uuid, verb: OperatorVerb) -> Self {
        Self { saga, verb, seen_version: None, at_step: None, dry_run: false }
    }

    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

/// Does it, or says why not. `sagas` decides; `consumer` is the one that runs it.
pub async fn intervene(
    db: &Db,
    sagas: &dyn Process,
    consumer: &str,
    intervention: &Intervention,
    by: &Change,
) -> Result<Changed> {
    let Intervention { saga, verb, seen_version, at_step, dry_run } = intervention;
    let target = format!("saga {saga}");
    let mut client = db.client().await?;
    let tx = change(&mut client).await?;
    let found = store::lock(db, &tx, *saga).await?;
    let (instance, now) = found.ok_or_else(|| Error::not_found(format!("there is no {target}")))?;
    if seen_version.is_some_and(|seen| seen != instance.version) {
        return Err(moved(&target));
    }
    if let Some(step) = at_step.as_ref().filter(|step| **step != instance.state) {
        let (status, state) = (instance.status.name(), &instance.state);
        return Err(conflict(format!(
            "{target} is {status} in {state}, and no longer in {step}: see `dipmo why {saga}`"
        )));
    }
    let action = OperatorAction { verb: verb.clone(), actor: by.actor().to_owned(), reason: by.reason().to_owned() };
    let refused = |failure: Failure| conflict(format!("{target} is {}: {}", instance.status.name(), failure.text()));
    let decision = sagas.decide(Some(&instance), Input::Operator(&action), now).map_err(refused)?;
    let note = outcome(&decision, *dry_run);
    let settlement = settle_operator(&instance, &action, decision, now).map_err(refused)?;
    let detail = detail(&instance, verb, &settlement, *dry_run);
    let changed = Changed { action: audited(verb), target, note, detail };
    if *dry_run {
        return Ok(changed);
    }
    if !matches!(verb, OperatorVerb::Pause | OperatorVerb::Resume) {
        store::settle_letters(db, &tx, *saga).await?;
    }
    store::write(db, &tx, consumer, &settlement).await?;
    audit::write(db, &tx, by, &changed).await?;
    operator_outbox::wake(db, &tx).await?;
    tx.commit().await?;
    Ok(changed)
}

/// Sends a command that was given up again, under its old idempotency key.
pub async fn resubmit_dead_letter(
    db: &Db,
    sagas: &dyn Process,
    consumer: &str,
    (command, dry_run): (Uuid, bool),
    by: &Change,
) -> Result<Changed> {
    // Given back before the saga is locked: one connection is enough for an operator.
    let found = {
        let mut client = db.client().await?;
        let tx = change(&mut client).await?;
        store::command(db, &tx, command).await?
    };
    let issued = found.ok_or_else(|| Error::not_found(format!("there is no command {command}")))?;
    if !issued.parked {
        let why = "only what was given up can be sent again";
        return Err(conflict(format!("command {command} is {} and not a dead letter: {why}", issued.status)));
    }
    let intervention = Intervention {
        at_step: Some(issued.step),
        ..Intervention::new(issued.saga, OperatorVerb::Resubmit).dry_run(dry_run)
    };
    intervene(db, sagas, consumer, &intervention, by).await
}

fn outcome(decision: &Decision, dry_run: bool) -> String {
    let sent = decision.emit.iter().filter_map(|message| Heading::of(message.payload.as_deref()));
    let sent: Vec<_> = sent.map(|heading| heading.name).collect();
    let becomes = if dry_run { "would become" } else { "is now" };
    let sends = match (sent.is_empty(), dry_run) {
        (true, _) => "nothing is sent".to_owned(),
        (false, true) => format!("{} would be sent", sent.join(", ")),
        (false, false) => format!("{} is sent", sent.join(", ")),
    };
    format!("{becomes} {} in {}; {sends}", decision.status.name(), decision.state())
}

fn detail(instance: &Instance, verb: &OperatorVerb, settlement: &Settlement, dry_run: bool) -> Value {
    let after = settlement.processes.first().map(|process| &process.instance);
    let mut detail = json!({
        "type": instance.process_type,
        "business_key": instance.business_key,
        "from": { "status": instance.status.name(), "state": instance.state, "version": instance.version },
        "to": after.map(|p| json!({ "status": p.status.name(), "state": p.state, "version": p.version })),
        "dry_run": dry_run,
    });
    if let OperatorVerb::ForceComplete { evidence } = verb {
        detail["evidence"] = evidence.as_str().into();
    }
    detail
}

fn audited(verb: &OperatorVerb) -> &'static str {
    match verb {
        OperatorVerb::Pause => "saga.pause",
        OperatorVerb::Resume => "saga.resume",
        OperatorVerb::Resubmit => "saga.resubmit",
        OperatorVerb::Skip => "saga.skip",
        OperatorVerb::Compensate => "saga.compensate",
        OperatorVerb::ForceComplete { .. } => "saga.force-complete",
    }
}
