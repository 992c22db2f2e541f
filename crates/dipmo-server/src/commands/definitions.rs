//! `dipmo process definitions`.

use dipmo::operator::Listing;
use dipmo::store::postgres::definitions::{StoredDefinition, all};
use serde_json::{Value, json};

use super::{Context, show_list, show_one};
use crate::cli::{DefinitionsVerb, Format};
use crate::definitions::{self, Mistake};
use crate::exit::{Exit, Quit};
use crate::output::{self, Row};

pub(super) async fn run(context: &Context, verb: DefinitionsVerb) -> Result<Exit, Quit> {
    match verb {
        DefinitionsVerb::Check { files } => {
            let files = if files.is_empty() { definitions::files(&context.config.sagas)? } else { files };
            match definitions::read(&files) {
                Ok(found) => {
                    let names: Vec<&str> = found.registry.names().collect();
                    well(context, &names)
                }
                Err(mistakes) => wrong(context, &mistakes),
            }
        }
        DefinitionsVerb::List => {
            let items = all(&context.db()?).await?;
            show_list(context, &Listing { items, next: None })
        }
        DefinitionsVerb::Show { name, hash } => {
            let found = all(&context.db()?).await?.into_iter().find(|definition| {
                let version = match &hash {
                    Some(hash) => definition.hash.starts_with(hash),
                    None => definition.current,
                };
                definition.name == name && version
            });
            let found = found.ok_or_else(|| {
                Quit::new(Exit::NotFound, format!("there is no such version of {name:?} in the database"))
                    .hint("see `dipmo process definitions list`; a daemon registers its files when it starts")
            })?;
            show_one(context, &found.hash, &found)
        }
    }
}

fn well(context: &Context, names: &[&str]) -> Result<Exit, Quit> {
    match context.format {
        Format::Table => output::print(&format!("{} definitions are valid: {}\n", names.len(), names.join(", ")))?,
        Format::Name => output::lines(names.iter().map(|name| (*name).to_owned()))?,
        format => output::one(format, &json!({ "valid": true, "names": names }), "")?,
    }
    Ok(Exit::Ok)
}

/// One mistake a line, in the form that editors jump to.
fn wrong(context: &Context, mistakes: &[Mistake]) -> Result<Exit, Quit> {
    match context.format {
        Format::Table | Format::Name => output::lines(mistakes.iter().map(ToString::to_string))?,
        format => {
            let problems: Vec<Value> = mistakes.iter().map(Mistake::json).collect();
            output::one(format, &json!({ "valid": false, "problems": problems }), "")?;
        }
    }
    Ok(Exit::Failed)
}

impl Row for StoredDefinition {
    const COLUMNS: &'static [&'static str] = &["name", "current", "hash", "registered:registered_at"];

    fn name(&self) -> String {
        format!("{}\t{}", self.name, self.hash)
    }
}
