//! The inbox of one consumer: registration, loading, and the trait that ties the stages together.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use tokio_postgres::Row;

use super::settle::{Expect, Stop};
use super::{Db, Tx, claim, execute, lease, look_up, process, query, settle};
use crate::consumer::{Consumer, VersionPolicy};
use crate::error::{ErrorKind, Result};
use crate::handler::{Enlisted, EnlistedHandler, GroupFailure};
use crate::inbox::{Fence, FiredTimer, Held, Settled, Settlement};
use crate::message::Message;
use crate::process::{Failure, Instance};
use crate::store::{Claimed, Enlistment, InboxStore, InstanceKey, LoadRequest, Loaded, TakenPartition, Work};

const REGISTER: &str = "
-- inbox.register
insert into dipmo.consumer (name) values ($1)
on conflict (name) do update set name = excluded.name
returning id";

const UNSUBSCRIBE: &str = "
-- inbox.unsubscribe
delete from dipmo.subscription where consumer_id = $1 and event_type <> all($2)";

const SUBSCRIBE: &str = "
-- inbox.subscribe
insert into dipmo.subscription (consumer_id, event_type) select $1, unnest($2::text[]) on conflict do nothing";

const NOW: &str = "
-- inbox.now
select coalesce($1, now())";

const PARKED: &str = "
-- inbox.parked
select key, awaits_version from dipmo.parked_key where consumer_id = $1 and key = any($2)";

const VERSIONS: &str = "
-- inbox.versions
select key, version from dipmo.inbox_version where consumer_id = $1 and key = any($2)";

const BACKLOG: &str = "
-- inbox.backlog
select count(*) from (
    select 1 from dipmo.inbox_work where consumer_id = $1 and state = 'RECEIVED' limit $2) w";

/// Our tables have nothing deferred: what the server refuses as late as this are rows of the handler's.
async fn commit_enlisted(tx: Tx<'_>) -> Result<()> {
    tx.commit().await.map_err(|error| match error.kind() {
        ErrorKind::Bug | ErrorKind::Conflict => error.into_kind(ErrorKind::Poison),
        _ => error,
    })
}

/// The inbox of one consumer in PostgreSQL.
#[derive(Debug, Clone)]
pub struct PgInbox {
    db: Db,
    consumer_id: i32,
    consumer: Arc<str>,
    checks_versions: bool,
}

impl PgInbox {
    /// Makes the consumer and its subscriptions known.
    pub async fn register(db: Db, consumer: &Consumer) -> Result<Self> {
        consumer.validate()?;
        let mut client = db.client().await?;
        let tx = Tx::begin(&mut client)?;
        let consumer_id: i32 = query(&db, &tx, REGISTER, &[&consumer.name]).await?[0].get(0);
        let types = consumer.subscriptions();
        execute(&db, &tx, UNSUBSCRIBE, &[&consumer_id, &types]).await?;
        execute(&db, &tx, SUBSCRIBE, &[&consumer_id, &types]).await?;
        lease::create_buckets(&db, &tx, &consumer.name).await?;
        tx.commit().await?;
        let checks_versions = consumer.versions != VersionPolicy::Unchecked;
        Ok(Self { db, consumer_id, consumer: consumer.name.as_str().into(), checks_versions })
    }

    pub fn db(&self) -> &Db {
        &self.db
    }

    pub(super) fn consumer_id(&self) -> i32 {
        self.consumer_id
    }

    pub(super) fn consumer(&self) -> &str {
        &self.consumer
    }

    pub(super) fn checks_versions(&self) -> bool {
        self.checks_versions
    }

    /// `None` when it expected too much; the handler has not been called then.
    async fn enlist_expecting(
        &self,
        settlement: &Settlement,
        handler: &dyn EnlistedHandler,
        messages: &[&Message],
        expect: Expect,
    ) -> Result<Option<Enlistment>> {
        let mut client = self.db.client().await?;
        let tx = Tx::begin(&mut client)?;
        match settle::guard(self, &tx, settlement, expect).await {
            Ok(()) => {}
            Err(Stop::Retry(outcome)) => return settle::rolled_back(tx, Some(Enlistment::Settled(outcome))).await,
            Err(Stop::Surprise) => return settle::rolled_back(tx, None).await,
            Err(Stop::Failed(error)) => return Err(error),
        }
        let mut enlisted = Enlisted::new(&self.db, &tx);
        let handled = AssertUnwindSafe(handler.handle_group(&mut enlisted, messages)).catch_unwind().await;
        // Which message it was only the handler knew.
        let handled = handled.unwrap_or_else(|_| Err(GroupFailure { at: 0, failure: Failure::panicked() }));
        if let Err(refused) = handled {
            return settle::rolled_back(tx, Some(Enlistment::Refused(refused))).await;
        }
        let (outbox, answers) = enlisted.into_parts();
        answers.prepare(&self.db, &tx).await?;
        let kept = answers.keep_for_group(&self.db, &tx);
        let (kept, written) = tokio::join!(biased; kept, settle::write(self, &tx, settlement, outbox));
        if let Err(refused) = kept {
            return settle::rolled_back(tx, Some(Enlistment::Refused(refused))).await;
        }
        match written {
            Ok(()) => commit_enlisted(tx).await.map(|()| Some(Enlistment::Settled(Settled::Committed))),
            Err(Stop::Retry(outcome)) => settle::rolled_back(tx, Some(Enlistment::Settled(outcome))).await,
            Err(Stop::Surprise) => Err(settle::surprised_for_good()),
            Err(Stop::Failed(error)) => Err(error),
        }
    }
}

