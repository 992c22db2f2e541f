//! docs/envelope.schema.json describes what is really sent.

use dipmo::command::envelope::kind;
use dipmo::process::OperatorVerb;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::payment::{self, *};
use crate::workers::{Act, Arrive, Workers, play};
use crate::world::World;

fn schema() -> (Value, Validator) {
    let schema: Value = serde_json::from_str(include_str!("../../../../docs/envelope.schema.json")).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    (schema, validator)
}

/// Everything a saga sends in good days and bad, and the answers it gets.
fn sent() -> Vec<Value> {
    let mut sent = Vec::new();
    for script in [vec![], vec![Act::Permanent], vec![Act::Silent; 3], vec![Act::Retryable]] {
        let mut world = World::started(payment::definition(), payment::input(true));
        sent.push(serde_json::to_value(world.start_envelope(payment::input(true))).unwrap());
        let first = world.last_request();
        for (kind, payload) in [
            (kind::STARTED, json!({ "leaseMs": 5 })),
            (kind::FAILED, json!({ "code": "X", "message": "y", "retryable": true })),
        ] {
            let answer = world.answer(&first, kind, payload);
            sent.push(serde_json::to_value(&answer).unwrap());
        }
        world.operator(OperatorVerb::Pause).unwrap();
        world.operator(OperatorVerb::Resume).unwrap();
        play(&mut world, &mut Workers::default().script(SUBMIT, script), false, Arrive::AfterTimer);
        sent.extend(world.sent.iter().map(|(_, envelope)| serde_json::to_value(envelope).unwrap()));
    }
    sent
}

#[test]
fn whatever_is_sent_fits_the_schema_of_the_envelope() {
    let (schema, validator) = schema();
    for envelope in sent() {
        let errors: Vec<String> = validator.iter_errors(&envelope).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}\n{envelope:#}");
        for name in envelope.as_object().unwrap().keys() {
            assert!(schema["properties"].get(name).is_some(), "the schema does not know {name}");
        }
        for name in envelope["headers"].as_object().unwrap().keys() {
            let known = &schema["properties"]["headers"]["properties"];
            assert!(known.get(name).is_some(), "the schema does not know the header {name}");
        }
    }
}

#[test]
fn the_schema_refuses_what_the_library_cannot_read() {
    let (schema, validator) = schema();
    let whole = sent().remove(0);
    assert!(validator.is_valid(&whole));
    for name in schema["required"].as_array().unwrap() {
        let mut without = whole.clone();
        without.as_object_mut().unwrap().remove(name.as_str().unwrap());
        assert!(!validator.is_valid(&without), "{name}");
        assert!(serde_json::from_value::<dipmo::command::Envelope>(without).is_err(), "{name}");
    }
    let mut nameless = whole.clone();
    nameless["type"] = kind::FAILED.into();
    nameless["payload"] = json!({ "reason": "because" });
    assert!(!validator.is_valid(&nameless), "a failure has a code and a message");
}
