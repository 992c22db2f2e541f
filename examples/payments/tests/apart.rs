//! Each context in a database of its own, with a real broker between them, by real time: the same day, the
//! same books.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use dipmo::transport::amqp::AmqpOptions;
use payments::wiring::Platform;
use payments::{demo, setup};
use uuid::Uuid;

fn server(variable: &str) -> String {
    std::env::var(variable).expect("run the tests by `cargo xtask test`, which starts the servers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_with_their_own_databases_do_the_same_day_over_a_broker() {
    let url = server("DIPMO_TEST_POSTGRES");
    let suffix = format!("_{}", Uuid::now_v7().simple());
    let databases = setup::make_databases(&url, &suffix).await.unwrap();
    let amqp = AmqpOptions::from_url(&server("DIPMO_TEST_ARTEMIS")).unwrap();
    let mut platform = Platform::apart(&url, &suffix, &databases, amqp).unwrap();
    platform.connections_max = 4;
    assert!(demo::run(&platform, 60).await.unwrap(), "the demo has printed what is wrong");
}
