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
        self.value_below(scope)
            .map_err(|Wrong { path, why }| if path.is_empty() { why } else { format!("{path}: {why}") })
    }

    fn value_below(&self, scope: &Scope<'_>) -> Result<Value, Wrong> {
        Ok(match self {
            Self::Expression(expression) => {
                expression.value(scope).map_err(|why| Wrong { path: String::new(), why })?
            }
            Self::Literal(value) => value.clone(),
            Self::Object(entries) => {
                let mut object = serde_json::Map::new();
                for (key, inner) in entries {
                    object.insert(key.clone(), inner.value_below(scope).map_err(|wrong| wrong.below(key))?);
                }
                Value::Object(object)
            }
            Self::List(items) => {
                let item =
                    |(n, item): (usize, &Self)| item.value_below(scope).map_err(|wrong| wrong.below(&n.to_string()));
                Value::Array(items.iter().enumerate().map(item).collect::<Result<_, _>>()?)
            }
        })
    }
}

/// An expression that cannot be evaluated, and where in the mapping it stands.
struct Wrong {
    path: String,
    why: String,
}

impl Wrong {
    fn below(self, key: &str) -> Self {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{key}.{}", self.path) };
        Self { path, ..self }
    }
}
