//! `dipmo why` and `dipmo journey`.

use std::fmt::Write as _;

use dipmo::operator::journey::{Journey, journey};
use dipmo::operator::why::{Answer, why};
use time::format_description::well_known::Rfc3339;

use super::{Context, show_one};
use crate::cli::Format;
use crate::definitions;
use crate::exit::{Exit, Quit};
use crate::output;

pub(super) async fn explain(context: &Context, reference: &str) -> Result<Exit, Quit> {
    let db = context.db()?;
    let sagas = definitions::stored(&db, &context.config.sagas).await?;
    let answer = why(&db, &sagas.registry(), reference).await?;
    match context.format {
        Format::Table => output::print(&told(&answer))?,
        _ => return show_one(context, reference, &answer),
    }
    Ok(Exit::Ok)
}

fn told(answer: &Answer) -> String {
    let mut text = format!("{}: {}.\n", answer.subject, answer.sentence);
    for obstacle in &answer.obstacles {
        let _ = writeln!(text, "  in the way: {obstacle}");
    }
    for action in &answer.next_actions {
        let _ = writeln!(text, "  next: {action}");
    }
    text
}

pub(super) async fn travel(context: &Context, correlation_id: &str) -> Result<Exit, Quit> {
    let journey = journey(&context.db()?, correlation_id).await?;
    match context.format {
        Format::Table => output::print(&in_lines(&journey))?,
        Format::Jsonl => output::lines(journey.lines.iter().map(output::compact))?,
        _ => return show_one(context, correlation_id, &journey),
    }
    Ok(Exit::Ok)
}

fn in_lines(journey: &Journey) -> String {
    let mut text = String::new();
    for line in &journey.lines {
        let at = line.at.format(&Rfc3339).unwrap_or_default();
        let _ = writeln!(text, "{at:<32} {:<8} {}", line.place, line.what);
    }
    if journey.cut {
        text.push_str("there is more than is shown\n");
    }
    text
}
