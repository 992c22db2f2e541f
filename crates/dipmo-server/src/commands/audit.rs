//! `dipmo audit`.

use dipmo::operator::audit::{self, AuditFilter, AuditRow};

use super::{Context, page, show_list};
use crate::cli::AuditVerb;
use crate::exit::{Exit, Quit};
use crate::output::Row;

pub(super) async fn run(context: &Context, verb: AuditVerb) -> Result<Exit, Quit> {
    let AuditVerb::List { actor, action, target, page: part } = verb;
    let filter = AuditFilter { actor, action, target };
    show_list(context, &audit::list(&context.db()?, &filter, &page(&part)?).await?)
}

impl Row for AuditRow {
    const COLUMNS: &'static [&'static str] = &["id", "at", "actor", "action", "target", "reason"];
}
