//! Servers that die, rows that are too large, topics and privileges that are missing.

use std::sync::Arc;

use dipmo::clock::Clock;
use dipmo::relay::{Relay, RelayOptions};
use dipmo::store::postgres::{Db, DbOptions};
use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use testbed::{Kafka, KafkaOptions as Broker, Postgres, PostgresOptions};

use crate::kafka::{Topic, bootstrap};
use crate::support::{Scripted, World, eager};
use crate::{end, numbers, options, until, until_following, until_sent, wal_world};

fn to_kafka(brokers: &str, change: impl Fn(&mut KafkaOptions)) -> RelayOptions {
    let mut kafka = KafkaOptions::new(brokers);
    change(&mut kafka);
    RelayOptions { internal: false, kafka: Some(Arc::new(KafkaPublisher::new(kafka).unwrap())), ..eager("one") }
}

/// Steps on through errors, as a running relay does.
async fn keep_stepping(relay: &Relay) {
    loop {
        if relay.run_once().await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}

async fn payloads(topic: &Topic, count: usize, relay: &Relay) -> Vec<String> {
    let mut reader = topic.reader();
    let reading = async {
        let mut read = Vec::new();
        while read.len() < count {
            read.push(reader.next().await.2);
        }
        read
    };
    tokio::select! {
        read = reading => read,
        () = keep_stepping(relay) => unreachable!("steps never end"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_killed_comes_back_and_nothing_is_missing() {
    let mut server = Postgres::start(PostgresOptions::default()).unwrap();
    let world = World::on(&server.url(), Clock::database()).await;
    world.read_by("wal").await;
    let broker = Scripted::new();
    let relay = world.relay(options(&broker, "one"));
    until_following(&relay, &world).await;
    world.append_numbers("a", 0..30).await;
    until_sent(&relay, &broker, 30).await;
    world.append_numbers("a", 30..60).await;
    server.kill_dash_nine().unwrap();
    assert!(relay.run_once().await.is_err(), "the server is away");
    server.restart().unwrap();
    tokio::select! {
        () = keep_stepping(&relay) => unreachable!("steps never end"),
        () = async { while broker.bodies().iter().filter(|body| *body == "59").count() == 0 { tokio::task::yield_now().await } } => {}
    }
    let mut seen = std::collections::HashSet::new();
    let first: Vec<String> = broker.bodies_of("a").into_iter().filter(|body| seen.insert(body.clone())).collect();
    assert_eq!(first, numbers(0..60));
    drop(relay);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_lets_the_slot_grow_and_gets_everything_when_it_is_back() {
    let mut server = tokio::task::spawn_blocking(|| Kafka::start(Broker::default()).unwrap()).await.unwrap();
    let (world, topic) = (wal_world().await, Topic::on(&server.bootstrap(), 1).await);
    let relay =
        world.relay(to_kafka(&server.bootstrap(), |kafka| kafka.send_timeout = std::time::Duration::from_secs(2)));
    until_following(&relay, &world).await;
    let destination = format!("KAFKA:{}", topic.name);
    world.append(&destination, "a", &["before"]).await;
    assert_eq!(payloads(&topic, 1, &relay).await, ["before"]);
    let before = world.account("position").await;
    server.kill_dash_nine().unwrap();
    world.append(&destination, "a", &["during 1", "during 2"]).await;
    let mut steps = 0;
    while !relay.run_once().await.unwrap().breaker_open {
        steps += 1;
        assert!(steps < 100, "the relay does not notice that the broker is away");
    }
    let kept = format!("(select position - '{before}'::pg_lsn as grown from dipmo.relay_lane where lane = 'KAFKA') p");
    assert_eq!(world.count(&format!("{kept} where grown > 1000")).await, 0, "the position waits for the broker");
    assert_eq!(world.count("dipmo.outbox_exception").await, 0, "nothing is the rows' fault");
    let server = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    })
    .await
    .unwrap();
    let all = payloads(&topic, 3, &relay).await;
    assert_eq!(all, ["before", "during 1", "during 2"]);
    end(relay, &world).await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_arrive_where_they_may_and_are_dead_with_a_reason_where_not() {
    let (world, wide, narrow) =
        (wal_world().await, Topic::with(&[("max.message.bytes", "16000000")]).await, Topic::new(1).await);
    let relay = world.relay(to_kafka(&bootstrap(), |kafka| {
        kafka.settings.insert("message.max.bytes".into(), "16000000".into());
    }));
    until_following(&relay, &world).await;
    // Nothing that can be compressed below the limit.
    let mut rng = StdRng::seed_from_u64(1);
    let huge: String = (0..10_000_000).map(|_| rng.random_range('!'..'~')).collect();
    world.append(&format!("KAFKA:{}", narrow.name), "big", &[&huge, "behind"]).await;
    world.append(&format!("KAFKA:{}", narrow.name), "small", &["fine"]).await;
    world.append(&format!("KAFKA:{}", wide.name), "big", &[&huge]).await;
    assert!(payloads(&wide, 1, &relay).await[0] == huge, "another payload arrived");
    assert_eq!(payloads(&narrow, 1, &relay).await, ["fine"]);
    until(&relay, "dead", || async { world.count("dipmo.outbox_exception where state = 'DEAD'").await == 1 }).await;
    let why = world
        .texts("select error_code || ': ' || error_message from dipmo.outbox_exception where state = 'DEAD'")
        .await;
    assert!(why[0].contains("MessageSizeTooLarge"), "{why:?}");
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_does_not_exist_parks_its_keys_and_the_stream_goes_on() {
    let (world, topic) = (wal_world().await, Topic::new(1).await);
    let relay = world.relay(to_kafka(&bootstrap(), |_| {}));
    until_following(&relay, &world).await;
    world.append("KAFKA:no-such-topic", "k", &["lost?", "behind"]).await;
    world.append(&format!("KAFKA:{}", topic.name), "k", &["fine"]).await;
    assert_eq!(payloads(&topic, 1, &relay).await, ["fine"]);
    until(&relay, "parked", || async { world.count("dipmo.outbox_exception").await == 2 }).await;
    let why = world.texts("select error_code from dipmo.outbox_exception order by id limit 1").await;
    assert!(why[0].contains("UnknownTopic"), "{why:?}");
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_read_the_wal_is_told_so_and_the_table_is_read_meanwhile() {
    let (world, broker) = (wal_world().await, Scripted::new());
    let schema = world.db.schema().to_owned();
    world
        .execute(&format!(
            "create role {schema} login; grant all on schema dipmo to {schema};
             grant all on all tables in schema dipmo to {schema}; grant all on all sequences in schema dipmo to {schema};
             grant create on database postgres to {schema}"
        ).replace("schema dipmo ", &format!("schema {schema} ")))
        .await;
    let url = world.url.replace("postgres://postgres@", &format!("postgres://{schema}@"));
    let db = Db::open(DbOptions { schema: schema.clone(), ..DbOptions::new(url) }).unwrap();
    let relay = Relay::new(db, options(&broker, "one")).unwrap();
    world.append_numbers("a", 0..5).await;
    until_sent(&relay, &broker, 5).await;
    until(&relay, "said", || async {
        let said = "select detail ->> 'reader_problem' from dipmo.node where role = 'relay'";
        let said = world.texts(said).await;
        said.iter().any(|said| said.contains("owner") || said.contains("replication") || said.contains("privilege"))
    })
    .await;
    assert_eq!(world.account("position").await, "-");
    end(relay, &world).await;
}
