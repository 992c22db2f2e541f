//! /v1/inbox, /v1/outbox, /v1/keys: messages that were received, those to send, and the keys that wait.

use axum::extract::State;
use axum::{Extension, Json as Answered};
use dipmo::operator::inbox::{self, InboxDetail, InboxFilter, InboxRow};
use dipmo::operator::keys::{self, KeyRow};
use dipmo::operator::outbox::{self, OutboxDetail, OutboxFilter, OutboxRow};
use dipmo::operator::{Changed, Listing};
use serde::Deserialize;

use super::Api;
use super::auth::{Access, Caller};
use super::input::{Asked, Because, Json, Named, change, page};
use super::problem::Problem;
use super::route::{Answer, Route, get, post};
use crate::commands::inbox::redecode;

type Changes = Result<Answered<Changed>, Problem>;
type Lists<T> = Result<Answered<Listing<T>>, Problem>;

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/v1/inbox", Access::Read, list_inbox)
            .says("Open messages, oldest first")
            .asks(&["consumer", "state", "key", "limit", "after"])
            .answers(Answer::Page("InboxRow")),
        get("/v1/inbox/{id}", Access::Read, show_inbox)
            .says("One received message, open or closed; with payload=true its payload too, for operators")
            .asks(&["payload"])
            .answers(Answer::One("InboxMessage")),
        post("/v1/inbox/{id}/retry", Access::Change, retry_inbox)
            .says("Tries a DEAD or RETRY message again now, with fresh attempts")
            .takes("Because"),
        post("/v1/inbox/{id}/discard", Access::Change, discard_inbox)
            .says("Gives a message up; what waits behind it goes on")
            .takes("Because"),
        post("/v1/inbox/{id}/redecode", Access::Change, redecode_inbox)
            .says("Decodes a SERDE_ERROR again, by the rules of the configuration")
            .takes("Because"),
        get("/v1/outbox", Access::Read, list_outbox)
            .says("What could not be sent, oldest first")
            .asks(&["state", "destination", "key", "limit", "after"])
            .answers(Answer::Page("OutboxRow")),
        get("/v1/outbox/{id}", Access::Read, show_outbox)
            .says("One message to send, in any state; with payload=true its payload too, for operators")
            .asks(&["payload"])
            .answers(Answer::One("OutboxMessage")),
        post("/v1/outbox/{id}/retry", Access::Change, retry_outbox)
            .says("Sends a DEAD or RETRY message again now, with fresh attempts")
            .takes("Because"),
        post("/v1/outbox/{id}/discard", Access::Change, discard_outbox)
            .says("Gives a message up: it is never sent, what waits behind it follows")
            .takes("Because"),
        get("/v1/keys", Access::Read, list_keys)
            .says("Parked keys, oldest head first")
            .asks(&["consumer", "limit", "after"])
            .answers(Answer::Page("ParkedKey")),
        get("/v1/keys/{consumer}/{key}", Access::Read, show_key)
            .says("One parked key")
            .answers(Answer::One("ParkedKey")),
        post("/v1/keys/{consumer}/{key}/release", Access::Change, release_key)
            .says("Leaves the failed head where it is and lets the rest of the key go on")
            .takes("Release"),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InboxQuery {
    consumer: Option<String>,
    state: Option<String>,
    key: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list_inbox(State(api): State<Api>, Asked(q): Asked<InboxQuery>) -> Lists<InboxRow> {
    let filter = InboxFilter { consumer: q.consumer, state: q.state, key: q.key };
    Ok(Answered(inbox::list(api.db(), &filter, &page(q.limit, q.after)?).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reveal {
    #[serde(default)]
    payload: bool,
}

impl Reveal {
    /// Payloads hold what the business knows of its customers: whoever only looks on does not see them.
    fn allowed(&self, caller: &Caller) -> Result<bool, Problem> {
        if self.payload {
            caller.needs(Access::Change, "payloads are for operators")?;
        }
        Ok(self.payload)
    }
}

async fn show_inbox(
    State(api): State<Api>,
    Named(id): Named<i64>,
    Asked(reveal): Asked<Reveal>,
    Extension(caller): Extension<Caller>,
) -> Result<Answered<InboxDetail>, Problem> {
    Ok(Answered(inbox::show(api.db(), id, reveal.allowed(&caller)?).await?))
}

async fn retry_inbox(
    State(api): State<Api>,
    Named(id): Named<i64>,
    Extension(caller): Extension<Caller>,
    Json(why): Json<Because>,
) -> Changes {
    Ok(Answered(inbox::retry(api.db(), id, &change(&caller, why.reason)?).await?))
}

async fn discard_inbox(
    State(api): State<Api>,
    Named(id): Named<i64>,
    Extension(caller): Extension<Caller>,
    Json(why): Json<Because>,
) -> Changes {
    Ok(Answered(inbox::discard(api.db(), id, &change(&caller, why.reason)?).await?))
}

async fn redecode_inbox(
    State(api): State<Api>,
    Named(id): Named<i64>,
    Extension(caller): Extension<Caller>,
    Json(why): Json<Because>,
) -> Changes {
    let by = change(&caller, why.reason)?;
    let decode = |stored: &inbox::StoredRecord| redecode(&api.config().consumer, stored);
    Ok(Answered(inbox::redecode(api.db(), id, &by, decode).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutboxQuery {
    state: Option<String>,
    destination: Option<String>,
    key: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list_outbox(State(api): State<Api>, Asked(q): Asked<OutboxQuery>) -> Lists<OutboxRow> {
    let filter = OutboxFilter { state: q.state, destination: q.destination, key: q.key };
    Ok(Answered(outbox::list(api.db(), &filter, &page(q.limit, q.after)?).await?))
}

async fn show_outbox(
    State(api): State<Api>,
    Named(id): Named<i64>,
    Asked(reveal): Asked<Reveal>,
    Extension(caller): Extension<Caller>,
) -> Result<Answered<OutboxDetail>, Problem> {
    Ok(Answered(outbox::show(api.db(), id, reveal.allowed(&caller)?).await?))
}

async fn retry_outbox(
    State(api): State<Api>,
    Named(id): Named<i64>,
    Extension(caller): Extension<Caller>,
    Json(why): Json<Because>,
) -> Changes {
    Ok(Answered(outbox::retry(api.db(), id, &change(&caller, why.reason)?).await?))
}

async fn discard_outbox(
    State(api): State<Api>,
    Named(id): Named<i64>,
    Extension(caller): Extension<Caller>,
    Json(why): Json<Because>,
) -> Changes {
    Ok(Answered(outbox::discard(api.db(), id, &change(&caller, why.reason)?).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysQuery {
    consumer: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list_keys(State(api): State<Api>, Asked(q): Asked<KeysQuery>) -> Lists<KeyRow> {
    Ok(Answered(keys::list(api.db(), q.consumer.as_deref(), &page(q.limit, q.after)?).await?))
}

async fn show_key(
    State(api): State<Api>,
    Named((consumer, key)): Named<(String, String)>,
) -> Result<Answered<KeyRow>, Problem> {
    Ok(Answered(keys::show(api.db(), &consumer, &key).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Release {
    reason: String,
    #[serde(default)]
    skip_gap: bool,
}

async fn release_key(
    State(api): State<Api>,
    Named((consumer, key)): Named<(String, String)>,
    Extension(caller): Extension<Caller>,
    Json(release): Json<Release>,
) -> Changes {
    let by = change(&caller, release.reason)?;
    Ok(Answered(keys::release(api.db(), &consumer, &key, release.skip_gap, &by).await?))
}
