//! Writers that do to an outbox whatever a writer may do, and a check of what came out of it.
//!
//! Every message carries the number of its key, taken under a row lock in the same transaction: what is
//! sent of a key must be 1, 2, 3 and so on up to what the table says was committed.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "shared by several test binaries")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio_postgres::{Client, Error};
use uuid::Uuid;

use super::support::{Scripted, World, connect};

const KEYS: u32 = 40;

pub struct Stress {
    pub world: World,
    url: String,
    /// When a writer that is measured learned of its commit, by key and number.
    committed: Mutex<HashMap<(String, i64), Instant>>,
    commits: AtomicU64,
    stopped: AtomicBool,
}

impl Stress {
    pub async fn new(world: World) -> Arc<Self> {
        world.execute("create table dipmo.agg (key text primary key, n bigint not null default 0)").await;
        world.execute("create table dipmo.elsewhere (n bigint)").await;
        world
            .execute(
                "insert into dipmo.agg (key) select p || '-' || n from unnest(array['good', 'rough', 'idle']) p,
                 generate_series(0, 39) n",
            )
            .await;
        let url = world.url.clone();
        let (committed, commits, stopped) = Default::default();
        Arc::new(Self { world, url, committed, commits, stopped })
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn sql(&self, sql: &str) -> String {
        self.world.sql(sql)
    }

    /// Appends the next message of a key in the open transaction, or in one of its own.
    async fn append(&self, client: &Client, key: &str) -> Result<i64, Error> {
        let sql = self.sql(
            "with a as (update dipmo.agg set n = n + 1 where key = $1 returning n)
             select n, dipmo.outbox_append('KAFKA:orders', 'order', $1, 'Placed', n::text) from a",
        );
        Ok(client.query_one(&sql, &[&key]).await?.get(0))
    }

    /// Commits one message at a time at a steady pace, and notes when.
    pub async fn steady(self: Arc<Self>, writer: u32, count: u32, every: Duration) {
        let client = connect(&self.url, "steady").await.unwrap();
        let sql = self.sql(
            "with a as (update dipmo.agg set n = n + 1 where key = $1 returning n)
             select n, dipmo.outbox_append('KAFKA:orders', 'order', $1, 'Placed', n::text) from a",
        );
        let append = client.prepare(&sql).await.unwrap();
        let mut pace = tokio::time::interval(every);
        for n in 0..count {
            pace.tick().await;
            let key = format!("good-{}", (writer * 7 + n) % KEYS);
            let number: i64 = client.query_one(&append, &[&key]).await.unwrap().get(0);
            self.committed.lock().unwrap().insert((key, number), Instant::now());
            self.commits.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Commits, aborts, batches, rolls back parts, prepares; until stopped. Errors end the connection.
    pub async fn rough(self: Arc<Self>, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        while !self.is_stopped() {
            let Ok(client) = connect(&self.url, "rough").await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            while !self.is_stopped() && self.rough_once(&client, &mut rng).await.is_ok() {}
        }
    }

    async fn rough_once(&self, client: &Client, rng: &mut StdRng) -> Result<(), Error> {
        let kind = rng.random_range(0..100);
        let mut keys: Vec<String> =
            (0..rng.random_range(1..8)).map(|_| format!("rough-{}", rng.random_range(0..KEYS))).collect();
        // Locks are taken in one order, so that the writers do not meet in deadlocks.
        keys.sort();
        client.batch_execute("begin").await?;
        match kind {
            0..50 => {
                for key in &keys {
                    self.append(client, key).await?;
                }
                client.batch_execute(if kind < 40 { "commit" } else { "rollback" }).await?;
            }
            50..65 => {
                self.append(client, &keys[0]).await?;
                client.batch_execute("savepoint s").await?;
                self.append(client, keys.last().unwrap()).await?;
                client.batch_execute("rollback to savepoint s").await?;
                self.append(client, keys.last().unwrap()).await?;
                client.batch_execute("release savepoint s; commit").await?;
            }
            65..80 => {
                let block = self.sql(&format!(
                    "do $$ begin
                         begin
                             update dipmo.agg set n = n + 1 where key = '{0}';
                             perform dipmo.outbox_append('KAFKA:orders', 'order', '{0}', 'Placed', 'never');
                             raise exception 'part of the plan';
                         exception when raise_exception then null;
                         end;
                     end $$",
                    keys[0]
                ));
                client.batch_execute(&block).await?;
                self.append(client, &keys[0]).await?;
                client.batch_execute("commit").await?;
            }
            _ => {
                for key in &keys {
                    self.append(client, key).await?;
                }
                let name = Uuid::now_v7();
                client.batch_execute(&format!("prepare transaction '{name}'")).await?;
                // Something else comes between, on the same connection.
                client.batch_execute(&self.sql("insert into dipmo.elsewhere values (1)")).await?;
                let end = if kind < 95 { "commit" } else { "rollback" };
                client.batch_execute(&format!("{end} prepared '{name}'")).await?;
            }
        }
        self.commits.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Leaves a transaction with messages open while others commit, then ends it and goes on with its key.
    pub async fn idle(self: Arc<Self>, seed: u64, for_commits: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        while !self.is_stopped() {
            let Ok(client) = connect(&self.url, "left open").await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            while !self.is_stopped() && self.idle_once(&client, &mut rng, for_commits).await.is_ok() {}
        }
    }

    async fn idle_once(&self, client: &Client, rng: &mut StdRng, for_commits: u64) -> Result<(), Error> {
        let key = format!("idle-{}", rng.random_range(0..3));
        client.batch_execute("begin").await?;
        self.append(client, &key).await?;
        self.wait_for_commits(for_commits / 2).await;
        self.append(client, &key).await?;
        self.wait_for_commits(for_commits / 2).await;
        let end = match rng.random_range(0..3) {
            0 => "rollback".to_owned(),
            1 => "commit".to_owned(),
            _ => {
                let name = Uuid::now_v7();
                client.batch_execute(&format!("prepare transaction '{name}'")).await?;
                self.wait_for_commits(for_commits / 4).await;
                format!("commit prepared '{name}'")
            }
        };
        client.batch_execute(&end).await?;
        // Right behind the one that ended: its successor must not overtake it.
        self.append(client, &key).await.map(drop)
    }

    /// A long transaction that writes another table.
    pub async fn elsewhere(self: Arc<Self>, for_commits: u64) {
        while !self.is_stopped() {
            let Ok(client) = connect(&self.url, "elsewhere").await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let begin = self.sql("begin; insert into dipmo.elsewhere values (1)");
            while !self.is_stopped() && client.batch_execute(&begin).await.is_ok() {
                self.wait_for_commits(for_commits).await;
                let _ = client.batch_execute("commit").await;
            }
        }
    }

    pub async fn wait_for_commits(&self, count: u64) {
        let until = self.commits.load(Ordering::SeqCst) + count;
        while self.commits.load(Ordering::SeqCst) < until && !self.is_stopped() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Latencies of the measured commits, ascending; what was sent before its writer knew counts as zero.
    pub fn latencies(&self, broker: &Scripted) -> Vec<Duration> {
        let committed = std::mem::take(&mut *self.committed.lock().unwrap());
        let sent = broker.sent.lock().unwrap();
        let mut found: Vec<Duration> = sent
            .iter()
            .filter_map(|sent| {
                let at = committed.get(&(sent.key.clone(), sent.body.parse().ok()?))?;
                Some(sent.at.saturating_duration_since(*at))
            })
            .collect();
        found.sort_unstable();
        found
    }

    /// Waits until every measured commit has been sent, or a minute has passed.
    pub async fn wait_for_latencies(&self, broker: &Scripted) {
        let begun = Instant::now();
        let missing = || {
            let sent = broker.sent.lock().unwrap();
            let sent: std::collections::HashSet<_> = sent.iter().map(|s| (s.key.clone(), s.body.clone())).collect();
            self.committed.lock().unwrap().keys().any(|(key, n)| !sent.contains(&(key.clone(), n.to_string())))
        };
        while missing() && begun.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What was committed of each key.
    pub async fn truth(&self) -> BTreeMap<String, i64> {
        // A connection of its own: those of the pool may be from before a crash.
        let client = connect(&self.url, "truth").await.unwrap();
        let rows = client.query(&self.sql("select key, n from dipmo.agg"), &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Waits until everything that was committed has been sent, or a minute has passed.
    pub async fn wait_until_sent(&self, broker: &Scripted) {
        let total: i64 = self.truth().await.values().sum();
        let begun = Instant::now();
        let distinct = || {
            let sent = broker.sent.lock().unwrap();
            sent.iter().map(|sent| sent.id).collect::<std::collections::HashSet<_>>().len()
        };
        while i64::try_from(distinct()).unwrap() < total && begun.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Panics unless each key was sent as 1, 2, 3 ... up to what was committed. Returns rows and duplicates.
    pub async fn check(&self, broker: &Scripted, duplicates_allowed: bool) -> (usize, usize) {
        let truth = self.truth().await;
        let sent = broker.sent.lock().unwrap();
        let (mut next, mut duplicates): (HashMap<&str, i64>, usize) = Default::default();
        let mut disorder = Vec::new();
        for message in sent.iter() {
            let number: i64 = message.body.parse().expect("what was rolled back is never sent");
            let last = next.entry(&message.key).or_default();
            if number <= *last {
                duplicates += 1;
            } else {
                if number != *last + 1 {
                    let near = sent.iter().filter(|s| s.key == message.key && s.id.abs_diff(message.id) < 200);
                    let near: Vec<_> = near.map(|s| (&s.body, s.id, &s.by, s.at)).collect();
                    disorder.push(format!("{} {number} after {last}: {near:?}", message.key));
                }
                *last = number;
            }
        }
        let lost: Vec<String> = truth
            .iter()
            .filter(|(key, n)| next.get(key.as_str()).copied().unwrap_or(0) != **n)
            .map(|(key, n)| format!("{key}: {:?} of {n}", next.get(key.as_str())))
            .collect();
        assert!(disorder.is_empty(), "out of order or lost on the way: {disorder:?}");
        assert!(lost.is_empty(), "lost at the end: {lost:?}");
        assert!(duplicates_allowed || duplicates == 0, "{duplicates} duplicates without a crash");
        (sent.len(), duplicates)
    }
}

/// The seed of a run: from DIPMO_SEED, or a new one; printed, so that a failure can be run again.
pub fn seed() -> u64 {
    let seed = std::env::var("DIPMO_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("DIPMO_SEED={seed}");
    seed
}

pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}
