//! `[database]`: how PostgreSQL is reached.

use std::path::PathBuf;
use std::str::FromStr;

use dipmo::store::postgres::DbOptions;
use serde::Deserialize;

use super::value::{Span, from_env, from_file};
use super::{Problem, Secret};

/// Read when the file does not say where the URL is.
pub(crate) const URL_ENV: &str = "DIPMO_DATABASE_URL";

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DatabaseConfig {
    pub(crate) url: Option<Secret>,
    pub(crate) url_env: Option<String>,
    pub(crate) url_file: Option<PathBuf>,
    /// Who may vouch for the server, when the URL says `sslmode=require`.
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) schema: String,
    pub(crate) connections: usize,
    pub(crate) idle_in_transaction_max: Span,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        let defaults = DbOptions::new("");
        Self {
            url: None,
            url_env: None,
            url_file: None,
            ca_file: None,
            schema: defaults.schema,
            connections: defaults.connections_max,
            idle_in_transaction_max: Span(defaults.idle_in_transaction_max),
        }
    }
}

impl DatabaseConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        let given = [self.url.is_some(), self.url_env.is_some(), self.url_file.is_some()];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(Problem::new("database", "give one of url, url_env and url_file"));
        }
        if !(2..=1_000).contains(&self.connections) {
            return Err(Problem::new("database.connections", "must be 2 to 1000"));
        }
        Ok(())
    }

    /// Finds the URL wherever it is kept.
    pub(crate) fn options(&self, application_name: &str) -> Result<DbOptions, Problem> {
        let url = match (&self.url, &self.url_env, &self.url_file) {
            (Some(url), _, _) => Ok(url.clone()),
            (_, Some(name), _) => from_env(name).map_err(|why| Problem::new("database.url_env", why)),
            (_, _, Some(path)) => from_file(path).map_err(|why| Problem::new("database.url_file", why)),
            _ => from_env(URL_ENV).map_err(|why| {
                Problem::new("database", format!("give url, url_env or url_file: none is given, and {why}"))
            }),
        }?;
        Ok(DbOptions {
            schema: self.schema.clone(),
            ca_file: self.ca_file.clone(),
            connections_max: self.connections,
            idle_in_transaction_max: self.idle_in_transaction_max.0,
            application_name: application_name.to_owned(),
            ..DbOptions::new(url.expose())
        })
    }

    /// Where the database is, without who may enter.
    pub(crate) fn place(&self) -> String {
        let Ok(options) = self.options("dipmo") else { return "unknown".to_owned() };
        let Ok(parsed) = tokio_postgres::Config::from_str(&options.url) else { return "not a valid URL".to_owned() };
        let hosts: Vec<String> = parsed
            .get_hosts()
            .iter()
            .map(|host| match host {
                tokio_postgres::config::Host::Tcp(name) => name.clone(),
                #[cfg(unix)]
                tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
            })
            .collect();
        let port = parsed.get_ports().first().copied().unwrap_or(5432);
        format!("{}:{port}/{}", hosts.join(","), parsed.get_dbname().unwrap_or(""))
    }
}