#[async_trait]
impl InboxStore for PgInbox {
    /// The statements travel together: one round trip. They need no common snapshot, because settling
    /// checks whatever may have changed since.
    async fn load(&self, request: &LoadRequest) -> Result<Loaded> {
        let client = self.db.client().await?;
        let (db, now) = (&self.db, self.db.clock().for_statement());
        let (now, by_key, by_id, parked, versions) = tokio::try_join!(
            async { look_up(db, &client, NOW, &[&now]).await },
            process::load_by_key(db, &client, &request.instances),
            process::load_by_ids(db, &client, &request.ids),
            async {
                match request.keys.is_empty() {
                    true => Ok(Vec::new()),
                    false => look_up(db, &client, PARKED, &[&self.consumer_id, &request.keys]).await,
                }
            },
            async {
                match request.with_versions {
                    false => Ok(Vec::new()),
                    true => look_up(db, &client, VERSIONS, &[&self.consumer_id, &request.keys]).await,
                }
            },
        )?;
        let mut loaded = Loaded::nothing(now[0].get(0));
        loaded.by_id.extend(by_id.iter().map(|instance| (instance.id, InstanceKey::of(instance))));
        let keyed = |instance: Instance| (InstanceKey::of(&instance), instance);
        loaded.instances.extend(by_key.into_iter().chain(by_id).map(keyed));
        loaded.parked.extend(parked.iter().map(|row| (row.get(0), row.get(1))));
        loaded.versions.extend(versions.iter().map(|row| (row.get::<_, String>(0), row.get::<_, i64>(1))));
        Ok(loaded)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled> {
        settle::settle(self, settlement).await
    }

    async fn enlist(
        &self,
        settlement: &Settlement,
        handler: &dyn EnlistedHandler,
        messages: &[&Message],
    ) -> Result<Enlistment> {
        for expect in Expect::of(settlement) {
            if let Some(enlisted) = self.enlist_expecting(settlement, handler, messages, *expect).await? {
                return Ok(enlisted);
            }
        }
        Err(settle::surprised_for_good())
    }

    async fn take_partition(&self, topic: &str, partition: i32, owner: &str) -> Result<TakenPartition> {
        lease::take_partition(self, topic, partition, owner).await
    }

    async fn clear_stall(&self, held: &Held) -> Result<()> {
        lease::clear_stall(&self.db, held).await
    }

    async fn lease_buckets(&self, owner: &str, held: &Fence, lease: Duration) -> Result<Fence> {
        lease::lease_buckets(self, owner, held, lease).await
    }

    async fn release_buckets(&self, held: &Fence) -> Result<()> {
        lease::release_buckets(&self.db, held).await
    }

    async fn probe(&self, fence: &Fence) -> Result<Work> {
        claim::probe(self, fence).await
    }

    async fn claim_received(&self, fence: &Fence, max: usize) -> Result<Claimed> {
        claim::received(self, fence, max).await
    }

    async fn claim_due(&self, fence: &Fence, max: usize) -> Result<Claimed> {
        claim::due(self, fence, max).await
    }

    async fn claim_draining(&self, fence: &Fence, max: usize) -> Result<Claimed> {
        claim::draining(self, fence, max).await
    }

    async fn free_drained(&self, fence: &Fence) -> Result<usize> {
        claim::free_drained(self, fence).await
    }

    async fn due_timers(&self, fence: &Fence, max: usize) -> Result<Vec<(FiredTimer, Instance)>> {
        claim::due_timers(self, fence, max).await
    }

    async fn backlog(&self, max: usize) -> Result<usize> {
        let mut client = self.db.client().await?;
        let tx = Tx::begin(&mut client)?;
        let rows = query(&self.db, &tx, BACKLOG, &[&self.consumer_id, &(max as i64)]).await?;
        tx.commit().await?;
        Ok(rows[0].get::<_, i64>(0) as usize)
    }
}

/// Reads a row of dipmo.inbox as [`claim::FETCH`] lists it.
pub(super) fn message(row: &Row, attempts: i32) -> Message {
    let headers: Option<serde_json::Value> = row.get(16);
    Message {
        inbox_id: row.get(0),
        source: row.get(1),
        message_id: row.get(2),
        topic: row.get(3),
        partition: row.get(4),
        offset: row.get(5),
        key: row.get(6),
        key_bytes: row.get::<_, Option<Vec<u8>>>(7).map(Into::into),
        tenant: row.get(8),
        aggregate_id: row.get(9),
        aggregate_version: row.get(10),
        event_type: row.get(11),
        event_version: row.get(12),
        correlation_id: row.get(13),
        causation_id: row.get(14),
        traceparent: row.get(15),
        headers: headers.and_then(|value| match value {
            serde_json::Value::Object(map) => Some(map),
            _ => None,
        }),
        payload: row.get::<_, Option<Vec<u8>>>(17).map(Into::into),
        event_time: row.get(18),
        attempt: attempts.max(1) as u32,
    }
}
