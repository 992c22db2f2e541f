//! `[[worker]]`: a context without a database of its own, which takes its commands over HTTP.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;
use serde::Deserialize;

use super::value::{from_env, from_file};
use super::{Problem, Secret, Span};

/// The database ends a transaction that is idle for 30 s, and one is open during a call.
const TIMEOUT_MAX: Duration = Duration::from_secs(25);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
const CONCURRENCY_DEFAULT: usize = 4;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerConfig {
    /// The name of its consumer: never change it once used.
    pub(crate) name: String,
    /// In the database, and on the broker where there is one.
    pub(crate) queues: Vec<String>,
    /// Hidden, because somebody will write a password into it; it is refused then.
    pub(crate) url: Secret,
    #[serde(default = "timeout_default")]
    pub(crate) timeout: Span,
    #[serde(default = "concurrency_default")]
    pub(crate) concurrency: usize,
    /// Sent as a bearer token.
    pub(crate) token_env: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
}

fn timeout_default() -> Span {
    Span(TIMEOUT_DEFAULT)
}

fn concurrency_default() -> usize {
    CONCURRENCY_DEFAULT
}

impl WorkerConfig {
    pub(super) fn validate(&self, n: usize) -> Result<(), Problem> {
        let wrong = |key: &str, message: &str| Err(Problem::new(format!("worker[{n}].{key}"), message));
        if self.name.is_empty() || self.name.len() > 200 {
            return wrong("name", "must have 1 to 200 bytes");
        }
        if self.queues.is_empty() || self.queues.iter().any(|queue| queue.is_empty() || queue.len() > 200) {
            return wrong("queues", "name at least one queue, each of 1 to 200 bytes");
        }
        if self.timeout.0.is_zero() || self.timeout.0 > TIMEOUT_MAX {
            return wrong("timeout", "must be more than 0s and at most 25s: for longer work the worker answers 202");
        }
        if !(1..=64).contains(&self.concurrency) {
            return wrong("concurrency", "must be 1 to 64");
        }
        if self.token_env.is_some() && self.token_file.is_some() {
            return wrong("token_env", "give one of token_env and token_file");
        }
        self.uri().map(drop).or_else(|message| wrong("url", message))
    }

    /// Where commands are sent.
    pub(crate) fn uri(&self) -> Result<Uri, &'static str> {
        let uri: Uri = self.url.expose().parse().map_err(|_| "is not a URL: write http://host:port/path")?;
        match (uri.scheme_str(), uri.authority()) {
            (Some("https"), _) => Err("https is not spoken here: use http to a proxy on this machine that does"),
            (Some("http"), Some(place)) if place.as_str().contains('@') => {
                Err("holds a user or password: give the worker a bearer token by token_env or token_file")
            }
            (Some("http"), Some(_)) => Ok(uri),
            _ => Err("must be of the form http://host:port/path"),
        }
    }

    /// Where it is, without what may be secret in the query.
    pub(crate) fn place(&self) -> String {
        let shown = |uri: Uri| Some(format!("http://{}{}", uri.authority()?, uri.path()));
        self.uri().ok().and_then(shown).unwrap_or_else(|| "unknown".to_owned())
    }

    /// Looks the token up.
    pub(crate) fn token(&self, n: usize) -> Result<Option<Secret>, Problem> {
        let (key, found) = match (&self.token_env, &self.token_file) {
            (Some(name), _) => ("token_env", from_env(name)),
            (_, Some(path)) => ("token_file", from_file(path)),
            _ => return Ok(None),
        };
        let key = format!("worker[{n}].{key}");
        let token = found.map_err(|why| Problem::new(&*key, why))?;
        if !token.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Problem::new(key, "the token must be visible ASCII without spaces"));
        }
        Ok(Some(token))
    }
}
