//! `dipmo key`.

use dipmo::operator::keys::{self, KeyRow};

use super::{Context, change, changed, confirm, page, show_list};
use crate::cli::KeyVerb;
use crate::exit::{Exit, Quit};
use crate::output::{self, Row, age, or_dash};

pub(super) async fn run(context: &Context, verb: KeyVerb) -> Result<Exit, Quit> {
    let db = context.db()?;
    match verb {
        KeyVerb::List { consumer, page: part } => {
            show_list(context, &keys::list(&db, consumer.as_deref(), &page(&part)?).await?)
        }
        KeyVerb::Show { consumer, key } => {
            let row = keys::show(&db, &consumer, &key).await?;
            output::one(context.format, &row, &row.name())?;
            Ok(Exit::Ok)
        }
        KeyVerb::Release { consumer, key, skip_gap, change: args } => {
            let by = change(&args)?;
            confirm(&args, &format!("release key {key:?} of {consumer}"))?;
            changed(context.format, &keys::release(&db, &consumer, &key, skip_gap, &by).await?)?;
            Ok(Exit::Ok)
        }
    }
}

impl Row for KeyRow {
    const COLUMNS: &'static [&'static str] =
        &["consumer", "key", "state", "waiting", "head", "head state", "age", "code", "error"];

    fn cells(&self) -> Vec<String> {
        let error = match self.awaits_version {
            Some(version) => format!("waits for version {version}"),
            None => or_dash(self.error_message.as_deref()),
        };
        vec![
            self.consumer.clone(),
            self.key.clone(),
            self.state.clone(),
            self.waiting.to_string(),
            self.head_id.to_string(),
            or_dash(self.head_state.as_deref()),
            age(Some(self.age_seconds)),
            or_dash(self.error_code.as_deref()),
            error,
        ]
    }

    fn name(&self) -> String {
        format!("{}\t{}", self.consumer, self.key)
    }
}
