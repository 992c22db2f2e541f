//! Expressions in definitions: CEL over `input`, `steps.<STEP>.result` and `saga`.
//!
//! Compiled once with the definition. A plain path such as `input.amount.value` is read without the
//! interpreter. What goes wrong is told with names and types, never with values: those are payload.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{Expr, LiteralValue};
use cel::objects::{Key, Map};
use cel::{Context, Env, Program, Value as Cel};
use serde_json::Value;

use super::cel_json::{explain, from_cel, to_cel};
use super::data::StepRecord;
use super::names::Names;

/// Made once: it holds every standard function.
pub(super) static STANDARD: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

const NOTHING: &Value = &Value::Null;

#[derive(Debug)]
pub(super) struct Expression {
    code: Code,
    pub(super) names: Names,
}

#[derive(Debug)]
enum Code {
    Path(Vec<String>),
    Cel(Box<Program>),
}

/// What expressions see.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) input: &'a Value,
    pub(super) records: &'a BTreeMap<String, StepRecord>,
    pub(super) saga: &'a Value,
    /// Every step of the definition; one without a result has null.
    pub(super) steps: &'a [String],
}

impl<'a> Scope<'a> {
    fn result(&self, step: &str) -> &'a Value {
        self.records.get(step).and_then(|record| record.result.as_ref()).unwrap_or(NOTHING)
    }

    fn variable(&self, name: &str) -> Cel {
        match name {
            "input" => to_cel(self.input),
            "saga" => to_cel(self.saga),
            _ => {
                let step = |name: &String| {
                    let fields = HashMap::from([(Key::from("result"), to_cel(self.result(name)))]);
                    (Key::from(name.as_str()), Cel::Map(Map { map: Arc::new(fields) }))
                };
                Cel::Map(Map { map: Arc::new(self.steps.iter().map(step).collect()) })
            }
        }
    }

    fn path(&self, path: &[String]) -> Result<&'a Value, String> {
        let (mut value, rest) = match path {
            [root, rest @ ..] if root == "input" => (self.input, rest),
            [root, rest @ ..] if root == "saga" => (self.saga, rest),
            [_, step, _, rest @ ..] => (self.result(step), rest),
            _ => return Err("a step is named, but not its result".to_owned()),
        };
        for name in rest {
            value = value.get(name).ok_or_else(|| format!("there is no {name:?} in {}", path.join(".")))?;
        }
        Ok(value)
    }
}

impl Expression {
    pub(super) fn compile(text: &str) -> Result<Self, String> {
        if let Some(path) = plain_path(text) {
            let names = Names::of_path(&path);
            return Ok(Self { code: Code::Path(path), names });
        }
        if text.trim().is_empty() {
            return Err("the expression is empty".to_owned());
        }
        let program = STANDARD.compile(text).map_err(|errors| {
            let first = errors.errors.first();
            first
                .map_or("cannot be read".to_owned(), |error| format!("at column {}: {}", error.pos.1.max(1), error.msg))
        })?;
        let names = Names::of(program.expression());
        Ok(Self { code: Code::Cel(Box::new(program)), names })
    }

    /// The value of an expression that is nothing but a literal true or false; an error for any other literal.
    pub(super) fn constant_bool(&self) -> Result<Option<bool>, ()> {
        let Code::Cel(program) = &self.code else { return Ok(None) };
        match &program.expression().expr {
            Expr::Literal(LiteralValue::Boolean(value)) => Ok(Some(*value.inner())),
            Expr::Literal(_) | Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => Err(()),
            _ => Ok(None),
        }
    }

    pub(super) fn value(&self, scope: &Scope<'_>) -> Result<Value, String> {
        match &self.code {
            Code::Path(path) => scope.path(path).cloned(),
            Code::Cel(program) => {
                let mut context = Context::with_env(STANDARD.clone());
                for name in &self.names.free {
                    context.add_variable_from_value(name.as_str(), scope.variable(name));
                }
                let value = program.execute(&context).map_err(explain)?;
                from_cel(&value)
            }
        }
    }

    pub(super) fn condition(&self, scope: &Scope<'_>) -> Result<bool, String> {
        match self.value(scope)? {
            Value::Bool(value) => Ok(value),
            other => Err(format!("the condition gives {}, not true or false", type_name(&other))),
        }
    }

