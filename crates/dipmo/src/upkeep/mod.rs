//! Keeps the tables in shape: makes the partitions of the coming days, drops those past their age,
//! forgets old dedupe entries, and refreshes the gauges that are read from the database.
//!
//! Promise: nothing unresolved is dropped, however old: open messages, messages not sent, history of
//! open processes. What is kept for that reason is said. Any number of nodes may run it.
//! Not promised: that a partition is dropped on the day; an open transaction may delay it.

mod gauges;
mod options;

pub use options::{Retention, UpkeepOptions};

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::error::Result;
use crate::shutdown::Shutdown;
use crate::store::postgres::Db;
use crate::store::postgres::upkeep::{self as store, Dropped, Dropper, Memory, Partition};
use gauges::Gauges;

/// Small enough that a batch commits quickly and keeps no lock for long.
const FORGET_BATCH: i64 = 20_000;
/// A run that finds a mountain leaves the rest to the next one.
const FORGET_BATCHES_MAX: usize = 500;
/// A node that has been silent for this long is not coming back under that name.
const NODE_SILENT_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The upkeep loop of a node.
#[derive(Debug)]
pub struct Upkeep {
    db: Db,
    options: UpkeepOptions,
    gauges: Gauges,
    chores_done_at: Mutex<Option<Instant>>,
}

/// What a step did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub partitions_made: i32,
    pub partitions_dropped: Vec<String>,
    /// Past their age, but something in them is unresolved: name and reason.
    pub partitions_kept: Vec<(String, String)>,
    pub entries_forgotten: u64,
}

impl Upkeep {
    /// Refuses a dedupe window that is too short to keep the promise of exactly-once effects.
    pub fn new(db: Db, options: UpkeepOptions) -> Result<Self> {
        options.validate()?;
        Ok(Self { db, options, gauges: Gauges::default(), chores_done_at: Mutex::new(None) })
    }

    pub async fn run(&self, mut shutdown: Shutdown) {
        while !shutdown.requested() {
            if let Err(error) = self.run_once().await {
                warn!(%error, "upkeep step failed");
            }
            shutdown.wait_up_to(self.options.gauges_every).await;
        }
    }

    /// Heartbeat and gauges each time, the chores when they are due.
    pub async fn run_once(&self) -> Result<Report> {
        store::heartbeat(&self.db, &self.options.node).await?;
        let report = if self.chores_due() { self.chores().await? } else { Report::default() };
        self.measure().await?;
        Ok(report)
    }

    /// Partitions and memory, now. Each chore is tried even when one before it failed.
    pub async fn chores(&self) -> Result<Report> {
        let mut report = Report::default();
        let cut = self.cut().await.map(|made| report.partitions_made = made);
        let retained = self.retain(&mut report).await;
        self.forget(&mut report).await.and(retained).and(cut)?;
        if report.partitions_made > 0 || report.entries_forgotten > 0 {
            info!(made = report.partitions_made, forgotten = report.entries_forgotten, "chores done");
        }
        *self.chores_done_at.lock().expect("no code panics while it holds the time") = Some(Instant::now());
        Ok(report)
    }

    /// Makes the partitions of the coming days.
    pub async fn cut(&self) -> Result<i32> {
        store::cut(&self.db, self.options.partitions_ahead).await
    }

    /// Refreshes the gauges that are read from the database.
    pub async fn measure(&self) -> Result<()> {
        self.gauges.refresh(&self.db).await
    }

    fn chores_due(&self) -> bool {
        let done = *self.chores_done_at.lock().expect("no code panics while it holds the time");
        done.is_none_or(|at| at.elapsed() >= self.options.chores_every)
    }

    async fn retain(&self, report: &mut Report) -> Result<()> {
        let (today, partitions) = store::partitions(&self.db).await?;
        let aged = |p: &&Partition| {
            let age = Duration::try_from(today - p.day).unwrap_or_default();
            // The day itself must be over too.
            self.keep(&p.table).is_some_and(|keep| age > keep + Duration::from_secs(86_400))
        };
        let aged: Vec<&Partition> = partitions.iter().filter(aged).collect();
        if aged.is_empty() {
            return Ok(());
        }
        let Some(dropper) = Dropper::begin(&self.db).await? else { return Ok(()) };
        for partition in aged {
            let keep = self.keep(&partition.table).unwrap_or(Duration::MAX);
            match dropper.drop_partition(partition, keep).await? {
                Dropped::Gone => {
                    info!(partition = partition.name, "dropped a partition past its age");
                    report.partitions_dropped.push(partition.name.clone());
                }
                Dropped::Kept(why) => {
                    info!(partition = partition.name, reason = why, "kept a partition past its age");
                    report.partitions_kept.push((partition.name.clone(), why));
                }
            }
        }
        Ok(())
    }

    /// How long a table's rows are kept; `None` for ever.
    fn keep(&self, table: &str) -> Option<Duration> {
        let retention = &self.options.retention;
        match table {
            "inbox" | "inbox_done" => Some(retention.inbox),
            "outbox" => Some(retention.outbox),
            _ => retention.journal,
        }
    }

    async fn forget(&self, report: &mut Report) -> Result<()> {
        let retention = &self.options.retention;
        let memories = [
            (Memory::InboxDedupe, retention.dedupe),
            (Memory::OutboxVersions, retention.dedupe),
            (Memory::RelayBatches, retention.outbox),
            (Memory::CommandRequests, retention.dedupe),
            (Memory::EndedCommands, retention.dedupe),
            (Memory::CommandLedger, retention.dedupe),
            (Memory::TakenCommands, retention.dedupe),
        ];
        for (memory, window) in memories {
            for _ in 0..FORGET_BATCHES_MAX {
                let gone = store::forget(&self.db, memory, window, FORGET_BATCH).await?;
                report.entries_forgotten += gone;
                if gone < FORGET_BATCH as u64 {
                    break;
                }
            }
        }
        report.entries_forgotten += store::forget_nodes(&self.db, NODE_SILENT_MAX).await?;
        let (_, partitions) = store::partitions(&self.db).await?;
        let first = partitions.iter().filter(|p| p.table == "outbox").map(|p| p.ids.0).min();
        if let Some(first) = first {
            report.entries_forgotten += store::forget_exceptions(&self.db, first).await?;
        }
        Ok(())
    }
}
