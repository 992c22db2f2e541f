//! `dipmo outbox`.

use dipmo::operator::outbox::{self, OutboxFilter, OutboxRow};

use super::{Context, change, changed, confirm, page, show_list, these};
use crate::cli::OutboxVerb;
use crate::exit::{Exit, Quit};
use crate::output::{self, Row, age, or_dash};

pub(super) async fn run(context: &Context, verb: OutboxVerb) -> Result<Exit, Quit> {
    let db = context.db()?;
    match verb {
        OutboxVerb::List { state, destination, key, page: part } => {
            let filter = OutboxFilter { state, destination, key };
            show_list(context, &outbox::list(&db, &filter, &page(&part)?).await?)
        }
        OutboxVerb::Show { id, payload } => {
            let detail = outbox::show(&db, id, payload).await?;
            output::one(context.format, &detail, &id.to_string())?;
            Ok(Exit::Ok)
        }
        OutboxVerb::Retry { ids, change: args } => {
            let by = change(&args)?;
            for id in ids {
                changed(context.format, &outbox::retry(&db, id, &by).await?)?;
            }
            Ok(Exit::Ok)
        }
        OutboxVerb::Discard { ids, change: args } => {
            let by = change(&args)?;
            confirm(&args, &format!("discard {}", these("outbox message", &ids)))?;
            for id in ids {
                changed(context.format, &outbox::discard(&db, id, &by).await?)?;
            }
            Ok(Exit::Ok)
        }
    }
}

impl Row for OutboxRow {
    const COLUMNS: &'static [&'static str] =
        &["id", "destination", "state", "key", "type", "attempts", "age", "code", "error"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.destination.clone(),
            self.state.clone(),
            self.key.clone(),
            or_dash(self.event_type.as_deref()),
            self.attempts.to_string(),
            age(self.age_seconds),
            or_dash(self.error_code.as_deref()),
            or_dash(self.error_message.as_deref()),
        ]
    }

    fn name(&self) -> String {
        self.id.to_string()
    }
}
