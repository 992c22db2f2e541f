//! All of a database transaction is visible, or nothing.

use std::time::Duration;

use dipmo::transport::{Outcome, Publisher as _};

use crate::scene::{Event, Scene, names, publish};

/// A topic that does not exist is waited for, for two fifths of this.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_group_is_seen_whole_and_an_aborted_one_not_at_all() {
    let scene = Scene::new();
    let (orders, absent) = (scene.topic().await.name, format!("absent-{}", scene.id));
    let publisher = scene.publisher(SEND_TIMEOUT);
    let whole = [Event::new(1, 1, &orders, "a"), Event::new(2, 1, &orders, "a")];
    assert_eq!(names(&publish(&publisher, &whole).await), ["done", "done"]);
    assert_eq!(scene.committed(&orders).await, ["1", "2"]);

    let broken = [Event::new(3, 2, &orders, "a"), Event::new(4, 2, &orders, "a"), Event::new(5, 2, &absent, "a")];
    let sending = tokio::spawn(async move { publish(&publisher, &broken).await });
    scene.holds(&orders, 4).await;
    assert_eq!(scene.committed(&orders).await, ["1", "2"], "the transaction is open");
    let outcomes = sending.await.unwrap();
    assert!(
        matches!(&outcomes[0], Outcome::Rejected(why) if why.message.contains("message 5 to absent-")),
        "{outcomes:?}"
    );
    assert_eq!(scene.committed(&orders).await, ["1", "2"], "it was aborted");
    let seen: Vec<String> = scene.uncommitted(&orders).await;
    assert_eq!(seen, ["1", "2", "3", "4"], "who reads uncommitted records sees them");
}

#[tokio::test]
async fn a_poison_row_keeps_its_group_back_and_nothing_else() {
    let scene = Scene::new();
    let orders = scene.topic().await.name;
    let publisher = scene.publisher(SEND_TIMEOUT);
    let mut events = vec![
        Event::new(1, 1, &orders, "a"),
        Event::new(2, 2, &orders, "b"),
        Event::new(3, 2, &orders, "b"),
        Event::new(4, 2, &orders, "b"),
        Event::new(5, 3, &orders, "c"),
        Event::new(6, 4, &orders, "b"),
        Event::new(7, 5, &orders, "a"),
    ];
    events[2].body = vec![b'x'; 3_000_000];
    let outcomes = publish(&publisher, &events).await;
    let expected = ["done", "rejected KAFKA_MessageSizeTooLarge", "held", "held", "done", "held", "done"];
    assert_eq!(names(&outcomes), expected);
    assert!(matches!(&outcomes[1], Outcome::Rejected(why) if why.message.contains("message 3 to")), "{outcomes:?}");
    assert_eq!(scene.committed(&orders).await, ["1", "5", "7"]);
}

/// The broker refuses batches, not rows; who is to blame has to be found.
#[tokio::test]
async fn a_row_that_only_the_broker_refuses_is_found_among_many() {
    let scene = Scene::new();
    let orders = scene.topic_of_small_messages(1).await.name;
    let publisher = scene.publisher(SEND_TIMEOUT);
    let mut events: Vec<Event> =
        (0..9).map(|n| Event::new(n, n.unsigned_abs() + 1, &orders, &format!("k{n}"))).collect();
    events[5] = events[5].clone().oversized();
    let outcomes = names(&publish(&publisher, &events).await);
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome, if n == 5 { "rejected KAFKA_MessageSizeTooLarge" } else { "done" }, "{n}: {outcomes:?}");
    }
    assert_eq!(scene.committed(&orders).await, ["0", "1", "2", "3", "4", "6", "7", "8"]);
}

#[tokio::test]
async fn shards_and_plain_topics_go_their_own_ways() {
    let scene = Scene::new();
    let (orders, plain) = (scene.topic().await.name, scene.topic().await.name);
    let mut options = scene.options(SEND_TIMEOUT);
    options.transactional_topics = vec![orders.clone()];
    let publisher = dipmo::transport::kafka::KafkaPublisher::new(options).unwrap();
    assert!(publisher.keeps_whole(&orders) && !publisher.keeps_whole(&plain));
    let mut events = Vec::new();
    for n in 0..12 {
        let topic = if n % 3 == 2 { &plain } else { &orders };
        events.push(Event { shard: 16 + (n % 3) as i16, ..Event::new(n, 1, topic, &format!("k{n}")) });
    }
    events[3].body = vec![b'x'; 3_000_000];
    let outcomes = names(&publish(&publisher, &events).await);
    let mut expected = vec!["done"; 12];
    // All of shard 16 is one group: every key of it is told why.
    for n in [0, 3, 6, 9] {
        expected[n] = "rejected KAFKA_MessageSizeTooLarge";
    }
    assert_eq!(outcomes, expected);
    assert_eq!(scene.committed(&orders).await, ["1", "4", "7", "10"]);
    assert_eq!(scene.committed(&plain).await, ["2", "5", "8", "11"]);
}
