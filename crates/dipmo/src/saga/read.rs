//! Reads definitions out of TOML. Goes on after each problem, so that all of them are told at once.

use std::ops::Range;
use std::time::Duration;

use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

use super::definition::{Compensation, Definition, Kind, OnFailure, Step, step_name};
use crate::backoff::RetryPolicy;
use crate::message::Destination;

/// Something that cannot be read, and where.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) span: Range<usize>,
    pub(super) what: String,
    pub(super) why: String,
    pub(super) hint: String,
}

/// A definition and the path of its table, such as `saga[0]`.
pub(super) type Found = (String, Definition);

pub(super) fn definitions(root: &DeTable<'_>, wrong: &mut Vec<Unreadable>) -> Vec<Found> {
    let mut found = Vec::new();
    let mut table = Table::new(root, 0..0, wrong);
    for (n, item) in table.tables("saga").into_iter().enumerate() {
        found.push((format!("saga[{n}]"), saga(item, table.wrong)));
    }
    for (n, item) in table.tables("command").into_iter().enumerate() {
        found.push((format!("command[{n}]"), command(item, table.wrong)));
    }
    table.finish();
    found
}

type Item<'a, 'i> = (&'a DeTable<'i>, Range<usize>);

fn saga((table, span): Item<'_, '_>, wrong: &mut Vec<Unreadable>) -> Definition {
    let mut table = Table::new(table, span, wrong);
    let mut saga = Definition::new(table.required("name"));
    saga.events = table.destination("events");
    saga.output = table.json("output");
    saga.schema = table.json("schema");
    for item in table.tables("step") {
        saga.steps.push(step(item, table.wrong));
    }
    table.finish();
    saga
}

fn command((table, span): Item<'_, '_>, wrong: &mut Vec<Unreadable>) -> Definition {
    let mut table = Table::new(table, span, wrong);
    let name = table.required("name");
    let mut step = Step::new(step_name(&name), name.clone(), table.required_destination("to"));
    step.payload = table.json("payload");
    step.key = table.text("key");
    (step.timeout, step.retry) = table.patience(step.timeout);
    step.park = table.boolean("park");
    let mut definition = Definition { kind: Kind::Command, ..Definition::new(name) };
    definition.events = table.destination("events");
    definition.schema = table.json("schema");
    table.finish();
    definition.step(step)
}

fn step((table, span): Item<'_, '_>, wrong: &mut Vec<Unreadable>) -> Step {
    let mut table = Table::new(table, span, wrong);
    let (name, command) = (table.required("name"), table.required("command"));
    let mut step = Step::new(name, command, table.required_destination("to"));
    step.when = table.text("when");
    step.payload = table.json("payload");
    step.key = table.text("key");
    (step.timeout, step.retry) = table.patience(step.timeout);
    step.on_failure = table.choice("on_failure", &[("compensate", OnFailure::Compensate), ("pause", OnFailure::Pause)]);
    step.park = table.boolean("park");
    step.compensation = table.table("compensation").map(|item| compensation(item, table.wrong));
    table.finish();
    step
}

fn compensation((table, span): Item<'_, '_>, wrong: &mut Vec<Unreadable>) -> Compensation {
    let mut table = Table::new(table, span, wrong);
    let (name, command) = (table.required("name"), table.required("command"));
    let mut undo = Compensation::new(name, command, table.required_destination("to"));
    undo.payload = table.json("payload");
    (undo.timeout, undo.retry) = table.patience(undo.timeout);
    undo.if_unknown = table.boolean("if_unknown");
    table.finish();
    undo
}

/// A table that is being read; what nobody asked for is unknown.
struct Table<'a, 'i, 'w> {
    table: &'a DeTable<'i>,
    span: Range<usize>,
    asked: Vec<&'static str>,
    wrong: &'w mut Vec<Unreadable>,
}

impl<'a, 'i, 'w> Table<'a, 'i, 'w> {
    fn new(table: &'a DeTable<'i>, span: Range<usize>, wrong: &'w mut Vec<Unreadable>) -> Self {
        Self { table, span, asked: Vec::new(), wrong }
    }

    fn complain(
        &mut self,
        span: Range<usize>,
        what: impl Into<String>,
        why: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.wrong.push(Unreadable { span, what: what.into(), why: why.into(), hint: hint.into() });
    }

    fn get(&mut self, key: &'static str) -> Option<(&'a DeValue<'i>, Range<usize>)> {
        self.asked.push(key);
        let (_, value) = self.table.iter().find(|(name, _)| name.get_ref() == key)?;
        Some((value.get_ref(), value.span()))
    }

    fn wrong_type(&mut self, key: &str, value: &DeValue<'_>, span: Range<usize>, wanted: &str) {
        let why = format!("it is a {}", value.type_str());
        self.complain(span, format!("{key} must be {wanted}"), why, format!("write {wanted}"));
    }

