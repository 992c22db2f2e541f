//! A process that dies between sending and committing, and the one that comes after it.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::kafka::Topic;
use crate::scene::{Event, Scene, names, publish};

const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// A topic that does not exist keeps the transaction of the child open for two fifths of this.
const CHILD_SEND_TIMEOUT: Duration = Duration::from_secs(50);

/// Not a test of its own: the other one starts this binary again with this name.
#[tokio::test]
async fn runs_only_as_a_child_process() {
    let (Ok(id), Ok(topics)) = (std::env::var("DIPMO_CHILD_ID"), std::env::var("DIPMO_CHILD_TOPICS")) else { return };
    let (orders, absent) = topics.split_once(',').unwrap();
    let scene = Scene { id, ..Scene::new() };
    publish(&scene.publisher(CHILD_SEND_TIMEOUT), &events(orders, absent)).await;
}

fn events(orders: &str, last: &str) -> Vec<Event> {
    vec![Event::new(1, 1, orders, "a"), Event::new(2, 1, orders, "a"), Event::new(3, 1, last, "a")]
}

fn start(scene: &Scene, orders: &str, last: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::runs_only_as_a_child_process", "--nocapture"])
        .env("DIPMO_CHILD_ID", &scene.id)
        .env("DIPMO_CHILD_TOPICS", format!("{orders},{last}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_death_between_send_and_commit_leaves_nothing_and_the_next_sends_all_once() {
    let scene = Scene::new();
    let (orders, absent): (Topic, String) = (scene.topic().await, format!("absent-{}", scene.id));
    let mut child = start(&scene, &orders.name, &absent);
    tokio::select! {
        status = child.wait() => panic!("it ended by itself: {status:?}"),
        () = scene.holds(&orders.name, 2) => {}
    }
    child.kill().await.unwrap();
    assert_eq!(scene.committed(&orders.name).await, [""; 0], "its transaction is still open");

    let last = scene.topic().await.name;
    let next = scene.publisher(SEND_TIMEOUT);
    assert_eq!(names(&publish(&next, &events(&orders.name, &last)).await), ["done"; 3]);
    assert_eq!(scene.committed(&orders.name).await, ["1", "2"], "each once");
    assert_eq!(scene.committed(&last).await, ["3"]);
    assert_eq!(scene.uncommitted(&orders.name).await, ["1", "2", "1", "2"], "the dead one had sent them");
}
