//! Prints answers: tables for eyes, JSON and names for programs.
//!
//! Text from messages is shown without control characters: a key must not be able to move the cursor.

use std::io::{self, Write};

use dipmo::operator::Listing;
use serde::Serialize;
use serde_json::Value;

use crate::cli::Format;
use crate::exit::{Exit, Quit};

/// A longer cell is cut in a table; JSON has it whole.
const CELL_CHARS_MAX: usize = 60;

/// A row of a list: what it has in JSON is what a table shows, column by column.
pub(crate) trait Row: Serialize {
    /// `field`, or `heading:field` where they differ; a field that ends in `_seconds` is an age.
    const COLUMNS: &'static [&'static str];

    fn cells(&self) -> Vec<String> {
        let row = to_value(self);
        Self::COLUMNS.iter().map(|column| column_parts(column).1).map(|field| cell(field, &row[field])).collect()
    }

    fn name(&self) -> String {
        cell("id", &to_value(self)["id"])
    }
}

/// Heading and field.
fn column_parts(column: &str) -> (&str, &str) {
    column.split_once(':').unwrap_or((column, column))
}

fn cell(field: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        number if field.ends_with("_seconds") => age(number.as_f64()),
        other => other.to_string(),
    }
}

/// A page of a list. Where it goes on is said on stderr, unless the answer itself says so.
pub(crate) fn list<T: Row>(format: Format, listing: &Listing<T>) -> Result<(), Quit> {
    match format {
        Format::Json => return json(listing),
        Format::Jsonl => lines(listing.items.iter().map(compact))?,
        Format::Name => lines(listing.items.iter().map(Row::name))?,
        Format::Table => {
            let headings: Vec<&str> = T::COLUMNS.iter().map(|column| column_parts(column).0).collect();
            print(&table(&headings, &listing.items.iter().map(Row::cells).collect::<Vec<_>>()))?;
        }
    }
    if let Some(next) = &listing.next {
        eprintln!("more: --after {next}");
    }
    Ok(())
}

/// One thing in full.
pub(crate) fn one<T: Serialize>(format: Format, thing: &T, name: &str) -> Result<(), Quit> {
    match format {
        Format::Json => json(thing),
        Format::Jsonl => lines([compact(thing)]),
        Format::Name => lines([name.to_owned()]),
        Format::Table => print(&sheet(&to_value(thing))),
    }
}

pub(crate) fn json<T: Serialize>(thing: &T) -> Result<(), Quit> {
    let text = serde_json::to_string_pretty(thing).expect("our answers are plain data");
    print(&format!("{text}\n"))
}

pub(crate) fn compact<T: Serialize>(thing: &T) -> String {
    serde_json::to_string(thing).expect("our answers are plain data")
}

/// Lines for programs; a tab parts the fields of a name.
pub(crate) fn lines(lines: impl IntoIterator<Item = String>) -> Result<(), Quit> {
    let line = |line: String| line.split('\t').map(harmless).collect::<Vec<_>>().join("\t") + "\n";
    print(&lines.into_iter().map(line).collect::<String>())
}

/// Text that cannot do anything to a terminal.
pub(crate) fn harmless(text: &str) -> String {
    clean(text, usize::MAX)
}

/// Columns side by side, headed in capitals.
pub(crate) fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let head = columns.iter().map(|column| column.to_uppercase()).collect();
    let body = rows.iter().map(|row| row.iter().map(|cell| clean(cell, CELL_CHARS_MAX)).collect());
    let all: Vec<Vec<String>> = std::iter::once(head).chain(body).collect();
    let width = |n: usize| all.iter().map(|row| row.get(n).map_or(0, |c| c.chars().count())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in &all {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// One field a line; what is null is left out, lists become one compact line an item.
fn sheet(value: &Value) -> String {
    let Value::Object(fields) = value else { return format!("{value}\n") };
    let width = fields.keys().map(|key| key.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let shown = match value {
            Value::String(s) => vec![harmless(s)],
            Value::Array(items) => items.iter().map(|item| harmless(&item.to_string())).collect(),
            other => vec![harmless(&other.to_string())],
        };
        for (n, line) in shown.iter().enumerate() {
            let key = if n == 0 { key } else { "" };
            text.push_str(&format!("{key:width$}  {line}\n"));
        }
    }
    text
}

/// Writes to stdout; a reader that has gone away is not an error.
pub(crate) fn print(text: &str) -> Result<(), Quit> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Quit::new(Exit::Failed, format!("cannot write the answer: {error}")))
        }
        _ => Ok(()),
    }
}

fn to_value<T: Serialize + ?Sized>(thing: &T) -> Value {
    serde_json::to_value(thing).expect("our answers are plain data")
}

fn clean(text: &str, chars_max: usize) -> String {
    let harmless = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut shown: String = harmless.clone().take(chars_max).collect();
    if harmless.count() > chars_max {
        shown.pop();
        shown.push('…');
    }
    shown
}

/// `90s`, `3h`, `2d`: an age for eyes.
pub(crate) fn age(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(s) if s < 120.0 => format!("{:.0}s", s.max(0.0)),
        Some(s) if s < 7_200.0 => format!("{:.0}m", s / 60.0),
        Some(s) if s < 172_800.0 => format!("{:.0}h", s / 3_600.0),
        Some(s) => format!("{:.0}d", s / 86_400.0),
    }
}

/// `512 B`, `20 kB`, `3 GB`: a size for eyes.
pub(crate) fn bytes(count: Option<i64>) -> String {
    const UNITS: [(i64, &str); 4] = [(1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")];
    let Some(count) = count else { return "-".to_owned() };
    match UNITS.iter().find(|(size, _)| count >= 2 * size) {
        Some((size, unit)) => format!("{} {unit}", count / size),
        None => format!("{count} B"),
    }
}

pub(crate) fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_cannot_move_the_cursor_and_a_long_cell_is_cut() {
        let text = table(&["key", "n"], &[vec!["\x1b[2Jx\ny".into(), "1".into()], vec!["é".repeat(100), "2".into()]]);
        assert!(!text.contains('\x1b'), "{text:?}");
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert_eq!(text.lines().nth(2).unwrap().chars().filter(|c| *c == 'é').count(), CELL_CHARS_MAX - 1);
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(table(&["id", "state"], &[vec!["1".into(), "DEAD".into()]]), "ID  STATE\n1   DEAD\n");
    }

    #[test]
    fn sizes_grow_coarser() {
        let sizes = [0, 2_047, 2_048, 5 << 20, 9 << 30].map(|count| bytes(Some(count)));
        assert_eq!(sizes, ["0 B", "2047 B", "2 kB", "5 MB", "9 GB"]);
        assert_eq!(bytes(None), "-");
    }

    #[test]
    fn ages_grow_coarser() {
        let ages: Vec<String> = [5.0, 119.0, 600.0, 9_000.0, 400_000.0].into_iter().map(|s| age(Some(s))).collect();
        assert_eq!(ages, ["5s", "119s", "10m", "2h", "5d"]);
    }
}
