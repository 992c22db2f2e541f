//! Which commands are known, and what their payloads must look like.

use std::collections::BTreeMap;
use std::fmt;

use jsonschema::Validator;
use serde::Serialize;
use serde_json::Value;

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

    /// Refuses a command that is not known, and a payload that does not fit, with every violation.
    pub(crate) fn check(&self, name: &str, payload: &Value) -> Result<(), Unfit> {
        let Some(validator) = self.0.get(name) else {
            let known = self.0.keys().cloned().collect();
            return Err(Unfit::Unknown { name: name.to_owned(), known });
        };
        let Some(validator) = validator else { return Ok(()) };
        let violations: Vec<Violation> = validator.iter_errors(payload).take(VIOLATIONS_MAX).map(violation).collect();
        if violations.is_empty() { Ok(()) } else { Err(Unfit::Payload { name: name.to_owned(), violations }) }
    }
}

fn violation(error: jsonschema::ValidationError<'_>) -> Violation {
    Violation {
        pointer: format!("/payload{}", error.instance_path()),
        rule: error.schema_path().to_string(),
        message: error.to_string(),
    }
}

/// Why a command cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unfit {
    Unknown { name: String, known: Vec<String> },
    Payload { name: String, violations: Vec<Violation> },
}

/// A rule of the schema that a payload breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Violation {
    pub(crate) pointer: String,
    pub(crate) rule: String,
    pub(crate) message: String,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Unknown { name, .. } => write!(f, "there is no command named {name:?}"),
            Unfit::Payload { name, violations } => {
                write!(f, "the payload breaks {} rules of the schema of {name}", violations.len())
            }
        }
    }
}

impl Unfit {
    pub(crate) fn hint(&self) -> String {
        match self {
            Unfit::Unknown { known, .. } if known.is_empty() => {
                "no command is configured: name files in the [sagas] section".to_owned()
            }
            Unfit::Unknown { known, .. } => format!("known are {}", known.join(", ")),
            Unfit::Payload { .. } => "mend what the violations point to".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let unfit = commands.check("Pay", &json!({ "currency": "XXX" })).unwrap_err();
        assert_eq!(unfit.to_string(), "the payload breaks 2 rules of the schema of Pay");
        let Unfit::Payload { violations, .. } = unfit else { panic!("{unfit:?}") };
        assert!(violations.iter().any(|violation| violation.pointer == "/payload/currency"), "{violations:?}");
        assert_eq!(commands.check("Pong", &json!({})).unwrap_err().hint(), "known are Pay, Ping");
    }
}
