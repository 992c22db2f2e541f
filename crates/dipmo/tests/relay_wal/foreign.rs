//! The table of services that came from Debezium, sent as Debezium sends it.

use std::sync::Arc;

use dipmo::relay::{ForeignTable, Relay, RelayOptions};
use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use uuid::Uuid;

use crate::outbox_messages::{self, Row, TOPIC_PREFIX};
use crate::records::{self, Topics};
use crate::slot::dropped;
use crate::support::{Scripted, World, eager};
use crate::{end, options, until, until_following, until_sent, wal_world};

async fn world_with_table() -> World {
    let world = wal_world().await;
    world
        .execute(
            "create table dipmo.outbox_messages (id uuid primary key, aggregate_id varchar(255) not null,
                 aggregate_type varchar(255) not null, event_type varchar(255) not null,
                 timestamp timestamptz not null default clock_timestamp(), payload jsonb, metadata jsonb)",
        )
        .await;
    world
}

fn foreign(world: &World, options: RelayOptions) -> Relay {
    let foreign_tables = vec![ForeignTable::new(world.db.schema(), "outbox_messages")];
    world.relay(RelayOptions { internal: false, foreign_tables, ..options })
}

async fn insert(world: &World, rows: &[Row]) {
    let table = format!("{}.outbox_messages", world.db.schema());
    outbox_messages::insert(&world.writer().await, &table, rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_of_debeziums_users_is_sent_byte_for_byte_as_debezium_does() {
    let world = world_with_table().await;
    let types = [format!("a{}", Uuid::now_v7().simple()), format!("b{}", Uuid::now_v7().simple())];
    let types = [types[0].as_str(), types[1].as_str()];
    let names = types.map(|name| format!("{TOPIC_PREFIX}{name}"));
    let topics = Topics::create(&[&names[0], &names[1]]).await;
    let publisher = KafkaPublisher::new(KafkaOptions::new(records::bootstrap())).unwrap();
    let relay = foreign(&world, RelayOptions { kafka: Some(Arc::new(publisher)), ..eager("one") });
    until_following(&relay, &world).await;
    let rows = outbox_messages::rows(types);
    insert(&world, &rows).await;
    let stepping = async {
        loop {
            relay.run_once().await.unwrap();
        }
    };
    let records = tokio::select! {
        records = topics.next(rows.len()) => records,
        () = stepping => unreachable!("steps never end"),
    };
    outbox_messages::check(&rows, &records.unwrap_or_else(|some| panic!("only {} arrived", some.len())));
    end(relay, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_was_dropped_loses_no_row_of_the_foreign_table() {
    let (world, broker) = (world_with_table().await, Scripted::new());
    let relay = foreign(&world, options(&broker, "one"));
    until_following(&relay, &world).await;
    let before = outbox_messages::rows(["a", "b"]);
    insert(&world, &before).await;
    until_sent(&relay, &broker, before.len()).await;
    until(&relay, "accounted for", || async { world.account("ended").await != "-" }).await;
    relay.stop().await.unwrap();
    dropped(&world).await;
    let during = outbox_messages::rows(["a", "b"]);
    insert(&world, &during).await;
    let next = foreign(&world, options(&broker, "two"));
    let all = |broker: &Scripted| {
        let values: Vec<&str> = during.iter().map(|row| row.value.unwrap_or_default()).collect();
        let sent = broker.bodies();
        values.iter().all(|value| sent[before.len()..].iter().any(|body| body == value))
    };
    until(&next, "what was written without a slot", || async { all(&broker) }).await;
    end(next, &world).await;
}
