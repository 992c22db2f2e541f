//! What makes a definition wrong although it can be read.

use std::collections::HashMap;
use std::time::Duration;

use super::compiled::{Call, Compiled, CompiledStep};
use super::definition::Kind;
use super::end_state;
use super::expression::Expression;
use super::mapping::Mapping;

/// Longer than this nobody waits; it also keeps times within what can be stored.
const SPAN_MAX: Duration = Duration::from_secs(366 * 86_400);
const NAME_MAX: usize = 100;

/// Something wrong in a definition. The path says where, such as `step[1].compensation.payload.id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    pub path: String,
    pub what: String,
    pub why: String,
    pub hint: String,
}

impl Flaw {
    pub(super) fn new(
        path: impl Into<String>,
        what: impl Into<String>,
        why: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), what: what.into(), why: why.into(), hint: hint.into() }
    }
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}; {}", self.path, self.what, self.why, self.hint)
    }
}

pub(super) fn not_an_expression(path: &str, why: String) -> Flaw {
    let hint = "every text in a mapping is an expression: write a literal text as \"'text'\"";
    Flaw::new(path, "this is not an expression", why, hint)
}

pub(super) fn check(compiled: &Compiled, flaws: &mut Vec<Flaw>) {
    definition_name(compiled.name(), flaws);
    if compiled.steps.is_empty() {
        let hint = "add a step with name, command and to";
        flaws.push(Flaw::new("", "the saga has no step", "it would end before it began", hint));
    }
    if compiled.definition().kind == Kind::Command && compiled.steps.len() > 1 {
        let why = "the caller's command id is that of its only step";
        flaws.push(Flaw::new("step[1]", "a command has one step", why, "make it a saga"));
    }
    step_names(compiled, flaws);
    for (n, step) in compiled.steps.iter().enumerate() {
        check_step(compiled, n, step, flaws);
    }
    if let Some(output) = &compiled.output {
        mapping_names(output, "output", &Reach { compiled, upto: compiled.steps.len() }, flaws);
    }
}

fn check_step(compiled: &Compiled, n: usize, step: &CompiledStep, flaws: &mut Vec<Flaw>) {
    let path = format!("step[{n}]");
    call(&step.call, &path, flaws);
    let before = Reach { compiled, upto: n };
    mapping_names(&step.call.payload, &format!("{path}.payload"), &before, flaws);
    if let Some(key) = &step.call.key {
        names(key, &format!("{path}.key"), &before, flaws);
    }
    if let Some(when) = &step.when {
        names(when, &format!("{path}.when"), &before, flaws);
        condition(when, &path, flaws);
    }
    if let Some(undo) = &step.undo {
        let path = format!("{path}.compensation");
        call(&undo.call, &path, flaws);
        mapping_names(&undo.call.payload, &format!("{path}.payload"), &Reach { compiled, upto: n + 1 }, flaws);
    }
}

fn condition(when: &Expression, path: &str, flaws: &mut Vec<Flaw>) {
    let path = format!("{path}.when");
    match when.constant_bool() {
        Err(()) => {
            let hint = "compare something, such as input.kind == 'wire'";
            flaws.push(Flaw::new(
                path,
                "the condition is a constant that is neither true nor false",
                "a condition decides",
                hint,
            ));
        }
        Ok(Some(false)) => {
            let why = "the step can never run, and so its compensation neither";
            flaws.push(Flaw::new(path, "the condition is never true", why, "take the step out, or write a condition"));
        }
        Ok(_) => {}
    }
}

fn definition_name(name: &str, flaws: &mut Vec<Flaw>) {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    if !(first && rest && name.len() <= NAME_MAX) {
        let what = format!("{name:?} is no name for a definition");
        let why = format!("a name is a letter and then letters, digits, '_', '.' or '-', up to {NAME_MAX}");
        flaws.push(Flaw::new("name", what, why, "for example PaymentExecution"));
    }
}

fn step_names(compiled: &Compiled, flaws: &mut Vec<Flaw>) {
    let mut seen: HashMap<&str, String> = HashMap::new();
    for (n, step) in compiled.steps.iter().enumerate() {
        let undo = step.undo.as_ref().map(|undo| (format!("step[{n}].compensation.name"), &undo.call.name));
        for (path, name) in std::iter::once((format!("step[{n}].name"), &step.call.name)).chain(undo) {
            step_name(name, &path, flaws);
            if let Some(first) = seen.get(name.as_str()) {
                let what = format!("{name} is used twice, first by {first}");
                let why = "steps and compensations are told apart by their names alone";
                flaws.push(Flaw::new(path, what, why, "give each step and each compensation its own name"));
            } else {
                seen.insert(name, path);
            }
        }
    }
}

