//! The broker stalls, or the network is cut: every call ends, and afterwards all goes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dipmo::transport::Outcome;
use dipmo::transport::kafka::KafkaPublisher;
use testbed::{Kafka, KafkaOptions, Proxy, free_port};

use crate::scene::{Event, Scene, publish};

const SEND_TIMEOUT: Duration = Duration::from_secs(3);
/// The send timeout, an abort that is not answered, and a machine that is busy.
const BOUND: Duration = Duration::from_secs(12);

fn is_unknown(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(|outcome| matches!(outcome, Outcome::Unknown(_)))
}

fn group(number: i64, topic: &str) -> [Event; 2] {
    let transaction = number.unsigned_abs();
    [Event::new(number * 10, transaction, topic, "a"), Event::new(number * 10 + 1, transaction, topic, "a")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stalls_or_is_cut_off_ends_no_call_late_and_loses_no_group() {
    let port = free_port().unwrap();
    let proxy = Arc::new(Proxy::start(SocketAddr::from(([127, 0, 0, 1], port))).unwrap());
    let advertised_port = Some(proxy.addr().port());
    let _kafka = Kafka::start(KafkaOptions { port: Some(port), advertised_port, ..KafkaOptions::default() }).unwrap();
    let scene = Scene::on(&proxy.addr().to_string());
    let orders = scene.topic().await.name;
    let publisher = scene.publisher(SEND_TIMEOUT);
    until_done(&scene, &publisher, &group(1, &orders)).await;

    proxy.stall();
    let begun = Instant::now();
    let outcomes = publish(&publisher, &group(2, &orders)).await;
    assert!(is_unknown(&outcomes), "{outcomes:?}");
    let fresh = scene.publisher(SEND_TIMEOUT);
    let outcomes = publish(&fresh, &[Event { shard: 18, ..group(9, &orders)[0].clone() }]).await;
    assert!(is_unknown(&outcomes), "{outcomes:?}");
    assert!(begun.elapsed() < BOUND * 2, "{:?}", begun.elapsed());
    proxy.heal();
    until_done(&scene, &publisher, &group(2, &orders)).await;
    assert_eq!(scene.committed(&orders).await, ["10", "11", "20", "21"], "nothing was visible of the first try");

    proxy.cut();
    let begun = Instant::now();
    let outcomes = publish(&publisher, &group(3, &orders)).await;
    assert!(is_unknown(&outcomes) && begun.elapsed() < BOUND, "{outcomes:?} {:?}", begun.elapsed());
    proxy.heal();
    until_done(&scene, &publisher, &group(3, &orders)).await;
    assert_eq!(scene.committed(&orders).await, ["10", "11", "20", "21", "30", "31"]);
    an_answer_is_lost(&scene, &proxy, &publisher, &group(4, &orders)).await;
    let seen = scene.committed(&orders).await;
    let twice = ["40", "41", "40", "41"];
    assert!(seen[6..] == twice[2..] || seen[6..] == twice, "whole and in order, every time: {seen:?}");
}

/// The broker does what it is asked to do, and nobody hears of it.
async fn an_answer_is_lost(scene: &Scene, proxy: &Arc<Proxy>, publisher: &Arc<KafkaPublisher>, events: &[Event]) {
    proxy.stall_answers();
    let sending = tokio::spawn({
        let (publisher, events) = (Arc::clone(publisher), events.to_vec());
        async move { publish(&publisher, &events).await }
    });
    let waiting = Arc::clone(proxy);
    assert!(tokio::task::spawn_blocking(move || waiting.wait_for_held_answer(BOUND)).await.unwrap());
    proxy.cut();
    proxy.heal();
    let outcomes = tokio::time::timeout(BOUND, sending).await.expect("the call ends").unwrap();
    if outcomes.iter().any(|outcome| *outcome != Outcome::Done) {
        assert!(is_unknown(&outcomes), "{outcomes:?}");
        until_done(scene, publisher, events).await;
    }
}

/// As the relay does: what is unknown is sent again.
async fn until_done(scene: &Scene, publisher: &KafkaPublisher, events: &[Event]) {
    let trying = async {
        loop {
            let outcomes = publish(publisher, events).await;
            if outcomes.iter().all(|outcome| *outcome == Outcome::Done) {
                break;
            }
            assert!(is_unknown(&outcomes), "{}: {outcomes:?}", scene.id);
        }
    };
    tokio::time::timeout(crate::scene::PATIENCE, trying).await.expect("the broker is back");
}
