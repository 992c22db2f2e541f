//! Debezium on the table of its own users: what dipmo must equal byte for byte, and how to take over from it.

use tokio_postgres::Client;
use uuid::Uuid;

use crate::outbox_messages::{self, Row};
use crate::peer::{Peer, documented, drop_slot, released};
use crate::records::Topics;

const HEADING: &str = "Coming from Debezium";
const TABLE: &str = "public.outbox_messages";

/// The slots of the page.
const DEBEZIUM: &str = "debezium";
const DIPMO: &str = "dipmo_dipmo_outbox";

/// The ids of the rows that whoever reads the slot next is given.
async fn ahead(client: &Client, slot: &str) -> Vec<Uuid> {
    let sql = "select data from pg_logical_slot_peek_binary_changes($1, null, null,
                   'proto_version', '1', 'publication_names', 'debezium')";
    let changes = client.query(sql, &[&slot]).await.unwrap();
    let inserts = changes.iter().map(|row| row.get::<_, Vec<u8>>(0)).filter(|change| change[0] == b'I');
    // An insert is 'I', the table (4 bytes), 'N', the number of columns (2), then of each 't', its length (4) and text.
    inserts.map(|insert| Uuid::try_parse_ascii(&insert[13..49]).unwrap()).collect()
}

fn ids(rows: &[Row]) -> Vec<Uuid> {
    rows.iter().map(|row| row.id).collect()
}

#[tokio::test]
async fn debezium_sends_the_table_of_its_users_as_expected_and_tells_where_to_take_over() {
    let run = Uuid::now_v7();
    let types = [format!("order-{run}"), format!("bill-{run}")];
    let types = [types[0].as_str(), types[1].as_str()];
    let names = types.map(|name| format!("{}{name}", outbox_messages::TOPIC_PREFIX));
    let topics = Topics::create(&[&names[0], &names[1]]).await;
    let mut peer = Peer::new();
    let client = peer.client().await;
    client.batch_execute(&documented(HEADING, "sql")).await.unwrap();

    peer.start(HEADING, &[("database.user", "postgres")]).await;
    let before = outbox_messages::rows(types);
    outbox_messages::insert(&client, TABLE, &before).await;
    outbox_messages::check(&before, &peer.next(&topics, before.len()).await);

    client.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", &[&DIPMO]).await.unwrap();
    let overlap = outbox_messages::rows(types);
    outbox_messages::insert(&client, TABLE, &overlap).await;
    outbox_messages::check(&overlap, &peer.next(&topics, overlap.len()).await);
    peer.stop().await;
    let after = outbox_messages::rows(types);
    outbox_messages::insert(&client, TABLE, &after).await;
    let all = [ids(&overlap), ids(&after)].concat();
    assert_eq!(ahead(&client, DIPMO).await, all, "dipmo's slot has what Debezium sent since it was made");

    released(&client, DEBEZIUM).await;
    client.batch_execute(&documented("Taking over", "sql")).await.unwrap();
    let ahead = ahead(&client, DIPMO).await;
    assert!(all.ends_with(&ahead), "nothing is left out: {ahead:?} of {all:?}");
    assert!((after.len()..=after.len() + 1).contains(&ahead.len()), "only the last is repeated: {ahead:?} of {all:?}");
    assert_eq!(topics.count(), i64::try_from(before.len() + overlap.len()).unwrap(), "Debezium sent each row once");
    drop_slot(&client, DEBEZIUM).await;
    drop_slot(&client, DIPMO).await;
}