    fn text(&mut self, key: &'static str) -> Option<String> {
        let (value, span) = self.get(key)?;
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            self.wrong_type(key, value, span, "a text");
        }
        text
    }

    fn required(&mut self, key: &'static str) -> String {
        let there = self.table.iter().any(|(name, _)| name.get_ref() == key);
        let text = self.text(key);
        if !there {
            let span = self.span.clone();
            self.complain(
                span,
                format!("{key} is missing"),
                "nothing works without it",
                format!("add {key} = \"...\""),
            );
        }
        text.unwrap_or_default()
    }

    fn destination(&mut self, key: &'static str) -> Option<Destination> {
        let span = self.get(key)?.1;
        let text = self.text(key)?;
        match text.parse() {
            Ok(to) => Some(to),
            Err(error) => {
                let hint = "write for example \"KAFKA:topic\"";
                self.complain(span, format!("{key} is not a destination"), error.to_string(), hint);
                None
            }
        }
    }

    /// One that cannot be read was complained of, so what stands for it is never used.
    fn required_destination(&mut self, key: &'static str) -> Destination {
        if self.get(key).is_none() {
            self.required(key);
        }
        self.destination(key).unwrap_or(Destination::Internal)
    }

    fn boolean(&mut self, key: &'static str) -> bool {
        let Some((value, span)) = self.get(key) else { return false };
        if value.as_bool().is_none() {
            self.wrong_type(key, value, span, "true or false");
        }
        value.as_bool().unwrap_or_default()
    }

    fn choice<T: Copy + Default>(&mut self, key: &'static str, choices: &[(&str, T)]) -> T {
        let Some((_, span)) = self.get(key) else { return T::default() };
        let Some(text) = self.text(key) else { return T::default() };
        let chosen = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        chosen.unwrap_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.complain(
                span,
                format!("{key} cannot be {text:?}"),
                "it is not a choice",
                format!("write one of {}", names.join(", ")),
            );
            T::default()
        })
    }

    fn span_of_time(&mut self, key: &'static str) -> Option<Duration> {
        let span = self.get(key)?.1;
        let text = self.text(key)?;
        crate::span::parse(&text)
            .map_err(|why| self.complain(span, format!("{key} cannot be read"), why, "write for example \"30s\""))
            .ok()
    }

    fn patience(&mut self, timeout: Duration) -> (Duration, RetryPolicy) {
        let timeout = self.span_of_time("timeout").unwrap_or(timeout);
        let retry = self.table("retry").map(|item| retry(item, self.wrong));
        (timeout, retry.unwrap_or_default())
    }

    fn json(&mut self, key: &'static str) -> Option<Value> {
        let (value, _) = self.get(key)?;
        Some(self.to_json(value))
    }

    fn to_json(&mut self, value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => text.as_ref().into(),
            DeValue::Boolean(value) => (*value).into(),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).unwrap_or_default().into(),
            DeValue::Float(number) => {
                let number: f64 = number.as_str().parse().unwrap_or_default();
                Number::from_f64(number).map_or(Value::Null, Value::Number)
            }
            // In a mapping every text is an expression; as one, a date is a literal text.
            DeValue::Datetime(time) => format!("'{time}'").into(),
            DeValue::Array(items) => items.iter().map(|item| self.to_json(item.get_ref())).collect(),
            DeValue::Table(table) => {
                let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
                    let key: &std::borrow::Cow<'_, str> = key.get_ref();
                    (key.to_string(), self.to_json(value.get_ref()))
                };
                Value::Object(table.iter().map(entry).collect::<Map<_, _>>())
            }
        }
    }

    fn table(&mut self, key: &'static str) -> Option<Item<'a, 'i>> {
        let (value, span) = self.get(key)?;
        if let DeValue::Table(table) = value {
            return Some((table, span));
        }
        self.wrong_type(key, value, span, "a table");
        None
    }

    /// An array of tables; without one there are none.
    fn tables(&mut self, key: &'static str) -> Vec<Item<'a, 'i>> {
        let Some((value, span)) = self.get(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.wrong_type(key, value, span, "an array of tables, [[...]]");
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in items.iter() {
            match item.get_ref() {
                DeValue::Table(table) => tables.push((table, item.span())),
                other => self.wrong_type(key, other, item.span(), "an array of tables, [[...]]"),
            }
        }
        tables
    }

    fn finish(mut self) {
        for (key, _) in self.table {
            if !self.asked.contains(&key.get_ref().as_ref()) {
                let hint = format!("known here: {}", self.asked.join(", "));
                self.complain(
                    key.span(),
                    format!("unknown key {:?}", key.get_ref()),
                    "a misspelt key would have no effect",
                    hint,
                );
            }
        }
    }
}

fn retry((table, span): Item<'_, '_>, wrong: &mut Vec<Unreadable>) -> RetryPolicy {
    let mut table = Table::new(table, span, wrong);
    let mut policy = RetryPolicy::default();
    if let Some((value, span)) = table.get("attempts_max") {
        let number = value.as_integer().and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
        match number {
            Some(number) => policy.attempts_max = number,
            None => table.wrong_type("attempts_max", value, span, "a whole number"),
        }
    }
    policy.delay_max = table.span_of_time("delay_max").unwrap_or(policy.delay_max);
    policy.jitter_max = table.span_of_time("jitter_max").unwrap_or(policy.jitter_max);
    table.finish();
    policy
}
