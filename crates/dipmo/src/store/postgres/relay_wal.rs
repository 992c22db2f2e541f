//! What the reader of the WAL keeps in the database: which reader a lane has, how far it came, and the
//! rows of messages that had none until they failed.

use std::str::FromStr as _;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::relay::Link;
use super::relay_out::OutRow;
use super::wal::{ForeignTable, Lsn};
use crate::error::Result;
use crate::transport::{DEBEZIUM_HEADERS, Outgoing};

const LANES: &str = "
-- relay.lanes
select l.lane, l.reader, l.slot, l.position::text, l.ended, exists (select from dipmo.subscription)
from dipmo.relay_lane l";

const BEGIN_WAL: &str = "
-- relay.begin_wal
update dipmo.relay_lane set slot = $2, changed_at = now() where lane = $1 and slot is distinct from $2";

// A position that stands is never lost: the slot moves only after it is on disk. It is a statement of fact,
// so that it needs no fence; a relay that lost its shards can only say what was true before.
const STORE_POSITION: &str = "
-- relay.store_position
update dipmo.relay_lane l
set position = $2::text::pg_lsn, ended = coalesce($3, l.ended), changed_at = now()
from (select set_config('synchronous_commit', 'on', true)) durable
where l.lane = $1 and l.slot is not null and (l.position is null or l.position <= $2::text::pg_lsn)";

const END_WAL: &str = "
-- relay.end_wal
update dipmo.relay_lane set slot = null, position = null, ended = null, changed_at = now() where lane = $1";

const LAST_ID: &str = "
-- relay.last_id_handed_out
select coalesce(pg_sequence_last_value('dipmo.outbox_seq'::regclass), 0)";

const INSERT_LSN: &str = "
-- relay.insert_lsn
select pg_current_wal_insert_lsn()::text";

const STOP_EMITTING: &str = "
-- relay.stop_emitting
select pg_try_advisory_lock(hashtextextended('dipmo.outbox_emit', 0))";

const GO_ON_EMITTING: &str = "
-- relay.go_on_emitting
select pg_advisory_unlock(hashtextextended('dipmo.outbox_emit', 0))";

const KEEP: &str = "
-- relay.keep
insert into dipmo.outbox (shard, message_id, destination, key, tenant, aggregate_type, aggregate_id,
                          aggregate_version, event_type, event_version, correlation_id, causation_id,
                          traceparent, headers, payload, occurred_at)
values (dipmo.outbox_shard($2, $3), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::text::jsonb, $14, $15)
returning shard, id";

const RESYNCED: &str = "
-- relay.resynced
insert into dipmo.audit (actor, action, target, reason, detail)
values ($1, 'relay.resync', $2, $3, $4)";

/// A lane as its relays find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneRow {
    pub(crate) lane: String,
    pub(crate) reader: String,
    /// Set from the making of the slot until nobody needs it any more.
    pub(crate) slot: Option<String>,
    /// Everything committed before was sent or is an exception.
    pub(crate) position: Option<Lsn>,
    /// All transactions below had ended before the position.
    pub(crate) ended: Option<i64>,
}

impl Link {
    /// The lanes, and whether any consumer takes something from INTERNAL.
    pub(crate) async fn read_lanes(&self) -> Result<(Vec<LaneRow>, bool)> {
        let rows = self.query(LANES, &[]).await?;
        let read = |row: &tokio_postgres::Row| {
            let position = row.get::<_, Option<&str>>(3).map(Lsn::from_str).transpose()?;
            Ok(LaneRow { lane: row.get(0), reader: row.get(1), slot: row.get(2), position, ended: row.get(4) })
        };
        let subscribed = rows.first().is_some_and(|row| row.get(5));
        Ok((rows.iter().map(read).collect::<Result<_>>()?, subscribed))
    }

    /// From here on messages may be emitted: the slot keeps them.
    pub(crate) async fn begin_wal(&self, lane: &str, slot: &str) -> Result<()> {
        self.query(BEGIN_WAL, &[&lane, &slot]).await.map(drop)
    }

    pub(crate) async fn store_position(&self, lane: &str, position: Lsn, ended: Option<i64>) -> Result<()> {
        self.query(STORE_POSITION, &[&lane, &position.to_string(), &ended]).await.map(drop)
    }

    pub(crate) async fn end_wal(&self, lane: &str) -> Result<()> {
        self.query(END_WAL, &[&lane]).await.map(drop)
    }

    pub(crate) async fn read_last_id(&self) -> Result<i64> {
        Ok(self.query(LAST_ID, &[]).await?[0].get(0))
    }

    /// Whatever has committed by now lies before it.
    pub(crate) async fn read_insert_lsn(&self) -> Result<Lsn> {
        Lsn::from_str(self.query(INSERT_LSN, &[]).await?[0].get(0))
    }

    /// Keeps new messages from being emitted; false while transactions that have emitted some are open.
    pub(crate) async fn stop_emitting(&self) -> Result<bool> {
        Ok(self.query(STOP_EMITTING, &[]).await?[0].get(0))
    }

    pub(crate) async fn go_on_emitting(&self) -> Result<()> {
        self.query(GO_ON_EMITTING, &[]).await.map(drop)
    }

    /// Gives a message that failed a row in the outbox, and tells its shard and id.
    pub(crate) async fn keep(&self, message: &Outgoing<'_>) -> Result<(i16, i64)> {
        let destination = format!("KAFKA:{}", message.topic);
        let params: [&(dyn ToSql + Sync); 15] = [
            &message.message_id,
            &destination,
            &message.key,
            &message.tenant,
            &message.aggregate_type,
            &message.aggregate_id,
            &message.aggregate_version,
            &message.event_type,
            &message.event_version,
            &message.correlation_id,
            &message.causation_id,
            &message.traceparent,
            &message.headers,
            &message.payload,
            &message.occurred_at,
        ];
        let rows = self.query(KEEP, &params).await?;
        Ok((rows[0].get(0), rows[0].get(1)))
    }

    /// Rows of a foreign table that were written by transactions from `ended` on, in the order of their time,
    /// after the one given. Their columns are those of the outbox.
    pub(crate) async fn read_foreign(
        &self,
        table: &ForeignTable,
        ended: i64,
        after: Option<(OffsetDateTime, Uuid)>,
        limit: i64,
    ) -> Result<Vec<OutRow>> {
        let name = table.quoted();
        let statement = format!(
            "select 0::smallint, 0::bigint, f.id, 'KAFKA:' || $5 || f.aggregate_type, f.aggregate_id::text, ''::text,
                    f.aggregate_type::text, f.aggregate_id::text, null::bigint, f.event_type::text, 1::integer,
                    null::text, null::text, null::text, $6::text, convert_to(f.payload::text, 'UTF8'),
                    f.timestamp, f.timestamp
             from {name} f
             where age(f.xmin) <= age($1::bigint::text::xid8::xid)
               and ($2::timestamptz is null or (f.timestamp, f.id) > ($2, $3))
             order by f.timestamp, f.id limit $4"
        );
        let (time, id) = after.unzip();
        let params: [&(dyn ToSql + Sync); 6] = [&ended, &time, &id, &limit, &table.topic_prefix, &DEBEZIUM_HEADERS];
        Ok(self.query_text(&statement, &params).await?.into_iter().map(OutRow::Table).collect())
    }

    /// Leaves a note for operators that the lane was read from the table again.
    pub(crate) async fn note_resync(
        &self,
        node: &str,
        lane: &str,
        why: &str,
        detail: &serde_json::Value,
    ) -> Result<()> {
        self.query(RESYNCED, &[&node, &lane, &why, detail]).await.map(drop)
    }
}
