//! Which commands are known, and what their payloads must look like.

use std::collections::BTreeMap;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::problem::{Problem, SCHEMA, UNKNOWN_COMMAND};

/// More would help nobody.
const VIOLATIONS_MAX: usize = 100;

/// The commands that may be sent, by name, with the schema of their payload where one is given.
#[derive(Debug, Default)]
pub(crate) struct Commands(BTreeMap<String, Option<Validator>>);

impl Commands {
    /// Refuses a schema that is none, with the name of its command.
    pub(crate) fn new(known: impl IntoIterator<Item = (String, Option<Value>)>) -> Result<Self, String> {
        let compile = |name: &str, schema: &Value| {
            jsonschema::validator_for(schema).map_err(|error| {
                let place = error.instance_path().to_string();
                format!("the schema of command {name:?} is not a JSON Schema: {error} at {place:?}")
            })
        };
        let mut commands = BTreeMap::new();
        for (name, schema) in known {
            let validator = schema.as_ref().map(|schema| compile(&name, schema)).transpose()?;
            commands.insert(name, validator);
        }
        Ok(Self(commands))
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Refuses a command that is not known, and a payload that does not fit, with every violation.
    pub(crate) fn check(&self, name: &str, payload: &Value) -> Result<(), Problem> {
        let Some(validator) = self.0.get(name) else {
            let hint = match self.0.is_empty() {
                true => "no command is configured: name files in the [sagas] section".to_owned(),
                false => format!("known are {}", self.names().join(", ")),
            };
            return Err(Problem::new(UNKNOWN_COMMAND, format!("there is no command named {name:?}"), hint)
                .with("known", self.names()));
        };
        let Some(validator) = validator else { return Ok(()) };
        let violations: Vec<Value> = validator
            .iter_errors(payload)
            .take(VIOLATIONS_MAX)
            .map(|error| {
                let (pointer, rule) = (error.instance_path().to_string(), error.schema_path().to_string());
                json!({ "pointer": format!("/payload{pointer}"), "rule": rule, "message": error.to_string() })
            })
            .collect();
        if violations.is_empty() {
            return Ok(());
        }
        let detail = format!("the payload breaks {} rules of the schema of {name}", violations.len());
        Err(Problem::new(SCHEMA, detail, "mend what `violations` points to").with("violations", violations))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_that_is_none_is_refused_with_the_name_of_its_command() {
        let why = Commands::new([("Pay".to_owned(), Some(json!({ "type": "objekt" })))]).unwrap_err();
        assert!(why.contains("\"Pay\"") && why.contains("/type"), "{why}");
        let remote = json!({ "$ref": "https://example.com/schema.json" });
        let why = Commands::new([("Pay".to_owned(), Some(remote))]).unwrap_err();
        assert!(why.contains("\"Pay\""), "nothing is fetched: {why}");
    }

    #[test]
    fn every_violation_is_told() {
        let schema = json!({
            "type": "object", "required": ["amount"], "properties": { "currency": { "enum": ["EUR", "USD"] } },
        });
        let commands = Commands::new([("Pay".to_owned(), Some(schema)), ("Ping".to_owned(), None)]).unwrap();
        assert!(commands.check("Ping", &json!({ "whatever": 1 })).is_ok());
        assert!(commands.check("Pay", &json!({ "amount": "1", "currency": "EUR" })).is_ok());
        let problem = commands.check("Pay", &json!({ "currency": "XXX" })).unwrap_err();
        let said = format!("{problem:?}");
        assert!(said.contains("breaks 2 rules") && said.contains("/payload/currency"), "{said}");
        assert!(format!("{:?}", commands.check("Pong", &json!({})).unwrap_err()).contains("Pay, Ping"));
    }
}
