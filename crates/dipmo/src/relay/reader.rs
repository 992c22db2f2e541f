//! Where a sending lane gets its rows from, and how it changes from one reader to the other.
//!
//! Promise: at a change of readers, and when the slot is lost, moved or made anew, no message is left out
//! and the order within a key holds. The two readers keep one account, the cursors with their gaps: what it
//! says is sent, the next reader skips.
//! Not promised: that a message which was only emitted outlives the loss of the slot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::ahead::Ahead;
use super::follow::WalSource;
use super::horizon::{Snapshot, View};
use super::lane::{Lane, LaneStep};
use super::leases::LANE_SHARDS;
use super::verify::{self, Verifier};
use crate::error::{Error, ErrorKind, Result};
use crate::store::postgres::Db;
use crate::store::postgres::relay_wal::LaneRow;
use crate::store::postgres::wal::slot::{self, SlotStatus};
use crate::store::postgres::wal::{Lsn, WalStream};

/// A slot is free when the server has ended its side of the connection: how long that may take, and how
/// often it is looked at.
const FREE_WITHIN: Duration = Duration::from_secs(10);
const FREE_LOOK: Duration = Duration::from_millis(10);

/// A server that does not let the WAL be read is asked again after this long.
const REFUSED_AGAIN: Duration = Duration::from_secs(10);

/// Who reads the outbox for a sending lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reader {
    /// The table, by any number of relays together.
    #[default]
    Poll,
    /// The WAL, by one relay for all shards of the lane; others stand by.
    Wal,
    /// The table, and the WAL beside it to compare.
    Verify,
}

impl Reader {
    pub const ALL: [Reader; 3] = [Reader::Poll, Reader::Wal, Reader::Verify];

    pub fn name(self) -> &'static str {
        match self {
            Reader::Poll => "poll",
            Reader::Wal => "wal",
            Reader::Verify => "verify",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reader| reader.name() == name)
    }
}

/// What the database says of a lane: read again now and then, because operators change it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) reader: Reader,
    /// There is a slot, or should be.
    pub(super) has_slot: bool,
    /// How far the WAL was dealt with.
    pub(super) position: Option<Lsn>,
    /// All transactions below had ended before the position.
    pub(super) ended: Option<i64>,
}

impl Account {
    pub(super) fn of(row: &LaneRow) -> Result<Self> {
        let unknown = || Error::new(ErrorKind::Bug, format!("relay_lane: unknown reader {:?}", row.reader));
        let reader = Reader::parse(&row.reader).ok_or_else(unknown)?;
        Ok(Self { reader, has_slot: row.slot.is_some(), position: row.position, ended: row.ended })
    }

    /// One relay has to own all shards of the lane: there is one slot, and one reader of it.
    pub(super) fn is_alone(&self) -> bool {
        self.reader != Reader::Poll || self.has_slot
    }
}

/// What a lane gets from its session for one step.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) view: Arc<View>,
    /// Only for INTERNAL.
    pub(super) ahead: Option<Ahead>,
    pub(super) account: Account,
    /// Only for lanes that read the WAL.
    pub(super) checkpoint: Option<Arc<Checkpoint>>,
}

/// A reading of the horizon tied to the WAL: who has ended by the snapshot, and whatever the view calls
/// decided, committed before `lsn` if it did.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) view: Arc<View>,
    pub(super) snapshot: Snapshot,
    pub(super) lsn: Lsn,
    pub(super) at: Instant,
}

pub(super) enum Source {
    Table,
    /// The server is making a slot, which takes until the transactions that are open have ended. The table
    /// is read meanwhile.
    MakingSlot(MakingSlot),
    /// The slot is there; what was committed before it is still read from the table.
    CatchingUp(CatchUp),
    Wal(Box<WalSource>),
    Verify(Box<Verifier>),
}

pub(super) struct MakingSlot {
    /// Never aborted: its connection is busy until the server is done.
    made: JoinHandle<Result<Lsn>>,
    reader: Reader,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CatchUp {
    /// Where the WAL is read from afterwards.
    from: Lsn,
    /// The last id when the slot was there: what has a later one is in the WAL.
    mark: i64,
}

impl Lane {
    /// One step of a sending lane, with whichever reader it has or is to have.
    pub(super) async fn relay(&mut self, turn: &Turn) -> Result<LaneStep> {
        let before = std::mem::discriminant(&self.source);
        let was_wal = matches!(self.source, Source::Wal(_));
        match self.change_reader(turn).await {
            Err(error) if error.kind() == ErrorKind::Invalid => self.refuse_reader(turn, &error),
            changed => changed?,
        }
        let mut step = match &self.source {
            // Its shards are to be taken anew first.
            Source::Table if was_wal || self.waits_for_slot(turn) => LaneStep::default(),
            Source::Table | Source::MakingSlot(_) | Source::CatchingUp(_) => self.publish(&turn.view).await?,
            Source::Wal(_) => self.follow(turn).await?,
            Source::Verify(_) => self.publish_verified(turn).await?,
        };
        let changed = before != std::mem::discriminant(&self.source);
        step.again = changed || !matches!(self.source, Source::Table);
        step.tend = changed;
        Ok(step)
    }

