//! Takes commands to workers over HTTP, and brings their answers.
//!
//! One POST a command, with its envelope as it was sent, over connections that are kept. Redirects are
//! not followed. `answer.rs` says what each answer means.

mod answer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderName, HeaderValue, Request, Response, Uri, header};
use dipmo::Message;
use dipmo::command::remote::{Courier, Delivered, RemoteWorker};
use dipmo::command::{CommandError, Envelope};
use dipmo::consumer::{Consumer, Grouping, Handler};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use metrics::histogram;

use self::answer::{Answered, read};
use crate::config::{Config, Problem, WorkerConfig};

const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Below what servers commonly keep an idle connection for.
const IDLE_MAX: Duration = Duration::from_secs(4);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const USER_AGENT: &str = concat!("dipmo/", env!("CARGO_PKG_VERSION"));

/// The consumers of the workers in the file, with their tokens looked up.
pub(crate) fn consumers(config: &Config) -> Result<Vec<Consumer>, Problem> {
    let consumer = |(n, worker)| consumer(config, n, worker);
    config.worker.iter().enumerate().map(consumer).collect()
}

fn consumer(config: &Config, n: usize, worker: &WorkerConfig) -> Result<Consumer, Problem> {
    let handler = Arc::new(RemoteWorker::new(Arc::new(HttpCourier::new(n, worker)?)));
    let queues: Vec<&str> = worker.queues.iter().map(String::as_str).collect();
    // Each alone: a call must not be made again because another command failed.
    let mut consumer = Consumer::new(worker.name.clone(), Handler::Enlisted { handler, grouping: Grouping::Record })
        .from_internal_queues(&queues);
    if config.amqp.is_some() {
        consumer = consumer.from_amqp(&queues);
    }
    consumer.concurrency = worker.concurrency;
    // Two thirds of a lease are left at least when a batch begins: enough for two calls, one after the
    // other, that time out. More would keep the commands of a dead node waiting for longer.
    consumer.batch_max = worker.concurrency * 2;
    consumer.lease = consumer.lease.max(worker.timeout.0 * 3);
    Ok(consumer)
}

struct HttpCourier {
    worker: String,
    url: Uri,
    timeout: Duration,
    authorization: Option<HeaderValue>,
    client: Client<HttpConnector, Body>,
}

impl HttpCourier {
    fn new(n: usize, worker: &WorkerConfig) -> Result<Self, Problem> {
        let url = worker.uri().map_err(|why| Problem::new(format!("worker[{n}].url"), why))?;
        let authorization = worker.token(n)?.map(|token| {
            let value = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
            let mut value = value.expect("a token of visible ASCII is a value of a header");
            value.set_sensitive(true);
            value
        });
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // Before the call as a whole: who was never reached has done nothing.
        connector.set_connect_timeout(Some(worker.timeout.0 / 2));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(worker.concurrency)
            .build(connector);
        Ok(Self { worker: worker.name.clone(), url, timeout: worker.timeout.0, authorization, client })
    }

    fn request(&self, command: &Envelope, message: &Message) -> Result<Request<Body>, CommandError> {
        let key = command.idempotency_key();
        let key = HeaderValue::from_bytes(key.as_bytes()).map_err(|_| {
            CommandError::permanent("IDEMPOTENCY_KEY", "the idempotency key cannot be the value of a header")
        })?;
        let body = message.payload.clone().unwrap_or_default();
        let mut request = Request::post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, application/problem+json")
            .header(header::USER_AGENT, USER_AGENT)
            .header(IDEMPOTENCY_KEY, key);
        if let Some(traceparent) = message.traceparent.as_deref().and_then(|text| HeaderValue::from_str(text).ok()) {
            request = request.header(TRACEPARENT, traceparent);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        Ok(request.body(Body::from(body)).expect("every part was checked"))
    }

    async fn call(&self, request: Request<Body>) -> Result<Response<Answered>, CommandError> {
        let lost = |error: &dyn std::error::Error| {
            let why = format!("worker {}: no answer came: {}", self.worker, causes(error));
            CommandError::unknown("WORKER_LOST", why)
        };
        let response = self.client.request(request).await.map_err(|error| match error.is_connect() {
            true => {
                let why = format!("worker {} cannot be reached: {}", self.worker, causes(&error));
                CommandError::retryable("WORKER_UNREACHABLE", why)
            }
            false => lost(&error),
        })?;
        let (parts, body) = response.into_parts();
        let body = match to_bytes(Body::new(body), BODY_BYTES_MAX).await {
            Ok(bytes) => Answered::Whole(bytes),
            Err(error) if error.to_string().contains("length limit") => Answered::TooLarge(BODY_BYTES_MAX),
            Err(error) => return Err(lost(&error)),
        };
        Ok(Response::from_parts(parts, body))
    }
}

#[async_trait]
impl Courier for HttpCourier {
    async fn deliver(&self, command: &Envelope, message: &Message) -> Delivered {
        let request = match self.request(command, message) {
            Ok(request) => request,
            Err(error) => return Delivered::Answered(Err(error)),
        };
        let began = Instant::now();
        let delivered = match tokio::time::timeout(self.timeout, self.call(request)).await {
            Ok(Ok(response)) => read(&self.worker, &response),
            Ok(Err(error)) => Delivered::Answered(Err(error)),
            Err(_) => {
                let why = format!("worker {} has not answered within {:?}", self.worker, self.timeout);
                Delivered::Answered(Err(CommandError::unknown("WORKER_TIMEOUT", why)))
            }
        };
        let outcome = outcome(&delivered);
        histogram!("dipmo_worker_call_seconds", "worker" => self.worker.clone(), "outcome" => outcome)
            .record(began.elapsed().as_secs_f64());
        if let Delivered::Answered(Err(error)) = &delivered {
            tracing::debug!(worker = self.worker, command_id = %command.command_id, code = error.code, outcome,
                "a worker did not do a command");
        }
        delivered
    }
}

fn outcome(delivered: &Delivered) -> &'static str {
    match delivered {
        Delivered::Answered(Ok(_)) => "completed",
        Delivered::Answered(Err(error)) if error.retryable => "retryable",
        Delivered::Answered(Err(_)) => "failed",
        Delivered::Taken { .. } => "taken",
    }
}

/// What went wrong, down to the reason of the operating system.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
