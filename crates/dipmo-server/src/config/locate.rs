//! From a byte of the file to its line and key path, and from a key path to its line.

use std::ops::Range;

use dipmo::locate;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, Problem};

/// Keys whose values must not appear in a message, whatever is wrong with them.
const SECRET_KEYS: [&str; 3] = ["url", "password", "secret"];

/// Says where a file went wrong, in our words and without its text.
pub(super) fn explain(text: &str, file: &str, error: &toml::de::Error) -> ConfigError {
    let span = error.span();
    let key = span.as_ref().map(|span| key_at(text, span)).unwrap_or_default();
    let last = key.rsplit('.').next().unwrap_or("");
    let message = if SECRET_KEYS.iter().any(|secret| last.ends_with(secret)) {
        "has the wrong form (its value is not shown)".to_owned()
    } else {
        error.message().trim_end().replace('\n', ", ")
    };
    ConfigError { file: file.to_owned(), line: span.map(|span| line_of(text, span.start)), key, message }
}

/// Finds the line of a key whose value was read but makes no sense.
pub(super) fn place(text: &str, file: &str, problem: Problem) -> ConfigError {
    let table = DeTable::parse(text).ok();
    let at = table.and_then(|table| locate::nearest(table.get_ref(), &problem.key));
    let line = at.map(|at| line_of(text, at));
    ConfigError { file: file.to_owned(), line, key: problem.key, message: problem.message }
}

fn line_of(text: &str, at: usize) -> usize {
    locate::place_of(text, at).line
}

/// The path of the deepest key whose key or value holds the span.
fn key_at(text: &str, span: &Range<usize>) -> String {
    let mut path = String::new();
    if let Ok(table) = DeTable::parse(text) {
        in_table(table.get_ref(), span, &mut path);
    }
    path
}

fn in_table(table: &DeTable<'_>, span: &Range<usize>, path: &mut String) {
    for (key, value) in table {
        let here = holds(&key.span(), span) || holds(&value.span(), span) || holds_below(value.get_ref(), span);
        if here {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(key.get_ref());
            in_value(value.get_ref(), span, path);
            return;
        }
    }
}

fn in_value(value: &DeValue<'_>, span: &Range<usize>, path: &mut String) {
    match value {
        DeValue::Table(table) => in_table(table, span, path),
        DeValue::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                if holds(&item.span(), span) || holds_below(item.get_ref(), span) {
                    path.push_str(&format!("[{n}]"));
                    in_value(item.get_ref(), span, path);
                    return;
                }
            }
        }
        _ => {}
    }
}

/// The span of a table is only that of its header, so what is below it is looked at too.
fn holds_below(value: &DeValue<'_>, span: &Range<usize>) -> bool {
    match value {
        DeValue::Table(table) => table.iter().any(|(key, value)| {
            holds(&key.span(), span) || holds(&value.span(), span) || holds_below(value.get_ref(), span)
        }),
        DeValue::Array(items) => {
            items.iter().any(|item| holds(&item.span(), span) || holds_below(item.get_ref(), span))
        }
        _ => false,
    }
}

fn holds(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end && outer.start < outer.end
}
