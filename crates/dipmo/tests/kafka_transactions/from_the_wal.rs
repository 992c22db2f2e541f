//! From database transactions to Kafka transactions: a relay that reads the WAL, dies at any moment and
//! comes back, and readers who see every database transaction whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dipmo::relay::{Relay, RelayOptions};
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_postgres::types::ToSql;

use crate::relay::{World, eager};
use crate::scene::{PATIENCE, Scene};

const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Keys, each with a topic of its own: then one producer at a time writes to a partition, and whatever lies
/// between two records of a group is the end of a Kafka transaction.
const KEYS: usize = 3;
const TRANSACTIONS_A_LIFE: usize = 10;
/// More than one read of the relay brings.
const ROWS_OF_THE_LARGE_ONE: i64 = 5_000;
const DEATHS: usize = 12;

/// One who writes transactions of a key, one after the other, each in a few statements.
struct Writer<'a> {
    world: &'a World,
    client: tokio_postgres::Client,
    topic: &'a str,
    key: String,
    random: StdRng,
    written: i64,
}

impl Writer<'_> {
    async fn write(&mut self, transactions: usize) {
        for _ in 0..transactions {
            let rows = self.random.random_range(1..=20);
            self.commit(rows).await;
        }
    }

    async fn commit(&mut self, rows: i64) {
        let append = self.world.sql(
            "select dipmo.outbox_append('KAFKA:' || $1::text, 'order', $2, 'Placed',
                 concat_ws(':', $3::int8, n, $4::int8)) from generate_series($5::int8, $6::int8 - 1) n",
        );
        let middle = self.random.random_range(0..=rows);
        let transaction = self.client.transaction().await.unwrap();
        for (from, to) in [(0, middle), (middle, rows)] {
            let values: [&(dyn ToSql + Sync); 6] = [&self.topic, &self.key, &self.written, &rows, &from, &to];
            transaction.execute(&append, &values).await.unwrap();
        }
        transaction.commit().await.unwrap();
        self.written += 1;
    }
}

/// Every group is there in one piece, and groups come in the order of their commits, however often some
/// come again. Tells which there are, and how many came again.
fn groups(records: &[(i64, String)]) -> (BTreeSet<usize>, usize) {
    let (mut seen, mut repeated) = (BTreeSet::new(), 0);
    let mut rest = records;
    while let Some((first, body)) = rest.first() {
        let parts: Vec<usize> = body.split(':').map(|part| part.parse().unwrap()).collect();
        let [number, _, rows] = parts[..] else { panic!("{body}") };
        let expected = (0..rows).map(|n| (first + i64::try_from(n).unwrap(), format!("{number}:{n}:{rows}")));
        let (group, after) = rest.split_at(rows.min(rest.len()));
        let cut = group.iter().cloned().zip(expected).position(|(seen, expected)| seen != expected);
        assert!(
            group.len() == rows && cut.is_none(),
            "transaction {number} of {rows} rows is cut at {cut:?}: {group:?}"
        );
        let next = seen.len();
        assert!(number <= next, "transaction {number} came before {next}");
        repeated += usize::from(!seen.insert(number));
        rest = after;
    }
    (seen, repeated)
}

fn relay(world: &World, scene: &Scene) -> Relay {
    let kafka = Some(scene.publisher(SEND_TIMEOUT) as Arc<_>);
    // By the same name it takes back at once what its predecessor held.
    world.relay(RelayOptions { internal: false, kafka, batch_rows: 10, ..eager("victim") })
}

/// Steps until it is dropped; what a predecessor still holds makes a step fail.
async fn run(relay: Relay) {
    loop {
        if relay.run_once().await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}

async fn watch(scene: &Scene, topics: &[String], over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        for topic in topics {
            groups(&scene.records(topic, "read_committed").await);
        }
    }
}

/// The last relay sends what is left.
async fn send_the_rest(world: &World, scene: &Scene) {
    let (last, begun) = (relay(world, scene), Instant::now());
    while world.count("dipmo.outbox_status where state <> 'PUBLISHED'").await > 0 {
        let _ = last.run_once().await;
        assert!(begun.elapsed() < PATIENCE, "not everything is sent within {PATIENCE:?}");
    }
    last.stop().await.unwrap();
}

/// From now on rows come from the WAL; the table, which is read before, knows no transactions.
async fn until_following(world: &World, scene: &Scene) {
    world.execute("update dipmo.relay_lane set reader = 'wal' where lane = 'KAFKA'").await;
    let (first, begun) = (relay(world, scene), Instant::now());
    while world.count("dipmo.relay_lane where lane = 'KAFKA' and position is not null").await == 0 {
        first.run_once().await.unwrap();
        assert!(begun.elapsed() < PATIENCE, "the WAL is not read within {PATIENCE:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_transaction_is_seen_whole_however_often_the_relay_dies() {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let random = |n: usize| StdRng::seed_from_u64(seed.wrapping_add(n as u64));
    let (world, scene) = (World::real_time().await, Scene::new());
    let mut topics = Vec::new();
    for _ in 0..KEYS {
        topics.push(scene.topic().await.name);
    }
    until_following(&world, &scene).await;
    let mut writers = Vec::new();
    for (n, topic) in topics.iter().enumerate() {
        let (client, key, random) = (world.writer().await, format!("k{n}"), random(n));
        writers.push(Writer { world: &world, client, topic, key, random, written: 0 });
    }
    let over = AtomicBool::new(false);
    let sending = async {
        let mut lives = random(KEYS);
        for death in 0..DEATHS {
            if death == DEATHS / 2 {
                writers[0].commit(ROWS_OF_THE_LARGE_ONE).await;
            }
            let life = Duration::from_millis(lives.random_range(200..1_500));
            let writing = join_all(writers.iter_mut().map(|writer| writer.write(TRANSACTIONS_A_LIFE)));
            let _ = tokio::join!(writing, tokio::time::timeout(life, run(relay(&world, &scene))));
        }
        send_the_rest(&world, &scene).await;
        over.store(true, Ordering::SeqCst);
    };
    tokio::join!(sending, watch(&scene, &topics, &over));
    let mut repeated = 0;
    for writer in &writers {
        let (seen, again) = groups(&scene.records(writer.topic, "read_committed").await);
        assert_eq!(seen, (0..usize::try_from(writer.written).unwrap()).collect(), "seed {seed}");
        repeated += again;
    }

    assert!(repeated > 0, "seed {seed}: no relay died between sending and accounting, so little was tested");
    drop_slot(&world).await;
}

/// So that the server need not keep its WAL.
async fn drop_slot(world: &World) {
    let slots = format!("pg_replication_slots where slot_name = 'dipmo_{}_outbox'", world.db.schema());
    while world.count(&format!("{slots} and active")).await > 0 {
        tokio::task::yield_now().await;
    }
    world.texts(&format!("select pg_drop_replication_slot(slot_name)::text from {slots}")).await;
}
