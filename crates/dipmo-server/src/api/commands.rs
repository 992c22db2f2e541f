//! /v1/commands and /v1/dlq: sending commands, and seeing what became of them.

use axum::Json as Answered;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dipmo::command::accept::{Acceptance, Accepted, Refusal, Request, accept};
use dipmo::operator::Listing;
use dipmo::operator::commands::{self, CommandDetail, CommandFilter, CommandRow, DeadLetterRow};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Api;
use super::auth::Access;
use super::input::{Asked, Json, Named, page};
use super::problem::{IN_FLIGHT, INVALID, KEY_REUSED, KEY_TAKEN, Problem, SCHEMA, UNKNOWN_COMMAND};
use super::route::{Answer, Route, get, post};
use crate::catalog::Unfit;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Says that the answer is that of an earlier request.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const TRACEPARENT: &str = "traceparent";

pub(super) fn routes() -> Vec<Route> {
    vec![
        post("/v1/commands/{command}", Access::Send, send)
            .says("Sends a command by its name; with the same Idempotency-Key again, the first answer")
            .takes("CommandRequest")
            .answers(Answer::Accepted("CommandAccepted")),
        get("/v1/commands/{command}", Access::Follow, show)
            .says("One command by its id: its status, its result or error, and how its saga stands")
            .answers(Answer::One("Command")),
        get("/v1/commands", Access::Read, list)
            .says("Commands that came from outside, newest first; with process, all commands of that saga")
            .asks(&["status", "name", "process", "limit", "after"])
            .answers(Answer::Page("CommandRow")),
        get("/v1/dlq", Access::Read, dead_letters)
            .says("Commands that were given up")
            .asks(&["name", "limit", "after"])
            .answers(Answer::Page("DeadLetter")),
    ]
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Body {
    key: String,
    #[serde(default)]
    tenant: String,
    #[serde(default = "nothing")]
    payload: Value,
    reply_to: Option<String>,
}

fn nothing() -> Value {
    json!({})
}

async fn send(
    State(api): State<Api>,
    Named(name): Named<String>,
    headers: HeaderMap,
    Json(body): Json<Body>,
) -> Result<Response, Problem> {
    api.commands().check(&name, &body.payload).map_err(unfit)?;
    let request = Request {
        name,
        tenant: body.tenant,
        business_key: body.key,
        payload: body.payload,
        idempotency_key: text_of(&headers, IDEMPOTENCY_KEY)?,
        reply_to: body.reply_to,
        // One that cannot be read is somebody else's mistake, and no reason to refuse a command.
        traceparent: text_of(&headers, TRACEPARENT).ok().flatten(),
        ..Request::default()
    };
    let repeatable = request.idempotency_key.is_some();
    match accept(api.db(), &request).await {
        Ok(Acceptance::Accepted(accepted)) => Ok(accepted_answer(&accepted)),
        Ok(Acceptance::Refused(refusal)) => Err(refused(&refusal)),
        Err(error) if error.is_unavailable() => Err(Problem::from(error).hint(match repeatable {
            true => "it may have been accepted: send it again with the same Idempotency-Key to find out",
            false => {
                "it may have been accepted: look for its key in GET /v1/commands; next time send an Idempotency-Key"
            }
        })),
        Err(error) => Err(error.into()),
    }
}

fn accepted_answer(accepted: &Accepted) -> Response {
    let place = format!("/v1/commands/{}", accepted.command_id);
    let mut body = accepted.response.clone();
    body["links"] = json!({ "self": place, "process": format!("/v1/processes/{}", accepted.command_id) });
    let mut response = (StatusCode::ACCEPTED, [(header::LOCATION, place)], Answered(body)).into_response();
    if accepted.repeated {
        response.headers_mut().insert(REPLAYED, header::HeaderValue::from_static("true"));
    }
    response
}

fn unfit(unfit: Unfit) -> Problem {
    let (detail, hint) = (unfit.to_string(), unfit.hint());
    match unfit {
        Unfit::Unknown { known, .. } => Problem::new(UNKNOWN_COMMAND, detail, hint).with("known", known),
        Unfit::Payload { violations, .. } => {
            let violations: Vec<Value> = violations.iter().map(|violation| json!(violation)).collect();
            Problem::new(SCHEMA, detail, hint).with("violations", violations)
        }
    }
}

fn refused(refusal: &Refusal) -> Problem {
    let (kind, hint, command) = match refusal {
        Refusal::AnotherRequest { command_id } => {
            (KEY_REUSED, "use a new Idempotency-Key for a new request; repeat an old one unchanged", Some(command_id))
        }
        Refusal::InFlight => (IN_FLIGHT, "send the same request again in a moment", None),
        Refusal::KeyTaken { command_id } => {
            (KEY_TAKEN, "follow that command, or use another key for another piece of work", Some(command_id))
        }
    };
    let problem = Problem::new(kind, refusal.to_string(), hint);
    match command {
        Some(id) => problem.with("commandId", id.to_string()),
        None => problem.header(header::RETRY_AFTER, "1"),
    }
}

fn text_of(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    match value.to_str() {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(_) => Err(Problem::new(INVALID, format!("the header {name} is not plain text"), "use visible ASCII")),
    }
}

async fn show(State(api): State<Api>, Named(id): Named<Uuid>) -> Result<Answered<CommandDetail>, Problem> {
    Ok(Answered(commands::show(api.db(), id).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandsQuery {
    status: Option<String>,
    name: Option<String>,
    process: Option<Uuid>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list(
    State(api): State<Api>,
    Asked(q): Asked<CommandsQuery>,
) -> Result<Answered<Listing<CommandRow>>, Problem> {
    let filter = CommandFilter { status: q.status, name: q.name, process_id: q.process };
    Ok(Answered(commands::list(api.db(), &filter, &page(q.limit, q.after)?).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeadLettersQuery {
    name: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn dead_letters(
    State(api): State<Api>,
    Asked(q): Asked<DeadLettersQuery>,
) -> Result<Answered<Listing<DeadLetterRow>>, Problem> {
    Ok(Answered(commands::dead_letters(api.db(), q.name.as_deref(), &page(q.limit, q.after)?).await?))
}
