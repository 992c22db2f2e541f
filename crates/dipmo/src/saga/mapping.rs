//! Mappings: JSON in which every text is an expression; everything else stands for itself.

use serde_json::Value;

use super::expression::{Expression, Scope};

/// Deeper than this no payload is written by hand.
const DEPTH_MAX: usize = 32;

#[derive(Debug)]
pub(super) enum Mapping {
    Expression(Expression),
    Literal(Value),
    Object(Vec<(String, Mapping)>),
    List(Vec<Mapping>),
}

impl Mapping {
    /// Compiles every text; `wrong` is told the path below `path` and the reason of each that cannot be.
    pub(super) fn compile(value: &Value, path: &str, wrong: &mut dyn FnMut(&str, String)) -> Self {
        Self::compile_at(value, path, wrong, 0)
    }

    fn compile_at(value: &Value, path: &str, wrong: &mut dyn FnMut(&str, String), depth: usize) -> Self {
        if depth > DEPTH_MAX {
            wrong(path, format!("nested more than {DEPTH_MAX} deep"));
            return Self::Literal(Value::Null);
        }
        match value {
            Value::String(text) => match Expression::compile(text) {
                Ok(expression) => Self::Expression(expression),
                Err(why) => {
                    wrong(path, why);
                    Self::Literal(Value::Null)
                }
            },
            Value::Object(object) => {
                let entry = |(key, value): (&String, &Value)| {
                    (key.clone(), Self::compile_at(value, &format!("{path}.{key}"), wrong, depth + 1))
                };
                Self::Object(object.iter().map(entry).collect())
            }
            Value::Array(items) => {
                let item = |(n, item)| Self::compile_at(item, &format!("{path}[{n}]"), wrong, depth + 1);
                Self::List(items.iter().enumerate().map(item).collect())
            }
            literal => Self::Literal(literal.clone()),
        }
    }

    /// Every expression with its path.
    pub(super) fn expressions<'a>(&'a self, path: &str, found: &mut Vec<(String, &'a Expression)>) {
        match self {
            Self::Expression(expression) => found.push((path.to_owned(), expression)),
            Self::Literal(_) => {}
            Self::Object(entries) => {
                entries.iter().for_each(|(key, inner)| inner.expressions(&format!("{path}.{key}"), found));
            }
            Self::List(items) => {
                items.iter().enumerate().for_each(|(n, inner)| inner.expressions(&format!("{path}[{n}]"), found));
            }
        }
    }

    pub(super) fn value(&self, scope: &Scope<'_>) -> Result<Value, String> {
        Ok(match self {
            Self::Expression(expression) => expression.value(scope)?,
            Self::Literal(value) => value.clone(),
            Self::Object(entries) => {
                let mut object = serde_json::Map::new();
                for (key, inner) in entries {
                    let value = inner.value(scope).map_err(|why| below(key, why))?;
                    object.insert(key.clone(), value);
                }
                Value::Object(object)
            }
            Self::List(items) => Value::Array(items.iter().map(|item| item.value(scope)).collect::<Result<_, _>>()?),
        })
    }
}

/// `b: why` becomes `a.b: why`.
fn below(key: &str, why: String) -> String {
    match why.split_once(": ") {
        Some((path, _)) if path.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) => {
            format!("{key}.{why}")
        }
        _ => format!("{key}: {why}"),
    }
}
