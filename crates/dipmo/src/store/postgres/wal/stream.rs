//! What the server streams from its log, in batches.
//!
//! The reader takes whole socket buffers and decodes what is in them; a small task beside it tells the server
//! what was confirmed, also while the reader's caller is busy, so that the server does not give the connection up.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt as _;
use tokio::io::{AsyncReadExt as _, ReadHalf};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::connect::{self, Socket, broken, ended, server_error};
use super::decode::{Change, Decoder};
use super::feedback::{self, Progress};
use super::frame::{Reader, malformed};
use super::{ForeignTable, Lsn, WalRow};
use crate::error::{Error, ErrorKind, Result};
use crate::store::postgres::Db;

/// One read of the socket: many small transactions, or a large part of one.
const READ_SIZE: usize = 256 * 1024;
/// Less room than this left in the buffer, and the next read gets a new one.
const READ_SIZE_MIN: usize = 64 * 1024;
/// In quiet times the server is asked for an answer every few seconds; a connection this silent is dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long the server may take to end an orderly closed connection.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// Before the content of a frame of the log: 'w', start, end, time.
const WAL_HEADER: usize = 1 + 8 + 8 + 8;

/// What arrived together: whole or partial transactions in commit order.
#[derive(Debug, Default)]
pub(crate) struct WalBatch {
    pub(crate) rows: Vec<WalRow>,
    /// For each row the number of its transaction.
    pub(crate) transactions: Vec<u64>,
    /// Everything that was committed up to here is in this batch or an earlier one. None when only a part of
    /// a transaction arrived.
    pub(crate) upto: Option<Lsn>,
    /// The last row's transaction has more rows to come.
    pub(crate) open: bool,
}

/// A stream of the outbox.
pub(crate) struct WalStream {
    socket: ReadHalf<Box<dyn Socket>>,
    incoming: BytesMut,
    decoder: Decoder,
    /// What is decoded and not yet handed out: kept here, so that a cancelled [`WalStream::next`] loses nothing.
    gathered: Gathered,
    /// The transaction that the server is sending now.
    transaction: Option<u64>,
    heard_at: Instant,
    failed: bool,
    progress: watch::Sender<Progress>,
    feedback: JoinHandle<()>,
}

#[derive(Default)]
struct Gathered {
    batch: WalBatch,
    bytes: usize,
    /// The transaction of the last row must not be cut.
    whole: bool,
}

/// How much to take at once.
struct Limits<'a> {
    rows_max: usize,
    bytes_max: usize,
    keep_whole: &'a (dyn Fn(&str) -> bool + Sync),
}

