//! Broker, network and nodes die where it hurts most.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dipmo::ingress::AmqpIngress;
use dipmo::runner::Runner;
use dipmo::store::postgres::inbox::PgInbox;
use dipmo::transport::amqp::{AmqpOptions, AmqpPublisher};
use dipmo::transport::{Outcome, Publisher as _};
use dipmo::wake::Wake;
use dipmo::{Error, ErrorKind, Result};
use testbed::{Artemis, ArtemisOptions, Proxy};

use crate::client::{Client, artemis, bytes_of, data, id_of, message};
use crate::hooked::{Call, FailsAt, Hook, Hooked, When};
use crate::support::{World, drain};
use crate::{PATIENCE, Reading, contract, queue, reader, relay, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_under_load_loses_nothing_and_repeats_have_no_effect() {
    let mut broker = Artemis::start(ArtemisOptions::default()).unwrap();
    let options = AmqpOptions { send_timeout: Duration::from_secs(3), ..AmqpOptions::from_url(&broker.url()).unwrap() };
    let (world, to) = (World::real_time().await, queue("killed"));
    let append = |from: i32, upto: i32| {
        format!(
            "select dipmo.outbox_append('AMQP:{to}', 'order', 'k' || n % 5, 'Placed', n::text)
             from generate_series({from}, {upto}) n"
        )
    };
    let reading = Reading::start(&world, &options, &to).await;
    let (trigger, shutdown) = dipmo::shutdown::ShutdownTrigger::new();
    let relay = relay(&world, &options);
    let relaying = tokio::spawn(async move { relay.run(shutdown).await });
    for round in 0..2 {
        world.execute(&append(round * 500 + 1, round * 500 + 500)).await;
        until(&world, "dipmo.inbox", i64::from(round) * 500 + 50).await;
        let killed = tokio::task::spawn_blocking(move || {
            broker.kill_dash_nine().unwrap();
            broker.restart().unwrap();
            broker
        });
        broker = killed.await.unwrap();
    }
    until(&world, "dipmo.inbox", 1000).await;
    until(&world, "dipmo.outbox_status where state = 'PUBLISHED'", 1000).await;
    trigger.stop();
    tokio::time::timeout(PATIENCE, relaying).await.unwrap().unwrap();
    reading.stop().await;
    assert_eq!(world.count("dipmo.inbox").await, 1000, "each is stored once, however often it was sent");
    let by_key = world
        .texts("select array_agg(convert_from(payload, 'UTF8')::int order by id)::text from dipmo.inbox group by key")
        .await;
    for numbers in by_key {
        let numbers: Vec<i32> = numbers.trim_matches(['{', '}']).split(',').map(|n| n.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "first arrivals are in order: {numbers:?}");
    }
}

/// The answer is held back: the message has arrived, and the sender cannot know it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_never_comes_is_unknown_and_the_repetition_has_no_effect() {
    let direct = artemis();
    let proxy = Proxy::start(format!("{}:{}", direct.host, direct.port).parse().unwrap()).unwrap();
    let through = AmqpOptions { port: proxy.addr().port(), send_timeout: Duration::from_secs(1), ..direct.clone() };
    let (world, to) = (World::real_time().await, queue("unheard"));
    let publisher = Arc::new(AmqpPublisher::new(through).unwrap());
    // The link is there before the network fails.
    let warm = contract::row(&to, "warm", 0);
    assert_eq!(publisher.publish(&[warm.outgoing()]).await, [Outcome::Done]);
    proxy.stall_answers();
    let rows: Vec<_> = (1..=3).map(|n| contract::row(&to, "k", n)).collect();
    let outgoing: Vec<_> = rows.iter().map(contract::Row::outgoing).collect();
    for told in publisher.publish(&outgoing).await {
        assert!(matches!(&told, Outcome::Unknown(refusal) if refusal.code == "AMQP_TIMEOUT"), "{told:?}");
    }
    assert!(proxy.wait_for_held_answer(PATIENCE), "the broker has answered");
    proxy.cut();
    proxy.heal();
    assert_eq!(publisher.publish(&outgoing).await, [Outcome::Done, Outcome::Done, Outcome::Done]);
    let mut client = Client::open(&direct).await;
    let sent = client.take_rest(&to).await;
    let ids: Vec<String> = sent.iter().filter(|sent| bytes_of(sent) != b"0").map(id_of).collect();
    assert_eq!(ids.len(), 6, "sent again");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 3, "under the same ids");
    client.put(&to, sent).await;
    let reading = Reading::start(&world, &direct, &to).await;
    until(&world, "dipmo.inbox", 4).await;
    reading.stop().await;
    assert_eq!(
        world.texts("select convert_from(payload, 'UTF8') from dipmo.inbox order by id").await,
        ["0", "1", "2", "3"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_is_opened_again_within_the_call() {
    let direct = artemis();
    let proxy = Proxy::start(format!("{}:{}", direct.host, direct.port).parse().unwrap()).unwrap();
    let through = AmqpOptions { port: proxy.addr().port(), ..direct.clone() };
    let to = queue("cut");
    let publisher = AmqpPublisher::new(through).unwrap();
    for n in 0..3 {
        let row = contract::row(&to, "k", n);
        assert_eq!(publisher.publish(&[row.outgoing()]).await, [Outcome::Done], "{n}");
        proxy.cut();
        proxy.heal();
    }
    let arrived: BTreeSet<String> = Client::open(&direct).await.take_rest(&to).await.iter().map(id_of).collect();
    assert_eq!(arrived.len(), 3);
}

/// Answers are swallowed without an end of the connection, as by a firewall that has forgotten it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_hears_nothing_any_more_lets_go_and_others_get_its_messages() {
    let direct = artemis();
    let proxy = Proxy::start(format!("{}:{}", direct.host, direct.port).parse().unwrap()).unwrap();
    let through = AmqpOptions { port: proxy.addr().port(), idle_timeout: Duration::from_secs(1), ..direct.clone() };
    let (world, from) = (World::real_time().await, queue("silent"));
    let mut client = Client::open(&direct).await;
    client.put(&from, [message("first", &[], data(b"1"))]).await;
    let reading = Reading::start(&world, &through, &from).await;
    until(&world, "dipmo.inbox", 1).await;
    proxy.stall_answers();
    client.put(&from, (0..5).map(|n| message(&format!("m-{n}"), &[], data(b"1")))).await;
    assert!(proxy.wait_for_held_answer(PATIENCE), "they are on their way to the reader");
    let taken: BTreeSet<String> = client.take(&from, 5).await.iter().map(id_of).collect();
    assert_eq!(taken.len(), 5);
    reading.crash().await;
    assert_eq!(world.count("dipmo.inbox").await, 1);
}

/// The node dies after the inbox commit and before the broker hears of it: the messages come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_inbox_and_acceptance_has_no_effect() {
    let (world, from) = (World::real_time().await, queue("crash"));
    let mut client = Client::open(&artemis()).await;
    client.put(&from, (0..20).map(|n| message(&format!("m-{n}"), &[], data(b"1")))).await;
    let consumer = Arc::new(reader(&from));
    let inner = PgInbox::register(world.db.clone(), &consumer).await.unwrap();
    // Call 0 counts the backlog, call 1 settles: it takes effect, but the node never hears of it and dies.
    let store = Arc::new(Hooked::new(inner, FailsAt(1, When::After)));
    let runner = Runner::new(store, consumer, world.clock.clone());
    let dying = Reading::of(AmqpIngress::with(runner, artemis(), &from, Wake::default()).unwrap());
    until(&world, "dipmo.inbox", 1).await;
    dying.crash().await;
    let stored = world.count("dipmo.inbox").await;
    assert!(stored >= 1);
    let next = Reading::start(&world, &artemis(), &from).await;
    // Comes after all that the broker gives once more.
    client.put(&from, [message("last", &[], data(b"1"))]).await;
    until(&world, "dipmo.inbox", 21).await;
    next.stop().await;
    assert_eq!(world.count("dipmo.inbox").await, 21, "those that came again are not stored again");
    assert!(client.take_rest(&from).await.is_empty());
}

