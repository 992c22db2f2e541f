//! `dipmo process`.

use dipmo::operator::processes::{self, ProcessFilter, ProcessRow};

use super::{Context, definitions, page, show_list, show_one};
use crate::cli::ProcessVerb;
use crate::exit::{Exit, Quit};
use crate::output::Row;

pub(super) async fn run(context: &Context, verb: ProcessVerb) -> Result<Exit, Quit> {
    match verb {
        ProcessVerb::List { process_type, status, state, tenant, business_key, page: part } => {
            let filter = ProcessFilter { process_type, status, state, tenant, business_key };
            show_list(context, &processes::list(&context.db()?, &filter, &page(&part)?).await?)
        }
        ProcessVerb::Definitions(verb) => definitions::run(context, verb).await,
        ProcessVerb::Show { id } => show_one(context, id, &processes::show(&context.db()?, id).await?),
    }
}

impl Row for ProcessRow {
    const COLUMNS: &'static [&'static str] =
        &["id", "type", "tenant", "business key:business_key", "status", "state", "version"];
}
