//! `dipmo batch`: how far batches are, and waiting for one to end.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use dipmo::batch::BatchStatus;
use dipmo::operator::batches::{self, BatchDetail, BatchFilter, BatchRow};
use dipmo::store::postgres::Db;
use uuid::Uuid;

use super::{Context, page, show_list, show_one};
use crate::cli::{BatchVerb, Format};
use crate::exit::{Exit, Quit};
use crate::output::{self, Row};

/// Often enough for eyes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How wide the bar is, in characters.
const BAR: usize = 30;

pub(super) async fn run(context: &Context, verb: BatchVerb) -> Result<Exit, Quit> {
    let db = context.db()?;
    match verb {
        BatchVerb::List { saga, status, tenant, page: part } => {
            let filter = BatchFilter { saga, status, tenant };
            show_list(context, &batches::list(&db, &filter, &page(&part)?).await?)
        }
        BatchVerb::Show { id } => show_one(context, id, &batches::show(&db, id).await?),
        BatchVerb::Watch { id } => watch(context.format, &db, id).await,
    }
}

impl Row for BatchRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "type",
        "tenant",
        "for:scheduled_for",
        "status",
        "expected",
        "open",
        "succeeded",
        "failed",
        "left:left_seconds",
    ];
}

/// Shows every change until the batch ends.
async fn watch(format: Format, db: &Db, id: Uuid) -> Result<Exit, Quit> {
    let live = format == Format::Table && std::io::stdout().is_terminal();
    let mut shown = None;
    loop {
        let batch = batches::show(db, id).await?;
        let moved = Some((&batch.row.status, &batch.counts)) != shown.as_ref().map(|(s, c)| (s, c));
        let ended = BatchStatus::from_name(&batch.row.status).is_none_or(BatchStatus::is_ended);
        if live {
            // Back to the beginning of the line, and clear what was there.
            output::print(&format!("\r\x1b[2K{}{}", line(&batch), if ended { "\n" } else { "" }))?;
            let _ = std::io::stdout().flush();
        } else if moved {
            output::lines([match format {
                Format::Table => line(&batch),
                Format::Json | Format::Jsonl => output::compact(&batch.row),
                Format::Name => batch.row.status.clone(),
            }])?;
        }
        if ended {
            let well = batch.row.status == BatchStatus::Succeeded.name();
            return Ok(if well { Exit::Ok } else { Exit::Degraded });
        }
        shown = Some((batch.row.status, batch.counts));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// `[#####-----] RUNNING 512 of 1000, 500 succeeded, 12 failed, 83.2/s, 6s left`
fn line(batch: &BatchDetail) -> String {
    let BatchRow { status, expected, open, succeeded, failed, rate, left_seconds, .. } = &batch.row;
    let (ended, all) = (succeeded + failed, expected.unwrap_or(open + succeeded + failed));
    let filled = if all > 0 { (ended * BAR as i64 / all).clamp(0, BAR as i64) as usize } else { 0 };
    let bar = format!("{}{}", "#".repeat(filled), "-".repeat(BAR - filled));
    let more = if expected.is_none() { " and more" } else { "" };
    let rate = rate.map(|rate| format!(", {rate:.1}/s")).unwrap_or_default();
    let left = left_seconds.map(|left| format!(", {} left", output::age(Some(left)))).unwrap_or_default();
    format!("[{bar}] {status} {ended} of {all}{more}, {succeeded} succeeded, {failed} failed{rate}{left}")
}
