//! Both readers at once: one sends, the other looks.

use crate::support::{Scripted, World};
use crate::{end, numbers, options, until, until_sent};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_agree_report_nothing_and_a_skipped_row_is_reported() {
    let (world, broker) = (World::real_time().await, Scripted::new());
    world.read_by("verify").await;
    let relay = world.relay(options(&broker, "one"));
    until(&relay, "the WAL is looked at", || async {
        let slots = format!("pg_replication_slots where active and slot_name like 'dipmo_{}%'", world.db.schema());
        world.count(&slots).await == 1
    })
    .await;
    world.append_numbers("a", 0..50).await;
    let mut sum = until_sent(&relay, &broker, 50).await;
    for _ in 0..10 {
        sum.differences += relay.run_once().await.unwrap().differences;
    }
    assert_eq!(sum.differences, 0);
    assert_eq!(broker.bodies(), numbers(0..50));
    // A row that the table's reader never gets to see: it is deleted before the cursor comes to it.
    let mut writer = world.writer().await;
    let hidden = writer.transaction().await.unwrap();
    let append = world.sql("select dipmo.outbox_append('KAFKA:orders', 'order', 'a', 'Placed', 'hidden')");
    hidden.execute(&append, &[]).await.unwrap();
    hidden.execute(&world.sql("delete from dipmo.outbox where payload = 'hidden'"), &[]).await.unwrap();
    hidden.commit().await.unwrap();
    world.append_numbers("a", 50..60).await;
    let mut found = until_sent(&relay, &broker, 60).await.differences;
    for _ in 0..50 {
        found += relay.run_once().await.unwrap().differences;
    }
    assert_eq!(found, 1, "the WAL has a row that the table never showed");
    world.read_by("poll").await;
    until(&relay, "the slot is gone", || async {
        let slots = format!("pg_replication_slots where slot_name like 'dipmo_{}%'", world.db.schema());
        world.count(&slots).await == 0
    })
    .await;
    end(relay, &world).await;
}
