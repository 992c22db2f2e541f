//! The two outbox tables with the same messages in them: dipmo's, and the one Debezium's manual describes.
//!
//! Debezium does not read dipmo's table here: the bytea payload would come to it as twice as many digits, which
//! no user of Debezium would choose. dipmo reads both, so that there is one table that both of them read.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::Result;
use futures_util::future::try_join_all;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::load;
use crate::meter::Meter;
use crate::servers::{Servers, connect};

/// Connections that fill a table.
const WRITERS: usize = 4;
/// Statements under way on one connection; each is a transaction of its own.
const PIPELINE: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outbox {
    Dipmo,
    Debezium,
}

/// What is written: which messages, and what they are like.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) topic: String,
    pub(crate) numbers: Range<usize>,
    pub(crate) keys: usize,
    pub(crate) size: usize,
}

impl Outbox {
    /// Numbers of the messages by the id that their events carry.
    pub(crate) async fn ids(self, meter: &Meter, load: &Load) -> Result<HashMap<Uuid, usize>> {
        let sql = match self {
            Self::Dipmo => {
                "select message_id, (convert_from(payload, 'UTF8')::json ->> 'n')::bigint from dipmo.outbox
                 where destination = 'KAFKA:' || $1"
            }
            Self::Debezium => {
                "select id, (payload::json ->> 'n')::bigint from outbox_messages where aggregate_type = $1"
            }
        };
        let mut ids = HashMap::with_capacity(load.numbers.len());
        for row in meter.client.query(sql, &[&load.topic]).await? {
            let n = usize::try_from(row.get::<_, i64>(1))?;
            if load.numbers.contains(&n) {
                ids.insert(row.get(0), n);
            }
        }
        Ok(ids)
    }

    /// The header that carries the id of an event.
    pub(crate) fn id_header(self) -> &'static str {
        match self {
            Self::Dipmo => "event-id",
            Self::Debezium => "id",
        }
    }

    /// The table, if it is not dipmo's own, and the publication that readers of the WAL use.
    pub(crate) async fn create(self, client: &Client) -> Result<()> {
        let sql = match self {
            Self::Dipmo => {
                // As dipmo makes its own.
                "create publication bench for table dipmo.outbox where (shard >= 16)
                 with (publish = 'insert', publish_via_partition_root = true)"
            }
            // text and not jsonb: the cheapest that keeps the bytes.
            Self::Debezium => {
                "create table outbox_messages (
                     id uuid primary key default gen_random_uuid(), aggregate_id text not null,
                     aggregate_type text not null, event_type text not null,
                     timestamp timestamptz not null default now(), payload text not null, metadata jsonb);
                 create publication bench for table outbox_messages with (publish = 'insert')"
            }
        };
        Ok(client.batch_execute(sql).await?)
    }

    /// Takes destination, key and payload.
    pub(crate) fn append(self) -> &'static str {
        match self {
            Self::Dipmo => "select dipmo.outbox_append('KAFKA:' || $1::text, 'Account', $2, 'Moved', $3)",
            Self::Debezium => {
                "insert into outbox_messages (aggregate_type, aggregate_id, event_type, payload)
                 values ($1, $2, 'Moved', $3)"
            }
        }
    }

    /// Writes as any client would, a transaction a row. A key belongs to one connection, so that the order of
    /// its rows is the order of their numbers.
    pub(crate) async fn fill(self, servers: &Servers, database: &str, load: &Load) -> Result<()> {
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let (url, load) = (servers.url(database), load.clone());
            writers.push(tokio::spawn(async move {
                let client = connect(&url).await?;
                // Only for the filling: what is measured begins afterwards.
                client.batch_execute("set synchronous_commit = off; set dipmo.notify = off").await?;
                let own = |n: &usize| load::key_number(*n, load.keys) % WRITERS == writer;
                let numbers: Vec<usize> = load.numbers.clone().filter(own).collect();
                self.write(&client, &load, &numbers).await
            }));
        }
        for writer in writers {
            writer.await??;
        }
        // What autovacuum would do in the middle of a run.
        let table = if self == Self::Dipmo { "dipmo.outbox" } else { "outbox_messages" };
        connect(&servers.url(database)).await?.batch_execute(&format!("vacuum analyze {table}")).await?;
        servers.checkpoint().await
    }

    async fn write(self, client: &Client, load: &Load, numbers: &[usize]) -> Result<()> {
        let append = client.prepare(self.append()).await?;
        for some in numbers.chunks(PIPELINE) {
            let messages: Vec<(String, String)> = some.iter().map(|n| message(*n, load)).collect();
            // Sent in this order, because each is sent when it is first polled.
            let sent = messages.iter().map(|(key, payload)| {
                let append = &append;
                async move { client.execute(append, &[&load.topic, key, payload]).await }
            });
            try_join_all(sent).await?;
        }
        Ok(())
    }
}

/// Key and payload of message `n`.
pub(crate) fn message(n: usize, load: &Load) -> (String, String) {
    let key = load::key(n, load.keys);
    let payload = load::payload(n, &key, load.size);
    (key, payload)
}
