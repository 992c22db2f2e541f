//! docs/states.md is written from the enums: every state, every event, every legal pair.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt::Write as _;

use dipmo::command::{CommandEvent, CommandStatus};
use dipmo::inbox::{InboxEvent, InboxState};
use dipmo::process::{Status, StatusEvent};
use dipmo::relay::{OutboxEvent, OutboxState};

fn table<S: Copy, E: Copy>(
    title: &str,
    (states, state_name): (&[S], fn(S) -> &'static str),
    (events, event_name): (&[E], fn(E) -> &'static str),
    next: impl Fn(S, E) -> Option<S>,
) -> String {
    let mut text = format!("\n## {title}\n\n| from | ");
    text += &events.iter().map(|event| event_name(*event)).collect::<Vec<_>>().join(" | ");
    let _ = writeln!(text, " |\n|{}", "---|".repeat(events.len() + 1));
    for state in states {
        let cells = events.iter().map(|event| next(*state, *event).map_or("", state_name));
        let _ = writeln!(text, "| {} | {} |", state_name(*state), cells.collect::<Vec<_>>().join(" | "));
    }
    text
}

fn document() -> String {
    let mut text = String::from(
        "# States\n\nWritten by the test `states` from the enums; run it with `DIPMO_WRITE_DOCS=1` to renew this page.\n\
         An empty cell is a pair that the code refuses; the tables in the database refuse unknown states by CHECK.\n",
    );
    text += &table(
        "Received messages",
        (&InboxState::ALL, InboxState::name),
        (&InboxEvent::ALL, InboxEvent::name),
        |state, event| state.next(event).ok(),
    );
    text += &table(
        "Messages to send",
        (&OutboxState::ALL, OutboxState::name),
        (&OutboxEvent::ALL, OutboxEvent::name),
        |state, event| state.next(event).ok(),
    );
    text +=
        &table("Processes", (&Status::ALL, Status::name), (&StatusEvent::ALL, StatusEvent::name), |state, event| {
            state.next(event).ok()
        });
    text += &table(
        "Commands",
        (&CommandStatus::ALL, CommandStatus::name),
        (&CommandEvent::ALL, CommandEvent::name),
        |state, event| state.next(event).ok(),
    );
    text
}

#[test]
fn the_page_of_states_is_what_the_code_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/states.md");
    if std::env::var_os("DIPMO_WRITE_DOCS").is_some() {
        std::fs::write(path, document()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == document(), "docs/states.md is not up to date: run the test with DIPMO_WRITE_DOCS=1");
}

#[test]
fn closed_states_have_no_way_out() {
    for event in InboxEvent::ALL {
        for state in InboxState::ALL.into_iter().filter(|state| state.is_closed()) {
            assert!(state.next(event).is_err(), "{state:?} {event:?}");
        }
    }
    for state in [OutboxState::Published, OutboxState::Discarded] {
        assert!(OutboxEvent::ALL.into_iter().all(|event| state.next(event).is_err()), "{state:?}");
    }
}

#[test]
fn names_read_back() {
    assert!(InboxState::ALL.into_iter().all(|state| InboxState::from_name(state.name()) == Some(state)));
    assert!(Status::ALL.into_iter().all(|status| Status::from_name(status.name()) == Some(status)));
    assert!(OutboxState::ALL.into_iter().all(|state| OutboxState::from_name(state.name()) == Some(state)));
}
