//! How the parts of a definition look as JSON: destinations and spans as text, retry rules as a table.

use std::time::Duration;

use serde_json::Value;

use super::definition::TIMEOUT_DEFAULT;

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(super) fn timeout_default() -> Duration {
    TIMEOUT_DEFAULT
}

/// JSON whose text does not depend on the order in which an object was filled.
pub(super) fn write_sorted(value: &Value, text: &mut String) {
    match value {
        Value::Object(object) => {
            let mut entries: Vec<_> = object.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            text.push('{');
            for (n, (key, value)) in entries.into_iter().enumerate() {
                if n > 0 {
                    text.push(',');
                }
                *text += &Value::from(key.as_str()).to_string();
                text.push(':');
                write_sorted(value, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    text.push(',');
                }
                write_sorted(item, text);
            }
            text.push(']');
        }
        other => *text += &other.to_string(),
    }
}

pub(super) mod destination {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::message::Destination;

    pub(crate) fn serialize<S: Serializer>(to: &Destination, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Destination, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

pub(super) mod destination_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use crate::message::Destination;

    pub(crate) fn serialize<S: Serializer>(to: &Option<Destination>, serializer: S) -> Result<S::Ok, S::Error> {
        to.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Destination>, D::Error> {
        Option::<String>::deserialize(deserializer)?.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

pub(super) mod span {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&crate::span::show(*span))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        crate::span::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

pub(super) mod retry {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use crate::backoff::RetryPolicy;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wire {
        attempts_max: Option<u32>,
        delay_max: Option<String>,
        jitter_max: Option<String>,
    }

    pub(crate) fn serialize<S: Serializer>(policy: &RetryPolicy, serializer: S) -> Result<S::Ok, S::Error> {
        let (delay_max, jitter_max) = (crate::span::show(policy.delay_max), crate::span::show(policy.jitter_max));
        let wire =
            Wire { attempts_max: Some(policy.attempts_max), delay_max: Some(delay_max), jitter_max: Some(jitter_max) };
        wire.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RetryPolicy, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let mut policy = RetryPolicy::default();
        if let Some(attempts) = wire.attempts_max {
            policy.attempts_max = attempts;
        }
        if let Some(text) = wire.delay_max {
            policy.delay_max = crate::span::parse(&text).map_err(D::Error::custom)?;
        }
        if let Some(text) = wire.jitter_max {
            policy.jitter_max = crate::span::parse(&text).map_err(D::Error::custom)?;
        }
        Ok(policy)
    }
}
