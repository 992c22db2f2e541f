//! The receiving side of commands on a real PostgreSQL: one effect for one idempotency key, an answer for
//! every message, and both in one transaction.
#![allow(unreachable_pub, missing_debug_implementations, reason = "nothing outside uses a test")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod crash;
mod failures;
mod once;
mod remote;
mod sets;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use dipmo::command::envelope::{header, kind};
use dipmo::command::{Answer, CommandError, CommandHandler, CommandWorker, Envelope};
use dipmo::consumer::{Consumer, Grouping};
use dipmo::handler::Enlisted;
use dipmo::process::Failure;
use dipmo::runner::Delivery;
use serde_json::{Value, json};
use support::{World, fresh};
use uuid::Uuid;

/// Books amounts, tells of it, and fails in the ways that the payload asks for, after it has written.
#[derive(Default)]
pub struct Books {
    schema: String,
    /// Whether it takes sets.
    takes_sets: bool,
    pub panics_left: AtomicUsize,
    pub retries_left: AtomicUsize,
    pub crashes_left: AtomicUsize,
    pub calls: AtomicUsize,
    pub sets: AtomicUsize,
}

impl Books {
    pub fn of(world: &World) -> Self {
        Self { schema: world.db.schema().to_owned(), ..Self::default() }
    }

    pub fn taking_sets(world: &World) -> Self {
        Self { takes_sets: true, ..Self::of(world) }
    }
}

fn take_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

#[async_trait]
impl CommandHandler for Books {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, command: &Envelope) -> Answer {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let amount = command.payload["amount"].as_i64().unwrap();
        let insert = format!("insert into {}.booked (key, amount) values ($1, $2)", self.schema);
        enlisted.tx().execute(&insert, &[&command.key, &amount]).await?;
        let now = enlisted.now().await?;
        let event = command.event("Booked", json!({ "amount": amount }), now);
        enlisted.publish(event.into_message("KAFKA:events.Books".parse().unwrap(), "Book"));
        if amount == 15 && take_one(&self.crashes_left) {
            let _ = enlisted.tx().batch_execute("select pg_terminate_backend(pg_backend_pid())").await;
        }
        match amount {
            13 if take_one(&self.panics_left) => panic!("on purpose"),
            14 if take_one(&self.retries_left) => Err(CommandError::retryable("AWAY", "away")),
            ..0 => Err(CommandError::permanent("NEGATIVE", "an amount is not negative")),
            _ => Ok(json!({ "booked": amount })),
        }
    }

    async fn handle_many(
        &self,
        enlisted: &mut Enlisted<'_>,
        commands: &[&Envelope],
    ) -> Result<Option<Vec<Answer>>, Failure> {
        if !self.takes_sets {
            return Ok(None);
        }
        self.sets.fetch_add(1, Ordering::SeqCst);
        let keys: Vec<&str> = commands.iter().map(|command| command.key.as_str()).collect();
        let amounts: Vec<i64> = commands.iter().map(|command| command.payload["amount"].as_i64().unwrap()).collect();
        let insert = format!(
            "insert into {}.booked (key, amount)
             select * from unnest($1::text[], $2::bigint[]) as b (key, amount) where amount >= 0",
            self.schema
        );
        enlisted.tx().execute(&insert, &[&keys, &amounts]).await?;
        let answer = |amount: &i64| match amount {
            ..0 => Err(CommandError::permanent("NEGATIVE", "an amount is not negative")),
            _ => Ok(json!({ "booked": amount })),
        };
        Ok(Some(amounts.iter().map(answer).collect()))
    }
}

pub async fn world() -> World {
    let world = World::new().await;
    world.execute("create table dipmo.booked (key text, amount bigint check (amount <> 99))").await;
    world
}

pub fn worker(books: &Arc<Books>, grouping: Grouping) -> Consumer {
    let worker = CommandWorker::new([("Book", books.clone() as Arc<dyn CommandHandler>)]);
    Consumer::enlisted("books", worker.replies_by("KAFKA")).grouped(grouping).from_kafka(&["orders"])
}

/// A command with its own message; the idempotency key is what makes it the same as another.
pub fn command(key: &str, idempotency_key: &str, amount: i64) -> Envelope {
    serde_json::from_value(json!({
        "messageId": Uuid::now_v7(), "type": kind::REQUESTED, "name": "Book", "commandId": Uuid::now_v7(),
        "correlationId": Uuid::now_v7(), "occurredAt": "2025-11-02T12:34:56Z", "key": key,
        "headers": { header::REPLY_TO: "TEST.REPLY.Q", header::IDEMPOTENCY_KEY: idempotency_key },
        "payload": { "amount": amount }
    }))
    .unwrap()
}

pub fn sent(offset: i64, command: &Envelope) -> Delivery {
    fresh(offset, &command.key, &serde_json::to_string(command).unwrap())
}

/// The answers in the outbox, in order.
pub async fn replies(world: &World) -> Vec<Envelope> {
    let sql = "select convert_from(payload, 'UTF8') from dipmo.outbox
               where destination = 'KAFKA:TEST.REPLY.Q' order by id";
    world.texts(sql).await.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

/// Kind and payload of each answer.
pub async fn said(world: &World) -> Vec<(String, Value)> {
    replies(world).await.into_iter().map(|reply| (reply.kind, reply.payload)).collect()
}

pub async fn booked(world: &World) -> Vec<String> {
    world.texts("select concat(key, ' ', amount) from dipmo.booked order by key, amount").await
}

pub async fn events(world: &World) -> i64 {
    world.count("dipmo.outbox where destination = 'KAFKA:events.Books'").await
}