fn step_name(name: &str, path: &str, flaws: &mut Vec<Flaw>) {
    let first = name.starts_with(|c: char| c.is_ascii_uppercase());
    let rest = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    if !(first && rest && name.len() <= NAME_MAX) {
        let why =
            format!("a step is a state: a capital letter and then capital letters, digits or '_', up to {NAME_MAX}");
        flaws.push(Flaw::new(path, format!("{name:?} is no name for a step"), why, "for example STEP_CHECK_BALANCE"));
    }
    if end_state::ALL.contains(&name) {
        let what = format!("{name} is the state of a saga that has ended");
        flaws.push(Flaw::new(path, what, "a step of that name would look like the end", "choose another name"));
    }
}

fn call(call: &Call, path: &str, flaws: &mut Vec<Flaw>) {
    if call.command.is_empty() || call.command.len() > NAME_MAX || call.command.chars().any(char::is_control) {
        let what = format!("{:?} is no name for a command", call.command);
        let why = format!("a command is named by 1 to {NAME_MAX} printable characters");
        flaws.push(Flaw::new(format!("{path}.command"), what, why, "for example CheckBalance"));
    }
    if call.timeout < Duration::from_millis(1) || call.timeout > SPAN_MAX {
        let what = format!("the timeout is {}", crate::span::show(call.timeout));
        let why = "an answer needs some time, and no longer than a year";
        flaws.push(Flaw::new(format!("{path}.timeout"), what, why, "write for example \"30s\""));
    }
    if call.retry.attempts_max == 0 {
        let why = "the command would never be sent";
        let hint = "1 sends it once and does not try again";
        flaws.push(Flaw::new(format!("{path}.retry.attempts_max"), "there are 0 attempts", why, hint));
    }
    if call.retry.delay_max > SPAN_MAX || call.retry.jitter_max > SPAN_MAX {
        let why = "the next try would be more than a year away";
        flaws.push(Flaw::new(format!("{path}.retry"), "the delay is too long", why, "write for example \"5m\""));
    }
}

/// The steps that an expression may refer to: those before `upto`.
struct Reach<'a> {
    compiled: &'a Compiled,
    upto: usize,
}

fn mapping_names(mapping: &Mapping, path: &str, reach: &Reach<'_>, flaws: &mut Vec<Flaw>) {
    let mut found = Vec::new();
    mapping.expressions(path, &mut found);
    for (path, expression) in found {
        names(expression, &path, reach, flaws);
    }
}

fn names(expression: &Expression, path: &str, reach: &Reach<'_>, flaws: &mut Vec<Flaw>) {
    let known = "there are input, steps and saga";
    for name in expression.names.free.iter().filter(|name| !["input", "steps", "saga"].contains(&name.as_str())) {
        let hint = "write input.x for what the saga was started with, or \"'x'\" for a literal text";
        flaws.push(Flaw::new(path, format!("nothing is named {name}"), known, hint));
    }
    for field in expression.names.saga.iter().filter(|field| !["id", "key", "tenant"].contains(&field.as_str())) {
        let what = format!("a saga has no {field}");
        flaws.push(Flaw::new(path, what, "there are saga.id, saga.key and saga.tenant", "use one of them"));
    }
    for field in &expression.names.fields {
        let what = format!("a step has no {field}");
        flaws.push(Flaw::new(path, what, "only its result can be referred to", "write steps.<STEP>.result"));
    }
    for step in &expression.names.steps {
        step_reference(step, path, reach, flaws);
    }
}

fn step_reference(step: &str, path: &str, reach: &Reach<'_>, flaws: &mut Vec<Flaw>) {
    let all = &reach.compiled.step_names;
    match all.iter().position(|name| name == step) {
        Some(at) if at < reach.upto => {}
        Some(_) => {
            let what = format!("{step} has not run by then");
            let hint = match &all[..reach.upto] {
                [] => "only input and saga are known here".to_owned(),
                before => format!("known here: {}", before.join(", ")),
            };
            flaws.push(Flaw::new(path, what, "its result comes later than it is needed here", hint));
        }
        None => {
            let why = match reach.compiled.place(step) {
                Some(_) => "it is a compensation, and those have no result to refer to",
                None => "no step has that name",
            };
            let hint = format!("the steps are {}", all.join(", "));
            flaws.push(Flaw::new(path, format!("there is no step {step}"), why, hint));
        }
    }
}
