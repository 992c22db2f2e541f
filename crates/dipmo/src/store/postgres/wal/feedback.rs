//! Tells the server how far we are: at once when something was confirmed or it asked, else every few seconds.

use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use postgres_protocol::message::frontend;
use time::OffsetDateTime;
use tokio::io::{AsyncWriteExt as _, WriteHalf};
use tokio::sync::watch;

use super::Lsn;
use super::connect::Socket;
use super::row::micros_of;

/// Well below the minute after which the server gives up a silent client.
const STATUS_EVERY: Duration = Duration::from_secs(5);
/// Confirmations that follow each other closely are sent as one: each costs the server a wake-up.
const STATUS_PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Progress {
    /// Handed out to the caller.
    pub(super) received: Lsn,
    /// Durable elsewhere.
    pub(super) confirmed: Lsn,
    /// How often the server asked for an answer.
    pub(super) asked: u64,
    pub(super) closing: bool,
}

/// Runs until the stream is closed or dropped, or the connection breaks, which the reader will notice itself.
pub(super) async fn run(mut writer: WriteHalf<Box<dyn Socket>>, mut progress: watch::Receiver<Progress>) {
    let mut ask = false;
    loop {
        let now = *progress.borrow_and_update();
        let mut out = BytesMut::new();
        status(&now, ask, &mut out);
        if now.closing {
            frontend::copy_done(&mut out);
            frontend::terminate(&mut out);
        }
        let sent = async {
            writer.write_all(&out).await?;
            writer.flush().await
        };
        if sent.await.is_err() || now.closing {
            return;
        }
        tokio::select! {
            closing = progress.wait_for(|progress| progress.closing) => {
                if closing.is_err() {
                    return;
                }
                continue;
            }
            () = tokio::time::sleep(STATUS_PAUSE) => {}
        }
        let changed = tokio::time::timeout(STATUS_EVERY, progress.changed()).await;
        if matches!(changed, Ok(Err(_))) {
            return;
        }
        ask = changed.is_err();
    }
}

/// A standby status update. An answer is asked for in quiet times: its absence tells a dead connection.
fn status(progress: &Progress, ask: bool, out: &mut BytesMut) {
    const LENGTH: i32 = 4 + 1 + 8 * 4 + 1;
    out.put_u8(b'd');
    out.put_i32(LENGTH);
    out.put_u8(b'r');
    // A written position that lags behind would make the server send a keepalive each time it wakes.
    out.put_u64(progress.received.max(progress.confirmed).0);
    out.put_u64(progress.confirmed.0);
    out.put_u64(progress.confirmed.0);
    out.put_i64(micros_of(OffsetDateTime::now_utc()));
    out.put_u8(ask.into());
}
