//! `dipmo outbox`.

use dipmo::operator::outbox::{self, OutboxFilter, OutboxRow};

use super::{Context, change_each, confirm_discard, page, show_list, show_one};
use crate::cli::{OutboxVerb, ShowArgs};
use crate::exit::{Exit, Quit};
use crate::output::Row;

pub(super) async fn run(context: &Context, verb: OutboxVerb) -> Result<Exit, Quit> {
    let db = context.db()?;
    match verb {
        OutboxVerb::List { state, destination, key, page: part } => {
            let filter = OutboxFilter { state, destination, key };
            show_list(context, &outbox::list(&db, &filter, &page(&part)?).await?)
        }
        OutboxVerb::Show(ShowArgs { id, payload }) => show_one(context, id, &outbox::show(&db, id, payload).await?),
        OutboxVerb::Retry(these) => change_each(context, &these, async |id, by| outbox::retry(&db, id, by).await).await,
        OutboxVerb::Discard(these) => {
            confirm_discard("outbox", &these)?;
            change_each(context, &these, async |id, by| outbox::discard(&db, id, by).await).await
        }
    }
}

impl Row for OutboxRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "destination",
        "state",
        "key",
        "type:event_type",
        "attempts",
        "age:age_seconds",
        "code:error_code",
        "error:error_message",
    ];
}
