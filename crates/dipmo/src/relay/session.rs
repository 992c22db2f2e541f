//! Everything a relay knows between two connection errors: the horizon, the leases and the lanes.
//!
//! After an error the whole session is dropped and a new one begins from what the database holds; memory
//! is never kept over a reconnect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{counter, gauge};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::ahead::{Ahead, LookAhead};
use super::horizon::{Horizon, View};
use super::lane::{Lane, LaneStep};
use super::leases::{LANE_SHARDS, Leases};
use super::publish::Sender;
use super::reader::{Account, Checkpoint, Turn};
use super::{AMQP, INTERNAL, KAFKA, RelayOptions, RelayStep};
use crate::error::{Error, ErrorKind, Result};
use crate::store::postgres::Db;
use crate::store::postgres::relay::Link;
use crate::store::postgres::relay_lease as store;

/// A listing for gaps looks at this many rows of a shard; what is beyond is the next poll's.
const LISTED_ROWS_MAX: i64 = 2_000;
/// Operators change the readers of lanes: how often that is looked at.
const ACCOUNTS_EVERY: Duration = Duration::from_secs(1);
/// A relay with less than its share looks this often for shards that others gave back.
const TEND_HUNGRY: Duration = Duration::from_secs(1);

pub(super) struct Session {
    db: Db,
    options: Arc<RelayOptions>,
    link: Link,
    horizon: Option<Horizon>,
    leases: Leases,
    idle: Vec<Lane>,
    /// Tasks of their own: a lane holds row locks of its shards, which `tend` waits for, so that it must
    /// go on while nobody polls the session. Dropping the set ends them.
    running: JoinSet<(Lane, Result<LaneStep>)>,
    lanes: Vec<&'static str>,
    tended: Option<Instant>,
    /// Less than a fair share is owned.
    hungry: bool,
    tend_now: bool,
    accounts: BTreeMap<&'static str, Account>,
    accounts_read: Option<Instant>,
    /// Consumers take something from INTERNAL.
    subscribed: bool,
    /// How far the reader of the WAL is behind, in bytes.
    wal_lag: Option<u64>,
    /// Why the reader that is wanted is not used.
    problem: Option<String>,
    /// Stallers that were named, for the heartbeat.
    named: BTreeMap<u64, Value>,
    backlog: BTreeMap<&'static str, i64>,
}

impl Session {
    pub(super) async fn open(db: &Db, options: &Arc<RelayOptions>) -> Result<Self> {
        let leases = Leases::default();
        let mut idle = Vec::new();
        if options.internal {
            idle.push(Lane::open(INTERNAL, leases.clone(), Arc::clone(options), db, None).await?);
        }
        for (name, publisher) in [(KAFKA, &options.kafka), (AMQP, &options.amqp)] {
            let Some(publisher) = publisher else { continue };
            let sender = Sender::new(Arc::clone(publisher), options);
            idle.push(Lane::open(name, leases.clone(), Arc::clone(options), db, Some(sender)).await?);
        }
        // Opened last: whatever the horizon says was read after the lanes' connections were there.
        let link = Link::open(db, "relay horizon").await?;
        link.prepare_horizon().await?;
        let lanes = idle.iter().map(Lane::name).collect();
        let session = Self {
            db: db.clone(),
            options: Arc::clone(options),
            link,
            horizon: None,
            leases,
            idle,
            running: JoinSet::new(),
            lanes,
            tended: None,
            hungry: false,
            tend_now: false,
            accounts: BTreeMap::new(),
            accounts_read: None,
            subscribed: true,
            wal_lag: None,
            problem: None,
            named: BTreeMap::new(),
            backlog: BTreeMap::new(),
        };
        Ok(session)
    }

