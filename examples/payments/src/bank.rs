//! A fake bank: a REST server on loopback that keeps a book of contracts by idempotency key and misbehaves by
//! a script. It stands in for a real one in the demo and in tests, and is nothing more than that.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::fx::Order;

/// What the bank does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    Answer {
        after: Duration,
    },
    /// 503, and nothing is done.
    Fail,
    /// Does it, then answers 500.
    DoAndFail,
    /// Does it, and says so too late for anybody to hear.
    DoAndHang,
}

/// The behaviour for the n-th call, counted from one.
pub type Script = fn(u64) -> Behaviour;

/// Answers every call at once.
pub fn well(_: u64) -> Behaviour {
    Behaviour::Answer { after: Duration::ZERO }
}

/// A bad day: a quarter of the calls go wrong, each in its own way.
pub fn flaky(call: u64) -> Behaviour {
    match call % 12 {
        3 => Behaviour::Fail,
        7 => Behaviour::DoAndFail,
        10 => Behaviour::DoAndHang,
        n => Behaviour::Answer { after: Duration::from_millis(2 * n) },
    }
}

/// A contract in the bank's book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Booked { contract: String, rate: String },
    Cancelled,
}

#[derive(Debug)]
pub struct Bank {
    address: SocketAddr,
    desk: Arc<Desk>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct Desk {
    script: Script,
    calls: AtomicU64,
    book: Mutex<BTreeMap<String, Entry>>,
}

impl Bank {
    /// Opens on a port of its own.
    pub async fn open(script: Script) -> Result<Self> {
        let desk = Arc::new(Desk { script, calls: AtomicU64::new(0), book: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.context("opening the fake bank")?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/contracts", post(book))
            .route("/contracts/cancel", post(cancel))
            .with_state(desk.clone());
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the fake bank has closed");
            }
        });
        Ok(Self { address, desk, server })
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn calls(&self) -> u64 {
        self.desk.calls.load(Ordering::Relaxed)
    }

    /// The idempotency keys of the contracts that are open.
    pub fn open_contracts(&self) -> Vec<String> {
        let book = self.desk.book();
        book.iter().filter(|(_, entry)| matches!(entry, Entry::Booked { .. })).map(|(key, _)| key.clone()).collect()
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        self.server.abort();
    }
}

type Reply = (StatusCode, Json<Value>);

impl Desk {
    fn book(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Entry>> {
        self.book.lock().expect("no code panics while it holds the book")
    }

    /// Does the work as the script has it.
    async fn behave(&self, work: impl FnOnce(&Self) -> Reply) -> Reply {
        let broken = |code: StatusCode| (code, Json(json!({ "code": "BROKEN", "message": "something went wrong" })));
        match (self.script)(self.calls.fetch_add(1, Ordering::Relaxed) + 1) {
            Behaviour::Answer { after } => {
                tokio::time::sleep(after).await;
                work(self)
            }
            Behaviour::Fail => broken(StatusCode::SERVICE_UNAVAILABLE),
            Behaviour::DoAndFail => {
                let _unheard = work(self);
                broken(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Behaviour::DoAndHang => {
                let reply = work(self);
                tokio::time::sleep(Duration::from_secs(5)).await;
                reply
            }
        }
    }
}

fn key_of(headers: &HeaderMap) -> Result<String, Reply> {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned);
    key.ok_or_else(|| refuse(StatusCode::BAD_REQUEST, "NO_KEY", "every call needs an Idempotency-Key"))
}

fn refuse(status: StatusCode, code: &str, message: &str) -> Reply {
    (status, Json(json!({ "code": code, "message": message })))
}

async fn book(State(desk): State<Arc<Desk>>, headers: HeaderMap, Json(order): Json<Order>) -> Reply {
    let key = match key_of(&headers) {
        Ok(key) => key,
        Err(refusal) => return refusal,
    };
    desk.behave(|desk| {
        if order.buy == "XXX" {
            return refuse(StatusCode::UNPROCESSABLE_ENTITY, "NO_MARKET", "this currency is not traded");
        }
        let mut book = desk.book();
        let number = book.len() + 1;
        let fresh = || Entry::Booked { contract: format!("FX-{number}"), rate: "0.92".to_owned() };
        match book.entry(key).or_insert_with(fresh) {
            Entry::Booked { contract, rate } => (StatusCode::OK, Json(json!({ "contractId": contract, "rate": rate }))),
            Entry::Cancelled => refuse(StatusCode::CONFLICT, "CANCELLED", "the contract was cancelled before"),
        }
    })
    .await
}

async fn cancel(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Reply {
    let key = match key_of(&headers) {
        Ok(key) => key,
        Err(refusal) => return refusal,
    };
    desk.behave(|desk| {
        let before = desk.book().insert(key, Entry::Cancelled);
        (StatusCode::OK, Json(json!({ "cancelled": matches!(before, Some(Entry::Booked { .. })) })))
    })
    .await
}
