//! Consumers in the relay's own process take INTERNAL from memory: once, in order, and through the table
//! where memory is not safe.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use dipmo::consumer::{Consumer, Grouping};
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::node::LocalRunners;
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::relay::{HeldShard, LocalConsumers, Offer, RelayOptions};
use dipmo::runner::{Runner, Worker};
use dipmo::store::postgres::inbox::PgInbox;
use dipmo::wake::Wake;
use dipmo::{Message, OutMessage};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use support::{World, drain, eager};
use time::OffsetDateTime;
use tokio::task::JoinSet;

/// Writes down what it is told, and passes it on to those who listen for `Told`.
struct Notebook;

impl Process for Notebook {
    fn name(&self) -> &str {
        "notebook"
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, _: OffsetDateTime) -> Result<Decision, Failure> {
        let Input::Message(message) = input else { return Err(Failure::stale("no timers here")) };
        let word: String = message.json()?;
        if word == "bad" {
            return Err(Failure::permanent("BAD", "a word that nobody wants"));
        }
        let mut words: Vec<String> = current.map(Instance::data).transpose()?.unwrap_or_default();
        words.push(word);
        let told = OutMessage::internal(("Notebook", &message.key), "Told");
        Ok(Decision::go("OPEN").data(&words).emit(told))
    }
}

/// Lets the runners do their work and then pretends not to know, as often as told.
#[derive(Debug)]
struct Forgetful {
    runners: LocalRunners,
    forgets: AtomicUsize,
    asked: AtomicUsize,
}

#[async_trait]
impl LocalConsumers for Forgetful {
    fn takes(&self, consumer: &str) -> bool {
        self.runners.takes(consumer)
    }

    async fn handle(&self, offer: Offer) -> dipmo::Result<()> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.runners.handle(offer).await?;
        let forget = self.forgets.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match forget {
            Ok(_) => Err(dipmo::Error::new(dipmo::ErrorKind::Unavailable, "the answer was lost")),
            Err(_) => Ok(()),
        }
    }
}

/// Writes a row for every message.
struct Counting(String);

#[async_trait]
impl EnlistedHandler for Counting {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        enlisted.tx().execute(&self.0, &[&message.key]).await?;
        Ok(())
    }
}

async fn counter(world: &World) -> Runner {
    world.execute("create table dipmo.counted (key text not null)").await;
    let insert = format!("insert into {}.counted values ($1)", world.db.schema());
    let consumer = Consumer::enlisted("counter", Counting(insert)).grouped(Grouping::Batch).from_internal(&["Placed"]);
    let store = Arc::new(PgInbox::register(world.db.clone(), &consumer).await.unwrap());
    Runner::new(store, Arc::new(consumer), world.clock.clone())
}

struct Scene {
    world: World,
    local: Arc<Forgetful>,
    runner: Runner,
}

impl Scene {
    /// What is offered at once takes several transactions.
    async fn new(forgets: usize) -> Self {
        Self::with(forgets, 2).await
    }

    async fn with(forgets: usize, batch_max: usize) -> Self {
        let world = World::new().await;
        let consumer = Consumer { batch_max, ..Consumer::process("notes", Notebook).from_internal(&["Placed"]) };
        let store = Arc::new(PgInbox::register(world.db.clone(), &consumer).await.unwrap());
        let runner = Runner::new(store, Arc::new(consumer), world.clock.clone());
        let counter = counter(&world).await;
        let runners = LocalRunners::new(vec![runner.clone(), counter], Wake::default());
        let local = Arc::new(Forgetful { runners, forgets: forgets.into(), asked: 0.into() });
        Self { world, local, runner }
    }

    fn options(&self, node: &str) -> RelayOptions {
        RelayOptions { local: Some(self.local.clone()), ..eager(node) }
    }

    fn asked(&self) -> usize {
        self.local.asked.load(Ordering::SeqCst)
    }

    async fn words(&self, key: &str) -> String {
        let sql = format!("select data::text from dipmo.process where business_key = '{key}'");
        self.world.texts(&sql).await.pop().unwrap_or_default()
    }

