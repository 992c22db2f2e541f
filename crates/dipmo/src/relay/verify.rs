//! The two readers side by side: the table's reader sends, the WAL's only looks, and both must have seen
//! the same rows.
//!
//! Rows are compared once a reading of the horizon calls them decided, the WAL has been read past that
//! moment, and the cursors have passed them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tracing::{info, warn};

use super::lane::{Lane, LaneStep};
use super::reader::{Checkpoint, Source, Turn, drop_when_free};
use super::shard::Shard;
use crate::error::Result;
use crate::store::postgres::Db;
use crate::store::postgres::relay::Link;
use crate::store::postgres::wal::slot;
use crate::store::postgres::wal::{Lsn, WalRow, WalStream};

/// A step waits this long for the WAL at most, so that sending is not held up.
const LOOK: Duration = Duration::from_millis(5);
const READ_ROWS_MAX: usize = 8_000;
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A difference names this many ids at most.
const NAMED_MAX: usize = 10;

pub(super) struct Verifier {
    stream: WalStream,
    slot: String,
    db: Db,
    position: Lsn,
    /// Rows up to here may have been committed before the slot was made.
    base: i64,
    of_wal: BTreeSet<i64>,
    of_table: BTreeSet<i64>,
    waiting: Option<Arc<Checkpoint>>,
}

pub(super) fn slot_name(db: &Db) -> String {
    slot::verifying_slot_name(db.schema())
}

impl Verifier {
    /// With a slot of its own, which nothing depends on.
    async fn open(link: &Link, from: Lsn) -> Result<Self> {
        let db = link.db().clone();
        let (slot, publication) = (slot_name(&db), slot::publication_name(db.schema()));
        let base = link.read_last_id().await?;
        let stream = WalStream::open(&db, &slot, &publication, &[], from).await?;
        let (of_wal, of_table) = (BTreeSet::new(), BTreeSet::new());
        Ok(Self { stream, slot, db, position: from, base, of_wal, of_table, waiting: None })
    }

    pub(super) async fn close(self) -> Result<()> {
        self.stream.close().await;
        drop_when_free(&self.db, &self.slot).await
    }

    pub(super) fn table_has(&mut self, ids: impl Iterator<Item = i64>) {
        self.of_table.extend(ids.filter(|id| *id > self.base));
    }

    async fn look(&mut self) -> Result<()> {
        let next = self.stream.next(READ_ROWS_MAX, READ_BYTES_MAX, &|_| false);
        let Ok(batch) = tokio::time::timeout(LOOK, next).await else { return Ok(()) };
        let batch = batch?;
        let ids = batch.rows.iter().map(WalRow::id).filter(|id| *id > self.base);
        self.of_wal.extend(ids);
        if let Some(upto) = batch.upto {
            self.position = upto;
            self.stream.confirm(upto);
        }
        Ok(())
    }

    /// Compares what both must have seen by now, and forgets it.
    fn compare<'a>(&mut self, checkpoint: &Checkpoint, shards: impl Iterator<Item = &'a Shard> + Clone) -> usize {
        let upto = shards.clone().map(Shard::cursor).min().unwrap_or(0).min(checkpoint.view.safe);
        let open = |id: i64| {
            checkpoint.view.gaps.iter().any(|gap| gap.ranges.contains(id))
                || !shards.clone().all(|shard| shard.has_sent(id))
        };
        let decided =
            |ids: &BTreeSet<i64>| -> BTreeSet<i64> { ids.range(..=upto).copied().filter(|id| !open(*id)).collect() };
        let (of_wal, of_table) = (decided(&self.of_wal), decided(&self.of_table));
        let differences = report("table", of_wal.difference(&of_table)) + report("wal", of_table.difference(&of_wal));
        counter!("dipmo_relay_verified_total").increment(of_wal.union(&of_table).count() as u64);
        self.of_wal.retain(|id| !of_wal.contains(id));
        self.of_table.retain(|id| !of_table.contains(id));
        differences
    }
}

fn report<'a>(missed_by: &'static str, ids: impl Iterator<Item = &'a i64>) -> usize {
    let ids: Vec<i64> = ids.copied().collect();
    counter!("dipmo_relay_differences_total", "missed_by" => missed_by).increment(ids.len() as u64);
    if !ids.is_empty() {
        let named = &ids[..ids.len().min(NAMED_MAX)];
        warn!(missed_by, count = ids.len(), ids = ?named, "the readers differ: one has not seen these rows");
    }
    ids.len()
}

impl Lane {
    pub(super) async fn begin_verifying(&mut self, from: Lsn) -> Result<()> {
        let verifier = Verifier::open(&self.link, from).await?;
        info!(lane = self.name, slot = verifier.slot, "the WAL is read beside the table, to compare");
        self.source = Source::Verify(Box::new(verifier));
        Ok(())
    }

    pub(super) async fn publish_verified(&mut self, turn: &Turn) -> Result<LaneStep> {
        let mut step = self.publish(&turn.view).await?;
        let Source::Verify(verifier) = &mut self.source else { return Ok(step) };
        verifier.look().await?;
        verifier.waiting = verifier.waiting.take().or_else(|| turn.checkpoint.clone());
        let reached = verifier.waiting.take_if(|waiting| verifier.position >= waiting.lsn);
        if let Some(checkpoint) = reached {
            step.differences = verifier.compare(&checkpoint, self.shards.values());
        }
        Ok(step)
    }
}
