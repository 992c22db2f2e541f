//! The relay with published rows behind its cursors.

use anyhow::{Result, ensure};

use super::{Args, Moment, Slice, Window, hold_open};
use crate::meter::Meter;
use crate::relay::DATABASE;
use crate::relay::outbox::{Load, Outbox};
use crate::relay::process::{self, Reader, Settings};
use crate::relay::topic::{Ends, Faults, Topic};
use crate::servers::Servers;

/// Rows of history a statement.
const CHUNK: usize = 250_000;
/// A row of history and its part of the index, generously; WAL and topic come on top.
const ROW_BYTES: u64 = 1_200;
const OTHER_BYTES: u64 = 8 << 30;

// Any text of the right length: only the relay's own rows are compared.
const HISTORY: &str = "
insert into dipmo.outbox (shard, destination, key, aggregate_type, aggregate_id, event_type, payload)
select dipmo.outbox_shard('KAFKA:past', k), 'KAFKA:past', k, 'Account', k, 'Moved', convert_to(p, 'UTF8')
from (select 'account-' || lpad((n % $3)::text, 6, '0') as k,
             '{\"n\":' || n || ',\"text\":\"' || repeat(md5(n::text), $4 / 32) || '\"}' as p
      from generate_series($1::bigint, $2::bigint) n) t";

// As the relay would have left it: cursors at the end, a line in the batch log for every thousand rows.
const PUBLISHED: [&str; 4] = [
    "insert into dipmo.relay_batch (shard, from_id, to_id, sent)
     select shard, min(id), max(id), count(*) from dipmo.outbox group by shard, id / 16000",
    "update dipmo.relay_shard set cursor = greatest(cursor, (select max(id) from dipmo.outbox)), gaps = '{}'",
    "vacuum analyze dipmo.outbox",
    "vacuum analyze dipmo.relay_batch",
];

pub(super) async fn measure(
    servers: &Servers,
    args: &Args,
    reader: Reader,
    notes: &mut Vec<String>,
) -> Result<Vec<Window>> {
    let name = format!("bench-growth-{reader:?}").to_lowercase();
    let topic = Topic::create(servers, &name, &[]).await?;
    let mut windows = Vec::new();
    for history in args.histories() {
        if history as u64 * ROW_BYTES + OTHER_BYTES > args.disk_max_gb << 30 {
            notes.push(format!("relay {reader:?}, {history} rows: left out, it may need over {} GB", args.disk_max_gb));
            continue;
        }
        servers.fresh_database(DATABASE).await?;
        let meter = servers.meter(DATABASE).await?;
        eprintln!("relay {reader:?}: making {history} rows of history");
        publish(&meter, args, history).await?;
        reader.choose(&meter, servers, &Settings::default()).await?;
        let run = Run { servers, args, meter: &meter, topic: &topic, name: &name };
        windows.push(Window { history, held: false, slices: run.slices(0).await? });
        let open = hold_open(servers, DATABASE).await?;
        windows.push(Window { history, held: true, slices: run.slices(args.repetitions).await? });
        drop(open);
        drop(meter);
        servers.drop_database(DATABASE).await?;
    }
    // The same history with and without the transaction stands together in the table.
    windows.sort_by_key(|window| window.held);
    Ok(windows)
}

async fn publish(meter: &Meter, args: &Args, history: usize) -> Result<()> {
    let insert = meter.client.prepare(HISTORY).await?;
    meter.client.batch_execute("set synchronous_commit = off").await?;
    for first in (0..history).step_by(CHUNK) {
        let (first, last) = (i64::try_from(first)?, i64::try_from((first + CHUNK).min(history) - 1)?);
        let (keys, size) = (i64::try_from(args.keys)?, i32::try_from(args.size)?);
        meter.client.execute(&insert, &[&first, &last, &keys, &size]).await?;
    }
    for statement in PUBLISHED {
        meter.client.batch_execute(statement).await?;
    }
    Ok(())
}

struct Run<'a> {
    servers: &'a Servers,
    args: &'a Args,
    meter: &'a Meter,
    topic: &'a Topic,
    name: &'a str,
}

impl Run<'_> {
    /// As many as there are repetitions; `before` slices were drained already.
    async fn slices(&self, before: usize) -> Result<Vec<Slice>> {
        let mut slices = Vec::new();
        for slice in before..before + self.args.repetitions {
            slices.push(self.slice(slice).await?);
        }
        Ok(slices)
    }

    async fn slice(&self, slice: usize) -> Result<Slice> {
        let Args { backlog, keys, size, .. } = *self.args;
        let numbers = slice * backlog..(slice + 1) * backlog;
        let load = Load { topic: self.name.to_owned(), numbers, keys, size };
        Outbox::Dipmo.fill(self.servers, DATABASE, &load).await?;
        let start = self.topic.ends().await?;
        let node = process::start(self.servers, &Settings::default()).await?;
        let first = self.moment(&start, 1, node.pid()).await?;
        let last = self.moment(&start, backlog, node.pid()).await?;
        node.stop().await?;
        // Records that came twice would be counted as progress.
        let ids = Outbox::Dipmo.ids(self.meter, &load).await?;
        let faults = self.topic.audit(&start, Outbox::Dipmo, &load, ids).await?;
        ensure!(faults == Faults::default(), "the slice did not arrive as it was written: {faults:?}");
        let slice = Slice::between(&first, &last);
        eprintln!("  {:.0} rows/s, {:.2} and {:.2} CPU-s per 100 k", slice.rate, slice.node, slice.postgres);
        Ok(slice)
    }

    async fn moment(&self, start: &Ends, records: usize, pid: u32) -> Result<Moment> {
        let arrived = self.topic.reach(start, records).await?;
        Ok((arrived.records, arrived.at, self.meter.sample(Some(pid)).await?))
    }
}
