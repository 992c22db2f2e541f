//! A definition that was checked, with its expressions ready to run.

use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::definition::{Compensation, Definition, Kind, OnFailure, Step};
use super::expression::Expression;
use super::mapping::Mapping;
use super::rules::{self, Flaw};
use crate::backoff::RetryPolicy;
use crate::message::{Destination, dedupe_key};

/// The first bytes of a UUIDv7 are its time.
const TIME_BYTES: usize = 6;

/// Made once a definition, never for a message.
#[derive(Debug)]
pub struct Compiled {
    definition: Definition,
    hash: String,
    pub(super) steps: Vec<CompiledStep>,
    pub(super) step_names: Vec<String>,
    pub(super) output: Option<Mapping>,
}

#[derive(Debug)]
pub(super) struct CompiledStep {
    pub(super) call: Call,
    pub(super) when: Option<Expression>,
    pub(super) on_failure: OnFailure,
    pub(super) park: bool,
    pub(super) undo: Option<Undo>,
}

#[derive(Debug)]
pub(super) struct Undo {
    pub(super) call: Call,
    pub(super) if_unknown: bool,
}

/// What steps and compensations have in common: a command to send and to wait for.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) command: String,
    pub(super) to: Destination,
    pub(super) payload: Mapping,
    pub(super) key: Option<Expression>,
    pub(super) timeout: Duration,
    pub(super) retry: RetryPolicy,
}

/// Where a name stands in the definition.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Step(usize),
    Undo(usize),
}

impl Compiled {
    /// Checks the definition and compiles its expressions; every flaw is told, not only the first.
    pub fn new(definition: Definition) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let hash = definition.hash();
        let steps: Vec<CompiledStep> =
            definition.steps.iter().enumerate().map(|(n, step)| compile_step(n, step, &mut flaws)).collect();
        let output = definition.output.as_ref().map(|output| mapping(Some(output), "output", &mut flaws));
        let step_names = definition.steps.iter().map(|step| step.name.clone()).collect();
        let compiled = Self { definition, hash, steps, step_names, output };
        rules::check(&compiled, &mut flaws);
        if flaws.is_empty() { Ok(compiled) } else { Err(flaws) }
    }

    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    pub fn name(&self) -> &str {
        &self.definition.name
    }

    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub(super) fn place(&self, name: &str) -> Option<Place> {
        self.steps.iter().enumerate().find_map(|(n, step)| {
            if step.call.name == name {
                return Some(Place::Step(n));
            }
            step.undo.as_ref().filter(|undo| undo.call.name == name).map(|_| Place::Undo(n))
        })
    }

    pub(super) fn call(&self, place: Place) -> &Call {
        match place {
            Place::Step(n) => &self.steps[n].call,
            Place::Undo(n) => &self.undo(n).expect("a place is only made for a compensation that is there").call,
        }
    }

    pub(super) fn undo(&self, n: usize) -> Option<&Undo> {
        self.steps[n].undo.as_ref()
    }

    /// The same for every send of the command. It begins as the saga's id does, with the time: in an index
    /// they are neighbours, instead of anywhere.
    pub(super) fn command_id(&self, saga: Uuid, name: &str) -> Uuid {
        match self.definition.kind {
            Kind::Command if self.step_names.first().is_some_and(|step| step == name) => saga,
            _ => {
                let mut id = dedupe_key([saga.to_string().as_str(), name]).into_bytes();
                id[..TIME_BYTES].copy_from_slice(&saga.as_bytes()[..TIME_BYTES]);
                Uuid::from_bytes(id)
            }
        }
    }
}

fn compile_step(n: usize, step: &Step, flaws: &mut Vec<Flaw>) -> CompiledStep {
    let path = format!("step[{n}]");
    let call = Call {
        name: step.name.clone(),
        command: step.command.clone(),
        to: step.to.clone(),
        payload: mapping(step.payload.as_ref(), &format!("{path}.payload"), flaws),
        key: expression(step.key.as_ref(), &format!("{path}.key"), flaws),
        timeout: step.timeout,
        retry: step.retry.clone(),
    };
    let when = expression(step.when.as_ref(), &format!("{path}.when"), flaws);
    let undo = step.compensation.as_ref().map(|undo| compile_undo(&format!("{path}.compensation"), undo, flaws));
    CompiledStep { call, when, on_failure: step.on_failure, park: step.park, undo }
}

fn compile_undo(path: &str, undo: &Compensation, flaws: &mut Vec<Flaw>) -> Undo {
    let call = Call {
        name: undo.name.clone(),
        command: undo.command.clone(),
        to: undo.to.clone(),
        payload: mapping(undo.payload.as_ref(), &format!("{path}.payload"), flaws),
        key: None,
        timeout: undo.timeout,
        retry: undo.retry.clone(),
    };
    Undo { call, if_unknown: undo.if_unknown }
}

/// Without a mapping the command gets the input of the saga.
fn mapping(given: Option<&Value>, path: &str, flaws: &mut Vec<Flaw>) -> Mapping {
    let input = Value::from("input");
    Mapping::compile(given.unwrap_or(&input), path, &mut |path, why| flaws.push(rules::not_an_expression(path, why)))
}

fn expression(given: Option<&String>, path: &str, flaws: &mut Vec<Flaw>) -> Option<Expression> {
    match Expression::compile(given?) {
        Ok(expression) => Some(expression),
        Err(why) => {
            flaws.push(rules::not_an_expression(path, why));
            None
        }
    }
}
