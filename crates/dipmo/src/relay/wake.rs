//! Hears writers: LISTEN on a connection of its own, which may come and go. Polling is the truth; a
//! notification that is missed costs the fallback interval.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tracing::debug;

use crate::store::postgres::Db;
use crate::store::postgres::relay::listen;

/// How long to wait before listening again after the connection broke.
const RECONNECT: Duration = Duration::from_secs(1);

/// Ends the listening when dropped.
#[derive(Debug)]
pub(crate) struct Listener(JoinHandle<()>);

impl Listener {
    /// Fires `signal` for every notification on the channel of the schema's outbox.
    pub(crate) fn spawn(db: Db, signal: Arc<Notify>) -> Self {
        Self(tokio::spawn(async move {
            loop {
                if let Err(error) = listen(&db, || signal.notify_one()).await {
                    debug!(%error, "listening for writers");
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