    /// Tends the leases when due, reads the horizon, and sets every idle lane to work on it. Rows of INTERNAL
    /// may be read `ahead`, together with it. Returns by how much the last id had moved.
    pub(super) async fn turn(&mut self, step: &mut RelayStep, ahead: bool) -> Result<u64> {
        self.read_accounts().await?;
        let every = self.options.tend_every.unwrap_or(self.options.lease / 3);
        let every = if self.hungry { every.min(TEND_HUNGRY) } else { every };
        if self.tend_now || self.tended.is_none_or(|at| at.elapsed() >= every) {
            self.tend().await?;
        }
        self.give_back().await?;
        step.shards = self.leases.len();
        let ahead = self.idle.iter().find_map(Lane::look_ahead).filter(|_| ahead);
        let Some((view, moved, mut ahead)) = self.poll(ahead).await? else { return Ok(0) };
        let view = Arc::new(view);
        for mut lane in std::mem::take(&mut self.idle) {
            let mut turn = self.turn_for(lane.name(), &view).await?;
            turn.ahead = ahead.take_if(|_| lane.name() == INTERNAL);
            self.running.spawn(async move {
                let done = lane.step(turn).await;
                (lane, done)
            });
        }
        Ok(moved)
    }

    /// A lane that reads the WAL gets the view together with a place in the WAL, read after everything that
    /// the view rests on.
    async fn turn_for(&self, lane: &'static str, view: &Arc<View>) -> Result<Turn> {
        let account = self.accounts.get(lane).cloned().unwrap_or_default();
        let horizon = self.horizon.as_ref().filter(|_| account.is_alone());
        let checkpoint = match horizon {
            Some(horizon) => {
                let (view, snapshot) = (Arc::clone(view), horizon.last_snapshot().clone());
                Some(Arc::new(Checkpoint {
                    view,
                    snapshot,
                    lsn: self.link.read_insert_lsn().await?,
                    at: Instant::now(),
                }))
            }
            None => None,
        };
        Ok(Turn { view: Arc::clone(view), ahead: None, account, checkpoint })
    }

    async fn read_accounts(&mut self) -> Result<()> {
        let every = self.options.tend_every.unwrap_or(ACCOUNTS_EVERY).min(ACCOUNTS_EVERY);
        if self.accounts_read.is_some_and(|at| at.elapsed() < every) {
            return Ok(());
        }
        let (rows, subscribed) = self.link.read_lanes().await?;
        self.subscribed = subscribed;
        for name in self.lanes.clone() {
            let Some(row) = rows.iter().find(|row| row.lane == name) else { continue };
            let account = Account::of(row)?;
            let known = self.accounts.insert(name, account.clone());
            self.tend_now |= known.is_none_or(|known| known.is_alone() != account.is_alone());
        }
        self.accounts_read = Some(Instant::now());
        Ok(())
    }

    fn is_alone(&self, lane: &str) -> bool {
        self.accounts.get(lane).is_some_and(Account::is_alone)
    }

    /// New rows are found by reading the table, and somebody waits for them.
    pub(super) fn needs_polls(&self) -> bool {
        self.lanes.iter().any(|lane| if *lane == INTERNAL { self.subscribed } else { !self.is_alone(lane) })
    }

    /// Waits for the next lane to end its step; `None` when none is at work.
    pub(super) async fn next_done(&mut self) -> Option<Result<(&'static str, LaneStep)>> {
        let ended = self.running.join_next().await?;
        let (lane, done) = match ended {
            Ok(ended) => ended,
            Err(error) => return Some(Err(Error::new(ErrorKind::Bug, "a relay lane panicked").source(error))),
        };
        let name = lane.name();
        self.problem = lane.problem().or_else(|| self.problem.take().filter(|_| name != KAFKA));
        self.idle.push(lane);
        Some(done.map(|step| {
            self.backlog.insert(name, step.behind);
            self.wal_lag = step.wal_lag.or(self.wal_lag);
            if step.tend {
                self.tend_now = true;
                self.accounts_read = None;
            }
            (name, step)
        }))
    }

    pub(super) fn is_working(&self) -> bool {
        !self.running.is_empty()
    }

