//! Between JSON and the values of the interpreter.

use std::sync::Arc;

use cel::objects::{Key, Map};
use cel::{ExecutionError, Value as Cel};
use serde_json::Value;

/// Whole numbers stay whole; those that fit no 64 bits with sign become floating.
pub(super) fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Cel::Int(whole),
            (None, Some(whole)) => Cel::UInt(whole),
            (None, None) => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(object) => {
            let entries = object.iter().map(|(key, value)| (Key::from(key.as_str()), to_cel(value))).collect();
            Cel::Map(Map { map: Arc::new(entries) })
        }
    }
}

pub(super) fn from_cel(value: &Cel) -> Result<Value, String> {
    Ok(match value {
        Cel::Null => Value::Null,
        Cel::Bool(value) => (*value).into(),
        Cel::Int(whole) => (*whole).into(),
        Cel::UInt(whole) => (*whole).into(),
        Cel::Float(number) => serde_json::Number::from_f64(*number).ok_or("the number is not finite")?.into(),
        Cel::String(text) => text.as_str().into(),
        Cel::List(items) => Value::Array(items.iter().map(from_cel).collect::<Result<_, _>>()?),
        Cel::Map(map) => {
            let entry = |(key, value): (&Key, &Cel)| Ok((key.to_string(), from_cel(value)?));
            Value::Object(map.map.iter().map(entry).collect::<Result<_, String>>()?)
        }
        other => return Err(format!("a {} cannot be JSON", other.type_of())),
    })
}

/// Types and names only: the values in these errors are somebody's payload.
pub(super) fn explain(error: ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("there is no {key:?}"),
        ExecutionError::UndeclaredReference(name) => format!("nothing is named {name:?}"),
        ExecutionError::NoSuchOverload(overload) => overload.to_string(),
        ExecutionError::UnexpectedType { got, want } => format!("got {got}, want {want}"),
        ExecutionError::InvalidArgumentCount { expected, actual } => {
            format!("{expected} arguments are needed, {actual} are given")
        }
        ExecutionError::ValuesNotComparable(a, b) => format!("{} and {} do not compare", a.type_of(), b.type_of()),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "division by zero".to_owned(),
        ExecutionError::Overflow(operator, ..) => format!("{operator} overflows"),
        ExecutionError::IndexOutOfBounds(_) => "the index is out of bounds".to_owned(),
        ExecutionError::FunctionError { function, .. } => format!("{function} refuses its arguments"),
        _ => "cannot be evaluated with the values at hand".to_owned(),
    }
}
