//! `dipmo schema`.

use dipmo::store::postgres::schema::{self, Migration};
use serde_json::json;

use super::Context;
use crate::cli::{Format, SchemaVerb};
use crate::exit::{Exit, Quit};
use crate::output;

pub(super) async fn run(context: &Context, verb: SchemaVerb) -> Result<Exit, Quit> {
    let db = context.db()?;
    match verb {
        SchemaVerb::Migrate => {
            let done = schema::migrate(&db).await.map_err(failed)?;
            report(context, &done, "applied", |m| format!("applied {} {}", m.version, m.name))?;
        }
        SchemaVerb::Plan => {
            let missing = schema::plan(&db).await.map_err(failed)?;
            report(context, &missing, "would apply", |m| format!("-- {} {}\n{}", m.version, m.name, m.sql(&db)))?;
        }
        SchemaVerb::Check => {
            schema::check(&db).await.map_err(failed)?;
            if context.format == Format::Table {
                output::print(&format!("schema {} is up to date\n", db.schema()))?;
            } else {
                output::one(context.format, &json!({ "schema": db.schema(), "up_to_date": true }), db.schema())?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// A schema that does not fit is a finding, not a mistake on the command line.
fn failed(error: dipmo::Error) -> Quit {
    let quit = Quit::from(error);
    if quit.exit == Exit::Usage { Quit { exit: Exit::Failed, ..quit } } else { quit }
}

fn report(
    context: &Context,
    migrations: &[Migration],
    what: &str,
    line: impl Fn(&Migration) -> String,
) -> Result<(), Quit> {
    match context.format {
        Format::Table if migrations.is_empty() => output::print("nothing to do: the schema is up to date\n"),
        Format::Table => output::print(&migrations.iter().map(|m| format!("{}\n", line(m))).collect::<String>()),
        Format::Name => output::lines(migrations.iter().map(|m| m.name.to_owned())),
        format => {
            let list: Vec<_> = migrations.iter().map(|m| json!({ "version": m.version, "name": m.name })).collect();
            output::one(format, &json!({ what.replace(' ', "_"): list }), "")
        }
    }
}
