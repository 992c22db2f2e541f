//! The OpenAPI 3.1 document: the table of routes, and the schemas of what goes in and out.
//!
//! `schemas.json` writes a schema as its fields and their types: `text?` may be null, a name with `~` may be
//! left out, `[X]` is a list, a list of texts is a choice, and a capital letter begins the name of another
//! schema. Tests hold what the daemon really answers against the document.

use axum::Json;
use serde_json::{Map, Value, json};

use super::auth::Access;
use super::problem::{KINDS, Kind};
use super::route::{Answer, Route, get};

const SCHEMAS: &str = include_str!("schemas.json");

pub(super) fn route() -> Route {
    get("/v1/openapi.json", Access::Open, async || Json(document()))
        .says("This document")
        .answers(Answer::One("OpenApi"))
}

/// The whole document.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in super::routes() {
        let item = paths.entry(route.path).or_insert_with(|| json!({}));
        item[route.method.as_str().to_lowercase()] = operation(&route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "dipmo",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Commands from outside, and what operators of dipmo see and do. Every error is a Problem.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": { "Problem": problem() },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "parameters": parameters(route),
        "responses": responses(route),
    });
    match route.access {
        Access::Open => operation["security"] = json!([]),
        access => operation["x-roles"] = json!(access.roles()),
    }
    if let Some(body) = route.body {
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": reference(body) } },
        });
    }
    operation
}

/// `getV1InboxId`, `postV1InboxIdRetry`.
fn operation_id(route: &Route) -> String {
    let mut id = route.method.as_str().to_lowercase();
    for word in route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        let (first, rest) = word.split_at(1);
        id.push_str(&first.to_uppercase());
        id.push_str(rest);
    }
    id
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let path =
        in_path.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
    let query = route.query.iter().map(|name| json!({ "name": name, "in": "query", "schema": query_type(name) }));
    let mut all: Vec<Value> = path.chain(query).collect();
    if route.access == Access::Send {
        let headers = [
            ("Idempotency-Key", "The same key with the same request gets the first answer; 1 to 200 bytes"),
            ("traceparent", "The trace that the command belongs to, in the form of the W3C"),
        ];
        for (name, description) in headers {
            let schema = json!({ "type": "string" });
            all.push(json!({ "name": name, "in": "header", "description": description, "schema": schema }));
        }
    }
    all
}

fn query_type(name: &str) -> Value {
    match name {
        "limit" => json!({ "type": "integer", "minimum": 1, "maximum": 1000, "default": 50 }),
        "payload" => json!({ "type": "boolean", "default": false }),
        "process" => json!({ "type": "string", "format": "uuid" }),
        _ => json!({ "type": "string" }),
    }
}

fn responses(route: &Route) -> Value {
    let (status, description, schema) = match route.answer {
        Answer::One("OpenApi") => ("200", "Done", json!({ "type": "object" })),
        Answer::One(name) => ("200", "Done", reference(name)),
        Answer::Accepted(name) => ("202", "Accepted: follow the header Location", reference(name)),
        Answer::Page(name) => {
            let items = json!({ "type": "array", "items": reference(name) });
            let next = json!({ "type": ["string", "null"], "description": "`after` of the next page" });
            let page = json!({
                "type": "object",
                "properties": { "items": items, "next": next },
                "required": ["items", "next"],
                "additionalProperties": false,
            });
            ("200", "A page", page)
        }
    };
    let mut good = json!({ "description": description, "content": { "application/json": { "schema": schema } } });
    if let Answer::Accepted(_) = route.answer {
        let text = json!({ "type": "string" });
        good["headers"] = json!({
            "Location": { "description": "The command", "schema": text },
            "Idempotency-Replayed": { "description": "`true` when the answer is that of an earlier request", "schema": text },
        });
    }
    json!({ status: good, "default": { "$ref": "#/components/responses/Problem" } })
}

fn problem() -> Value {
    let kinds: Vec<String> =
        KINDS.iter().map(|Kind(name, status, title)| format!("- `{name}` ({}): {title}", status.as_u16())).collect();
    json!({
        "description": format!("What is wrong, and what to do. The types, after `urn:dipmo:problem:`:\n{}", kinds.join("\n")),
        "content": { "application/problem+json": { "schema": reference("Problem") } },
    })
}

fn schemas() -> Value {
    let written: Map<String, Value> = serde_json::from_str(SCHEMAS).expect("schemas.json is part of the program");
    Value::Object(written.iter().map(|(name, schema)| (name.clone(), expand(schema))).collect())
}

fn expand(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return json!({ "type": "string", "enum": schema }) };
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (field, written) in fields {
        let name = field.trim_end_matches('~');
        if name == field {
            required.push(name);
        }
        properties.insert(name.to_owned(), type_of(written.as_str().unwrap_or_default()));
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn type_of(written: &str) -> Value {
    if let Some(item) = written.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return json!({ "type": "array", "items": type_of(item) });
    }
    if let Some(some) = written.strip_suffix('?') {
        return json!({ "anyOf": [type_of(some), { "type": "null" }] });
    }
    match written {
        "text" => json!({ "type": "string" }),
        "time" => json!({ "type": "string", "format": "date-time" }),
        "uuid" => json!({ "type": "string", "format": "uuid" }),
        "any" => json!({}),
        "integer" => json!({ "type": "integer", "format": "int64" }),
        "number" | "boolean" | "object" => json!({ "type": written }),
        name => reference(name),
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}
