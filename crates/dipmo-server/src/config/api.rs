//! `[api]`: who may use the REST API, and how much of it at once.

use std::path::PathBuf;

use serde::Deserialize;

use super::value::{from_env, from_file};
use super::{Problem, Secret};
use crate::api::auth::{Digest, Role, Token};

/// A shorter one could be guessed.
const TOKEN_BYTES_MIN: usize = 16;
const BODY_BYTES_DEFAULT: usize = 1024 * 1024;
/// The envelope is a row of the database and a message of a broker.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A quarter of the default pool: a flood of requests must leave connections to the flow of messages.
const CONCURRENCY_DEFAULT: usize = 4;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ApiConfig {
    pub(crate) tokens: Vec<TokenConfig>,
    pub(crate) body_max_bytes: usize,
    pub(crate) concurrency: usize,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self { tokens: Vec::new(), body_max_bytes: BODY_BYTES_DEFAULT, concurrency: CONCURRENCY_DEFAULT }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenConfig {
    /// Who it is: the actor in the audit trail.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The SHA-256 of the token, in hex; hidden, because somebody will write the token itself here.
    pub(crate) token_sha256: Option<Secret>,
    pub(crate) token_env: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
}

impl ApiConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        if !(1_024..=BODY_BYTES_MAX).contains(&self.body_max_bytes) {
            return Err(Problem::new("api.body_max_bytes", format!("must be 1024 to {BODY_BYTES_MAX}")));
        }
        if !(1..=1_000).contains(&self.concurrency) {
            return Err(Problem::new("api.concurrency", "must be 1 to 1000"));
        }
        for (n, token) in self.tokens.iter().enumerate() {
            token.validate(n)?;
            if self.tokens[..n].iter().any(|other| other.name == token.name) {
                let message = format!("there is another token named {:?}", token.name);
                return Err(Problem::new(format!("api.tokens[{n}].name"), message));
            }
        }
        Ok(())
    }

    /// Finds the tokens wherever they are kept; only their digests are kept from then on.
    pub(crate) fn tokens(&self) -> Result<Vec<Token>, Problem> {
        self.tokens.iter().enumerate().map(|(n, token)| token.token(n)).collect()
    }
}

impl TokenConfig {
    fn validate(&self, n: usize) -> Result<(), Problem> {
        let wrong = |key: &str, message: &str| Err(Problem::new(format!("api.tokens[{n}]{key}"), message));
        if self.name.trim().is_empty() || self.name.chars().count() > 100 || self.name.chars().any(char::is_control) {
            return wrong(".name", "must have 1 to 100 characters, none of them control");
        }
        let given = [self.token_sha256.is_some(), self.token_env.is_some(), self.token_file.is_some()];
        if given.iter().filter(|given| **given).count() != 1 {
            return wrong("", "give one of token_sha256, token_env and token_file");
        }
        if self.token_sha256.as_ref().is_some_and(|hex| Digest::from_hex(hex.expose()).is_none()) {
            return wrong(
                ".token_sha256",
                "must be the SHA-256 of the token: 64 hex digits (printf %s TOKEN | sha256sum)",
            );
        }
        Ok(())
    }

    fn token(&self, n: usize) -> Result<Token, Problem> {
        let (key, found) = match (&self.token_sha256, &self.token_env, &self.token_file) {
            (Some(hex), _, _) => {
                let digest = Digest::from_hex(hex.expose()).expect("the file was checked when it was read");
                return Ok(Token { name: self.name.clone(), role: self.role, digest });
            }
            (_, Some(name), _) => ("token_env", from_env(name)),
            (_, _, Some(path)) => ("token_file", from_file(path)),
            _ => ("token_env", Err("is missing".to_owned())),
        };
        let key = format!("api.tokens[{n}].{key}");
        let token = found.map_err(|why| Problem::new(&*key, why))?;
        if token.expose().len() < TOKEN_BYTES_MIN {
            return Err(Problem::new(
                key,
                format!("the token has fewer than {TOKEN_BYTES_MIN} bytes and could be guessed"),
            ));
        }
        Ok(Token { name: self.name.clone(), role: self.role, digest: Digest::of(token.expose()) })
    }
}