impl WalStream {
    /// Streams what was committed after `from`, or after the slot's confirmed position if that is later.
    pub(crate) async fn open(
        db: &Db,
        slot: &str,
        publication: &str,
        foreign: &[ForeignTable],
        from: Lsn,
    ) -> Result<Self> {
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL {from} (proto_version '1', publication_names '{}', \
             binary 'true', messages 'true')",
            quoted(slot),
            quoted(publication).replace('\'', "''"),
        );
        let connection = connect::start(db, &command).await?;
        let (socket, writer) = tokio::io::split(connection.socket);
        let progress = watch::Sender::new(Progress::default());
        let feedback = tokio::spawn(feedback::run(writer, progress.subscribe()));
        Ok(Self {
            socket,
            incoming: connection.incoming,
            decoder: Decoder::new(db.schema(), foreign),
            gathered: Gathered::default(),
            transaction: None,
            heard_at: Instant::now(),
            failed: false,
            progress,
            feedback,
        })
    }

    /// Waits for something, then takes what has arrived already, at most about `rows_max` rows or `bytes_max`
    /// bytes. A transaction that has a row for a destination to `keep_whole` in the batch is never cut.
    /// An empty batch says that the log went on without anything for us. Cancel-safe.
    pub(crate) async fn next(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        keep_whole: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<WalBatch> {
        // What could not be decoded is gone from the buffer: reading on would skip it.
        if self.failed {
            return Err(Error::new(ErrorKind::Unavailable, "the replication stream has failed: open it again"));
        }
        let gathered = self.gather(&Limits { rows_max, bytes_max, keep_whole }).await;
        self.failed = gathered.is_err();
        gathered.map(|()| self.hand_out())
    }

    async fn gather(&mut self, limits: &Limits<'_>) -> Result<()> {
        while !self.decode_received(limits)? {
            // The rest of an open transaction is under way: only committed transactions are sent.
            let complete = self.transaction.is_none() && self.gathered.batch.upto.is_some();
            if complete {
                match self.read().now_or_never() {
                    Some(read) => read?,
                    // Who sends them takes long enough for others to gather.
                    None => return Ok(()),
                }
            } else {
                let deadline = self.heard_at + SILENCE_MAX;
                tokio::time::timeout_at(deadline, self.read()).await.map_err(|_| silent())??;
            }
        }
        Ok(())
    }

    /// The server may forget what lies before; never called before that is durable elsewhere.
    pub(crate) fn confirm(&self, lsn: Lsn) {
        self.progress.send_if_modified(|progress| {
            let forward = lsn > progress.confirmed;
            progress.confirmed = progress.confirmed.max(lsn);
            forward
        });
    }

    /// Sends the last confirmation and waits until the server has let go of the slot.
    pub(crate) async fn close(mut self) {
        self.progress.send_modify(|progress| progress.closing = true);
        let closed = async {
            let _ = (&mut self.feedback).await;
            // What is still on its way will be sent again to the next reader.
            let mut rest = BytesMut::with_capacity(READ_SIZE);
            while matches!(self.socket.read_buf(&mut rest).await, Ok(1..)) {
                rest.clear();
            }
        };
        if tokio::time::timeout(CLOSE_MAX, closed).await.is_err() {
            tracing::warn!("the server did not end the replication connection in time; it is cut");
        }
    }

    async fn read(&mut self) -> Result<()> {
        // A message larger than the buffer is read into one of its own size.
        let missing = connect::message_len(&self.incoming)?.unwrap_or(0).saturating_sub(self.incoming.len());
        if self.incoming.capacity() - self.incoming.len() < missing.max(READ_SIZE_MIN) {
            self.incoming.reserve(missing.max(READ_SIZE));
        }
        if self.socket.read_buf(&mut self.incoming).await.map_err(broken)? == 0 {
            return Err(ended());
        }
        self.heard_at = Instant::now();
        Ok(())
    }

    /// True when the batch has reached its limits.
    fn decode_received(&mut self, limits: &Limits<'_>) -> Result<bool> {
        loop {
            if self.gathered.is_full(limits) && brings_more(&self.incoming) {
                return Ok(true);
            }
            let Some((tag, body)) = connect::take_message(&mut self.incoming)? else {
                // Full with nothing at hand: its commit may come later, and is not worth waiting for.
                return Ok(self.gathered.is_full(limits));
            };
            match tag {
                b'd' => self.copied(body, limits)?,
                b'E' => return Err(server_error("replication stream", &body)),
                b'c' | b'C' => return Err(ended()),
                // Notices and parameters.
                _ => {}
            }
        }
    }

    fn copied(&mut self, mut body: Bytes, limits: &Limits<'_>) -> Result<()> {
        match body.first() {
            Some(b'w') if body.len() > WAL_HEADER => {
                body.advance(WAL_HEADER);
                self.changed(body, limits)
            }
            Some(b'k') => self.kept_alive(&body),
            _ => Err(malformed("neither log nor keepalive".to_owned())),
        }
    }

    fn changed(&mut self, body: Bytes, limits: &Limits<'_>) -> Result<()> {
        match self.decoder.decode(body)? {
            Change::Begin { commit } => {
                self.transaction = Some(commit.0);
                self.gathered.whole = false;
            }
            Change::Commit { end } => {
                self.transaction = None;
                self.gathered.whole = false;
                self.gathered.reached(end);
            }
            Change::Row(row) => {
                let number = self.transaction.ok_or_else(|| malformed("a row outside any transaction".to_owned()))?;
                self.gathered.push(*row, number, limits);
            }
            Change::Loose { at, row } => {
                self.gathered.push(*row, at.0, limits);
                self.gathered.whole = false;
                self.gathered.reached(at);
            }
            Change::Nothing => {}
        }
        Ok(())
    }

    fn kept_alive(&mut self, body: &[u8]) -> Result<()> {
        let mut reader = Reader::new(body);
        reader.take(1)?;
        let position = Lsn(reader.u64()?);
        reader.take(8)?;
        if reader.u8()? != 0 {
            self.progress.send_modify(|progress| progress.asked += 1);
        }
        // Inside a transaction the position may lie behind rows that are still to come.
        if self.transaction.is_none() && position > self.progress.borrow().received {
            self.gathered.reached(position);
        }
        Ok(())
    }

    fn hand_out(&mut self) -> WalBatch {
        let mut batch = std::mem::take(&mut self.gathered).batch;
        batch.open = self.transaction.is_some() && self.transaction == batch.transactions.last().copied();
        if let Some(upto) = batch.upto {
            // No news for the server that could not wait for its next status message.
            self.progress.send_if_modified(|progress| {
                progress.received = progress.received.max(upto);
                false
            });
        }
        batch
    }
}

impl std::fmt::Debug for WalStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalStream").field("progress", &*self.progress.borrow()).finish_non_exhaustive()
    }
}

impl Gathered {
    fn push(&mut self, row: WalRow, transaction: u64, limits: &Limits<'_>) {
        self.whole = self.whole || (limits.keep_whole)(row.destination());
        self.bytes += row.size();
        self.batch.rows.push(row);
        self.batch.transactions.push(transaction);
    }

    fn reached(&mut self, lsn: Lsn) {
        self.batch.upto = self.batch.upto.max(Some(lsn));
    }

    fn is_full(&self, limits: &Limits<'_>) -> bool {
        !self.whole
            && !self.batch.rows.is_empty()
            && (self.batch.rows.len() >= limits.rows_max || self.bytes >= limits.bytes_max)
    }
}

/// Whether the next message would add to a batch; a commit or a keepalive only completes it.
fn brings_more(incoming: &[u8]) -> bool {
    match (incoming.first(), incoming.get(5)) {
        (Some(b'd'), Some(b'w')) => incoming.get(5 + WAL_HEADER) != Some(&b'C'),
        _ => false,
    }
}

fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, format!("replication stream: nothing heard of the server for {SILENCE_MAX:?}"))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
#[path = "tests/stream.rs"]
mod tests;
