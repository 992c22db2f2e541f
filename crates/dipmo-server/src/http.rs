//! What the daemon answers over HTTP: alive, ready and metrics without a login, and the API behind its
//! tokens. It listens on loopback unless told otherwise.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dipmo::shutdown::Shutdown;
use dipmo::store::postgres::{Db, schema};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use tokio::net::TcpListener;

use crate::api::{self, Api};
use crate::health::Health;

/// A probe must answer before whoever asks gives up.
const READY_TIMEOUT: Duration = Duration::from_secs(3);
/// Histograms are folded this often, asked for or not, so that memory stays bounded.
const FOLD_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct App {
    db: Db,
    health: Arc<Health>,
    metrics: PrometheusHandle,
}

/// Binds at once, so that a port in use is told before anything starts.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

pub(crate) async fn serve(
    listener: TcpListener,
    db: Db,
    health: Arc<Health>,
    metrics: PrometheusHandle,
    api: Api,
    mut shutdown: Shutdown,
) -> std::io::Result<()> {
    let folding = metrics.clone();
    let fold = tokio::spawn(async move {
        loop {
            tokio::time::sleep(FOLD_EVERY).await;
            folding.run_upkeep();
        }
    });
    let app = Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
        .with_state(App { db, health, metrics })
        .merge(api::router(api))
        .fallback(api::no_such_route);
    let served = axum::serve(listener, app).with_graceful_shutdown(async move { shutdown.wait().await }).await;
    fold.abort();
    served
}

async fn ready(State(app): State<App>) -> Response {
    let mut reasons = app.health.reasons();
    match tokio::time::timeout(READY_TIMEOUT, schema::check(&app.db)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => reasons.push(error.to_string()),
        Err(_) => reasons.push(format!("the database did not answer within {} s", READY_TIMEOUT.as_secs())),
    }
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({ "ready": reasons.is_empty(), "reasons": reasons });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn render(State(app): State<App>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, app.metrics.render()).into_response()
}