/// Settles nothing until it is told to.
struct Away(Arc<std::sync::atomic::AtomicBool>, Arc<tokio::sync::Notify>);

impl Hook for Away {
    fn before(&self, call: Call) -> Result<()> {
        if call.name == "settle" && self.0.load(std::sync::atomic::Ordering::SeqCst) {
            self.1.notify_one();
            return Err(Error::new(ErrorKind::Unavailable, "the database is away"));
        }
        Ok(())
    }

    fn after(&self, _: Call) -> Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_is_away_the_broker_keeps_everything() {
    let (world, from) = (World::real_time().await, queue("keeps"));
    let mut client = Client::open(&artemis()).await;
    client.put(&from, (0..20).map(|n| message(&format!("m-{n}"), &[], data(b"1")))).await;
    let consumer = Arc::new(reader(&from));
    let inner = PgInbox::register(world.db.clone(), &consumer).await.unwrap();
    let (away, tried) = (Arc::new(std::sync::atomic::AtomicBool::new(true)), Arc::new(tokio::sync::Notify::new()));
    let store = Arc::new(Hooked::new(inner, Away(away.clone(), tried.clone())));
    let runner = Runner::new(store, consumer, world.clock.clone());
    let reading = Reading::of(AmqpIngress::with(runner, artemis(), &from, Wake::default()).unwrap());
    // More often than the broker delivers before it gives a message up.
    for _ in 0..7 {
        tokio::time::timeout(PATIENCE, tried.notified()).await.unwrap();
    }
    away.store(false, std::sync::atomic::Ordering::SeqCst);
    until(&world, "dipmo.inbox", 20).await;
    reading.stop().await;
    assert!(client.take_rest(&from).await.is_empty());
    assert_eq!(drain(&relay(&world, &artemis())).await.published, 0);
}
