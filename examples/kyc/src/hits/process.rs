//! The process manager of hits: turns messages into events of the state machine, and states into commands.

use dipmo::Message;
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use time::OffsetDateTime;

use super::domain::Notification;
use super::state::{HitEvent, HitState};
use super::{CREATE_HIT, HIT_CREATED, HIT_QUALIFIED, HIT_REFUSED, NOTIFICATION, PROCESS, QUALIFY_HIT};
use crate::review::{REVIEW_COMPLETED, REVIEW_STARTED, START_REVIEW};
use crate::wire::{self, Qualified, Refused};

/// One instance a notification.
#[derive(Debug, Clone, Copy, Default)]
pub struct HitProcess;

impl Process for HitProcess {
    fn name(&self) -> &str {
        PROCESS
    }

    fn business_key(&self, message: &Message) -> String {
        wire::case(message).to_owned()
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        let Input::Message(message) = input else { return Err(Failure::stale("no timer is ever set")) };
        match (current, message.event_type()) {
            (None, NOTIFICATION) => receive(message),
            (Some(_), NOTIFICATION) => Err(Failure::stale("the notification was received before")),
            (None, _) => Err(Failure::permanent("NO_PROCESS", "nothing was received under this id")),
            (Some(hit), _) => go_on(hit, message),
        }
    }
}

fn receive(message: &Message) -> Result<Decision, Failure> {
    let notification: Notification = message.json()?;
    notification.validate().map_err(|invalid| Failure::permanent(invalid.code, invalid.why))?;
    let create = wire::internal(("Hit", &notification.notification_id), CREATE_HIT, &message.key, &notification);
    Ok(Decision::go(HitState::Received.name()).data(&notification).emit(create))
}

fn go_on(hit: &Instance, message: &Message) -> Result<Decision, Failure> {
    let state = HitState::from_name(&hit.state)
        .ok_or_else(|| Failure::permanent("PROCESS_STATE", format!("state {:?} is unknown", hit.state)))?;
    let event = event(message)?;
    let next = state.next(event).map_err(wire::illegal)?;
    let notification: Notification = hit.data()?;
    let command =
        |event_type| wire::internal(("Hit", &notification.notification_id), event_type, &message.key, &notification);
    let decision = Decision::go(next.name());
    Ok(match next {
        HitState::HitCreated => decision.emit(command(QUALIFY_HIT)),
        HitState::QualifiedPositive => decision.emit(command(START_REVIEW)),
        HitState::QualifiedNegative => {
            let closed = next.next(HitEvent::Closed).map_err(wire::illegal)?;
            decision.then(closed.name()).succeed()
        }
        HitState::Completed => decision.succeed(),
        HitState::Failed => decision.fail().note(message.json::<Refused>()?.why),
        HitState::Received | HitState::ReviewStarted => decision,
    })
}

fn event(message: &Message) -> Result<HitEvent, Failure> {
    Ok(match message.event_type() {
        HIT_CREATED => HitEvent::HitCreated,
        HIT_REFUSED => HitEvent::Failed,
        HIT_QUALIFIED => HitEvent::Qualified(message.json::<Qualified>()?.verdict),
        REVIEW_STARTED => HitEvent::ReviewStarted,
        REVIEW_COMPLETED => HitEvent::ReviewCompleted,
        _ => return Err(wire::unknown_type(message)),
    })
}
