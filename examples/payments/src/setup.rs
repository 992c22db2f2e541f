//! Makes the schemas, and in a shared database the logins: each sees its own tables and those of dipmo.

use anyhow::{Context as _, Result};
use dipmo::store::postgres::schema;

use crate::context::Context;
use crate::wiring::{Platform, Site};

/// The same server and database, by another login. Its password is its name: whoever uses this for more than
/// an example sets others.
pub fn url_of(url: &str, role: &str) -> Result<String> {
    let (scheme, rest) = url.split_once("://").context("a database URL begins with postgres://")?;
    let place = rest.split_once('@').map_or(rest, |(_, place)| place);
    Ok(format!("{scheme}://{role}:{role}@{place}"))
}

/// Needs the rights to make schemas and, where contexts share a database, roles.
pub async fn prepare(platform: &Platform) -> Result<()> {
    let core = platform.db(&platform.core, "setup")?;
    schema::migrate(&core).await.context("migrating the core")?;
    for context in Context::ALL {
        let site = &platform.contexts[&context];
        let shared = platform.is_shared(context);
        // Only the owner may make tables; a context with a database of its own is its owner.
        let db = if shared { core.clone() } else { platform.db(site, "setup")? };
        if !shared {
            schema::migrate(&db).await.with_context(|| format!("migrating {context:?}"))?;
        }
        let tables = platform.domain(context).sql(context.tables());
        let client = db.client().await?;
        client
            .batch_execute(&format!("create schema {}; {tables}", site.domain_schema))
            .await
            .with_context(|| format!("making the tables of {context:?}"))?;
        if shared {
            let grants = login(site);
            client.batch_execute(&grants).await.with_context(|| format!("making the login of {context:?}"))?;
        }
    }
    Ok(())
}

/// What a worker needs, and nothing of the other contexts.
fn login(site: &Site) -> String {
    let Site { dipmo_schema: dipmo, domain_schema: domain, .. } = site;
    format!(
        "do $$ begin create role {domain}; exception when duplicate_object then null; end $$;
         alter role {domain} login password '{domain}';
         grant usage on schema {domain}, {dipmo} to {domain};
         grant select, insert, update, delete on all tables in schema {domain} to {domain};
         grant select, insert, update, delete on all tables in schema {dipmo} to {domain};
         grant usage, select on all sequences in schema {dipmo} to {domain};"
    )
}
