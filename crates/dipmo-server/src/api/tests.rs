//! What needs no database: the document and the router are the same, and no panic gets out.

use std::collections::BTreeSet;

use axum::routing::get;
use serde_json::Value;
use tower::ServiceExt as _;

use super::*;

fn refs(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(target) if name == "$ref" => drop(found.insert(target.clone())),
                    other => refs(other, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| refs(item, found)),
        _ => {}
    }
}

#[test]
fn every_reference_in_the_document_leads_somewhere_and_no_schema_is_unused() {
    let document = openapi::document();
    let mut used = BTreeSet::new();
    refs(&document, &mut used);
    for target in &used {
        let pointer = target.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{target} is not there");
    }
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(used.contains(&format!("#/components/schemas/{name}")), "{name} is used nowhere");
    }
}

#[test]
fn the_document_has_every_route_once_with_its_own_id_and_all_that_openapi_asks_for() {
    let document = openapi::document();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["info"]["title"].is_string() && document["info"]["version"].is_string());
    let mut in_document = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            in_document.insert(format!("{method} {path}"));
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{operation}");
            assert!(!operation["summary"].as_str().unwrap().is_empty(), "{method} {path}");
            let responses = operation["responses"].as_object().unwrap();
            assert!(
                responses.len() == 2
                    && responses.values().all(|r| r["description"].is_string() || r["$ref"].is_string())
            );
            let named: BTreeSet<&str> = operation["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|p| p["in"] == "path")
                .map(|p| p["name"].as_str().unwrap())
                .collect();
            let in_path: BTreeSet<&str> = path.split(['{', '}']).skip(1).step_by(2).collect();
            assert_eq!(named, in_path, "{method} {path}");
        }
    }
    let in_router: Vec<String> =
        routes().iter().map(|r| format!("{} {}", r.method.as_str().to_lowercase(), r.path)).collect();
    assert_eq!(in_router.len(), in_document.len(), "no route stands in the table twice");
    assert_eq!(in_router.into_iter().collect::<BTreeSet<_>>(), in_document);
}

#[tokio::test]
async fn a_panic_becomes_a_problem() {
    async fn broken() -> &'static str {
        panic!("on purpose")
    }
    let router: Router = Router::new().route("/broken", get(broken)).layer(middleware::from_fn(answer));
    let response = router.oneshot(Request::get("/broken").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 500);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    let body: Value = serde_json::from_slice(&to_bytes(response.into_body(), 10_000).await.unwrap()).unwrap();
    assert_eq!((&body["type"], &body["instance"]), (&"urn:dipmo:problem:internal".into(), &"/broken".into()));
    assert!(!body.to_string().contains("on purpose"), "{body}");
}
