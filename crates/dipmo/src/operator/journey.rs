//! Everything that happened under one correlation id, in the order of time.

use serde::Serialize;
use serde_json::Value;
use time::{Duration, OffsetDateTime};

use crate::error::{Error, Result};
use crate::store::postgres::Db;
use crate::store::postgres::operator::{look, rfc3339};
use crate::store::postgres::operator_journey::{self as store, Happening, Traveller};

/// The most lines of each kind; a journey that has more is cut and says so.
const LINES_MAX: i64 = 1_000;
/// What began shortly before the process, and what followed shortly after its end, belongs to it.
const BEFORE: Duration = Duration::minutes(1);
const AFTER: Duration = Duration::minutes(5);
/// How far back to look for messages when no process took part.
const WITHOUT_PROCESS: Duration = Duration::hours(24);

/// Where it happened: inbox, process, command or outbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    #[serde(serialize_with = "rfc3339")]
    pub at: OffsetDateTime,
    pub place: &'static str,
    /// The row's id there.
    pub reference: String,
    pub what: String,
    pub detail: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Journey {
    pub correlation_id: String,
    pub lines: Vec<Line>,
    /// There was more than is shown.
    pub cut: bool,
}

/// The journey of a correlation id: for a saga that is its id, and that of its start command.
pub async fn journey(db: &Db, correlation_id: &str) -> Result<Journey> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    let travellers = store::travellers(db, &tx, correlation_id).await?;
    let ids: Vec<_> = travellers.iter().map(|traveller| traveller.id).collect();
    let mut found = store::decisions(db, &tx, &ids, LINES_MAX).await?;
    let now = db.clock().now();
    found.extend(store::messages(db, &tx, correlation_id, span(&travellers, now), LINES_MAX).await?);
    if found.is_empty() {
        return Err(Error::not_found(format!(
            "nothing is known under the correlation id {correlation_id:?}: for messages without a process, only the last 24 hours are searched"
        )));
    }
    let cut = ["inbox", "outbox", "process", "command"]
        .iter()
        .any(|place| found.iter().filter(|h| h.place == *place).count() as i64 == LINES_MAX);
    found.sort_by_key(|happening| happening.at);
    Ok(Journey { correlation_id: correlation_id.to_owned(), lines: found.into_iter().map(line).collect(), cut })
}

fn line(happening: Happening) -> Line {
    let Happening { at, place, reference, what, detail } = happening;
    Line { at, place, reference, what, detail }
}

/// When messages of the journey can have passed.
fn span(travellers: &[Traveller], now: OffsetDateTime) -> (OffsetDateTime, OffsetDateTime) {
    let soon = now + AFTER;
    let Some(from) = travellers.iter().map(|traveller| traveller.created_at).min() else {
        return (now - WITHOUT_PROCESS, soon);
    };
    let to = travellers.iter().map(|t| if t.open { soon } else { t.updated_at + AFTER }).max();
    (from - BEFORE, to.unwrap_or(soon))
}
