//! What operators see and do beyond single messages: sagas, batches, journeys, and why something waits.

use axum::extract::State;
use axum::{Extension, Json as Answered};
use dipmo::operator::batches::{self, BatchDetail, BatchFilter, BatchRow};
use dipmo::operator::journey::{self, Journey};
use dipmo::operator::sagas::{Intervention, intervene, resubmit_dead_letter};
use dipmo::operator::why::{self, Answer as Explanation};
use dipmo::operator::{Changed, Listing};
use dipmo::process::OperatorVerb;
use dipmo::saga::VERBS;
use serde::Deserialize;
use uuid::Uuid;

use super::Api;
use super::auth::{Access, Caller};
use super::input::{Asked, Json, Named, change, page};
use super::problem::{INVALID, NO_ROUTE, Problem};
use super::route::{Answer, Route, get, post};

pub(super) fn routes() -> Vec<Route> {
    vec![
        post("/v1/processes/{id}/{verb}", Access::Change, act)
            .says("Acts on a saga: pause, resume, resubmit, skip, compensate, or, for admins, force-complete")
            .takes("Intervention"),
        post("/v1/dlq/{id}/resubmit", Access::Change, resubmit_letter)
            .says("Sends a command that was given up again, under its old idempotency key")
            .takes("Resubmission"),
        get("/v1/journeys/{correlation}", Access::Read, journey_of)
            .says("Everything that happened under one correlation id, in the order of time")
            .answers(Answer::One("Journey")),
        get("/v1/why/{reference}", Access::Read, why_not)
            .says("Why a process, command or key does not move, and what can be done about it")
            .answers(Answer::One("Explanation")),
        get("/v1/batches", Access::Read, list_batches)
            .says("Batches in the order of their ids")
            .asks(&["type", "status", "tenant", "limit", "after"])
            .answers(Answer::Page("BatchRow")),
        get("/v1/batches/{id}", Access::Read, show_batch)
            .says("One batch, counted now, with its first failures")
            .answers(Answer::One("Batch")),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Wanted {
    reason: String,
    /// The version that was looked at: refused if the saga has moved on since.
    version: Option<i64>,
    #[serde(default)]
    dry_run: bool,
    /// What proves that a saga has succeeded.
    evidence: Option<String>,
}

async fn act(
    State(api): State<Api>,
    Named((saga, verb)): Named<(Uuid, String)>,
    Extension(caller): Extension<Caller>,
    Json(wanted): Json<Wanted>,
) -> Result<Answered<Changed>, Problem> {
    let verb = verb_of(&verb, &caller, wanted.evidence)?;
    let by = change(&caller, wanted.reason)?;
    let intervention =
        Intervention { seen_version: wanted.version, dry_run: wanted.dry_run, ..Intervention::new(saga, verb) };
    let (sagas, consumer) = (&*api.0.sagas.orchestrator, &api.config().sagas.consumer);
    Ok(Answered(intervene(api.db(), sagas, consumer, &intervention, &by).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Resubmission {
    reason: String,
    #[serde(default)]
    dry_run: bool,
}

async fn resubmit_letter(
    State(api): State<Api>,
    Named(command): Named<Uuid>,
    Extension(caller): Extension<Caller>,
    Json(wanted): Json<Resubmission>,
) -> Result<Answered<Changed>, Problem> {
    let by = change(&caller, wanted.reason)?;
    let (sagas, consumer) = (&*api.0.sagas.orchestrator, &api.config().sagas.consumer);
    Ok(Answered(resubmit_dead_letter(api.db(), sagas, consumer, (command, wanted.dry_run), &by).await?))
}

fn verb_of(name: &str, caller: &Caller, evidence: Option<String>) -> Result<OperatorVerb, Problem> {
    Ok(match name {
        "pause" => OperatorVerb::Pause,
        "resume" => OperatorVerb::Resume,
        "resubmit" => OperatorVerb::Resubmit,
        "skip" => OperatorVerb::Skip,
        "compensate" => OperatorVerb::Compensate,
        "force-complete" => {
            caller.needs(Access::Govern, "declaring a saga done is for admins")?;
            let missing = || Problem::new(INVALID, "force-complete needs evidence", "say what proves it in `evidence`");
            OperatorVerb::ForceComplete { evidence: evidence.ok_or_else(missing)? }
        }
        other => {
            let detail = format!("{other:?} is nothing that can be done to a saga");
            return Err(Problem::new(NO_ROUTE, detail, format!("use one of {}", VERBS.join(", "))));
        }
    })
}

async fn journey_of(State(api): State<Api>, Named(correlation): Named<String>) -> Result<Answered<Journey>, Problem> {
    Ok(Answered(journey::journey(api.db(), &correlation).await?))
}

async fn why_not(State(api): State<Api>, Named(reference): Named<String>) -> Result<Answered<Explanation>, Problem> {
    let known = api.0.sagas.orchestrator.registry();
    Ok(Answered(why::why(api.db(), &known, &reference).await?))
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
