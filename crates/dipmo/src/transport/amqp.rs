//! AMQP 1.0: how to reach a broker, and the sending side. `amqp_wire` holds the protocol, `amqp_message` the
//! form of a message.
//!
//! Promise: rows leave in the order given, pipelined up to the window, durable, and are done only when the
//! broker has said so. Every call ends within the send timeout. A connection that breaks in the middle is
//! opened again and what was not answered is sent again, under the same ids.
//! Not promised: that a row whose outcome is unknown did not arrive, and order against rows that were on
//! their way when the broker refused an earlier one of their key.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::amqp_sending::Sending;
use super::amqp_wire::Connection;
use super::{Outcome, Outgoing, Publisher, Refusal};
use crate::error::{Error, Result};

/// A broker that breaks this many connections in one call is left to the relay's breaker.
const CONNECTIONS_MAX: usize = 3;
/// Brokers do not take shorter ones, and longer ones help nobody.
const IDLE_TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);

/// What brokers make of the same protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Takes all of AMQP 1.0. A message that can never be stored is rejected, and the broker keeps it as a
    /// dead letter.
    #[default]
    Artemis,
    /// Only what IBM documents for its AMQP channels: one outcome, string ids, no annotations. A message that
    /// can never be stored is copied to the backout queue and then accepted.
    IbmMq,
}

/// How to reach a broker. `Debug` shows no password.
#[derive(Clone)]
pub struct AmqpOptions {
    pub host: String,
    pub port: u16,
    pub user: Option<String>,
    pub password: Option<String>,
    pub profile: Profile,
    /// What the container ids begin with; each connection adds something of its own, because brokers take a
    /// second connection of one id for a successor of the first.
    pub container_id: String,
    pub tls: Option<AmqpTls>,
    /// What has not been answered after this long counts as unknown.
    pub send_timeout: Duration,
    /// A broker from which nothing has come for this long, not even a sign of life, is gone.
    pub idle_timeout: Duration,
    /// How many messages are on their way at once.
    pub window: usize,
    /// How many messages a queue that is read may have sent ahead of their acceptance.
    pub credit: u32,
    /// Where profile `IbmMq` puts what can never be stored.
    pub backout_queue: Option<String>,
}

/// Encryption, and who may vouch for the broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AmqpTls {
    /// PEM; the authorities of the system unless given.
    pub ca_file: Option<PathBuf>,
}

impl AmqpOptions {
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            user: None,
            password: None,
            profile: Profile::default(),
            container_id: "dipmo".to_owned(),
            tls: None,
            send_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            window: 256,
            credit: 500,
            backout_queue: None,
        }
    }

    /// `amqp://user:password@host:port`, or `amqps://` for an encrypted connection. What is wrong with it is
    /// told without the URL, which may hold a password.
    pub fn from_url(url: &str) -> Result<Self> {
        let wrong =
            |why: &str| Error::invalid(format!("the AMQP URL {why}: write amqp://host:port or amqps://host:port"));
        let (tls, rest) = match url.split_once("://") {
            Some(("amqp", rest)) => (None, rest),
            Some(("amqps", rest)) => (Some(AmqpTls::default()), rest),
            _ => return Err(wrong("begins with neither amqp:// nor amqps://")),
        };
        let (login, address) = rest.rsplit_once('@').map_or((None, rest), |(login, address)| (Some(login), address));
        let address = address.strip_suffix('/').unwrap_or(address);
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong("has a port that is none"))?),
            None => (address, if tls.is_some() { 5671 } else { 5672 }),
        };
        if host.is_empty() || host.contains(['/', '?', '#']) {
            return Err(wrong("names no host, or has more after it"));
        }
        let mut options = Self { tls, ..Self::new(host, port) };
        if let Some(login) = login {
            let (user, password) = login.split_once(':').map_or((login, None), |(user, word)| (user, Some(word)));
            let decoded = |text: &str| unescape(text).ok_or_else(|| wrong("has a % that escapes nothing"));
            options.user = Some(decoded(user)?);
            options.password = password.map(decoded).transpose()?;
        }
        Ok(options)
    }

    pub fn validate(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(format!("AMQP: {what}")));
        // What IBM allows; others allow more.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '%' | '/' | '.' | '_');
        match () {
            () if self.host.is_empty() => wrong("the host is empty"),
            () if self.container_id.is_empty() || !self.container_id.chars().all(plain) => {
                wrong("container_id must be of letters, digits and % / . _")
            }
            () if self.send_timeout.is_zero() => wrong("send_timeout must be more than nothing"),
            () if !IDLE_TIMEOUTS.contains(&self.idle_timeout) => wrong("idle_timeout must be 1 s to 10 min"),
            () if self.window == 0 || self.window > 10_000 => wrong("window must be 1 to 10000"),
            () if self.credit == 0 || self.credit > 10_000 => wrong("credit must be 1 to 10000"),
            () if self.password.is_some() && self.user.is_none() => wrong("there is a password, but no user"),
            () => Ok(()),
        }
    }
}

