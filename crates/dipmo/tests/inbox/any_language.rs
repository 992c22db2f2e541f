//! The SQL functions for other languages: part of the caller's transaction, clear about mistakes.

use dipmo::consumer::Consumer;
use dipmo::{ErrorKind, OutMessage};

use crate::Diary;
use crate::support::{World, fresh};

#[tokio::test]
async fn inbox_once_is_true_once_and_new_again_after_a_rollback() {
    let world = World::new().await;
    let once = "select dipmo.inbox_once('billing', 'orders', 'e-1')::text";
    world.execute(&format!("begin; {once}; rollback")).await;
    assert_eq!(world.texts(once).await, ["true"]);
    assert_eq!(world.texts(once).await, ["false"]);
}

#[tokio::test]
async fn sql_and_library_know_the_same_messages() {
    let world = World::new().await;
    let consumer = Consumer::process("diary", Diary::default()).from_kafka(&["orders"]);
    let node = world.node(consumer).await;
    node.receive(&[fresh(0, "a", "1")]).await.unwrap();
    assert_eq!(world.texts("select dipmo.inbox_once('diary', 'orders', 'orders/0/0')::text").await, ["false"]);
    world.texts("select dipmo.inbox_once('diary', 'orders', 'orders/0/1')::text").await;
    assert_eq!(node.receive(&[fresh(1, "a", "2")]).await.unwrap().duplicates, 1);
}

#[tokio::test]
async fn outbox_append_goes_with_its_transaction_and_refuses_with_a_reason() {
    let world = World::new().await;
    let append = "select dipmo.outbox_append('KAFKA:t', 'Quote', 'Q-1', 'Submitted', '{}', aggregate_version => 1)";
    world.execute(&format!("begin; {append}; rollback; {append}")).await;
    assert_eq!(world.count("dipmo.outbox").await, 1);
    let client = world.db.client().await.unwrap();
    let refused = [
        (append.to_owned(), "23505", "in the outbox already"),
        (append.replace("KAFKA:t", "SMTP:x"), "22023", "unknown destination"),
        (append.replace("'Q-1'", "repeat('q', 2000)"), "22023", "too long"),
        (append.replace("'Q-1'", "null"), "22004", "must not be null"),
    ];
    for (sql, code, says) in refused {
        let sql = sql.replace("dipmo.", &format!("{}.", world.db.schema()));
        let error = client.query(&sql, &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), code, "{sql}");
        assert!(error.message().contains(says), "{error}");
    }
}

#[tokio::test]
async fn a_rust_writer_appends_in_its_own_transaction() {
    let world = World::new().await;
    let message = || OutMessage::kafka("quotes", ("Quote", "Q-1"), "Submitted").keyed("customer-1").version(1);
    let mut client = world.db.client().await.unwrap();
    for (commits, rows) in [(false, 0), (true, 1)] {
        let tx = client.transaction().await.unwrap();
        world.db.append(&tx, &[message()]).await.unwrap();
        if commits {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        assert_eq!(world.count("dipmo.outbox where key = 'customer-1'").await, rows);
    }
    let tx = client.transaction().await.unwrap();
    let refused = world.db.append(&tx, &[message()]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("Submitted of Quote Q-1 version 1"), "{refused}");
}

#[tokio::test]
async fn a_two_phase_writer_turns_the_wake_up_off_and_prepares() {
    let world = World::new().await;
    let append = "select dipmo.outbox_append('INTERNAL', 'Quote', 'Q-1', 'Submitted', '{}')";
    world
        .execute(&format!("begin; set local dipmo.notify = off; {append}; prepare transaction 'dipmo.two_phase'"))
        .await;
    world.execute("commit prepared 'dipmo.two_phase'").await;
    assert_eq!(world.count("dipmo.outbox").await, 1);
}
