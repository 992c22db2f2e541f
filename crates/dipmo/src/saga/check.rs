//! Reads and checks a file of definitions and tells everything that is wrong, each with its place.

use std::fmt;

use toml::de::DeTable;

use super::compiled::Compiled;
use super::definition::Definition;
use super::read;
use super::rules::Flaw;
use crate::locate::{Place, nearest, place_of};

/// Something wrong in a file, where, and what to do about it. Lines and columns are counted from one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub line: usize,
    pub column: usize,
    pub what: String,
    pub why: String,
    pub hint: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}; {}", self.line, self.column, self.what, self.why, self.hint)
    }
}

impl std::error::Error for Problem {}

impl Problem {
    fn at(place: Place, what: impl Into<String>, why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { line: place.line, column: place.column, what: what.into(), why: why.into(), hint: hint.into() }
    }
}

/// The definitions of a file, or all of its problems in the order of their lines.
pub fn check(text: &str) -> Result<Vec<Definition>, Vec<Problem>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut problems: Vec<Problem> = errors.iter().map(|error| not_toml(text, error)).collect();
    if !problems.is_empty() {
        // What was recovered may lack keys that are there: more complaints would be misleading.
        return Err(problems);
    }
    let mut unreadable = Vec::new();
    let found = read::definitions(root.get_ref(), &mut unreadable);
    problems.extend(
        unreadable
            .into_iter()
            .map(|wrong| Problem::at(place_of(text, wrong.span.start), wrong.what, wrong.why, wrong.hint)),
    );
    if found.is_empty() && problems.is_empty() {
        let why = "a file of definitions defines something";
        let nothing = Place { line: 1, column: 1 };
        problems.push(Problem::at(nothing, "the file defines nothing", why, "begin with [[saga]] or [[command]]"));
    }
    let place = |path: &str| place_of(text, nearest(root.get_ref(), path).unwrap_or_default());
    for (n, (path, definition)) in found.iter().enumerate() {
        if let Err(flaws) = Compiled::new(definition.clone()) {
            problems.extend(
                flaws.into_iter().filter(|flaw| !said_already(flaw, definition)).map(|flaw| located(path, flaw, place)),
            );
        }
        if let Some((first, _)) =
            found[..n].iter().find(|(_, other)| other.name == definition.name && !other.name.is_empty())
        {
            let what = format!("{} is defined twice, first by {first}", definition.name);
            let why = "sagas and commands are started by their names alone";
            problems.push(Problem::at(place(&format!("{path}.name")), what, why, "give each its own name"));
        }
    }
    problems.sort_by_key(|problem| (problem.line, problem.column));
    if problems.is_empty() { Ok(found.into_iter().map(|(_, definition)| definition).collect()) } else { Err(problems) }
}

/// A name that is missing has been told when it was read.
fn said_already(flaw: &Flaw, definition: &Definition) -> bool {
    let empty = flaw.what.starts_with("\"\" is no name") || flaw.what.starts_with(" is used twice");
    empty || (flaw.path == "step[0].name" && definition.name.is_empty())
}

/// A command has its one step's fields in its own table.
fn located(path: &str, flaw: Flaw, place: impl Fn(&str) -> Place) -> Problem {
    let inner = if path.starts_with("command") { flaw.path.replace("step[0].", "") } else { flaw.path };
    let full = if inner.is_empty() { path.to_owned() } else { format!("{path}.{inner}") };
    Problem::at(place(&full), flaw.what, flaw.why, flaw.hint)
}

fn not_toml(text: &str, error: &toml::de::Error) -> Problem {
    let at = error.span().map_or(0, |span| span.start);
    let why = error.message().trim_end().replace('\n', ", ");
    Problem::at(place_of(text, at), "this is not TOML", why, "see https://toml.io for how it is written")
}
