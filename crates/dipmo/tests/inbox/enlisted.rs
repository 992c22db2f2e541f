//! Enlisted handlers: their writes, the inbox entry and the outbox commit together or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use dipmo::consumer::{Consumer, Grouping, Handler};
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::Failure;
use dipmo::{Message, OutMessage};

use crate::Diary;
use crate::support::{World, fresh};

/// Writes each payload into a table of its own and tells about it.
struct Scribe {
    schema: String,
    diary: Diary,
    transactions: AtomicUsize,
}

#[async_trait]
impl EnlistedHandler for Scribe {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        self.transactions.fetch_add(1, Ordering::SeqCst);
        let body = String::from_utf8_lossy(message.payload.as_deref().unwrap_or_default()).into_owned();
        let insert = format!("insert into {}.written (key, body) values ($1, $2)", self.schema);
        enlisted.tx().execute(&insert, &[&message.key, &body]).await?;
        self.diary.check(message)?;
        enlisted.send(OutMessage::internal(("Page", &message.key), "Written").json(&body), message);
        Ok(())
    }
}

async fn world() -> World {
    let world = World::new().await;
    create_table(&world).await;
    world
}

pub async fn create_table(world: &World) {
    world.execute("create table dipmo.written (n bigint generated always as identity, key text, body text)").await;
}

pub fn scribe(world: &World, diary: &Diary, grouping: Grouping) -> Consumer {
    let handler =
        Scribe { schema: world.db.schema().to_owned(), diary: diary.clone(), transactions: AtomicUsize::new(0) };
    Consumer::new("scribe", Handler::Enlisted { handler: Arc::new(handler), grouping }).from_kafka(&["orders"])
}

async fn written(world: &World, key: &str) -> String {
    world
        .texts(&format!("select string_agg(body, ',' order by n) from dipmo.written where key = '{key}'"))
        .await
        .remove(0)
}

const GROUPINGS: [Grouping; 3] = [Grouping::Record, Grouping::Key, Grouping::Batch];

#[tokio::test]
async fn writes_inbox_and_outbox_commit_together_in_every_grouping() {
    for grouping in GROUPINGS {
        let world = world().await;
        let node = world.node(scribe(&world, &Diary::default(), grouping)).await;
        let batch = [fresh(0, "a", "1"), fresh(1, "b", "2"), fresh(2, "a", "3")];
        let report = node.receive(&batch).await.unwrap();
        assert_eq!((report.processed, report.duplicates), (3, 0), "{grouping:?}");
        let again = node.receive(&batch).await.unwrap();
        assert_eq!((again.processed, again.duplicates), (0, 3), "{grouping:?}");
        assert_eq!((written(&world, "a").await.as_str(), written(&world, "b").await.as_str()), ("1,3", "2"));
        assert_eq!(world.count("dipmo.outbox").await, 3, "{grouping:?}");
        let caused = "select distinct causation_id from dipmo.outbox order by 1";
        assert_eq!(world.texts(caused).await, ["orders/0/0", "orders/0/1", "orders/0/2"]);
    }
}

#[tokio::test]
async fn a_failure_rolls_its_writes_back_and_stays_inside_its_key() {
    for grouping in GROUPINGS {
        let world = world().await;
        let diary = Diary::refusing("3", Failure::transient("AWAY", "away"));
        let mut node = world.node(scribe(&world, &diary, grouping)).await;
        let batch =
            [fresh(0, "a", "1"), fresh(1, "b", "2"), fresh(2, "a", "3"), fresh(3, "a", "4"), fresh(4, "b", "5")];
        node.receive(&batch).await.unwrap();
        assert_eq!((written(&world, "a").await.as_str(), written(&world, "b").await.as_str()), ("1", "2,5"));
        assert_eq!(world.states("a").await, ["PROCESSED", "RETRY", "PARKED"], "{grouping:?}");
        diary.heal();
        world.advance(5);
        node.work_off().await;
        assert_eq!(written(&world, "a").await, "1,3,4", "{grouping:?}");
        assert_eq!(world.count("dipmo.outbox").await, 5, "{grouping:?}");
        assert_eq!(world.count("dipmo.parked_key").await, 0, "{grouping:?}");
    }
}

#[tokio::test]
async fn an_error_of_the_handlers_sql_is_told_by_its_sqlstate() {
    let world = world().await;
    world.execute("alter table dipmo.written add constraint small check (length(body) < 3)").await;
    let node = world.node(scribe(&world, &Diary::default(), Grouping::Key)).await;
    node.receive(&[fresh(0, "a", "1234"), fresh(1, "b", "2")]).await.unwrap();
    assert_eq!(world.states("a").await, ["DEAD"]);
    assert_eq!(world.texts("select error_code from dipmo.inbox_work").await, ["23514"]);
    assert_eq!(written(&world, "b").await, "2");
}
