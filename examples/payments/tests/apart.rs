//! Each context in a database of its own, with a real broker between them, by real time: the same day, the
//! same books.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use dipmo::transport::amqp::AmqpOptions;
use payments::wiring::Platform;
use payments::{demo, setup};
use testbed::{Artemis, ArtemisOptions};
use uuid::Uuid;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_with_their_own_databases_do_the_same_day_over_a_broker() {
    // A broker of its own: the names of the queues are those of the platform.
    let broker = tokio::task::spawn_blocking(|| Artemis::start(ArtemisOptions::default())).await.unwrap().unwrap();
    let url =
        std::env::var("DIPMO_TEST_POSTGRES").expect("run the tests by `cargo xtask test`, which starts the servers");
    let suffix = format!("_{}", Uuid::now_v7().simple());
    let databases = setup::make_databases(&url, &suffix).await.unwrap();
    let amqp = AmqpOptions::from_url(&broker.url()).unwrap();
    let mut platform = Platform::apart(&url, &suffix, &databases, amqp).unwrap();
    platform.connections_max = 4;
    assert!(demo::run(&platform, 60).await.unwrap(), "the demo has printed what is wrong");
}
