//! Hears other processes: LISTEN on a connection of its own, which may come and go. Polling is the truth; a
//! notification that is missed costs an interval of it.

use std::future::poll_fn;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Config};
use tracing::debug;

use super::Db;
use crate::error::{Error, ErrorKind, Result};

/// How long to wait before listening again after the connection broke.
const RECONNECT: Duration = Duration::from_secs(1);

/// What is announced; each schema has channels of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Writers have something for the relays.
    Outbox,
    /// A relay has something for the workers.
    Inbox,
}

impl Channel {
    pub(crate) fn name(self, db: &Db) -> String {
        let what = match self {
            Channel::Outbox => "outbox",
            Channel::Inbox => "inbox",
        };
        format!("{}_{what}", db.schema())
    }
}

/// Ends the listening when dropped.
#[derive(Debug)]
pub(crate) struct Listener(JoinHandle<()>);

impl Listener {
    /// Calls `heard` for every notification on the channel.
    pub(crate) fn spawn(db: Db, channel: Channel, heard: impl Fn() + Send + Sync + 'static) -> Self {
        Self(tokio::spawn(async move {
            loop {
                if let Err(error) = listen(&db, channel, &heard).await {
                    debug!(%error, "listening to other processes");
                }
                tokio::time::sleep(RECONNECT).await;
            }
        }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Listens until the connection breaks.
async fn listen(db: &Db, channel: Channel, heard: impl Fn()) -> Result<()> {
    let unavailable = |e| Error::new(ErrorKind::Unavailable, "listening on PostgreSQL").source(e);
    let (client, mut connection) = named(db.config(), "listen").connect(db.tls()).await.map_err(unavailable)?;
    let statement = format!("listen {}", channel.name(db));
    let listening = client.batch_execute(&statement);
    tokio::pin!(listening);
    let mut asked = false;
    loop {
        tokio::select! {
            message = poll_fn(|context| connection.poll_message(context)) => match message {
                Some(Ok(AsyncMessage::Notification(_))) => heard(),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(unavailable(error)),
                None => return Ok(()),
            },
            answer = &mut listening, if !asked => {
                answer.map_err(unavailable)?;
                asked = true;
                // What was committed before the server began to listen for us was announced to nobody.
                heard();
            }
        }
    }
}

/// The settings of a connection outside the pool, which says what it is for.
pub(super) fn named(config: &Config, role: &str) -> Config {
    let base = config.get_application_name().unwrap_or("dipmo").to_owned();
    let mut config = config.clone();
    // A network that swallows everything must not look like a server that thinks for long.
    config
        .application_name(format!("{base} {role}"))
        .connect_timeout(Duration::from_secs(10))
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_secs(30));
    config
}
