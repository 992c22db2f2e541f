//! `dipmo process`.

use dipmo::operator::processes::{self, ProcessFilter, ProcessRow};
use dipmo::process::OperatorVerb;

use super::{Context, definitions, intervene, page, show_list, show_one};
use crate::cli::{InterveneArgs, ProcessVerb, Wish};
use crate::exit::{Exit, Quit};
use crate::output::Row;

pub(super) async fn run(context: &Context, verb: ProcessVerb) -> Result<Exit, Quit> {
    match verb {
        ProcessVerb::List { process_type, status, state, tenant, business_key, page: part } => {
            let filter = ProcessFilter { process_type, status, state, tenant, business_key };
            show_list(context, &processes::list(&context.db()?, &filter, &page(&part)?).await?)
        }
        ProcessVerb::Definitions(verb) => definitions::run(context, verb).await,
        ProcessVerb::Pause(args) => wish(context, OperatorVerb::Pause, args).await,
        ProcessVerb::Resume(args) => wish(context, OperatorVerb::Resume, args).await,
        ProcessVerb::Resubmit(args) => wish(context, OperatorVerb::Resubmit, args).await,
        ProcessVerb::Skip(args) => wish(context, OperatorVerb::Skip, args).await,
        ProcessVerb::Compensate(args) => wish(context, OperatorVerb::Compensate, args).await,
        ProcessVerb::ForceComplete { evidence, args } => {
            wish(context, OperatorVerb::ForceComplete { evidence }, args).await
        }
        ProcessVerb::Show { id } => show_one(context, id, &processes::show(&context.db()?, id).await?),
    }
}

async fn wish(context: &Context, verb: OperatorVerb, args: InterveneArgs) -> Result<Exit, Quit> {
    intervene::run(context, Wish::new(verb, args)).await
}

impl Row for ProcessRow {
    const COLUMNS: &'static [&'static str] =
        &["id", "type", "tenant", "business key:business_key", "status", "state", "version"];
}
