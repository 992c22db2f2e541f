//! Any call to the store may fail, before it did anything or after it did everything: a command has its
//! effect, its ledger entry and its answer once, or has none of them and is received again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dipmo::consumer::Grouping;
use dipmo::store::postgres::inbox::PgInbox;

use crate::support::hooked::{FailsAt, Hooked, When};
use crate::{Books, booked, command, events, said, sent, worker, world};

#[tokio::test]
async fn a_crash_leaves_a_command_done_and_answered_or_untouched() {
    let mut untouched = 0;
    for when in [When::Before, When::After] {
        for fails_at in 0..3 {
            let world = world().await;
            let consumer = Arc::new(worker(&Arc::new(Books::of(&world)), Grouping::Key));
            let inner = PgInbox::register(world.db.clone(), &consumer).await.unwrap();
            let store = Arc::new(Hooked::new(inner, FailsAt(fails_at, when)));
            let node = world.node_over(store, consumer).await;
            let commands = [command("a", "1", 7), command("a", "2", -1)];
            let batch = [sent(0, &commands[0]), sent(1, &commands[1])];
            if node.receive(&batch).await.is_err() {
                let left = (booked(&world).await.len(), said(&world).await.len(), events(&world).await);
                assert!([(0, 0, 0), (1, 2, 1)].contains(&left), "call {fails_at} failed {when:?}: {left:?}");
                untouched += usize::from(left.0 == 0);
                node.receive(&batch).await.unwrap();
            }
            assert_eq!(booked(&world).await, ["a 7"], "call {fails_at} failed {when:?}");
            assert_eq!((said(&world).await.len(), events(&world).await), (2, 1));
            assert_eq!(world.count("dipmo.command_ledger").await, 2);
        }
    }
    assert!(untouched > 1, "the sweep never met a transaction that did not happen");
}

#[tokio::test]
async fn a_connection_that_dies_under_the_handler_leaves_nothing() {
    let world = world().await;
    let books = Arc::new(Books::of(&world));
    books.crashes_left.store(1, Ordering::SeqCst);
    let node = world.node(worker(&books, Grouping::Key)).await;
    let batch = [sent(0, &command("a", "1", 7)), sent(1, &command("a", "2", 15))];
    let error = node.receive(&batch).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let left = (booked(&world).await.len(), said(&world).await.len(), events(&world).await);
    assert_eq!((left, world.count("dipmo.command_ledger").await), ((0, 0, 0), 0));
    node.receive(&batch).await.unwrap();
    assert_eq!(booked(&world).await, ["a 7", "a 15"]);
    assert_eq!((said(&world).await.len(), events(&world).await), (2, 2));
}
