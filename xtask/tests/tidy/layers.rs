//! Which module of the library may know which other.
//!
//! Names that lib.rs re-exports count as names of the module they come from. Tests inside a
//! module may use what they like.

use crate::source::{self, Source, is_word};

const LIBRARY: &str = "crates/dipmo/src/";

/// Small modules without knowledge of the flow; every module may use them.
const LEAVES: &[&str] = &["backoff", "clock", "error", "failure", "locate", "message", "shutdown", "span", "trace", "wake"];

/// (module, what it may use through `crate::` beside the leaves), in the order of lib.rs.
/// Leaves stand here too, so that one that begins to know the flow is seen.
const MAY_USE: &[(&str, &[&str])] = &[
    // Starts sagas and counts how they end; knows nothing of what they do.
    ("batch", &["command", "consumer", "handler", "store"]),
    // The envelope and the statuses know nothing; the worker keeps its ledger in the transaction it is given.
    ("command", &["handler", "store"]),
    // Takes in and hands to the runner: never the relay, never the outbox.
    ("ingress", &["inbox", "consumer", "runner", "store", "transport"]),
    ("inbox", &["command", "process"]),
    // Where users decide: no store, no transport.
    ("process", &["command"]),
    // Sagas are data and decide purely: no store, no runner.
    ("saga", &["command", "process"]),
    // Is given the open transaction, and with it the database.
    ("handler", &["process", "store"]),
    ("consumer", &["handler", "process"]),
    ("runner", &["command", "inbox", "process", "handler", "consumer", "store"]),
    // Sends what is there: knows no consumer and no process.
    ("relay", &["store", "transport"]),
    ("upkeep", &["store"]),
    // Sees stores and states, and nothing sees it.
    ("operator", &["batch", "inbox", "process", "relay", "runner", "store", "upkeep"]),
    // Puts the loops together; nothing knows it.
    ("node", &["batch", "consumer", "ingress", "relay", "runner", "store", "transport", "upkeep"]),
    // Stores what the stages say and drives nothing.
    ("store", &["batch", "command", "inbox", "process", "handler", "consumer", "relay", "transport"]),
    ("transport", &[]),
    ("backoff", &[]),
    ("clock", &[]),
    ("error", &[]),
    ("failure", &[]),
    ("locate", &[]),
    ("message", &[]),
    ("shutdown", &[]),
    ("span", &[]),
    ("trace", &[]),
    ("wake", &[]),
];

#[test]
fn modules_know_only_what_they_may() {
    let sources = source::all();
    let library = |path: &str| path.starts_with(LIBRARY);
    let root = sources.iter().find(|s| s.path == format!("{LIBRARY}lib.rs"));
    let exported = reexports(&root.expect("the library has a lib.rs").code);
    let mut broken = Vec::new();
    for source in sources.iter().filter(|s| library(&s.path)) {
        let module = module_of(source);
        let Some((_, allowed)) = MAY_USE.iter().find(|(listed, _)| *listed == module) else {
            if module != "lib" {
                let message = format!("module {module} is new: add a line to MAY_USE in {}", file!());
                broken.push(source.at(0, &message));
            }
            continue;
        };
        for (offset, name) in crate_names(&source.code_without_tests()) {
            let from = exported.iter().find(|(export, _)| *export == name);
            let used = from.map_or(name.as_str(), |(_, module)| module);
            let known = used == module || LEAVES.contains(&used);
            if !known && !allowed.contains(&used) {
                let message = format!("{module} may not use {used} (MAY_USE in {})", file!());
                broken.push(source.at(offset, &message));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// `store` for `store.rs` as well as for `store/postgres/mod.rs`.
fn module_of(source: &Source) -> &str {
    let inside = source.path.strip_prefix(LIBRARY).unwrap_or(&source.path);
    inside.split(['/', '.']).next().unwrap_or_default()
}

/// (name, module) for every name in `pub use module::{names}`.
fn reexports(code: &str) -> Vec<(String, String)> {
    let mut exported = Vec::new();
    for part in code.split("pub use ").skip(1) {
        let statement = part.split(';').next().unwrap_or_default();
        let mut words = statement.split(|c| !is_word(c)).filter(|w| !w.is_empty());
        let module = words.next().unwrap_or_default();
        exported.extend(words.map(|name| (name.to_owned(), module.to_owned())));
    }
    exported
}

/// The place and the first name of every path that begins with `crate::`, those in
/// `crate::{a::b, c}` included.
fn crate_names(code: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for (offset, mark) in code.match_indices("crate::") {
        if code[..offset].ends_with(is_word) {
            continue;
        }
        let after = &code[offset + mark.len()..];
        let firsts = match after.strip_prefix('{') {
            Some(group) => firsts_of_group(group),
            None => vec![first_word(after)],
        };
        names.extend(firsts.into_iter().map(|name| (offset, name)));
    }
    names
}

fn firsts_of_group(group: &str) -> Vec<String> {
    let mut firsts = vec![first_word(group)];
    let mut depth = 0_usize;
    for (offset, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => firsts.push(first_word(&group[offset + 1..])),
            _ => {}
        }
    }
    // After a trailing comma there is no name.
    firsts.retain(|name| !name.is_empty());
    firsts
}

fn first_word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| is_word(*c)).collect()
}

#[test]
fn paths_are_found_alone_and_in_groups() {
    let code = "use crate::a::B; use crate::{c::{d, e}, F,\n}; pub(crate) fn g() -> crate::H {}";
    let names: Vec<String> = crate_names(code).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["a", "c", "F", "H"]);
}