    /// A value that can be a key.
    pub(super) fn text(&self, scope: &Scope<'_>) -> Result<String, String> {
        match self.value(scope)? {
            Value::String(text) if !text.is_empty() => Ok(text),
            Value::Number(number) => Ok(number.to_string()),
            other => Err(format!("the key gives {}, not a text or number", type_name(&other))),
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(text) if text.is_empty() => "an empty text",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn plain_path(text: &str) -> Option<Vec<String>> {
    let word = |part: &str| {
        let mut chars = part.chars();
        chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let path: Vec<String> = text.trim().split('.').map(str::to_owned).collect();
    let whole = path.iter().all(|part| word(part));
    let root = match path.first().map(String::as_str) {
        Some("input") => true,
        Some("saga") => path.len() == 2,
        Some("steps") => path.len() > 2,
        _ => false,
    };
    (whole && root).then_some(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn eval(text: &str) -> Result<Value, String> {
        let input = json!({
            "amount": { "value": "100.00", "currency": "USD" }, "count": 3, "big": 9007199254740993_i64,
            "half": 0.5, "items": [{ "n": 1 }, { "n": 2 }], "none": null
        });
        let mut record = StepRecord::new(Uuid::nil());
        record.result = Some(json!({ "rate": "1.08" }));
        let records = BTreeMap::from([("STEP_A".to_owned(), record)]);
        let saga = json!({ "id": "i", "key": "P-1", "tenant": "acme" });
        let steps = ["STEP_A".to_owned(), "STEP_B".to_owned()];
        let scope = Scope { input: &input, records: &records, saga: &saga, steps: &steps };
        Expression::compile(text)?.value(&scope)
    }

    #[test]
    fn a_plain_path_and_the_interpreter_give_the_same() {
        for path in [
            "input.amount",
            "input.amount.value",
            "input.big",
            "input.none",
            "steps.STEP_A.result.rate",
            "steps.STEP_B.result",
            "saga.key",
            "input",
        ] {
            assert!(matches!(Expression::compile(path).unwrap().code, Code::Path(_)), "{path}");
            let slowly = format!("[{path}][0]");
            assert!(matches!(Expression::compile(&slowly).unwrap().code, Code::Cel(_)), "{slowly}");
            assert_eq!(eval(path), eval(&slowly), "{path}");
        }
    }

    #[test]
    fn whole_numbers_stay_whole() {
        assert_eq!(eval("input.big"), Ok(json!(9007199254740993_i64)));
        assert_eq!(eval("input.big + 1"), Ok(json!(9007199254740994_i64)));
        assert_eq!(eval("input.count * 2 == 6"), Ok(json!(true)));
        assert_eq!(eval("input.half + 0.5"), Ok(json!(1.0)));
    }

    #[test]
    fn lists_maps_and_macros_work() {
        assert_eq!(eval("input.items.map(item, item.n)"), Ok(json!([1, 2])));
        assert_eq!(eval("{'a': input.count, 'b': 'x'}"), Ok(json!({ "a": 3, "b": "x" })));
        assert_eq!(eval("has(input.amount.fee) ? input.amount.fee : '0.00'"), Ok(json!("0.00")));
        assert_eq!(eval("steps.STEP_B.result != null"), Ok(json!(false)));
    }

    #[test]
    fn what_goes_wrong_names_no_value() {
        for text in [
            "input.amount.fee",
            "input.amount.value + 1",
            "input.amount.value > 5",
            "input.amount > input.items",
            "int(input.amount.value)",
            "input.items[7]",
            "1 / (input.count - 3)",
        ] {
            let error = eval(text).unwrap_err();
            assert!(!error.contains("100.00") && !error.contains("USD"), "{text}: {error}");
        }
    }

    #[test]
    fn a_syntax_error_tells_its_column() {
        let error = Expression::compile("input.a ==").unwrap_err();
        assert!(error.starts_with("at column "), "{error}");
        assert!(Expression::compile("  ").is_err());
    }

    #[test]
    fn names_are_found_where_they_stand() {
        let names =
            Expression::compile("input.items.all(x, x.n > y) && steps['A'].result.b && steps.B.reslt").unwrap().names;
        assert_eq!(names.free, ["input", "y", "steps"]);
        assert_eq!(names.steps, ["A", "B"]);
        assert_eq!(names.fields, ["reslt"]);
        let names =
            Expression::compile("size(input.a) + sise(input.a) + input.b.matches('x') + input.c.map(y)").unwrap().names;
        assert_eq!(names.functions, ["map", "matches", "sise"]);
    }
}
