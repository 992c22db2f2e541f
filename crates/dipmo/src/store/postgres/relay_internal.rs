//! Hands rows of the outbox to consumers in the same database, in the transaction that moves the cursor.
//!
//! Promise: each consumer that is subscribed gets each message once. Payloads of what is stored so never
//! leave the server.

use std::collections::{HashMap, HashSet};

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::columns::column;
use super::listen::Channel;
use super::relay::Link;
use crate::error::Result;
use crate::message::dedupe_key;

const SUBSCRIPTIONS: &str = "
-- relay.subscriptions
select s.event_type, c.id, c.name,
    exists (select 1 from dipmo.inbox_work w where w.consumer_id = c.id and w.state = 'RECEIVED'),
    exists (select 1 from dipmo.parked_key k where k.consumer_id = c.id),
    coalesce($1, now())
from dipmo.subscription s
join dipmo.consumer c on c.id = s.consumer_id
order by c.id";

const REMEMBER: &str = "
-- relay.remember
insert into dipmo.inbox_dedupe (key, seen_at)
select k.key, coalesce($2, now()) from unnest($1::uuid[]) as k (key)
on conflict do nothing
returning key";

// Stored in the order given, which is id order, so that inbox ids follow outbox ids within a key.
const HAND_OVER: &str = "
-- relay.hand_over
with stored as (
    insert into dipmo.inbox (consumer_id, source, message_id, topic, partition_no, offset_no, key, tenant, aggregate_id,
                             aggregate_version, event_type, event_version, correlation_id, causation_id, traceparent, headers, payload,
                             event_time, received_at)
    select g.consumer_id, 'INTERNAL', o.message_id::text, o.destination, o.shard, o.id, o.key, o.tenant, o.aggregate_id,
           o.aggregate_version, o.event_type, o.event_version, o.correlation_id, o.causation_id, o.traceparent,
           o.headers, o.payload, o.occurred_at, coalesce($4, now())
    from unnest($1::smallint[], $2::bigint[], $3::integer[]) with ordinality as g (shard, id, consumer_id, n)
    join dipmo.outbox o on o.shard = g.shard and o.id = g.id
    order by g.n
    returning id, consumer_id, key, aggregate_version
), worked as (
    insert into dipmo.inbox_work (id, consumer_id, bucket, key, aggregate_version, state, changed_at)
    select s.id, s.consumer_id, (hashtextextended(s.key, 0) & 15)::smallint, s.key, s.aggregate_version, 'RECEIVED',
           coalesce($4, now())
    from stored s
    returning 1
)
select count(*) from worked";

const ANNOUNCE: &str = "
-- relay.announce
select pg_notify($1, '')";

/// Who takes which event types from INTERNAL, and who takes which queues.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subscriptions {
    by_type: HashMap<String, Vec<Subscriber>>,
    by_queue: HashMap<String, Vec<Subscriber>>,
    read_at: Option<OffsetDateTime>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subscriber {
    pub(crate) id: i32,
    pub(crate) name: String,
    /// Something waits in its inbox for the first attempt.
    pub(crate) behind: bool,
    /// Some of its keys wait behind a head that failed.
    pub(crate) parked: bool,
}

/// A row as far as it says who gets it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Routed<'a> {
    pub(crate) shard: i16,
    pub(crate) id: i64,
    pub(crate) message_id: Uuid,
    pub(crate) event_type: &'a str,
    /// As `INTERNAL:<queue>`, for a message to a queue.
    pub(crate) queue: Option<&'a str>,
}

/// A row that a consumer is to get, unless it has seen it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) shard: i16,
    id: i64,
    consumer_id: i32,
    dedupe: Uuid,
}

impl Subscriptions {
    /// By the clock of the database.
    pub(crate) fn read_at(&self) -> Option<OffsetDateTime> {
        self.read_at
    }

    /// What the rows mean for the consumers, in the order of the rows, but for those that have them already.
    pub(crate) fn deliveries<'a>(&self, rows: impl Iterator<Item = Routed<'a>>, but: &HashSet<i32>) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        for row in rows {
            for consumer in self.takers(&row).filter(|consumer| !but.contains(&consumer.id)) {
                let message_id = row.message_id.to_string();
                let dedupe = dedupe_key([&*consumer.name, "INTERNAL", &message_id]);
                deliveries.push(Delivery { shard: row.shard, id: row.id, consumer_id: consumer.id, dedupe });
            }
        }
        deliveries
    }

    /// A message to a queue is for those who take the queue, and for nobody else: `*` is about event types.
    pub(crate) fn takers<'a>(&'a self, row: &Routed<'_>) -> impl Iterator<Item = &'a Subscriber> + use<'a> {
        let named = match row.queue {
            Some(queue) => self.by_queue.get(queue),
            None => self.by_type.get(row.event_type).filter(|_| row.event_type != "*"),
        };
        let named = named.map_or(&[][..], Vec::as_slice);
        let all = self.by_type.get("*").filter(|_| row.queue.is_none()).map_or(&[][..], Vec::as_slice);
        named.iter().chain(all.iter().filter(|one| !named.contains(one)))
    }
}

impl Link {
    pub(crate) async fn read_subscriptions(&self) -> Result<Subscriptions> {
        let mut subscriptions = Subscriptions::default();
        for row in self.query(SUBSCRIPTIONS, &[&self.db().clock().for_statement()]).await? {
            subscriptions.read_at = Some(row.get(5));
            let what: String = row.get(0);
            let by =
                if what.starts_with("INTERNAL:") { &mut subscriptions.by_queue } else { &mut subscriptions.by_type };
            let consumer = Subscriber { id: row.get(1), name: row.get(2), behind: row.get(3), parked: row.get(4) };
            by.entry(what).or_default().push(consumer);
        }
        Ok(subscriptions)
    }

    /// Stores the rows in the inboxes of their consumers; part of the transaction that settles the cursor.
    /// Returns how many messages the consumers got.
    pub(crate) async fn hand_over(&self, deliveries: &[Delivery]) -> Result<u64> {
        if deliveries.is_empty() {
            return Ok(0);
        }
        let now = self.db().clock().for_statement();
        let rows = self.query(REMEMBER, &[&column(deliveries, |d| d.dedupe), &now]).await?;
        let mut fresh: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        // Removed when used: the same message id twice in one batch is one message.
        let new: Vec<&Delivery> = deliveries.iter().filter(|d| fresh.remove(&d.dedupe)).collect();
        if new.is_empty() {
            return Ok(0);
        }
        let (shards, ids) = (column(&new, |d| d.shard), column(&new, |d| d.id));
        let (consumers, workers) = (column(&new, |d| d.consumer_id), Channel::Inbox.name(self.db()));
        let stored: [&(dyn ToSql + Sync); 4] = [&shards, &ids, &consumers, &now];
        // Workers of other processes: those of this one are told when it is committed.
        let told: [&(dyn ToSql + Sync); 1] = [&workers];
        let (answer, _) = tokio::try_join!(self.query(HAND_OVER, &stored), self.query(ANNOUNCE, &told))?;
        Ok(answer[0].get::<_, i64>(0).unsigned_abs())
    }
}
