//! What an instance keeps between two inputs.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// JSON as text, as the table has it: whoever wants it reads it into a type of their own, without a tree of
/// values on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data(Arc<str>);

impl Data {
    pub fn of(value: &impl Serialize) -> Self {
        Self(serde_json::to_string(value).expect("a data type serialises without error").into())
    }

    pub(crate) fn from_stored(json: &str) -> Self {
        Self(json.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.0)
            .map_err(|error| Failure::permanent("PROCESS_DATA", format!("stored data does not fit: {error}")))
    }
}

/// JSON's null.
impl Default for Data {
    fn default() -> Self {
        Self::from_stored("null")
    }
}
