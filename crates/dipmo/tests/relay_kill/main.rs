//! A relay in a process of its own that is killed at random moments, again and again, while writers write
//! and the reader changes: nothing is lost, and within a key nothing overtakes.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/kafka.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod kafka;
#[path = "../support/relay.rs"]
mod support;

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use dipmo::relay::{Relay, RelayOptions};
use dipmo::shutdown::ShutdownTrigger;
use dipmo::store::postgres::{Db, DbOptions};
use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use kafka::Topic;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{World, postgres_url};
use tokio::process::{Child, Command};

const ROUNDS: usize = 200;
/// The reader changes after this many rounds.
const ROUNDS_A_READER: usize = 20;
const KEYS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);

fn start(world: &World, topic: &Topic) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "runs_only_as_a_child_process", "--nocapture"])
        .env("DIPMO_CHILD_SCHEMA", world.db.schema())
        .env("DIPMO_CHILD_KAFKA", &topic.options().brokers)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Not a test of its own: the other tests start this binary again with this name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_only_as_a_child_process() {
    let Ok(schema) = std::env::var("DIPMO_CHILD_SCHEMA") else { return };
    let db = Db::open(DbOptions { schema, ..DbOptions::new(postgres_url()) }).unwrap();
    let kafka = KafkaOptions::new(std::env::var("DIPMO_CHILD_KAFKA").unwrap());
    // By the same name it takes back at once what its predecessor held.
    let options = RelayOptions {
        internal: false,
        kafka: Some(Arc::new(KafkaPublisher::new(kafka).unwrap())),
        lease: Duration::from_secs(2),
        batch_rows: 20,
        ..RelayOptions::new("victim")
    };
    let (_trigger, shutdown) = ShutdownTrigger::new();
    Relay::new(db, options).unwrap().run(shutdown).await;
}

/// Writes on, a few messages a round: some alone, some several in a transaction.
async fn write(world: &World, topic: &Topic, rng: &mut StdRng, written: &mut [i64; KEYS]) {
    let append = world.sql("select dipmo.outbox_append($1, 'number', $2, 'Counted', $3)");
    let destination = format!("KAFKA:{}", topic.name);
    let mut client = world.db.client().await.unwrap();
    for _ in 0..rng.random_range(3..12) {
        let key = rng.random_range(0..KEYS);
        let tx = client.transaction().await.unwrap();
        for _ in 0..rng.random_range(1..4) {
            let (name, number) = (format!("key-{key}"), written[key].to_string());
            tx.execute(&append, &[&destination, &name, &number]).await.unwrap();
            written[key] += 1;
        }
        tx.commit().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_may_be_killed_two_hundred_times_whichever_reader_it_has() {
    let seed: u64 = std::env::var("DIPMO_SEED").map_or_else(|_| rand::rng().random(), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (world, topic) = (World::real_time().await, Topic::new(2).await);
    let mut written = [0_i64; KEYS];
    for round in 0..ROUNDS {
        if round % ROUNDS_A_READER == 0 {
            let reader = if (round / ROUNDS_A_READER).is_multiple_of(2) { "wal" } else { "poll" };
            world.execute(&format!("update dipmo.relay_lane set reader = '{reader}' where lane = 'KAFKA'")).await;
        }
        let mut victim = start(&world, &topic);
        // Any moment between its start and the end of its work.
        let moment = Duration::from_millis(rng.random_range(30..500));
        let writing = write(&world, &topic, &mut rng, &mut written);
        let (_, ()) = tokio::join!(tokio::time::timeout(moment, victim.wait()), writing);
        victim.kill().await.unwrap();
    }
    let survivor = start(&world, &topic);
    let label = format!("seed {seed}");
    let wanted = usize::try_from(written.iter().sum::<i64>()).unwrap();
    let (by_key, repeats) = topic.reader().first_arrivals(wanted, |_| true, (PATIENCE, &label)).await;
    println!("{wanted} messages, {repeats} repeats");
    for (key, count) in written.iter().enumerate() {
        assert_eq!(by_key[&format!("key-{key}")], (0..*count).collect::<Vec<i64>>(), "{label}: key-{key}");
    }
    drop(survivor);
    let slots = "select count(pg_drop_replication_slot(slot_name))::text from pg_replication_slots where not active";
    world.texts(&format!("{slots} and slot_name like 'dipmo_{}%'", world.db.schema())).await;
}
