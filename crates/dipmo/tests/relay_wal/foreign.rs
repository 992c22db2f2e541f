//! The table of services that came from Debezium, sent as Debezium sends it.

use std::sync::Arc;

use dipmo::relay::{ForeignTable, RelayOptions};
use dipmo::transport::kafka::{KafkaOptions, KafkaPublisher};
use uuid::Uuid;

use crate::outbox_messages::{self, TOPIC_PREFIX};
use crate::records::{self, Topics};
use crate::support::eager;
use crate::{end, until_following, wal_world};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_of_debeziums_users_is_sent_byte_for_byte_as_debezium_does() {
    let world = wal_world().await;
    world
        .execute(
            "create table dipmo.outbox_messages (id uuid primary key, aggregate_id varchar(255) not null,
                 aggregate_type varchar(255) not null, event_type varchar(255) not null,
                 timestamp timestamptz not null default now(), payload jsonb, metadata jsonb)",
        )
        .await;
    let types = [format!("a{}", Uuid::now_v7().simple()), format!("b{}", Uuid::now_v7().simple())];
    let types = [types[0].as_str(), types[1].as_str()];
    let names = types.map(|name| format!("{TOPIC_PREFIX}{name}"));
    let topics = Topics::create(&[&names[0], &names[1]]).await;
    let publisher = KafkaPublisher::new(KafkaOptions::new(records::bootstrap())).unwrap();
    let relay = world.relay(RelayOptions {
        internal: false,
        kafka: Some(Arc::new(publisher)),
        foreign_tables: vec![ForeignTable::new(world.db.schema(), "outbox_messages")],
        ..eager("one")
    });
    until_following(&relay, &world).await;
    let rows = outbox_messages::rows(types);
    let table = format!("{}.outbox_messages", world.db.schema());
    outbox_messages::insert(&world.writer().await, &table, &rows).await;
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
