//! Processor time and memory of processes from /proc, and what PostgreSQL wrote.

use std::fs;

use anyhow::{Context, Result};
use tokio_postgres::Client;

/// The unit of /proc/PID/stat as user space sees it: 100 on every Linux that PostgreSQL runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor seconds so far and the most memory ever held.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: f64,
    pub(crate) rss_peak_mb: f64,
}

/// What a moment looks like: subtract two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) node: f64,
    pub(crate) postgres: f64,
    pub(crate) broker: f64,
    pub(crate) wal_bytes: f64,
}

impl std::ops::Sub for Sample {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            node: self.node - other.node,
            postgres: self.postgres - other.postgres,
            broker: self.broker - other.broker,
            wal_bytes: self.wal_bytes - other.wal_bytes,
        }
    }
}

/// Row versions that updates and deletes made, and those still there, per table.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeadRows {
    pub(crate) made: i64,
    pub(crate) left: i64,
    pub(crate) tables: Vec<(String, i64)>,
}

/// Connected to one database; its own backend is left out of PostgreSQL's time.
pub(crate) struct Meter {
    pub(crate) client: Client,
    own_backend: u32,
    postmaster: u32,
    broker: Option<u32>,
}

impl Meter {
    pub(crate) async fn new(client: Client, postmaster: u32, broker: Option<u32>) -> Result<Self> {
        // Parallel workers would be children of the postmaster and count as its own.
        client.batch_execute("set max_parallel_workers_per_gather = 0").await?;
        let own: i32 = client.query_one("select pg_backend_pid()", &[]).await?.get(0);
        Ok(Self { client, own_backend: own.unsigned_abs(), postmaster, broker })
    }

    pub(crate) async fn sample(&self, node: Option<u32>) -> Result<Sample> {
        let wal = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
        let wal_bytes: i64 = self.client.query_one(wal, &[]).await?.get(0);
        Ok(Sample {
            node: node.map_or(Ok(0.0), |pid| usage(pid).map(|usage| usage.cpu))?,
            postgres: self.postgres_cpu()?,
            broker: self.broker.map_or(Ok(0.0), |pid| usage(pid).map(|usage| usage.cpu))?,
            wal_bytes: wal_bytes as f64,
        })
    }

    pub(crate) async fn number(&self, sql: &str) -> Result<i64> {
        let row = self.client.query_one(sql, &[]).await.with_context(|| format!("asking {sql}"))?;
        Ok(row.get::<_, Option<i64>>(0).unwrap_or(0))
    }

    /// Ask when the measured sessions have ended, because they report at their end at the latest.
    pub(crate) async fn dead_rows(&self) -> Result<DeadRows> {
        let sql = "select relname::text, n_tup_upd + n_tup_del, n_dead_tup from pg_stat_all_tables
                   where schemaname = 'dipmo' and n_tup_upd + n_tup_del + n_dead_tup > 0 order by 2 desc";
        let mut dead = DeadRows::default();
        for row in self.client.query(sql, &[]).await? {
            dead.made += row.get::<_, i64>(1);
            dead.left += row.get::<_, i64>(2);
            dead.tables.push((row.get(0), row.get(1)));
        }
        Ok(dead)
    }

    /// The postmaster, its live children, and through it the children that have ended.
    fn postgres_cpu(&self) -> Result<f64> {
        loop {
            let ended = Stat::of(self.postmaster)?.ticks_of_ended_children;
            let live = self.live_postgres_seconds()?;
            // One that ended in between would be counted on neither side, or on both.
            let own = Stat::of(self.postmaster)?;
            if own.ticks_of_ended_children == ended {
                return Ok((own.ticks + ended) as f64 / TICKS_PER_SECOND + live);
            }
        }
    }

    fn live_postgres_seconds(&self) -> Result<f64> {
        let mut seconds = 0.0;
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Ok(stat) = Stat::of(pid)
                && stat.parent == self.postmaster
                && pid != self.own_backend
            {
                seconds += time_of_thread(pid).unwrap_or(stat.ticks as f64 / TICKS_PER_SECOND);
                seconds += stat.ticks_of_ended_children as f64 / TICKS_PER_SECOND;
            }
        }
        Ok(seconds)
    }
}

/// What the scheduler has given to the first thread, which is all there is of a backend. Ticks are cut off:
/// with many sessions that did little each, most of their time would be missing.
fn time_of_thread(pid: u32) -> Option<f64> {
    let schedstat = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let nanoseconds: f64 = schedstat.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}

pub(crate) fn usage(pid: u32) -> Result<Usage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("reading /proc")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    let kilobytes: f64 = peak.trim().trim_end_matches(" kB").parse().unwrap_or(0.0);
    Ok(Usage { cpu: Stat::of(pid)?.ticks as f64 / TICKS_PER_SECOND, rss_peak_mb: kilobytes / 1024.0 })
}

/// Whether a child has ended and was not yet collected.
pub(crate) fn has_ended(pid: u32) -> Result<bool> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("reading /proc")?;
    Ok(stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
}

struct Stat {
    parent: u32,
    ticks: u64,
    ticks_of_ended_children: u64,
}

impl Stat {
    fn of(pid: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("reading /proc")?;
        // The name in parentheses may hold anything; the state and the parent follow it.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<u64> = after_name.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        let [_, parent, _, _, _, _, _, _, _, _, _, user, system, ended_user, ended_system, ..] = fields[..] else {
            anyhow::bail!("/proc/{pid}/stat has an unknown form");
        };
        Ok(Self {
            parent: u32::try_from(parent).unwrap_or(0),
            ticks: user + system,
            ticks_of_ended_children: ended_user + ended_system,
        })
    }
}
