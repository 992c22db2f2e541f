//! The process manager of onboardings.

use dipmo::Message;
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use time::OffsetDateTime;

use super::domain::Application;
use super::state::{OnboardingEvent, OnboardingState};
use super::{BLOCK_CREATED, CREATE_BLOCK, CUSTOMER_QUALIFIED, CUSTOMER_REFUSED, ONBOARDING, PROCESS, QUALIFY_CUSTOMER};
use crate::wire::{self, Refused};

/// One instance an application.
#[derive(Debug, Clone, Copy, Default)]
pub struct OnboardingProcess;

impl Process for OnboardingProcess {
    fn name(&self) -> &str {
        PROCESS
    }

    fn business_key(&self, message: &Message) -> String {
        wire::case(message).to_owned()
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        let Input::Message(message) = input else { return Err(Failure::stale("no timer is ever set")) };
        match (current, message.event_type()) {
            (None, ONBOARDING) => receive(message),
            (Some(_), ONBOARDING) => Err(Failure::stale("the application was received before")),
            (None, _) => Err(Failure::permanent("NO_PROCESS", "nothing was received under this id")),
            (Some(onboarding), _) => go_on(onboarding, message),
        }
    }
}

fn receive(message: &Message) -> Result<Decision, Failure> {
    let application: Application = message.json()?;
    application.validate().map_err(|invalid| Failure::permanent(invalid.code, invalid.why))?;
    let aggregate = ("Onboarding", application.onboarding_id.as_str());
    let qualify = wire::internal(aggregate, QUALIFY_CUSTOMER, &message.key, &application);
    Ok(Decision::go(OnboardingState::Received.name()).data(&application).emit(qualify))
}

fn go_on(onboarding: &Instance, message: &Message) -> Result<Decision, Failure> {
    let state = OnboardingState::from_name(&onboarding.state)
        .ok_or_else(|| Failure::permanent("PROCESS_STATE", format!("state {:?} is unknown", onboarding.state)))?;
    let event = match message.event_type() {
        CUSTOMER_QUALIFIED => OnboardingEvent::CustomerQualified,
        CUSTOMER_REFUSED => OnboardingEvent::Failed,
        BLOCK_CREATED => OnboardingEvent::BlockCreated,
        _ => return Err(wire::unknown_type(message)),
    };
    let next = state.next(event).map_err(wire::illegal)?;
    let decision = Decision::go(next.name());
    Ok(match next {
        OnboardingState::Qualified => {
            let application: Application = onboarding.data()?;
            let aggregate = ("Onboarding", application.onboarding_id.as_str());
            decision.emit(wire::internal(aggregate, CREATE_BLOCK, &message.key, &application))
        }
        OnboardingState::BlockCreated => {
            let closed = next.next(OnboardingEvent::Closed).map_err(wire::illegal)?;
            decision.then(closed.name()).succeed()
        }
        OnboardingState::Failed => decision.fail().note(message.json::<Refused>()?.why),
        OnboardingState::Received | OnboardingState::Completed => decision,
    })
}
