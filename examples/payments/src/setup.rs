//! Makes the schemas, and in a shared database the logins: each sees its own tables and those of dipmo.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use dipmo::store::postgres::{Db, DbOptions, schema};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::types::RDKafkaErrorCode;

use crate::context::Context;
use crate::wiring::{ORCHESTRATIONS, Platform, Site};

/// A broker that can be reached answers within this.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The same server and database, by another login. Its password is its name: whoever uses this for more than
/// an example sets others.
pub fn url_of(url: &str, role: &str) -> Result<String> {
    let (scheme, rest) = url.split_once("://").context("a database URL begins with postgres://")?;
    let place = rest.split_once('@').map_or(rest, |(_, place)| place);
    Ok(format!("{scheme}://{role}:{role}@{place}"))
}

/// Makes a database for each context on the server given, and says where they are.
pub async fn make_databases(url: &str, suffix: &str) -> Result<BTreeMap<Context, String>> {
    let db = Db::open(DbOptions { application_name: "payments setup".into(), ..DbOptions::new(url) })?;
    let client = db.client().await?;
    let (server, _) = url.rsplit_once('/').context("a database URL ends with /database")?;
    let mut databases = BTreeMap::new();
    for context in Context::ALL {
        let name = format!("{}{suffix}", context.name());
        client.batch_execute(&format!("create database {name}")).await?;
        databases.insert(context, format!("{server}/{name}"));
    }
    Ok(databases)
}

/// Makes the topics of the contexts and of the core, where they are not there yet.
pub async fn make_topics(brokers: &str) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", brokers).create()?;
    let names = Context::ALL.map(Context::topic).into_iter().chain([ORCHESTRATIONS]);
    let topics: Vec<NewTopic<'_>> = names.map(|name| NewTopic::new(name, 4, TopicReplication::Fixed(1))).collect();
    for made in admin.create_topics(&topics, &AdminOptions::new().operation_timeout(Some(ANSWER_MAX))).await? {
        match made {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => bail!("creating topic {topic}: {code}"),
        }
    }
    Ok(())
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
