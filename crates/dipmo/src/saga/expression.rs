//! Expressions in definitions: CEL over `input`, `steps.<STEP>.result` and `saga`.
//!
//! Compiled once with the definition. A plain path such as `input.amount.value` is read without the
//! interpreter. What goes wrong is told with names and types, never with values: those are payload.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::objects::{Key, Map};
use cel::{Context, Env, ExecutionError, Program, Value as Cel};
use serde_json::Value;

use super::data::StepRecord;

/// Made once: it holds every standard function.
static STANDARD: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

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

/// What an expression refers to.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Variables that nothing in the expression binds.
    pub(super) free: Vec<String>,
    /// `X` of every `steps.X`.
    pub(super) steps: Vec<String>,
    /// `x` of every `saga.x`.
    pub(super) saga: Vec<String>,
    /// Fields of a step that are not its result.
    pub(super) fields: Vec<String>,
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
            let names = names_of_path(&path);
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
        let mut names = Names::default();
        collect(program.expression(), &mut Vec::new(), &mut names);
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

fn names_of_path(path: &[String]) -> Names {
    let mut names = Names { free: vec![path[0].clone()], ..Names::default() };
    match path {
        [root, step, field, ..] if root == "steps" => {
            names.steps.push(step.clone());
            if field != "result" {
                names.fields.push(field.clone());
            }
        }
        [root, field] if root == "saga" => names.saga.push(field.clone()),
        _ => {}
    }
    names
}

/// Walks an expression; `bound` are the variables of the comprehensions around it.
fn collect(expr: &IdedExpr, bound: &mut Vec<String>, names: &mut Names) {
    match &expr.expr {
        Expr::Ident(name) => note_free(name, bound, names),
        Expr::Select(select) => {
            note_select(&select.operand.expr, &select.field, names);
            collect(&select.operand, bound, names);
        }
        Expr::Call(call) => {
            if let ("_[_]", [operand, index]) = (call.func_name.as_str(), call.args.as_slice())
                && let Expr::Literal(LiteralValue::String(field)) = &index.expr
            {
                note_select(&operand.expr, field.inner(), names);
            }
            call.target.iter().for_each(|target| collect(target, bound, names));
            call.args.iter().for_each(|arg| collect(arg, bound, names));
        }
        Expr::List(list) => list.elements.iter().for_each(|element| collect(element, bound, names)),
        Expr::Map(map) => map.entries.iter().for_each(|entry| collect_entry(&entry.expr, bound, names)),
        Expr::Struct(object) => object.entries.iter().for_each(|entry| collect_entry(&entry.expr, bound, names)),
        Expr::Comprehension(loop_) => {
            collect(&loop_.iter_range, bound, names);
            collect(&loop_.accu_init, bound, names);
            let depth = bound.len();
            bound.extend([loop_.iter_var.clone(), loop_.accu_var.clone()]);
            bound.extend(loop_.iter_var2.clone());
            for inner in [&loop_.loop_cond, &loop_.loop_step, &loop_.result] {
                collect(inner, bound, names);
            }
            bound.truncate(depth);
        }
        Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn collect_entry(entry: &EntryExpr, bound: &mut Vec<String>, names: &mut Names) {
    match entry {
        EntryExpr::StructField(field) => collect(&field.value, bound, names),
        EntryExpr::MapEntry(entry) => {
            collect(&entry.key, bound, names);
            collect(&entry.value, bound, names);
        }
    }
}

fn note_free(name: &str, bound: &[String], names: &mut Names) {
    if !bound.iter().any(|bound| bound == name) && !names.free.iter().any(|free| free == name) {
        names.free.push(name.to_owned());
    }
}

fn note_select(operand: &Expr, field: &str, names: &mut Names) {
    match operand {
        Expr::Ident(root) if root == "steps" => names.steps.push(field.to_owned()),
        Expr::Ident(root) if root == "saga" => names.saga.push(field.to_owned()),
        Expr::Select(inner) if matches!(&inner.operand.expr, Expr::Ident(root) if root == "steps") => {
            if field != "result" {
                names.fields.push(field.to_owned());
            }
        }
        _ => {}
    }
}

/// Whole numbers stay whole; those that fit no 64 bits with sign become floating.
fn to_cel(value: &Value) -> Cel {
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

fn from_cel(value: &Cel) -> Result<Value, String> {
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
fn explain(error: ExecutionError) -> String {
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
    }
}
