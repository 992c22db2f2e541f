//! Commands that are done elsewhere: what a courier brings is kept once, whoever is quicker.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dipmo::Message;
use dipmo::command::envelope::{header, kind};
use dipmo::command::remote::{self, Courier, Delivered, RemoteWorker, Said};
use dipmo::command::{Answer, CommandError, Envelope};
use dipmo::consumer::{Consumer, Grouping};
use dipmo::store::postgres::Db;
use futures_util::future::join_all;
use serde_json::json;
use uuid::Uuid;

use crate::{World, command, said, sent, world};

/// What the other side answers by itself during a call, and what the courier brings from it.
type Line = (Option<Answer>, Delivered);

/// Says what it is told, and may have the other side answer by itself while it is there.
#[derive(Clone, Default)]
struct Script {
    to_say: Arc<Mutex<VecDeque<Line>>>,
    calls: Arc<Mutex<Vec<String>>>,
    db: Option<Db>,
}

impl Script {
    fn saying(world: &World, to_say: impl IntoIterator<Item = Line>) -> Self {
        let to_say = Arc::new(Mutex::new(to_say.into_iter().collect()));
        Self { to_say, db: Some(world.db.clone()), ..Self::default() }
    }

    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    fn consumer(&self) -> Consumer {
        let worker = RemoteWorker::new(Arc::new(self.clone()));
        Consumer::enlisted("remote", worker).grouped(Grouping::Record).from_kafka(&["orders"])
    }
}

#[async_trait]
impl Courier for Script {
    async fn deliver(&self, command: &Envelope, _: &Message) -> Delivered {
        self.calls.lock().unwrap().push(command.idempotency_key().into_owned());
        let (meanwhile, say) = self.to_say.lock().unwrap().pop_front().expect("it is called no more often than this");
        if let Some(answer) = meanwhile {
            let db = self.db.as_ref().expect("a script knows the database");
            assert_eq!(remote::answer(db, command.command_id, &answer).await.unwrap(), Ok(Said::Now));
        }
        say
    }
}

const TAKEN: Delivered = Delivered::Taken { lease: Some(Duration::from_secs(60)) };

/// The same command as another message.
fn again(command: &Envelope) -> Envelope {
    Envelope { message_id: Uuid::now_v7(), ..command.clone() }
}

#[tokio::test]
async fn of_many_answers_at_once_one_holds_and_only_it_is_sent() {
    let world = world().await;
    let script = Script::saying(&world, [(None, TAKEN)]);
    let node = world.node(script.consumer()).await;
    let book = command("a", "k", 7);
    node.receive(&[sent(0, &book)]).await.unwrap();
    let answers: Vec<Answer> = (0..8).map(|n| Ok(json!({ "n": n }))).collect();
    let given = join_all(answers.iter().map(|answer| remote::answer(&world.db, book.command_id, answer))).await;
    let given: Vec<_> = given.into_iter().map(Result::unwrap).collect();
    let held = given.iter().position(|given| *given == Ok(Said::Now)).unwrap();
    assert_eq!(given.iter().filter(|given| given.is_err()).count(), 7, "{given:?}");
    let started = (kind::STARTED.to_owned(), json!({ "leaseMs": 60_000 }));
    assert_eq!(said(&world).await, [started, (kind::COMPLETED.to_owned(), json!({ "n": held }))]);
    let repeated = remote::answer(&world.db, book.command_id, &answers[held]).await.unwrap();
    assert_eq!((repeated, said(&world).await.len()), (Ok(Said::Before), 2));
}

#[tokio::test]
async fn an_answer_during_another_call_is_the_answer_whatever_that_call_brings() {
    let (first, other): (Answer, Answer) = (Ok(json!({ "n": 1 })), Ok(json!({ "n": 2 })));
    for brought in [TAKEN, Delivered::Answered(other.clone())] {
        let world = world().await;
        let script = Script::saying(&world, [(None, TAKEN), (Some(first.clone()), brought)]);
        let node = world.node(script.consumer()).await;
        let book = command("a", "k", 7);
        node.receive(&[sent(0, &book)]).await.unwrap();
        node.receive(&[sent(1, &again(&book))]).await.unwrap();
        let answer = async |answer: &Answer| remote::answer(&world.db, book.command_id, answer).await.unwrap();
        assert_eq!(answer(&first).await, Ok(Said::Before));
        assert!(answer(&other).await.is_err());
        assert!(remote::extend(&world.db, book.command_id, Duration::from_secs(5)).await.unwrap().is_err());
        let completed: Vec<_> = said(&world).await.into_iter().filter(|(said, _)| said == kind::COMPLETED).collect();
        assert_eq!(completed, [(kind::COMPLETED.to_owned(), json!({ "n": 1 }))]);
        assert_eq!(script.calls(), 2);
    }
}

#[tokio::test]
async fn a_no_that_was_answered_later_stays_until_an_operator_has_the_command_sent_again() {
    let world = world().await;
    let script = Script::saying(&world, [(None, TAKEN), (None, TAKEN)]);
    let node = world.node(script.consumer()).await;
    let book = command("a", "k", 7);
    node.receive(&[sent(0, &book)]).await.unwrap();
    let no: Answer = Err(CommandError::permanent("CLOSED", "the market is closed"));
    assert_eq!(remote::answer(&world.db, book.command_id, &no).await.unwrap(), Ok(Said::Now));
    node.receive(&[sent(1, &again(&book))]).await.unwrap();
    assert_eq!(script.calls(), 1, "the ledger answered");
    node.receive(&[sent(2, &again(&book).with_header(header::RESUBMITTED, true))]).await.unwrap();
    let yes: Answer = Ok(json!({}));
    assert_eq!(remote::answer(&world.db, book.command_id, &yes).await.unwrap(), Ok(Said::Now));
    node.receive(&[sent(3, &again(&book))]).await.unwrap();
    let kinds: Vec<String> = said(&world).await.into_iter().map(|(kind, _)| kind).collect();
    let expected = [kind::STARTED, kind::FAILED, kind::FAILED, kind::STARTED, kind::COMPLETED, kind::COMPLETED];
    assert_eq!((kinds, script.calls()), (expected.map(str::to_owned).to_vec(), 2));
}

#[tokio::test]
async fn an_answer_that_cannot_be_kept_is_a_no() {
    let world = world().await;
    let script = Script::saying(&world, [(None, Delivered::Answered(Ok(json!({ "text": "\0" }))))]);
    let node = world.node(script.consumer()).await;
    let book = command("a", "k", 7);
    node.receive(&[sent(0, &book)]).await.unwrap();
    assert_eq!(said(&world).await[0].1["code"], "NOT_STORABLE");
    assert_eq!(world.states("a").await, ["PROCESSED"]);
    assert_eq!(world.count("dipmo.command_ledger").await, 1);
}
