//! What an expression refers to: variables, steps, functions. Found when it is compiled, so that what is
//! not there is told before any saga runs.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::{Context, ExecutionError};

use super::expression::STANDARD;

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
    /// Functions that there are not.
    pub(super) functions: Vec<String>,
}

impl Names {
    /// Of a plain path such as `steps.X.result.id`.
    pub(super) fn of_path(path: &[String]) -> Names {
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

    pub(super) fn of(expression: &IdedExpr) -> Self {
        let mut names = Self::default();
        collect(expression, &mut Vec::new(), &mut names);
        names.functions.sort();
        names.functions.dedup();
        names.functions.retain(|function| !is_known(function));
        names
    }
}

/// Asked of the interpreter itself: called without arguments, a function that it knows complains of them.
fn is_known(function: &str) -> bool {
    [format!("{function}()"), format!("''.{function}()")].iter().any(|call| match STANDARD.compile(call) {
        Ok(program) => !matches!(
            program.execute(&Context::with_env(STANDARD.clone())),
            Err(ExecutionError::UndeclaredReference(name)) if *name == function
        ),
        Err(_) => true,
    })
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
            // Operators have names that no function can have.
            if call.func_name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                names.functions.push(call.func_name.clone());
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
        Expr::Select(inner) if field != "result" && is_steps(&inner.operand.expr) => {
            names.fields.push(field.to_owned())
        }
        _ => {}
    }
}

fn is_steps(expr: &Expr) -> bool {
    matches!(expr, Expr::Ident(root) if root == "steps")
}
