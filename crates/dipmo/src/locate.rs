//! Where in a TOML text something stands: from a byte to its line, from a key path to its byte.

use toml::de::{DeTable, DeValue};

/// A place in a text, both counted from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

/// The place of a byte; one behind the end is taken as the end.
pub fn place_of(text: &str, at: usize) -> Place {
    let upto = &text.as_bytes()[..at.min(text.len())];
    let line = upto.iter().filter(|byte| **byte == b'\n').count() + 1;
    let begin = upto.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    // Bytes that go on a character do not count as columns.
    let column = upto[begin..].iter().filter(|byte| (**byte & 0xC0) != 0x80).count() + 1;
    Place { line, column }
}

/// Where the value of a path such as `consumer[1].retry.attempts_max` begins.
pub fn start_of(table: &DeTable<'_>, path: &str) -> Option<usize> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let (name, indexes) = first.split_once('[').unwrap_or((first, ""));
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == name)?;
    let (mut start, mut value) = (key.span().start, value.get_ref());
    for index in indexes.split_terminator(']') {
        let index: usize = index.trim_start_matches('[').parse().ok()?;
        let item = value.as_array()?.get(index)?;
        (start, value) = (item.span().start, item.get_ref());
    }
    match (rest.is_empty(), value) {
        (true, _) => Some(start),
        (false, DeValue::Table(table)) => start_of(table, rest),
        (false, _) => None,
    }
}

/// Like [`start_of`]; a key that was left out has no place of its own, so its table's is taken.
pub fn nearest(table: &DeTable<'_>, path: &str) -> Option<usize> {
    let mut path = path;
    loop {
        if let Some(at) = start_of(table, path) {
            return Some(at);
        }
        path = &path[..path.rfind(['.', '['])?];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_its_line_and_column() {
        let text = "a = 1\n[[b]]\nc = 'ä'\nd = { e = [[1, 2], [3]] }\n";
        let table = DeTable::parse(text).unwrap();
        let at = |path| nearest(table.get_ref(), path).map(|at| place_of(text, at)).map(|at| (at.line, at.column));
        assert_eq!(at("a"), Some((1, 1)));
        assert_eq!(at("b[0].c"), Some((3, 1)));
        assert_eq!(at("b[0].d.e[1][0]"), Some((4, 20)));
        assert_eq!(at("b[0].nothing"), Some((2, 1)), "its table stands for what was left out");
        assert_eq!(at("z"), None);
    }
}
