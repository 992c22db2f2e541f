//! A real node in a process of its own, from Kafka to Kafka, that dies without a word at every point
//! where something could be lost or doubled, and starts again.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod cuts;
mod node;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use node::Death;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::World;
use support::kafka::Topic;
use tokio::process::{Child, Command};

const KEYS: i64 = 6;
const EACH: i64 = 30;
const PATIENCE: Duration = Duration::from_secs(60);

struct Scene {
    world: World,
    input: Topic,
    output: Topic,
}

impl Scene {
    async fn new() -> Self {
        Self::on(World::real_time().await, &support::kafka::bootstrap()).await
    }

    async fn on(world: World, bootstrap: &str) -> Self {
        let (input, output) = (Topic::on(bootstrap, 2).await, Topic::on(bootstrap, 2).await);
        let numbers = (0..EACH).flat_map(|n| (0..KEYS).map(move |key| (format!("key-{key}"), n.to_string())));
        input.send_all(numbers).await;
        Self { world, input, output }
    }

    /// Starts a node that dies at the given point, if any.
    fn start(&self, death: Option<Death>) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node::runs_only_as_a_child_process", "--nocapture"])
            .env("DIPMO_CHILD", death.map_or("lives".to_owned(), |death| format!("{death:?}")))
            .env("DIPMO_CHILD_SCHEMA", self.world.db.schema())
            .env("DIPMO_CHILD_INPUT", &self.input.name)
            .env("DIPMO_CHILD_OUTPUT", &self.output.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    async fn dies(&self, death: Death) {
        let status = tokio::time::timeout(PATIENCE, self.start(Some(death)).wait()).await;
        let status = status.unwrap_or_else(|_| panic!("{death:?}: the node did not get there")).unwrap();
        assert_eq!(status.signal(), Some(6), "{death:?}: {status}");
    }

    /// Every number of every key, in order, once the repeats of an event-id are dropped.
    async fn arrived(&self, expected: &[&str], label: &str) -> usize {
        let wanted: usize = expected.len() * EACH as usize;
        let counts = |key: &str| expected.contains(&key);
        let (by_key, repeats) = self.output.reader().first_arrivals(wanted, counts, (PATIENCE, label)).await;
        let numbers: Vec<i64> = (0..EACH).collect();
        for key in expected {
            assert_eq!(by_key[*key], numbers, "{label}: {key}");
        }
        repeats
    }

    async fn check_effects(&self, label: &str) {
        let expected: Vec<String> = (0..EACH).map(|n| n.to_string()).collect();
        let expected = format!("[{}]", expected.join(","));
        let data = self.world.texts("select data::text from dipmo.process").await;
        assert_eq!(data.len() as i64, KEYS, "{label}");
        assert!(data.iter().all(|numbers| *numbers == expected), "{label}: {data:?}");
    }
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|key| format!("key-{key}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_may_die_at_every_point_that_matters() {
    let mut repeats = BTreeMap::new();
    for death in Death::AT_A_POINT {
        let scene = Scene::new().await;
        scene.dies(death).await;
        let survivor = scene.start(None);
        let keys = keys();
        let expected: Vec<&str> = keys.iter().map(String::as_str).collect();
        repeats.insert(format!("{death:?}"), scene.arrived(&expected, &format!("{death:?}")).await);
        scene.check_effects(&format!("{death:?}")).await;
        drop(survivor);
    }
    // The window exists: what the broker had already is sent again, with the same event-id. A death elsewhere
    // may leave a batch of the relay in that window too, so the other counts are whatever they are.
    assert!(repeats["AfterTheBrokersAck"] > 0, "{repeats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_may_be_killed_at_any_moment() {
    let seed: u64 = std::env::var("DIPMO_SEED").map_or_else(|_| rand::rng().random(), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let scene = Scene::new().await;
    for _ in 0..6 {
        let mut victim = scene.start(None);
        // Any moment between its start and the end of its work.
        let moment = Duration::from_millis(rng.random_range(200..2500));
        let _ = tokio::time::timeout(moment, victim.wait()).await;
        victim.kill().await.unwrap();
    }
    let _survivor = scene.start(None);
    let keys = keys();
    let expected: Vec<&str> = keys.iter().map(String::as_str).collect();
    scene.arrived(&expected, &format!("seed {seed}")).await;
    scene.check_effects(&format!("seed {seed}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_kills_every_process_ends_dead_and_the_others_get_through() {
    let scene = Scene::new().await;
    let mut deaths = 0;
    let dead = "dipmo.inbox_work where state = 'DEAD'";
    while scene.world.count(dead).await == 0 {
        let mut node = scene.start(Some(Death::WheneverItSeesTheKiller));
        let watch = async {
            let mut tick = tokio::time::interval(Duration::from_millis(100));
            while scene.world.count(dead).await == 0 {
                tick.tick().await;
            }
        };
        tokio::select! {
            status = node.wait() => deaths += i32::from(status.unwrap().signal() == Some(6)),
            () = watch => {}
        }
        assert!(deaths < 40, "it never runs out of attempts");
    }
    assert!(deaths >= 3, "the killer was met {deaths} times only");
    let _survivor = scene.start(Some(Death::WheneverItSeesTheKiller));
    let keys = keys();
    let healthy: Vec<&str> = keys.iter().map(String::as_str).filter(|key| *key != node::KILLER_KEY).collect();
    scene.arrived(&healthy, "killer").await;
    let states = scene.world.states(node::KILLER_KEY).await;
    let (before, after) = states.split_at(node::KILLER_NUMBER as usize);
    assert!(before.iter().all(|state| state == "PROCESSED"), "{states:?}");
    assert_eq!(after[0], "DEAD");
    assert!(after[1..].iter().all(|state| state == "PARKED"), "{states:?}");
}
