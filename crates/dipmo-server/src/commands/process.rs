//! `dipmo process`.

use dipmo::operator::processes::{self, ProcessFilter, ProcessRow};

use super::{Context, page, show_list};
use crate::cli::ProcessVerb;
use crate::exit::{Exit, Quit};
use crate::output::{self, Row};

pub(super) async fn run(context: &Context, verb: ProcessVerb) -> Result<Exit, Quit> {
    let db = context.db()?;
    match verb {
        ProcessVerb::List { process_type, status, state, tenant, business_key, page: part } => {
            let filter = ProcessFilter { process_type, status, state, tenant, business_key };
            show_list(context, &processes::list(&db, &filter, &page(&part)?).await?)
        }
        ProcessVerb::Show { id } => {
            let detail = processes::show(&db, id).await?;
            output::one(context.format, &detail, &id.to_string())?;
            Ok(Exit::Ok)
        }
    }
}

impl Row for ProcessRow {
    const COLUMNS: &'static [&'static str] = &["id", "type", "tenant", "business key", "status", "state", "version"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.process_type.clone(),
            self.tenant.clone(),
            self.business_key.clone(),
            self.status.clone(),
            self.state.clone(),
            self.version.to_string(),
        ]
    }

    fn name(&self) -> String {
        self.id.to_string()
    }
}