    /// A lane could begin a step at once.
    pub(super) fn is_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// The horizon waits for somebody's end, which nobody announces.
    pub(super) fn is_waiting(&self) -> bool {
        self.horizon.as_ref().is_some_and(Horizon::is_waiting)
    }

    /// Tells writers to notify or not to.
    pub(super) async fn set_quiet(&mut self, quiet: bool) -> Result<()> {
        self.link.set_quiet(quiet).await
    }

    /// One reading of the horizon, in the order that makes it right. `None` while no shard is owned. What was
    /// read ahead is told only if it was read after everything that the view rests on.
    async fn poll(&mut self, ahead: Option<LookAhead>) -> Result<Option<(View, u64, Option<Ahead>)>> {
        counter!("dipmo_relay_polls_total").increment(1);
        if let Some(floor) = self.leases.floor() {
            // A shard that stands lower than anything this horizon has looked at: begin again from there.
            if self.horizon.as_ref().is_none_or(|horizon| floor < horizon.base()) {
                self.horizon = Some(Horizon::new(self.options.horizon.clone(), floor));
            }
        }
        let wants_lockers = self.leases.wants_lockers();
        let Some(horizon) = &mut self.horizon else { return Ok(None) };
        let marked = horizon.marked();
        let reading = async {
            match ahead {
                Some(ahead) => ahead.read(&self.link, marked).await.map(Some),
                None => Ok(None),
            }
        };
        let (horizon_read, ahead) = tokio::join!(biased; self.link.read_horizon(marked), reading);
        let ((last, xid, snapshot), mut ahead) = (horizon_read?, ahead?);
        let now = Instant::now();
        horizon.mark(last, xid, now);
        horizon.snapshot(snapshot, now);
        if wants_lockers || horizon.wants_locks(now) {
            let holders = self.link.read_holders().await?;
            horizon.locks(&holders, now);
            ahead = None;
        }
        if let Some(span) = horizon.decide() {
            let ranges_max = self.options.horizon.gap_ranges_max;
            let (missing, upto) = self.link.read_missing(span, LISTED_ROWS_MAX, ranges_max).await?;
            horizon.listed(missing, upto);
            ahead = None;
        }
        let view = horizon.view();
        self.name_stallers().await?;
        Ok(Some((view, u64::try_from(last - marked).unwrap_or(0), ahead)))
    }

    /// Says who holds up the horizon, once each, so that somebody can end it.
    async fn name_stallers(&mut self) -> Result<()> {
        let Some(horizon) = &self.horizon else { return Ok(()) };
        self.named.retain(|xid, _| horizon.stallers().contains_key(xid));
        let old = |since: &Instant| since.elapsed() >= self.options.horizon.name_after;
        let unnamed: Vec<(u64, Option<i32>)> = horizon
            .stallers()
            .iter()
            .filter(|(xid, staller)| old(&staller.since) && !self.named.contains_key(xid))
            .map(|(xid, staller)| (*xid, staller.pid))
            .collect();
        if unnamed.is_empty() {
            return Ok(());
        }
        let pids: Vec<i32> = unnamed.iter().filter_map(|(_, pid)| *pid).collect();
        let sessions = self.link.read_sessions(&pids).await?;
        for (xid, pid) in unnamed {
            let session = sessions.iter().find(|session| Some(session.pid) == pid);
            let name = session.map_or("a prepared transaction", |session| session.application_name.as_str());
            let since = session.map_or("", |session| session.since.as_str());
            let state = session.map_or("prepared", |session| session.state.as_str());
            warn!(xid, pid, application_name = name, since, state, "a transaction with outbox rows is left open");
            self.named.insert(xid, json!({"xid": xid, "pid": pid, "application_name": name, "since": since}));
        }
        Ok(())
    }

