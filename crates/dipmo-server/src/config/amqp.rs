//! `[amqp]`: the AMQP 1.0 broker whose queues are read and sent to.

use std::path::PathBuf;

use dipmo::transport::amqp::{AmqpOptions, AmqpTls, Profile};
use serde::Deserialize;

use super::value::{from_env, from_file};
use super::{Problem, Secret, Span};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AmqpConfig {
    /// `amqp://host:port`, or `amqps://` for an encrypted connection.
    pub(crate) url: Secret,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) password_env: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    #[serde(default)]
    pub(crate) profile: ProfileName,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) container_id: Option<String>,
    pub(crate) send_timeout: Option<Span>,
    pub(crate) idle_timeout: Option<Span>,
    pub(crate) window: Option<usize>,
    pub(crate) credit: Option<u32>,
    pub(crate) backout_queue: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProfileName {
    #[default]
    Artemis,
    IbmMq,
}

impl AmqpConfig {
    pub(super) fn validate(&self, is_read: bool) -> Result<(), Problem> {
        let given = [self.password.is_some(), self.password_env.is_some(), self.password_file.is_some()];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(Problem::new("amqp", "give one of password, password_env and password_file"));
        }
        let options = self.with_password(None)?;
        if self.ca_file.is_some() && options.tls.is_none() {
            return Err(Problem::new("amqp.ca_file", "a CA file is given, but the URL does not begin with amqps://"));
        }
        if given.contains(&true) && options.user.is_none() {
            return Err(Problem::new("amqp.user", "there is a password, but no user"));
        }
        if is_read && self.profile == ProfileName::IbmMq && self.backout_queue.is_none() {
            let why = "profile ibm-mq needs one where queues are read: what can never be stored is put there";
            return Err(Problem::new("amqp.backout_queue", why));
        }
        Ok(())
    }

    /// Looks the password up.
    pub(crate) fn options(&self) -> Result<AmqpOptions, Problem> {
        let password = match (&self.password, &self.password_env, &self.password_file) {
            (Some(password), _, _) => Some(password.clone()),
            (_, Some(name), _) => Some(from_env(name).map_err(|why| Problem::new("amqp.password_env", why))?),
            (_, _, Some(path)) => Some(from_file(path).map_err(|why| Problem::new("amqp.password_file", why))?),
            _ => None,
        };
        self.with_password(password)
    }

    fn with_password(&self, password: Option<Secret>) -> Result<AmqpOptions, Problem> {
        let mut options =
            AmqpOptions::from_url(self.url.expose()).map_err(|e| Problem::new("amqp.url", e.to_string()))?;
        options.user = self.user.clone().or(options.user);
        options.password = password.map(|password| password.expose().to_owned()).or(options.password);
        options.profile = match self.profile {
            ProfileName::Artemis => Profile::Artemis,
            ProfileName::IbmMq => Profile::IbmMq,
        };
        if let Some(tls) = &mut options.tls {
            *tls = AmqpTls { ca_file: self.ca_file.clone() };
        }
        options.container_id = self.container_id.clone().unwrap_or(options.container_id);
        options.send_timeout = self.send_timeout.map_or(options.send_timeout, |span| span.0);
        options.idle_timeout = self.idle_timeout.map_or(options.idle_timeout, |span| span.0);
        options.window = self.window.unwrap_or(options.window);
        options.credit = self.credit.unwrap_or(options.credit);
        options.backout_queue = self.backout_queue.clone();
        options.validate().map_err(|error| Problem::new("amqp", error.to_string()))?;
        Ok(options)
    }

    /// Where the broker is, without who may enter.
    pub(crate) fn place(&self) -> String {
        self.with_password(None).map_or_else(|_| "unknown".to_owned(), |o| format!("{}:{}", o.host, o.port))
    }
}
