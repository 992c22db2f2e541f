//! /v1/status, /v1/doctor, /v1/relay, /v1/processes, /v1/audit: how it is going, and who changed what.

use axum::extract::State;
use axum::{Extension, Json as Answered};
use dipmo::operator::audit::{self, AuditFilter, AuditRow};
use dipmo::operator::doctor::{self, Diagnosis, DoctorOptions};
use dipmo::operator::processes::{self, ProcessDetail, ProcessFilter, ProcessRow};
use dipmo::operator::relay::{self, RelayStatus};
use dipmo::operator::{Changed, Listing, Status, status};
use serde::Deserialize;
use uuid::Uuid;

use super::Api;
use super::auth::{Access, Caller};
use super::input::{Asked, Json, Named, change, page};
use super::problem::Problem;
use super::route::{Answer, Route, get, post};
use crate::cli::ReaderName;

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/v1/status", Access::Read, how_it_goes)
            .says("Consumers, lanes, nodes and processes at one moment")
            .answers(Answer::One("Status")),
        get("/v1/doctor", Access::Read, what_is_wrong)
            .says("Every check with its verdict and advice")
            .answers(Answer::One("Diagnosis")),
        get("/v1/relay", Access::Read, readers)
            .says("From where the outbox is read, and whether that works")
            .answers(Answer::One("Relay")),
        post("/v1/relay/reader", Access::Govern, set_reader)
            .says("Changes who reads the outbox for Kafka: poll, wal or verify")
            .takes("SetReader"),
        get("/v1/processes", Access::Read, list_processes)
            .says("Process instances in the order of their ids")
            .asks(&["type", "status", "state", "tenant", "business_key", "limit", "after"])
            .answers(Answer::Page("ProcessRow")),
        get("/v1/processes/{id}", Access::Read, show_process)
            .says("One instance with its data, timers and journal")
            .answers(Answer::One("Process")),
        get("/v1/audit", Access::Read, list_audit)
            .says("Who changed what and why, newest first")
            .asks(&["actor", "action", "target", "limit", "after"])
            .answers(Answer::Page("AuditRow")),
    ]
}

async fn how_it_goes(State(api): State<Api>) -> Result<Answered<Status>, Problem> {
    Ok(Answered(status(api.db()).await?))
}

async fn what_is_wrong(State(api): State<Api>) -> Result<Answered<Diagnosis>, Problem> {
    let options = DoctorOptions { upkeep: Some(api.config().upkeep()), ..DoctorOptions::default() };
    Ok(Answered(doctor::doctor(api.db(), &options).await?))
}

async fn readers(State(api): State<Api>) -> Result<Answered<RelayStatus>, Problem> {
    Ok(Answered(relay::status(api.db()).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetReader {
    reader: ReaderName,
    reason: String,
}

async fn set_reader(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Json(wanted): Json<SetReader>,
) -> Result<Answered<Changed>, Problem> {
    let by = change(&caller, wanted.reason)?;
    Ok(Answered(relay::set_reader(api.db(), wanted.reader.into(), &by).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProcessesQuery {
    #[serde(rename = "type")]
    process_type: Option<String>,
    status: Option<String>,
    state: Option<String>,
    tenant: Option<String>,
    business_key: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list_processes(
    State(api): State<Api>,
    Asked(q): Asked<ProcessesQuery>,
) -> Result<Answered<Listing<ProcessRow>>, Problem> {
    let filter = ProcessFilter {
        process_type: q.process_type,
        status: q.status,
        state: q.state,
        tenant: q.tenant,
        business_key: q.business_key,
    };
    Ok(Answered(processes::list(api.db(), &filter, &page(q.limit, q.after)?).await?))
}

async fn show_process(State(api): State<Api>, Named(id): Named<Uuid>) -> Result<Answered<ProcessDetail>, Problem> {
    Ok(Answered(processes::show(api.db(), id).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    actor: Option<String>,
    action: Option<String>,
    target: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list_audit(
    State(api): State<Api>,
    Asked(q): Asked<AuditQuery>,
) -> Result<Answered<Listing<AuditRow>>, Problem> {
    let filter = AuditFilter { actor: q.actor, action: q.action, target: q.target };
    Ok(Answered(audit::list(api.db(), &filter, &page(q.limit, q.after)?).await?))
}