    /// Says that this relay is alive, renews its leases, and takes or gives back shards for a fair share.
    async fn tend(&mut self) -> Result<()> {
        let first = self.tended.is_none();
        let (node, lease) = (self.options.node.clone(), self.options.lease);
        store::heartbeat(&self.db, &node, &self.detail(), first).await?;
        let held = self.leases.held();
        // Noted before the statement: a lease counts from the earliest moment it can have begun.
        let asked_at = Instant::now();
        if !held.is_empty() {
            let renewed = store::renew(&self.db, &node, &held, lease).await?;
            self.leases.renewed(&held, &renewed, asked_at);
        }
        (self.hungry, self.tend_now) = (false, false);
        for lane in self.lanes.clone() {
            let alone = self.is_alone(lane);
            let alive = if alone { 1 } else { store::alive(&self.db, lane, lease).await?.max(1) };
            let share = LANE_SHARDS.div_ceil(alive);
            let own = self.leases.shards_of(lane);
            if own.len() > share {
                self.leases.leave(lane, own.len() - share);
            } else if own.len() < share {
                let asked_at = Instant::now();
                let taken = store::take(&self.db, &node, lane, (&own, share - own.len()), lease).await?;
                if !taken.is_empty() {
                    info!(lane, shards = taken.len(), "took shards");
                }
                // Others have to give back first: look again soon.
                self.hungry |= own.len() + taken.len() < share;
                self.leases.add(lane, taken, asked_at);
            }
            // Of two relays that each got a part, the one with the first shard gets the rest.
            if alone && !self.leases.has_first(lane) {
                self.leases.leave(lane, LANE_SHARDS);
            }
        }
        self.tended = Some(asked_at);
        Ok(())
    }

    async fn give_back(&mut self) -> Result<()> {
        let left = self.leases.take_left();
        if left.is_empty() {
            return Ok(());
        }
        info!(shards = left.len(), "gave shards back");
        store::release(&self.db, &self.options.node, &left).await
    }

    /// Finishes what is under way and gives everything back.
    pub(super) async fn close(mut self) -> Result<()> {
        while self.next_done().await.is_some() {}
        for lane in &mut self.idle {
            lane.close().await?;
        }
        store::release(&self.db, &self.options.node, &self.leases.held()).await?;
        store::forget(&self.db, &self.options.node).await
    }

    /// What operators see of this relay; the gauges show the same.
    fn detail(&self) -> Value {
        let horizon = self.horizon.as_ref();
        let level = horizon.map_or(0, Horizon::level);
        let stallers = horizon.map_or(0, |horizon| horizon.stallers().len());
        let in_shards = self.idle.iter().map(Lane::open_ranges).max().unwrap_or(0);
        let ranges = horizon.map_or(0, Horizon::open_ranges).max(in_shards);
        gauge!("dipmo_relay_horizon_level").set(f64::from(level));
        #[allow(clippy::cast_precision_loss)] // Gauges are floats; counts are far below 2^52.
        {
            gauge!("dipmo_relay_stallers").set(stallers as f64);
            gauge!("dipmo_relay_open_gaps").set(ranges as f64);
        }
        if horizon.is_some_and(Horizon::is_capped) {
            warn!(ranges, "too many gaps are open: the relay waits for the transactions that were left open");
        }
        json!({
            "lanes": self.lanes,
            "shards": self.leases.len(),
            "level": level,
            "safe_id": horizon.map(Horizon::safe),
            "oldest_pending_ms": horizon.map(|h| h.oldest_mark_age(Instant::now()).as_millis() as u64),
            "open_gaps": ranges,
            "capped": horizon.is_some_and(Horizon::is_capped),
            "backlog": self.backlog,
            "readers": self.accounts.iter().map(|(lane, a)| (*lane, a.reader.name())).collect::<BTreeMap<_, _>>(),
            "wal_lag_bytes": self.wal_lag,
            "reader_problem": self.problem,
            "stallers": self.named.values().collect::<Vec<_>>(),
            "stallers_count": stallers,
        })
    }
}
