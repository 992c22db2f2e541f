//! /v1/processes/{id}/…, /v1/dlq/{id}/resubmit, /v1/why, /v1/journeys, /v1/batches: sagas seen, explained and
//! moved by hand.

use axum::extract::State;
use axum::{Extension, Json as Answered};
use dipmo::operator::batches::{self, BatchDetail, BatchFilter, BatchRow};
use dipmo::operator::journey::{Journey, journey};
use dipmo::operator::sagas::{Intervention, intervene, resubmit_dead_letter};
use dipmo::operator::why::{self, why};
use dipmo::operator::{Changed, Listing};
use dipmo::process::OperatorVerb;
use serde::Deserialize;
use uuid::Uuid;

use super::Api;
use super::auth::{Access, Caller};
use super::input::{Asked, Json, Named, change, page};
use super::problem::Problem;
use super::route::{Answer, Route, get, post};
use crate::definitions;

pub(super) fn routes() -> Vec<Route> {
    vec![
        post("/v1/processes/{id}/pause", Access::Change, pause).says("Holds a saga where it is").takes("Intervention"),
        post("/v1/processes/{id}/resume", Access::Change, resume)
            .says("Lets a paused saga go on; an answer that came meanwhile is applied")
            .takes("Intervention"),
        post("/v1/processes/{id}/resubmit", Access::Change, resubmit)
            .says("Sends the command of the current step again, under its old idempotency key")
            .takes("Intervention"),
        post("/v1/processes/{id}/skip", Access::Change, skip)
            .says("Goes on with the next step as if this one were done")
            .takes("Intervention"),
        post("/v1/processes/{id}/compensate", Access::Change, compensate)
            .says("Undoes what was done, and ends the saga")
            .takes("Intervention"),
        post("/v1/processes/{id}/force-complete", Access::Govern, force_complete)
            .says("Ends a saga as succeeded, because something outside proves that it was")
            .takes("ForceCompletion"),
        post("/v1/dlq/{id}/resubmit", Access::Change, resubmit_letter)
            .says("Sends a command that was given up again, under its old idempotency key")
            .takes("Intervention"),
        get("/v1/why/{reference}", Access::Read, explain)
            .says("Why a process, a command or a key is not moving, and what to do next")
            .answers(Answer::One("Why")),
        get("/v1/journeys/{correlation}", Access::Read, travel)
            .says("Everything that happened under a correlation id, in the order of time")
            .answers(Answer::One("Journey")),
        get("/v1/batches", Access::Read, list_batches)
            .says("Batches and how far they are")
            .asks(&["type", "status", "tenant", "limit", "after"])
            .answers(Answer::Page("BatchRow")),
        get("/v1/batches/{id}", Access::Read, show_batch)
            .says("One batch with its counts and what failed in it")
            .answers(Answer::One("Batch")),
    ]
}

type Changes = Result<Answered<Changed>, Problem>;

/// Why something is done to a saga, and how.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Wish {
    reason: String,
    #[serde(default)]
    dry_run: bool,
    /// The version that the caller was shown.
    version: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Proof {
    evidence: String,
    reason: String,
    #[serde(default)]
    dry_run: bool,
    version: Option<i64>,
}

async fn act(api: &Api, caller: &Caller, saga: Uuid, verb: OperatorVerb, wish: Wish) -> Changes {
    let by = change(caller, wish.reason)?;
    let config = &api.config().sagas;
    let sagas = definitions::stored(api.db(), config).await?;
    let intervention =
        Intervention { seen_version: wish.version, ..Intervention::new(saga, verb).dry_run(wish.dry_run) };
    Ok(Answered(intervene(api.db(), &sagas, &config.consumer, &intervention, &by).await?))
}

type By = Extension<Caller>;

async fn pause(State(api): State<Api>, Named(id): Named<Uuid>, by: By, Json(wish): Json<Wish>) -> Changes {
    act(&api, &by, id, OperatorVerb::Pause, wish).await
}

async fn resume(State(api): State<Api>, Named(id): Named<Uuid>, by: By, Json(wish): Json<Wish>) -> Changes {
    act(&api, &by, id, OperatorVerb::Resume, wish).await
}

async fn resubmit(State(api): State<Api>, Named(id): Named<Uuid>, by: By, Json(wish): Json<Wish>) -> Changes {
    act(&api, &by, id, OperatorVerb::Resubmit, wish).await
}

async fn skip(State(api): State<Api>, Named(id): Named<Uuid>, by: By, Json(wish): Json<Wish>) -> Changes {
    act(&api, &by, id, OperatorVerb::Skip, wish).await
}

async fn compensate(State(api): State<Api>, Named(id): Named<Uuid>, by: By, Json(wish): Json<Wish>) -> Changes {
    act(&api, &by, id, OperatorVerb::Compensate, wish).await
}

async fn force_complete(State(api): State<Api>, Named(id): Named<Uuid>, by: By, Json(proof): Json<Proof>) -> Changes {
    let Proof { evidence, reason, dry_run, version } = proof;
    act(&api, &by, id, OperatorVerb::ForceComplete { evidence }, Wish { reason, dry_run, version }).await
}

async fn resubmit_letter(State(api): State<Api>, Named(id): Named<Uuid>, by: By, Json(wish): Json<Wish>) -> Changes {
    let who = change(&by, wish.reason)?;
    let config = &api.config().sagas;
    let sagas = definitions::stored(api.db(), config).await?;
    Ok(Answered(resubmit_dead_letter(api.db(), &sagas, &config.consumer, (id, wish.dry_run), &who).await?))
}

async fn explain(State(api): State<Api>, Named(reference): Named<String>) -> Result<Answered<why::Answer>, Problem> {
    let sagas = definitions::stored(api.db(), &api.config().sagas).await?;
    Ok(Answered(why(api.db(), &sagas.registry(), &reference).await?))
}

async fn travel(State(api): State<Api>, Named(correlation): Named<String>) -> Result<Answered<Journey>, Problem> {
    Ok(Answered(journey(api.db(), &correlation).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchesQuery {
    #[serde(rename = "type")]
    saga: Option<String>,
    status: Option<String>,
    tenant: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list_batches(
    State(api): State<Api>,
    Asked(q): Asked<BatchesQuery>,
) -> Result<Answered<Listing<BatchRow>>, Problem> {
    let filter = BatchFilter { saga: q.saga, status: q.status, tenant: q.tenant };
    Ok(Answered(batches::list(api.db(), &filter, &page(q.limit, q.after)?).await?))
}

async fn show_batch(State(api): State<Api>, Named(id): Named<Uuid>) -> Result<Answered<BatchDetail>, Problem> {
    Ok(Answered(batches::show(api.db(), id).await?))
}
