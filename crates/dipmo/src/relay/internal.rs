//! The INTERNAL lane: hands rows to consumers in the same database.
//!
//! Promise: each consumer that is subscribed handles each message once, in order within a key.
//! A consumer that runs in this process may handle them from memory: its own transaction dedupes them, and
//! the cursor moves after it. For all others the hand-over into their inbox and the cursor are one transaction.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use metrics::counter;
use time::OffsetDateTime;
use tracing::warn;

use super::ahead::Ahead;
use super::horizon::View;
use super::lane::{Found, Lane, LaneStep, ReadRow};
use crate::error::{ErrorKind, Result};
use crate::message::Message;
use crate::store::postgres::relay::Link;
use crate::store::postgres::relay_internal::{Routed, Subscriber, Subscriptions};
use crate::store::postgres::relay_out::OutRow;
use crate::store::postgres::relay_rows::{Cursors, IdRow, LateRanges};

/// A shard changed hands this often without a commit: something in it may kill the process, so its rows go
/// through the table, where attempts are counted.
const STALLED: i32 = 2;

/// Cursors over rows that were handled here are stored this often at most while there is nothing else to do,
/// so that nobody waits for it; otherwise at the pace of all lanes.
const LOCAL_FLUSH: Duration = Duration::from_millis(100);

/// A shard that the relay holds: whoever writes for it does so under this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldShard {
    pub shard: i16,
    pub epoch: i64,
}

/// Messages for a consumer of this process, in the order of their shards.
#[derive(Debug)]
pub struct Offer {
    pub consumer: String,
    /// The shards that the messages are from.
    pub held: Vec<HeldShard>,
    /// Whether any key of the consumer is parked.
    pub parked: bool,
    /// The time of the database, as of just now.
    pub now: Option<OffsetDateTime>,
    pub messages: Vec<Message>,
}

/// The consumers of this process that take messages of INTERNAL from memory.
#[async_trait]
pub trait LocalConsumers: std::fmt::Debug + Send + Sync {
    fn takes(&self, consumer: &str) -> bool;

    /// Handles the messages in order within each key and settles them. After an error nothing is known,
    /// and they are offered again.
    async fn handle(&self, offer: Offer) -> Result<()>;
}

impl Lane {
    pub(super) async fn hand_over(&mut self, view: &View, ahead: Option<Ahead>) -> Result<LaneStep> {
        match self.options.local {
            None => {
                let found: Found<IdRow> = self.read(view, self.options.batch_rows, false).await?;
                let subscriptions = self.subscriptions_for(&found).await?;
                self.store(view, found, &subscriptions, &HashSet::new()).await
            }
            Some(_) => self.handle_or_store(view, ahead).await,
        }
    }

    /// Consumers of this process first, then the inboxes of the others.
    async fn handle_or_store(&mut self, view: &View, ahead: Option<Ahead>) -> Result<LaneStep> {
        if self.has_nothing_to_read(view) {
            if self.flushed.elapsed() >= LOCAL_FLUSH {
                self.flush_cursors().await?;
            }
            return Ok(LaneStep::default());
        }
        let (found, subscriptions) = match ahead.and_then(|ahead| self.vouched(view, ahead)) {
            Some(vouched) => vouched,
            None => self.read_with_subscriptions(view).await?,
        };
        self.local_reads.adapt(&found.fresh, self.shards.len(), self.options.batch_rows);
        let handled = self.handle_local(&found, &subscriptions).await?;
        self.store(view, found, &subscriptions, &handled).await
    }

    /// Read together: the view is older than both, and whoever had registered when a row of it was committed
    /// has registered by now. Where there are gaps, both are in one snapshot.
    async fn read_with_subscriptions(&self, view: &View) -> Result<(Found<OutRow>, Subscriptions)> {
        let rows = self.read::<OutRow>(view, self.local_reads.rows(), false);
        let (found, subscriptions) = tokio::join!(biased; rows, self.link.read_subscriptions());
        Ok((found?, subscriptions?))
    }

    /// Read anew for every batch: who registers gets everything from then on.
    async fn subscriptions_for<R>(&self, found: &Found<R>) -> Result<Subscriptions> {
        match found.late.is_empty() && found.fresh.is_empty() {
            true => Ok(Subscriptions::default()),
            false => self.link.read_subscriptions().await,
        }
    }