    /// The table does not know which rows belong together. Where readers are promised whole transactions, a
    /// lane whose WAL was read by another until now waits for the slot to be free, instead of going on with
    /// the table meanwhile.
    fn waits_for_slot(&self, turn: &Turn) -> bool {
        let follows = turn.account.reader == Reader::Wal && turn.account.position.is_some();
        let whole = self.sender.as_ref().is_some_and(|sender| sender.publisher.keeps_any_whole());
        follows && whole && self.refused.is_none()
    }

    /// The server does not let the WAL be read as it is set up: the table is read until somebody mends that.
    fn refuse_reader(&mut self, turn: &Turn, error: &Error) {
        let problem = error.to_string();
        warn!(lane = self.name, reader = turn.account.reader.name(), problem, "the table is read meanwhile");
        self.source = Source::Table;
        self.refused = Some((Instant::now(), problem));
    }

    async fn change_reader(&mut self, turn: &Turn) -> Result<()> {
        let refused = self.refused.as_ref().is_some_and(|(at, _)| at.elapsed() < REFUSED_AGAIN);
        if !turn.account.is_alone() || !refused {
            self.refused = None;
        }
        let complete = self.shards.len() == LANE_SHARDS && self.refused.is_none();
        let account = &turn.account;
        match (&self.source, account.reader) {
            // Whatever is to be read, a slot that is there is read to its end first: it may hold messages
            // that are nowhere else.
            (Source::Table, _) if complete && account.has_slot => self.enter_wal(account).await,
            (Source::Table, Reader::Wal) if complete => self.enter_wal(account).await,
            (Source::Table, Reader::Verify) if complete => self.make_verifying_slot().await,
            (Source::MakingSlot(making), _) if making.made.is_finished() => self.slot_was_made().await,
            (Source::CatchingUp(catch_up), _) => {
                let catch_up = *catch_up;
                self.end_catch_up(catch_up, account.ended).await
            }
            (Source::Wal(_), Reader::Poll | Reader::Verify) => self.leave_wal().await,
            (Source::Verify(_), Reader::Poll | Reader::Wal) => {
                info!(lane = self.name, "the readers are no longer compared");
                self.close().await
            }
            _ => Ok(()),
        }
    }

    /// Goes on from the slot where it stands as we left it; otherwise the table comes first.
    async fn enter_wal(&mut self, account: &Account) -> Result<()> {
        let db = self.link.db().clone();
        let name = slot::default_slot_name(db.schema());
        slot::ensure_publication(&db, &self.options.foreign_tables).await?;
        let found = slot::slot_status(&db, &name).await?;
        if is_busy(&name, found.as_ref()) {
            return Ok(());
        }
        if found.is_none() && account.reader != Reader::Wal {
            return self.link.end_wal(self.name).await;
        }
        let usable = found.as_ref().filter(|found| !is_lost(found)).and_then(|found| found.confirmed_flush_lsn);
        match (account.position, usable) {
            (Some(position), Some(kept)) if kept <= position => return self.open_wal(position).await,
            (Some(position), _) => self.say_resync(&name, found.as_ref(), position).await?,
            (None, _) => {}
        }
        if let Some(kept) = usable {
            return self.begin_catch_up(&name, kept).await;
        }
        if found.is_some() {
            slot::drop_slot(&db, &name).await?;
        }
        self.make_slot(name, Reader::Wal);
        Ok(())
    }

    fn make_slot(&mut self, name: String, reader: Reader) {
        info!(lane = self.name, slot = name, "making the slot; this waits for the transactions that are open");
        let db = self.link.db().clone();
        let made = tokio::spawn(async move { slot::create_slot(&db, &name).await });
        self.source = Source::MakingSlot(MakingSlot { made, reader });
    }

    async fn slot_was_made(&mut self) -> Result<()> {
        let Source::MakingSlot(making) = std::mem::replace(&mut self.source, Source::Table) else { return Ok(()) };
        let panicked = |error| Error::new(ErrorKind::Bug, "making the slot").source(error);
        let from = making.made.await.map_err(panicked)??;
        match making.reader {
            Reader::Verify => self.begin_verifying(from).await,
            Reader::Poll | Reader::Wal => {
                let name = slot::default_slot_name(self.link.db().schema());
                self.begin_catch_up(&name, from).await
            }
        }
    }

