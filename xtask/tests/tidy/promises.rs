//! Every test that docs/guarantees.md names exists.

use std::collections::HashSet;

use crate::source;

#[test]
fn every_promise_names_tests_that_exist() {
    let sources = source::all();
    let functions = sources.iter().filter(|source| source.is_rust()).flat_map(|source| source.functions());
    let known: HashSet<&str> = functions.map(|(name, _)| name).collect();
    let page = sources.iter().find(|source| source.path == "docs/guarantees.md");
    let page = &page.expect("the page of guarantees exists").text;
    let held = page.lines().filter(|line| line.starts_with("Held by "));
    let named: Vec<&str> = held.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 40, "the page names only {} tests", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(missing.is_empty(), "docs/guarantees.md names tests that do not exist: {missing:?}");
}