    /// Returns the consumers that have got theirs.
    async fn handle_local(&self, found: &Found<OutRow>, subscriptions: &Subscriptions) -> Result<HashSet<i32>> {
        let Some(local) = &self.options.local else { return Ok(HashSet::new()) };
        let stalled = |shard: &i16| self.shards.get(shard).is_none_or(|own| own.stalled() >= STALLED);
        let rows: Vec<&OutRow> = found.late.iter().chain(&found.fresh).collect();
        let shards: HashSet<i16> = rows.iter().map(|row| row.place().0).collect();
        if rows.is_empty() || shards.iter().any(stalled) || !self.still_leased() {
            return Ok(HashSet::new());
        }
        // What waits in the table must not be overtaken.
        let by_consumer = messages(subscriptions, &rows, |consumer| !consumer.behind && local.takes(&consumer.name));
        let held: Vec<HeldShard> = shards
            .iter()
            .filter_map(|shard| Some(HeldShard { shard: *shard, epoch: self.shards.get(shard)?.epoch() }))
            .collect();
        let now = subscriptions.read_at();
        let handle = async |(id, (taker, messages)): (i32, (&Subscriber, Vec<Message>))| {
            let consumer = taker.name.clone();
            match local.handle(Offer { consumer, held: held.clone(), parked: taker.parked, now, messages }).await {
                Ok(()) => Ok(Some(id)),
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    warn!(consumer = taker.name, %error, "INTERNAL goes through the inbox this time");
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        };
        let done = try_join_all(by_consumer.into_iter().map(handle)).await?;
        Ok(done.into_iter().flatten().collect())
    }

    /// Moves the cursors, and stores what the other consumers are to get.
    async fn store<R: InternalRow>(
        &mut self,
        view: &View,
        found: Found<R>,
        subscriptions: &Subscriptions,
        handled: &HashSet<i32>,
    ) -> Result<LaneStep> {
        let sent = found.late.len() + found.fresh.len();
        let step = LaneStep { sent, more: found.more, local: !handled.is_empty(), ..LaneStep::default() };
        let logs = self.advance(view, &found.places());
        if sent == 0 {
            return Ok(step);
        }
        counter!("dipmo_outbox_published_total", "lane" => self.name).increment(sent as u64);
        self.unlogged.extend(logs);
        let rows = found.late.iter().chain(&found.fresh).map(R::routed);
        let mut deliveries = subscriptions.deliveries(rows, handled);
        if deliveries.is_empty() {
            // A cursor that is behind costs duplicates after a crash, and nothing else.
            return Ok(step);
        }
        let logs = std::mem::take(&mut self.unlogged);
        self.link.begin().await?;
        // First the fence: from here on nobody can take these shards until the hand-over has committed.
        let moved = self.settle(&logs, &[]).await?;
        deliveries.retain(|delivery| moved.contains(&delivery.shard));
        let handed = self.link.hand_over(&deliveries).await?;
        self.link.commit().await?;
        if handed > 0 {
            self.options.inbox_wake.fire();
        }
        Ok(step)
    }
}

/// What each consumer that is wanted gets, in the order of the rows.
fn messages<'a>(
    subscriptions: &'a Subscriptions,
    rows: &[&OutRow],
    wanted: impl Fn(&Subscriber) -> bool,
) -> BTreeMap<i32, (&'a Subscriber, Vec<Message>)> {
    let mut wants: HashMap<i32, bool> = HashMap::new();
    let mut by_consumer: BTreeMap<i32, (&Subscriber, Vec<Message>)> = BTreeMap::new();
    for row in rows {
        for consumer in subscriptions.takers(&row.routed()) {
            if *wants.entry(consumer.id).or_insert_with(|| wanted(consumer)) {
                let (_, messages) = by_consumer.entry(consumer.id).or_insert_with(|| (consumer, Vec::new()));
                messages.push(row.message());
            }
        }
    }
    by_consumer
}

/// A row of INTERNAL, whole or not.
trait InternalRow: ReadRow {
    fn routed(&self) -> Routed<'_>;
}

impl InternalRow for OutRow {
    fn routed(&self) -> Routed<'_> {
        self.routed()
    }
}

impl InternalRow for IdRow {
    fn routed(&self) -> Routed<'_> {
        let Self { shard, id, message_id, event_type, queue } = self;
        Routed { shard: *shard, id: *id, message_id: *message_id, event_type, queue: queue.as_deref() }
    }
}

impl ReadRow for IdRow {
    async fn late(link: &Link, ranges: &LateRanges, limit: i64) -> Result<Vec<Self>> {
        link.read_late_ids(ranges, limit).await
    }

    async fn fresh(link: &Link, cursors: &Cursors, upto: i64, limit: i64) -> Result<Vec<Self>> {
        link.read_fresh_ids(cursors, upto, limit).await
    }

    fn place(&self) -> (i16, i64) {
        (self.shard, self.id)
    }
}