/// `%41` is `A`; `None` where a `%` is followed by something else.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |digit: Option<u8>| digit.and_then(|digit| char::from(digit).to_digit(16));
        bytes.push(match byte {
            b'%' => u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?,
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Debug for AmqpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpOptions")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("user", &self.user)
            .field("profile", &self.profile)
            .field("container_id", &self.container_id)
            .field("tls", &self.tls)
            .field("send_timeout", &self.send_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("window", &self.window)
            .field("credit", &self.credit)
            .field("backout_queue", &self.backout_queue)
            .finish_non_exhaustive()
    }
}

/// Sends to one broker, over one connection that is opened when it is needed.
pub struct AmqpPublisher {
    options: AmqpOptions,
    connection: Mutex<Option<Connection>>,
}

impl AmqpPublisher {
    pub fn new(options: AmqpOptions) -> Result<Self> {
        options.validate()?;
        Ok(Self { options, connection: Mutex::new(None) })
    }

    async fn send_all(&self, held: &mut Option<Connection>, sending: &mut Sending<'_>) -> Result<(), Refusal> {
        let connection = loop {
            if held.as_ref().is_none_or(Connection::is_unfit) {
                *held = Some(Connection::open(&self.options, "relay").await?);
            }
            let connection = held.as_mut().expect("it was just opened");
            if sending.attach(connection).await? {
                break connection;
            }
        };
        let sent = sending.send(connection, &self.options).await;
        if let Err(refusal) = &sent {
            debug!(code = refusal.code, message = refusal.message, "the connection to the AMQP broker broke");
            sending.harvest();
        }
        sent
    }
}

#[async_trait]
impl Publisher for AmqpPublisher {
    async fn publish(&self, rows: &[Outgoing<'_>]) -> Vec<Outcome> {
        let deadline = Instant::now() + self.options.send_timeout;
        let mut connection = self.connection.lock().await;
        let mut sending = Sending::new(rows);
        let mut trouble = Refusal::new("AMQP_TIMEOUT", "the broker did not answer in time");
        for _ in 0..CONNECTIONS_MAX {
            let had_one = connection.is_some();
            match timeout_at(deadline, self.send_all(&mut connection, &mut sending)).await {
                Ok(Ok(())) => return sending.outcomes(&trouble),
                Ok(Err(refusal)) => trouble = refusal,
                Err(_) => {
                    sending.harvest();
                    *connection = None;
                    break;
                }
            }
            // Nobody there: the relay's breaker decides when to look again.
            let unreachable = connection.is_none() || (!had_one && sending.untouched());
            *connection = None;
            if unreachable {
                break;
            }
        }
        sending.outcomes(&trouble)
    }
}

impl fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpPublisher").field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_tells_where_and_who_and_is_never_shown() {
        let options = AmqpOptions::from_url("amqps://app:p%40ss:w@mq.example:5671/").unwrap();
        assert_eq!((options.host.as_str(), options.port, options.tls.is_some()), ("mq.example", 5671, true));
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("app"), Some("p@ss:w")));
        assert!(!format!("{options:?}").contains("p@ss"));
        assert_eq!(AmqpOptions::from_url("amqp://localhost").unwrap().port, 5672);
        for wrong in
            ["localhost:5672", "amqp://", "amqp://s3cret@", "amqp://h:s3cret", "amqp://u:%zz@s3cret", "http://s3cret"]
        {
            let refusal = AmqpOptions::from_url(wrong).unwrap_err().to_string();
            assert!(refusal.contains("amqp://host:port") && !refusal.contains("s3cret"), "{wrong}: {refusal}");
        }
    }

    #[test]
    fn a_container_id_that_some_brokers_refuse_is_refused_here() {
        let wrong = AmqpOptions { container_id: "my-app".into(), ..AmqpOptions::new("h", 1) };
        assert!(wrong.validate().unwrap_err().to_string().contains("container_id"));
        AmqpOptions::new("h", 1).validate().unwrap();
    }
}
