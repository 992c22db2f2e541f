//! Two publishers believe that a shard is theirs: the later one is right.

use std::sync::Arc;
use std::time::Duration;

use dipmo::transport::Publisher as _;

use crate::scene::{Event, SHARD, Scene, names, publish};

const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// A topic that does not exist keeps a transaction open for two fifths of this.
const LONG: Duration = Duration::from_secs(25);

#[tokio::test]
async fn a_zombie_is_fenced_and_nothing_of_it_becomes_visible() {
    let scene = Scene::new();
    let orders = scene.topic().await.name;
    let (zombie, heir) = (scene.publisher(SEND_TIMEOUT), scene.publisher(SEND_TIMEOUT));
    assert_eq!(names(&publish(&zombie, &[Event::new(1, 1, &orders, "a")]).await), ["done"]);
    assert_eq!(names(&publish(&heir, &[Event::new(2, 2, &orders, "a")]).await), ["done"]);
    let late = [Event::new(3, 3, &orders, "a"), Event::new(4, 3, &orders, "b")];
    assert_eq!(names(&publish(&zombie, &late).await), ["unknown KAFKA_FENCED"; 2]);
    assert_eq!(names(&publish(&heir, &[Event::new(5, 4, &orders, "a")]).await), ["done"], "it did not fence back");
    assert_eq!(scene.committed(&orders).await, ["1", "2", "5"]);
}

#[tokio::test]
async fn a_zombie_in_the_middle_of_a_transaction_is_fenced() {
    let scene = Scene::new();
    let (orders, absent) = (scene.topic().await.name, format!("absent-{}", scene.id));
    let zombie = scene.publisher(LONG);
    let open = [Event::new(1, 1, &orders, "a"), Event::new(2, 1, &absent, "a")];
    let sending = tokio::spawn({
        let (zombie, open) = (Arc::clone(&zombie), open.clone());
        async move { publish(&zombie, &open).await }
    });
    scene.holds(&orders, 1).await;
    let heir = scene.publisher(SEND_TIMEOUT);
    assert_eq!(names(&publish(&heir, &[Event::new(1, 1, &orders, "a")]).await), ["done"]);
    assert_eq!(names(&sending.await.unwrap()), ["unknown KAFKA_FENCED"; 2]);
    assert_eq!(scene.committed(&orders).await, ["1"]);
    assert_eq!(scene.uncommitted(&orders).await, ["1", "1"], "the first had reached the broker");
}

#[tokio::test]
async fn a_shard_that_was_forgotten_is_taken_anew() {
    let scene = Scene::new();
    let orders = scene.topic().await.name;
    let (first, second) = (scene.publisher(SEND_TIMEOUT), scene.publisher(SEND_TIMEOUT));
    assert_eq!(names(&publish(&first, &[Event::new(1, 1, &orders, "a")]).await), ["done"]);
    assert_eq!(names(&publish(&second, &[Event::new(2, 2, &orders, "a")]).await), ["done"]);
    first.forget(&[SHARD]);
    assert_eq!(names(&publish(&first, &[Event::new(3, 3, &orders, "a")]).await), ["done"]);
    assert_eq!(names(&publish(&second, &[Event::new(4, 4, &orders, "a")]).await), ["unknown KAFKA_FENCED"]);
    assert_eq!(scene.committed(&orders).await, ["1", "2", "3"]);
}