    /// Lets the workers finish what went through the table.
    async fn work_off(&self) {
        let mut worker = Worker::with(self.runner.clone(), "worker".into(), &Wake::default());
        while !worker.run_once().await.unwrap().is_idle() {}
    }
}

#[tokio::test]
async fn a_local_consumer_handles_once_and_in_order_without_the_table() {
    let scene = Scene::new(0).await;
    scene.world.subscribe("listener", "Told").await;
    scene.world.append("INTERNAL", "a", &["\"1\"", "\"2\"", "\"3\""]).await;
    scene.world.append("INTERNAL", "b", &["\"1\""]).await;
    let relay = scene.world.relay(scene.options("r1"));
    drain(&relay).await;
    relay.stop().await.unwrap();
    assert_eq!(scene.words("a").await, r#"["1","2","3"]"#);
    assert_eq!(scene.words("b").await, r#"["1"]"#);
    assert_eq!(scene.world.count("dipmo.counted").await, 4);
    let kept = scene.world.count("dipmo.inbox_status where consumer <> 'listener'").await;
    assert_eq!(kept, 0, "the outbox has them; that they were seen is all there is to remember");
    let waiting = scene.world.count("dipmo.inbox_status where consumer = 'listener' and state = 'RECEIVED'").await;
    assert_eq!(waiting, 4, "what it said goes to those who are elsewhere");
    assert_eq!(scene.world.states("a").await, ["PUBLISHED"; 6]);
}

#[tokio::test]
async fn an_answer_that_is_lost_between_handling_and_cursor_has_no_second_effect() {
    let scene = Scene::new(3).await;
    scene.world.append("INTERNAL", "a", &["\"1\"", "\"2\""]).await;
    let relay = scene.world.relay(scene.options("r1"));
    for _ in 0..3 {
        relay.run_once().await.unwrap_err();
        scene.world.execute("update dipmo.relay_shard set stalled = 0").await;
    }
    drain(&relay).await;
    assert!(scene.asked() >= 8, "it was offered again to both, each time");
    assert_eq!(scene.words("a").await, r#"["1","2"]"#);
    assert_eq!(scene.world.count("dipmo.counted").await, 2);
}

#[tokio::test]
async fn a_shard_that_keeps_changing_hands_goes_through_the_table() {
    let scene = Scene::new(0).await;
    scene.world.append("INTERNAL", "a", &["\"1\""]).await;
    scene.world.execute("update dipmo.relay_shard set stalled = 1").await;
    drain(&scene.world.relay(scene.options("r1"))).await;
    assert_eq!(scene.asked(), 0, "it may kill whoever handles it: attempts have to be counted");
    scene.work_off().await;
    assert_eq!(scene.words("a").await, r#"["1"]"#);
    assert_eq!(scene.world.count("dipmo.relay_shard where stalled > 1").await, 0, "what is settled is not stalled");
}

#[tokio::test]
async fn what_waits_in_the_table_is_not_overtaken() {
    let scene = Scene::new(0).await;
    // A relay without the consumer has stored the first.
    scene.world.append("INTERNAL", "a", &["\"1\""]).await;
    drain(&scene.world.relay(eager("elsewhere"))).await;
    scene.world.append("INTERNAL", "a", &["\"2\""]).await;
    let relay = scene.world.relay(scene.options("r1"));
    scene.world.advance(60);
    drain(&relay).await;
    assert_eq!(scene.asked(), 0, "the second queues behind the first");
    scene.work_off().await;
    assert_eq!(scene.words("a").await, r#"["1","2"]"#);
    scene.world.append("INTERNAL", "a", &["\"3\""]).await;
    drain(&relay).await;
    assert_eq!(scene.asked(), 1, "memory is the way again");
    assert_eq!(scene.words("a").await, r#"["1","2","3"]"#);
}

#[tokio::test]
async fn a_message_that_fails_parks_its_key_and_the_others_flow() {
    let scene = Scene::new(0).await;
    scene.world.append("INTERNAL", "a", &["\"1\"", "\"bad\"", "\"2\""]).await;
    scene.world.append("INTERNAL", "b", &["\"1\""]).await;
    let relay = scene.world.relay(scene.options("r1"));
    drain(&relay).await;
    assert_eq!((scene.words("a").await, scene.words("b").await), (r#"["1"]"#.into(), r#"["1"]"#.into()));
    let sql = "select state from dipmo.inbox_status where key = 'a' order by id";
    assert_eq!(scene.world.texts(sql).await, ["DEAD", "PARKED"]);
    scene.world.append("INTERNAL", "a", &["\"3\""]).await;
    drain(&relay).await;
    assert_eq!(scene.world.texts(sql).await, ["DEAD", "PARKED", "PARKED"]);
}

#[tokio::test]
async fn a_relay_that_has_lost_its_shards_cannot_settle_for_them() {
    let scene = Scene::new(0).await;
    scene.world.append("INTERNAL", "a", &["\"1\""]).await;
    drain(&scene.world.relay(eager("r1"))).await;
    let epochs = scene.world.texts("select shard || ' ' || epoch from dipmo.relay_shard where shard < 16").await;
    let held = epochs.iter().map(|text| {
        let (shard, epoch) = text.split_once(' ').unwrap();
        HeldShard { shard: shard.parse().unwrap(), epoch: epoch.parse::<i64>().unwrap() - 1 }
    });
    let mut message = scene.local_message().await;
    message.partition = Some(0);
    let (consumer, held) = ("notes".to_owned(), held.collect());
    let offer = Offer { consumer, held, parked: false, now: None, messages: vec![message] };
    let refused = scene.local.runners.handle(offer).await;
    assert_eq!(refused.unwrap_err().kind(), dipmo::ErrorKind::LeaseLost);
    assert_eq!(scene.words("a").await, "");
}

/// Appends 1, 2, 3 ... under its key, each in a transaction of its own. Some give up at first, some take their
/// time before they commit, and longer than the relay waits for anybody.
async fn write_words(world: Arc<World>, key: String, words: usize, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut client = world.db.client().await.unwrap();
    let append = world.sql("select dipmo.outbox_append('INTERNAL', 'order', $1, 'Placed', $2)");
    for word in 1..=words {
        let body = format!("\"{word}\"");
        loop {
            let tx = client.transaction().await.unwrap();
            tx.execute(&append, &[&key, &body]).await.unwrap();
            if random.random_bool(0.005) {
                let seconds: f64 = random.random_range(0.0..0.06);
                tx.execute("select pg_sleep($1)", &[&seconds]).await.unwrap();
            }
            if random.random_bool(0.9) {
                tx.commit().await.unwrap();
                break;
            }
            tx.rollback().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_together_with_the_horizon_is_complete_and_in_order() {
    const WORDS: usize = 300;
    let seed: u64 = std::env::var("DIPMO_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("DIPMO_SEED={seed}");
    let Scene { world, local, .. } = Scene::with(0, 500).await;
    let world = Arc::new(world);
    let relay = world.relay(RelayOptions { local: Some(local), ..RelayOptions::new("r1") });
    let mut writers = JoinSet::new();
    for n in 0..6 {
        writers.spawn(write_words(world.clone(), format!("k{n}"), WORDS, seed.wrapping_add(n)));
    }
    while !writers.is_empty() {
        relay.run_once().await.unwrap();
        while let Some(done) = writers.try_join_next() {
            done.unwrap();
        }
    }
    drain(&relay).await;
    let words: Vec<String> = (1..=WORDS).map(|word| format!("\"{word}\"")).collect();
    for n in 0..6 {
        let sql = format!("select data::text from dipmo.process where business_key = 'k{n}'");
        assert_eq!(world.texts(&sql).await, [format!("[{}]", words.join(","))], "key k{n}");
    }
}

impl Scene {
    /// A message as the relay makes it from its row.
    async fn local_message(&self) -> Message {
        Message {
            inbox_id: 0,
            source: "INTERNAL".into(),
            message_id: "m-1".into(),
            topic: "INTERNAL".into(),
            partition: None,
            offset: None,
            key: "a".into(),
            key_bytes: None,
            tenant: String::new(),
            aggregate_id: None,
            aggregate_version: None,
            event_type: Some("Placed".into()),
            event_version: None,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            headers: None,
            payload: Some("\"1\"".into()),
            event_time: None,
            attempt: 1,
        }
    }
}
