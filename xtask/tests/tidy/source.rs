//! A source file as the rules see it: its text, and its code without comments and strings.
//!
//! This is not a parser. It knows comments, literals and braces, which is enough to count
//! lines and find words; macros that unbalance braces would confuse it, and we write none.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub(crate) struct Source {
    /// Relative to the root of the repository, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// For Rust: `text` with comments blanked and the contents of literals replaced by `_`;
    /// every line keeps its place. For other files: `text`.
    pub(crate) code: String,
}

pub(crate) fn root() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.parent().expect("xtask has a parent").into()
}

/// Every .rs, .md and .sql file of the repository.
pub(crate) fn all() -> Vec<Source> {
    let mut sources = Vec::new();
    walk(&root(), &mut sources);
    assert!(sources.len() > 5, "the walk found nothing");
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

fn walk(dir: &Path, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(dir).expect("the directory is readable") {
        let path = entry.expect("the entry is readable").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            // Build output, and .git and its like.
            if name != "target" && !name.starts_with('.') {
                walk(&path, sources);
            }
        } else if [".rs", ".md", ".sql"].iter().any(|end| name.ends_with(end)) {
            sources.push(Source::read(&path));
        }
    }
}

impl Source {
    fn read(file: &Path) -> Self {
        let path = file.strip_prefix(root()).expect("below the root");
        let path = path.to_string_lossy().replace('\\', "/");
        let text = fs::read_to_string(file).expect("the file is UTF-8");
        let code = if path.ends_with(".rs") { scrub(&text) } else { text.clone() };
        Self { path, text, code }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// `crates/*/src/**.rs`
    pub(crate) fn is_product(&self) -> bool {
        self.is_rust() && self.path.starts_with("crates/") && self.has_dir("src")
    }

    pub(crate) fn has_dir(&self, dir: &str) -> bool {
        self.path.rsplit('/').skip(1).any(|part| part == dir)
    }

    /// `path:line: message` for what was found at a byte of the code.
    pub(crate) fn at(&self, offset: usize, message: &str) -> String {
        let line = self.code[..offset].matches('\n').count() + 1;
        format!("{}:{line}: {message}", self.path)
    }

    pub(crate) fn code_lines(&self) -> usize {
        self.code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--")).count()
    }

    /// The code without the items under `#[cfg(test)]`; lines keep their places.
    pub(crate) fn code_without_tests(&self) -> String {
        const MARK: &str = "#[cfg(test)]";
        let mut code = self.code.clone();
        while let Some(start) = code.find(MARK) {
            let end = item_end(&code, start + MARK.len());
            let blank: String = code[start..end].chars().map(blank).collect();
            code.replace_range(start..end, &blank);
        }
        code
    }

    /// The name and the bytes of every function with a body.
    pub(crate) fn functions(&self) -> Vec<(&str, Range<usize>)> {
        let mut functions = Vec::new();
        for (start, _) in self.code.match_indices("fn ") {
            let after = &self.code[start + 3..];
            let name = after.split(|c| !is_word(c)).next().unwrap_or_default();
            let starts_word = !self.code[..start].ends_with(is_word);
            if starts_word && !name.is_empty() {
                functions.push((name, start..item_end(&self.code, start)));
            }
        }
        functions
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The end of the item that begins at `start`: after its body, or its semicolon.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, c) in code[start..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && matches!(c, '}' | ';') {
            return start + offset + 1;
        }
    }
    code.len()
}

fn blank(c: char) -> char {
    if c == '\n' { c } else { ' ' }
}

fn scrub(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let in_word = code.ends_with(is_word);
        let comment = comment_length(rest);
        let literal = literal_length(rest, in_word);
        if comment > 0 {
            code.extend(rest[..comment].chars().map(blank));
        } else if literal > 0 {
            let hide = |c| if c == '\n' { c } else { '_' };
            code.push('"');
            code.extend(rest[1..literal - 1].chars().map(hide));
            code.push('"');
        } else {
            code.push(first);
        }
        rest = &rest[comment.max(literal).max(first.len_utf8())..];
    }
    code
}

fn comment_length(rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if !rest.starts_with("/*") {
        return 0;
    }
    rest.find("*/").map_or(rest.len(), |end| end + 2)
}

/// The length of the string or character literal at the start of `rest`, or 0. `in_word` is
/// whether a name or a number ends right before, as in `for"`.
fn literal_length(rest: &str, in_word: bool) -> usize {
    if rest.starts_with('"') {
        return quoted_length(rest, '"');
    }
    if let Some(body) = rest.strip_prefix('\'') {
        // Otherwise a lifetime.
        let mut next = body.chars();
        let is_char = next.next() == Some('\\') || next.next() == Some('\'');
        return if is_char { quoted_length(rest, '\'') } else { 0 };
    }
    if in_word {
        return 0;
    }
    let prefix = ["br", "cr", "r"].iter().find(|p| rest.starts_with(**p));
    let Some(after) = prefix.map(|prefix| &rest[prefix.len()..]) else {
        return 0;
    };
    let body = after.trim_start_matches('#');
    let hashes = &after[..after.len() - body.len()];
    if !body.starts_with('"') {
        return 0;
    }
    let opened = rest.len() - body.len() + 1;
    let close = format!("\"{hashes}");
    body[1..].find(&close).map_or(rest.len(), |end| opened + end + close.len())
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (offset, c) in rest.char_indices().skip(1) {
        if c == quote && !escaped {
            return offset + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    rest.len()
}

#[test]
fn comments_and_literals_are_not_code() {
    let text = "a /* } */ \"{\\\"\" r#\"\"{\"# '{' '\\'' &'a b // {\nc";
    let code = scrub(text);
    assert_eq!(code.matches(['{', '}']).count(), 0, "{code}");
    assert!(code.contains("&'a b"), "{code}");
    assert!(code.ends_with("\nc"), "{code}");
}

#[test]
fn functions_are_measured_with_their_bodies() {
    let text = "fn a(x: [u8; 2]) -> u8 {\n  match x {\n    _ => 1 }\n}\nfn b();\n";
    let source = Source { path: String::new(), text: text.into(), code: scrub(text) };
    let found: Vec<_> =
        source.functions().into_iter().map(|(name, range)| (name, text[range].lines().count())).collect();
    assert_eq!(found, [("a", 4), ("b", 1)]);
}
