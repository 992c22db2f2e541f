//! Style is a test: what can be counted or found is not discussed in review.
//!
//! Each rule lists every place that breaks it. Exceptions stand in the ratchet tables below,
//! which may shrink and should not grow.

mod layers;
mod promises;
mod source;

use source::{Source, is_word, root};

/// Code lines: without blank lines and comments.
const FILE_LINES_MAX: usize = 500;

/// From the line of `fn` to its closing brace: a function fits a screen.
const FUNCTION_LINES_MAX: usize = 70;

/// Files that may be longer: (path, code lines now).
const LONG_FILES: &[(&str, usize)] = &[];

/// Functions that may be longer: (path::name, lines now).
const LONG_FUNCTIONS: &[(&str, usize)] = &[];

/// Files in which a sleep is the pace of a load, or the time between two looks at a process that
/// cannot tell: (path, sleeps now).
const PACED: &[(&str, usize)] = &[
    ("crates/dipmo-server/tests/world/daemon.rs", 1),
    ("crates/dipmo/tests/support/relay_stress.rs", 6),
    ("crates/dipmo/tests/upkeep_retention.rs", 1),
];

fn check(rule: impl Fn(&Source, &mut Vec<String>)) {
    let mut broken = Vec::new();
    for source in source::all() {
        rule(&source, &mut broken);
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// The limit is `max`, or exactly what the ratchet table says.
fn ratchet(name: &str, lines: usize, max: usize, table: &[(&str, usize)]) -> Option<String> {
    match table.iter().find(|(listed, _)| *listed == name) {
        None if lines > max => Some(format!("has {lines} lines, at most {max}: split it")),
        Some((_, now)) if lines > *now => Some(format!("has {lines} lines, it had {now}: split it")),
        Some((_, now)) if lines < *now => Some(format!("has {lines} lines: lower {now} in the table")),
        _ => None,
    }
}

fn forbid(source: &Source, code: &str, word: &str, why: &str, broken: &mut Vec<String>) {
    for (offset, _) in code.match_indices(word) {
        // `sleep(` is not `oversleep(`.
        if !(word.starts_with(is_word) && code[..offset].ends_with(is_word)) {
            broken.push(source.at(offset, &format!("{word} {why}")));
        }
    }
}

#[test]
fn files_are_short() {
    check(|source, broken| {
        if source.path.ends_with(".md") {
            return;
        }
        let lines = source.code_lines();
        let complaint = ratchet(&source.path, lines, FILE_LINES_MAX, LONG_FILES);
        broken.extend(complaint.map(|complaint| source.at(0, &complaint)));
    });
}

#[test]
fn functions_fit_a_screen() {
    check(|source, broken| {
        if !source.is_rust() {
            return;
        }
        for (name, range) in source.functions() {
            let lines = source.code[range.clone()].lines().count();
            let full_name = format!("{}::{name}", source.path);
            let complaint = ratchet(&full_name, lines, FUNCTION_LINES_MAX, LONG_FUNCTIONS);
            broken.extend(complaint.map(|text| source.at(range.start, &format!("{name} {text}"))));
        }
    });
}

#[test]
fn nothing_is_ignored_or_left_undone() {
    check(|source, broken| {
        if !source.is_rust() {
            return;
        }
        forbid(source, &source.code, "#[ignore", "hides a test", broken);
        for word in ["todo!(", "unimplemented!(", "dbg!("] {
            forbid(source, &source.code, word, "is not for commits", broken);
        }
    });
}

#[test]
fn product_code_says_why_it_cannot_fail() {
    check(|source, broken| {
        // `#[cfg(test)] mod tests;` keeps its tests in a file or folder of that name.
        if source.is_product() && !source.has_dir("tests") && !source.path.ends_with("/tests.rs") {
            let code = source.code_without_tests();
            let why = "hides the reason: use expect(\"why this cannot fail\")";
            forbid(source, &code, ".unwrap()", why, broken);
        }
    });
}

#[test]
fn tests_do_not_sleep() {
    check(|source, broken| {
        let paced =
            PACED.iter().any(|(path, count)| *path == source.path && source.code.matches("sleep(").count() == *count);
        if source.is_rust() && source.has_dir("tests") && !paced {
            let why = "makes tests slow and flaky: wait for the event or move the clock";
            forbid(source, &source.code, "sleep(", why, broken);
        }
    });
}

#[test]
fn white_space_is_plain() {
    check(|source, broken| {
        for (number, line) in source.text.split('\n').enumerate() {
            let place = format!("{}:{}", source.path, number + 1);
            if line.contains('\t') {
                broken.push(format!("{place}: tab"));
            }
            if line.ends_with([' ', '\t', '\r']) {
                broken.push(format!("{place}: white space at the end of the line"));
            }
        }
    });
}

#[test]
fn product_files_begin_with_what_they_are_for() {
    check(|source, broken| {
        if source.is_product() && !source.text.starts_with("//!") {
            broken.push(source.at(0, "must begin with //! module docs"));
        }
    });
}

#[test]
fn relative_links_lead_somewhere() {
    check(|source, broken| {
        if !source.path.ends_with(".md") {
            return;
        }
        let file = root().join(&source.path);
        let dir = file.parent().expect("a file has a directory");
        for (number, link) in links(&source.text) {
            let target = link.split('#').next().unwrap_or_default();
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !target.is_empty() && !is_elsewhere && !dir.join(target).exists() {
                broken.push(format!("{}:{number}: broken link {link}", source.path));
            }
        }
    });
}

/// Line numbers and targets of `[text](target)`, outside code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut in_fence = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        if in_fence {
            continue;
        }
        for (offset, mark) in line.match_indices("](") {
            let is_code = line[..offset].matches('`').count() % 2 == 1;
            let target = line[offset + mark.len()..].split([')', ' ']).next();
            links.extend(target.filter(|_| !is_code).map(|link| (number + 1, link)));
        }
    }
    links
}
