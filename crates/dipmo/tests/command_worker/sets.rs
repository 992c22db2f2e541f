//! Handlers that take many commands by one statement.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dipmo::command::Envelope;
use dipmo::command::envelope::kind;
use dipmo::consumer::Grouping;
use dipmo::runner::Delivery;

use crate::{Books, booked, command, said, sent, support::World, worker, world};

async fn receive(world: &World, books: &Arc<Books>, commands: &[Envelope]) {
    let node = world.node(worker(books, Grouping::Batch)).await;
    let deliveries: Vec<Delivery> = (0..).zip(commands).map(|(offset, command)| sent(offset, command)).collect();
    node.receive(&deliveries).await.unwrap();
}

#[tokio::test]
async fn a_group_of_many_commands_is_one_set() {
    let world = world().await;
    let books = Arc::new(Books::taking_sets(&world));
    let commands: Vec<Envelope> =
        (0..200).map(|n| command(&format!("key-{n}"), &format!("k{n}"), if n == 99 { -1 } else { n })).collect();
    receive(&world, &books, &commands).await;
    assert_eq!((books.sets.load(Ordering::SeqCst), books.calls.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(booked(&world).await.len(), 199);
    let failed = said(&world).await.iter().filter(|(kind, _)| kind == kind::FAILED).count();
    assert_eq!((said(&world).await.len(), failed), (200, 1));
    assert_eq!(world.count("dipmo.command_ledger").await, 200);
}

#[tokio::test]
async fn a_set_that_fails_is_handled_one_by_one() {
    let world = world().await;
    let books = Arc::new(Books::taking_sets(&world));
    let commands = [command("a", "1", 1), command("b", "2", 99), command("c", "3", 3)];
    receive(&world, &books, &commands).await;
    assert_eq!((books.sets.load(Ordering::SeqCst), books.calls.load(Ordering::SeqCst)), (1, 3));
    assert_eq!(booked(&world).await, ["a 1", "c 3"]);
    let kinds: Vec<String> = said(&world).await.into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [kind::COMPLETED, kind::FAILED, kind::COMPLETED]);
}
