//! Calls the bank: a time limit for each call, few repetitions, a circuit breaker around them, and never more
//! calls at once than the bank can take. What comes of it is told in our words.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::Order;
use super::breaker::{Breaker, BreakerOptions};

/// An answer of the bank has a few fields; more is not for us.
const BODY_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// `host:port`
    pub address: String,
    pub timeout: Duration,
    pub attempts_max: u32,
    /// Before the second attempt; doubled before each further one.
    pub pause: Duration,
    pub calls_max: usize,
    pub breaker: BreakerOptions,
}

impl ClientOptions {
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            timeout: Duration::from_millis(500),
            attempts_max: 3,
            pause: Duration::from_millis(20),
            calls_max: 8,
            breaker: BreakerOptions::default(),
        }
    }
}

/// What came of asking the bank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    Done(T),
    /// It said no, and will say so again.
    Refused {
        code: String,
        message: String,
    },
    /// It was not asked at all.
    NotAsked(String),
    /// It was asked, and did not say what it did.
    Unknown(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Contract {
    pub contract_id: String,
    pub rate: String,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    code: String,
    message: String,
}

#[derive(Debug)]
pub struct BankClient {
    options: ClientOptions,
    breaker: Breaker,
    calls: Semaphore,
}

/// How one call went.
enum Call {
    Answered(StatusCode, Bytes),
    NotAsked(String),
    Unknown(String),
}

impl BankClient {
    pub fn new(options: ClientOptions) -> Self {
        let (breaker, calls) = (Breaker::new(options.breaker), Semaphore::new(options.calls_max));
        Self { options, breaker, calls }
    }

    pub async fn book(&self, key: &str, order: &Order) -> Outcome<Contract> {
        let body = serde_json::to_vec(order).expect("an order is plain data");
        self.ask("/contracts", key, body.into()).await
    }

    /// Done also where there was nothing to cancel; the key cannot be booked afterwards.
    pub async fn cancel(&self, key: &str) -> Outcome<Value> {
        self.ask("/contracts/cancel", key, Bytes::from_static(b"{}")).await
    }

    async fn ask<T: for<'de> Deserialize<'de>>(&self, path: &str, key: &str, body: Bytes) -> Outcome<T> {
        // Closed only with the client itself.
        let _slot = self.calls.acquire().await;
        let mut outcome = Outcome::NotAsked("the bank has failed too often: it is left in peace".to_owned());
        let mut pause = self.options.pause;
        for attempt in 1..=self.options.attempts_max {
            if !self.breaker.lets_through(Instant::now()) {
                break;
            }
            let asked = matches!(outcome, Outcome::Unknown(_));
            let call = self.call(path, key, body.clone()).await;
            self.breaker.note(matches!(&call, Call::Answered(status, _) if !status.is_server_error()), Instant::now());
            outcome = match call {
                Call::Answered(status, body) if status.is_success() => return done(&body),
                Call::Answered(status, body) if status.is_client_error() => return refused(status, &body),
                Call::Answered(status, _) => Outcome::Unknown(format!("the bank answered {status}")),
                // Having been asked once, it may have done it, whatever happened since.
                Call::NotAsked(why) if asked => Outcome::Unknown(why),
                Call::NotAsked(why) => Outcome::NotAsked(why),
                Call::Unknown(why) => Outcome::Unknown(why),
            };
            if attempt < self.options.attempts_max {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
        outcome
    }

    async fn call(&self, path: &str, key: &str, body: Bytes) -> Call {
        let address = &self.options.address;
        let connected = tokio::time::timeout(self.options.timeout, TcpStream::connect(address)).await;
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Call::NotAsked(format!("the bank cannot be reached: {error}")),
            Err(_) => return Call::NotAsked("the bank cannot be reached in time".to_owned()),
        };
        let request = Request::post(path)
            .header("host", address)
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Full::new(body));
        let request = match request {
            Ok(request) => request,
            Err(error) => return Call::NotAsked(format!("the request cannot be written: {error}")),
        };
        match tokio::time::timeout(self.options.timeout, send(stream, request)).await {
            Ok(Ok((status, body))) => Call::Answered(status, body),
            Ok(Err(error)) => Call::Unknown(format!("the bank broke off: {error}")),
            Err(_) => Call::Unknown(format!("the bank did not answer within {:?}", self.options.timeout)),
        }
    }
}

async fn send(stream: TcpStream, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the answer, or when the caller gives up and drops the sender.
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
    Ok((status, body.map_err(|error| anyhow::anyhow!(error))?.to_bytes()))
}

fn done<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Outcome<T> {
    match serde_json::from_slice(body) {
        Ok(answer) => Outcome::Done(answer),
        Err(error) => Outcome::Unknown(format!("the bank's answer cannot be read: {error}")),
    }
}

fn refused<T>(status: StatusCode, body: &[u8]) -> Outcome<T> {
    let refusal = serde_json::from_slice(body)
        .unwrap_or_else(|_| Refusal { code: "REFUSED".to_owned(), message: format!("the bank answered {status}") });
    Outcome::Refused { code: refusal.code, message: refusal.message }
}
