//! /v1/commands/{command}/answer and /lease: for workers that took a command and answer it later.

use std::time::Duration;

use axum::Json as Answered;
use axum::extract::State;
use axum::http::header;
use dipmo::command::remote::{self, Refused, Said};
use dipmo::command::{Answer as Outcome, CommandError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Api;
use super::auth::Access;
use super::input::{Json, Named};
use super::problem::{CONFLICT, INVALID, NOT_FOUND, Problem};
use super::route::{Answer, Route, post};

const CODE_BYTES_MAX: usize = 200;
const MESSAGE_BYTES_MAX: usize = 10_000;

pub(super) fn routes() -> Vec<Route> {
    vec![
        post("/v1/commands/{command}/answer", Access::Answer, answer)
            .says("Answers a command, by its id, that a worker took with 202; the same answer again changes nothing")
            .takes("CommandAnswer")
            .answers(Answer::One("CommandAnswered")),
        post("/v1/commands/{command}/lease", Access::Answer, extend)
            .says("Asks for more time, counted from now, for a command that a worker took with 202")
            .takes("CommandLease")
            .answers(Answer::One("CommandLeased")),
    ]
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    status: Status,
    result: Option<Value>,
    error: Option<Failed>,
}

#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Completed,
    Failed,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Failed {
    code: String,
    message: String,
    #[serde(default)]
    retryable: bool,
    #[serde(default)]
    unknown: bool,
}

impl Body {
    fn outcome(self) -> Result<Outcome, Problem> {
        let wrong = |what: &str| Err(Problem::new(INVALID, what, "see CommandAnswer in /v1/openapi.json"));
        match (self.status, self.result, self.error) {
            (Status::Completed, result, None) => Ok(Ok(result.unwrap_or_else(|| json!({})))),
            (Status::Completed, _, Some(_)) => wrong("a command that is completed has no error"),
            (Status::Failed, None, Some(Failed { code, message, retryable, unknown })) => {
                if code.is_empty() || code.len() > CODE_BYTES_MAX || message.len() > MESSAGE_BYTES_MAX {
                    return wrong("error.code has 1 to 200 bytes, and error.message at most 10000");
                }
                Ok(Err(CommandError { code, message, retryable, unknown }))
            }
            (Status::Failed, ..) => wrong("a command that failed has an error with code and message, and no result"),
        }
    }
}

async fn answer(
    State(api): State<Api>,
    Named(id): Named<Uuid>,
    Json(body): Json<Body>,
) -> Result<Answered<Value>, Problem> {
    let status = body.status;
    let said = remote::answer(api.db(), id, &body.outcome()?).await?.map_err(|why| refused(id, &why))?;
    Ok(Answered(json!({ "commandId": id, "status": status, "repeated": said == Said::Before })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lease {
    seconds: u64,
}

async fn extend(
    State(api): State<Api>,
    Named(id): Named<Uuid>,
    Json(lease): Json<Lease>,
) -> Result<Answered<Value>, Problem> {
    let extended = remote::extend(api.db(), id, Duration::from_secs(lease.seconds)).await?;
    extended.map_err(|why| refused(id, &why))?;
    Ok(Answered(json!({ "commandId": id, "seconds": lease.seconds })))
}

fn refused(id: Uuid, why: &Refused) -> Problem {
    let detail = format!("{id}: {why}");
    match why {
        Refused::Unknown => {
            Problem::new(NOT_FOUND, detail, "use the commandId of the envelope; what is old is removed by retention")
        }
        // A worker may be quicker than the transaction that keeps its 202.
        Refused::NotTaken => {
            Problem::new(CONFLICT, detail, "answer the call with 202 first, then try again in a moment")
                .header(header::RETRY_AFTER, "1")
        }
        Refused::Answered(_) => Problem::new(CONFLICT, detail, "the first answer holds: see GET /v1/commands/{id}"),
    }
}