    async fn make_verifying_slot(&mut self) -> Result<()> {
        let db = self.link.db().clone();
        let name = verify::slot_name(&db);
        slot::ensure_publication(&db, &[]).await?;
        let found = slot::slot_status(&db, &name).await?;
        if is_busy(&name, found.as_ref()) {
            return Ok(());
        }
        // One that a dead relay left behind holds nothing that anybody needs.
        if found.is_some() {
            slot::drop_slot(&db, &name).await?;
        }
        self.make_slot(name, Reader::Verify);
        Ok(())
    }

    /// The slot is not the one that we left: operators should know.
    async fn say_resync(&self, name: &str, found: Option<&SlotStatus>, position: Lsn) -> Result<()> {
        let why = match found {
            None => "the slot is gone",
            Some(found) if is_lost(found) => "the server has removed WAL that the slot needed",
            Some(_) => "the slot was moved or made anew by somebody else",
        };
        warn!(
            lane = self.name, slot = name, %position,
            "{why}: rows are read from the table again; a message that was only emitted since that position \
             cannot be recovered"
        );
        let detail = json!({"slot": name, "position": position.to_string()});
        self.link.note_resync(&self.options.node, self.name, why, &detail).await?;
        metrics::counter!("dipmo_relay_resyncs_total").increment(1);
        Ok(())
    }

    async fn begin_catch_up(&mut self, name: &str, from: Lsn) -> Result<()> {
        self.link.begin_wal(self.name, name).await?;
        let mark = self.link.read_last_id().await?;
        info!(lane = self.name, slot = name, %from, mark, "catching up from the table before the WAL is read");
        self.source = Source::CatchingUp(CatchUp { from, mark });
        Ok(())
    }

    /// Everything that was committed before the slot is sent when the cursors have passed the mark: who
    /// commits later is in the WAL, and what of it was seen in the table is skipped there.
    async fn end_catch_up(&mut self, catch_up: CatchUp, ended: Option<i64>) -> Result<()> {
        if self.shards.values().any(|shard| shard.cursor() < catch_up.mark || shard.has_orphans()) {
            return Ok(());
        }
        if let Some(ended) = ended {
            self.resend_foreign(ended).await?;
        }
        self.flush_cursors().await?;
        self.link.store_position(self.name, catch_up.from, None).await?;
        self.open_wal(catch_up.from).await
    }

    async fn open_wal(&mut self, from: Lsn) -> Result<()> {
        let db = self.link.db();
        let (slot, publication) = (slot::default_slot_name(db.schema()), slot::publication_name(db.schema()));
        let settings = slot::wal_settings(db).await?;
        for problem in slot::check(&settings, &slot, slot::slot_status(db, &slot).await?.as_ref()) {
            warn!(lane = self.name, slot, "{problem}");
        }
        let stream = WalStream::open(db, &slot, &publication, &self.options.foreign_tables, from).await?;
        info!(lane = self.name, slot, %from, "reading the WAL");
        self.source = Source::Wal(Box::new(WalSource::new(stream, from)));
        Ok(())
    }

    /// Hands over to the table: when nobody can emit any more and everything before that moment is dealt
    /// with, the slot goes, and the shards are taken anew with what is stored.
    async fn leave_wal(&mut self) -> Result<()> {
        let leaving = self.wal().leaving;
        let end = match leaving {
            Some(end) => end,
            None if self.link.stop_emitting().await? => {
                let end = self.link.read_insert_lsn().await?;
                self.wal().leaving = Some(end);
                end
            }
            None => return Ok(()),
        };
        if self.wal().position < end {
            return Ok(());
        }
        self.close().await?;
        let db = self.link.db().clone();
        drop_when_free(&db, &slot::default_slot_name(db.schema())).await?;
        self.link.end_wal(self.name).await?;
        self.link.go_on_emitting().await?;
        info!(lane = self.name, "the table is read again");
        self.give_up_shards();
        Ok(())
    }

    pub(super) fn wal(&mut self) -> &mut WalSource {
        match &mut self.source {
            Source::Wal(source) => source,
            _ => unreachable!("only a lane that reads the WAL asks for it"),
        }
    }
}

/// Another relay, or what is left of its connection, still reads the slot.
fn is_busy(name: &str, found: Option<&SlotStatus>) -> bool {
    let Some(busy) = found.filter(|found| found.active) else { return false };
    info!(slot = name, pid = busy.active_pid, "the slot is still read by another: waiting for it");
    true
}

/// The server has removed WAL that the slot's reader would need.
fn is_lost(slot: &SlotStatus) -> bool {
    slot.wal_status.as_deref() == Some("lost")
}

/// Drops a slot that this relay has just stopped reading: the server may need a moment to notice.
pub(super) async fn drop_when_free(db: &Db, name: &str) -> Result<()> {
    let give_up = Instant::now() + FREE_WITHIN;
    while slot::slot_status(db, name).await?.is_some_and(|slot| slot.active) && Instant::now() < give_up {
        tokio::time::sleep(FREE_LOOK).await;
    }
    match slot::drop_slot(db, name).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        dropped => dropped,
    }
}
