//! The REST API under /v1: commands from outside, and what operators see and do.
//!
//! Every route needs a token but the OpenAPI document. Every error is a problem (RFC 9457), a panic too.
//! Everything is bounded: the body, the time a request may take, and how many touch the database at once.

mod answers;
pub(crate) mod auth;
mod commands;
mod input;
mod messages;
pub(crate) mod openapi;
mod problem;
mod route;
mod sagas;
mod system;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use dipmo::saga::Orchestrator;
use dipmo::store::postgres::Db;
use futures_util::FutureExt as _;
use metrics::{counter, histogram};
use tokio::sync::Semaphore;
use tracing::error;

use self::auth::{Access, Token, admit};
use self::problem::{INTERNAL, INVALID, METHOD, NO_ROUTE, Problem, TOO_LARGE, UNAVAILABLE, written};
use self::route::Route;
use crate::catalog::Commands;
use crate::config::{Config, Problem as ConfigProblem};

/// Longer than any statement of an operator may take.
const REQUEST_MAX: Duration = Duration::from_secs(35);

/// What the handlers share. Clones share it.
#[derive(Clone)]
pub(crate) struct Api(Arc<Shared>);

/// What the API knows of sagas: which may be started, and who decides on those that run.
pub(crate) struct Sagas {
    pub(crate) commands: Commands,
    pub(crate) orchestrator: Arc<Orchestrator>,
}

struct Shared {
    db: Db,
    config: Config,
    tokens: Vec<Token>,
    sagas: Sagas,
    permits: Semaphore,
}

impl Api {
    /// Looks the tokens up; refuses when one is not where the configuration says.
    pub(crate) fn new(db: Db, config: &Config, sagas: Sagas) -> Result<Self, ConfigProblem> {
        Ok(Self(Arc::new(Shared {
            db,
            config: config.clone(),
            tokens: config.api.tokens()?,
            sagas,
            permits: Semaphore::new(config.api.concurrency),
        })))
    }

    fn db(&self) -> &Db {
        &self.0.db
    }

    fn config(&self) -> &Config {
        &self.0.config
    }

    fn commands(&self) -> &Commands {
        &self.0.sagas.commands
    }
}

/// Everything the API can do.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = vec![openapi::route()];
    routes.extend(answers::routes());
    routes.extend(commands::routes());
    routes.extend(messages::routes());
    routes.extend(sagas::routes());
    routes.extend(system::routes());
    routes
}

/// The routes behind their guards. What is not there is told as a problem.
pub(crate) fn router(api: Api) -> Router {
    let mut router = Router::new();
    for route in routes() {
        let guard = Guard { api: api.clone(), access: route.access, path: route.path };
        router = router.route(route.path, route.handler.route_layer(middleware::from_fn_with_state(guard, enter)));
    }
    router
        .method_not_allowed_fallback(no_such_method)
        .with_state(api)
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(answer))
}

/// What is answered where there is no route at all.
pub(crate) async fn no_such_route(uri: Uri) -> Response {
    let problem = Problem::new(NO_ROUTE, format!("{} is not an address of dipmo", uri.path()), "see /v1/openapi.json");
    written(problem.into_response(), uri.path())
}

async fn no_such_method(method: Method, uri: Uri) -> Problem {
    Problem::new(METHOD, format!("{} does not take {method}", uri.path()), "see the header `Allow`")
}

/// The outermost layer: no panic gets out, and every problem is written down.
async fn answer(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| {
        error!(path, "a request made dipmo panic");
        Problem::new(INTERNAL, "the request made dipmo panic", "see the log of the daemon, and report it")
            .into_response()
    });
    written(response, &path)
}

/// What stands before one route.
#[derive(Clone)]
struct Guard {
    api: Api,
    access: Access,
    path: &'static str,
}

async fn enter(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let (began, method) = (Instant::now(), request.method().as_str().to_owned());
    let response = match guarded(&guard, request, next).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    let status = response.status().as_u16().to_string();
    let labels = [("method", method), ("route", guard.path.to_owned()), ("status", status)];
    counter!("dipmo_api_requests_total", &labels).increment(1);
    histogram!("dipmo_api_request_seconds", "route" => guard.path).record(began.elapsed().as_secs_f64());
    response
}

async fn guarded(guard: &Guard, mut request: Request, next: Next) -> Result<Response, Problem> {
    if guard.access == Access::Open {
        return Ok(next.run(request).await);
    }
    let caller = admit(&guard.api.0.tokens, request.headers(), guard.access)?;
    request.extensions_mut().insert(caller);
    let late = |what: &str| {
        Problem::new(UNAVAILABLE, format!("{what} took longer than {} s", REQUEST_MAX.as_secs()), "try again")
            .header(header::RETRY_AFTER, "1")
    };
    // Before a permit is taken: whoever sends slowly keeps nobody else waiting.
    let request = tokio::time::timeout(REQUEST_MAX, whole(request, guard.api.config().api.body_max_bytes))
        .await
        .map_err(|_| late("sending the body"))??;
    let run = async {
        let _permit = guard.api.0.permits.acquire().await.expect("the permits live as long as the API");
        next.run(request).await
    };
    tokio::time::timeout(REQUEST_MAX, run).await.map_err(|_| late("the request"))
}

/// The request with its body in memory, if it is not too large.
async fn whole(request: Request, bytes_max: usize) -> Result<Request, Problem> {
    let too_large = || {
        let hint = "send less, or raise api.body_max_bytes";
        Problem::new(TOO_LARGE, format!("the body has more than {bytes_max} bytes"), hint)
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: usize| bytes > bytes_max) {
        return Err(too_large());
    }
    let (parts, body) = request.into_parts();
    match to_bytes(body, bytes_max).await {
        Ok(bytes) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Err(error) if error.to_string().contains("length limit") => Err(too_large()),
        Err(_) => Err(Problem::new(INVALID, "the body ended before its end", "send the request again")),
    }
}

#[cfg(test)]
mod tests;
