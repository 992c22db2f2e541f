//! Exit codes are a contract with scripts; this is the only place that names them.

use std::fmt;
use std::process::ExitCode;

use dipmo::{Error, ErrorKind};

use crate::config::ConfigError;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    /// The operator said no, or was not there to say yes.
    Declined = 3,
    Auth = 4,
    NotFound = 5,
    /// It changed in the meantime, or its state does not allow this.
    Conflict = 6,
    Unreachable = 7,
    /// The question was answered, and the answer is that something is wrong.
    Degraded = 10,
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why the program ends otherwise than well: what is wrong, and what may help.
#[derive(Debug)]
pub(crate) struct Quit {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Quit {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Quit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl From<ConfigError> for Quit {
    fn from(error: ConfigError) -> Self {
        Quit::new(Exit::Usage, error.to_string()).hint("every key is described in docs/configuration.md")
    }
}

impl From<Error> for Quit {
    fn from(error: Error) -> Self {
        let sqlstate = sqlstate_of(&error);
        let (exit, hint) = match (sqlstate.as_deref(), error.kind()) {
            (Some(code), _) if code.starts_with("28") => {
                (Exit::Auth, Some("check user and password in the database URL, and pg_hba.conf"))
            }
            (Some("42501"), _) => (Exit::Auth, Some("the database user lacks a privilege: see docs/operating.md")),
            (Some("3D000"), _) => (Exit::Failed, Some("the database does not exist: create it, or mend the URL")),
            (Some("42P01" | "3F000" | "42883" | "42703"), _) => {
                (Exit::Failed, Some("the schema is missing or not up to date: run `dipmo schema migrate`"))
            }
            (Some("55P03"), _) => (Exit::Conflict, Some("a worker or another operator holds it: try again")),
            (None, ErrorKind::Unavailable) => {
                (Exit::Unreachable, Some("is PostgreSQL running, and the database URL right?"))
            }
            (_, ErrorKind::Unavailable) => (Exit::Unreachable, Some("try again; if it lasts, run `dipmo doctor`")),
            (_, ErrorKind::NotFound) => (Exit::NotFound, None),
            (_, ErrorKind::Conflict | ErrorKind::LeaseLost) => (Exit::Conflict, None),
            (None, ErrorKind::Invalid) => (Exit::Usage, None),
            _ => (Exit::Failed, None),
        };
        Quit { exit, message: error.to_string(), hint: hint.map(str::to_owned) }
    }
}

/// The SQLSTATE at the bottom of an error, if the server said anything.
pub(crate) fn sqlstate_of(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(code) = error.downcast_ref::<tokio_postgres::Error>().and_then(|e| e.code()) {
            return Some(code.code().to_owned());
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_those_of_the_contract() {
        let codes = [
            (Exit::Ok, 0),
            (Exit::Failed, 1),
            (Exit::Usage, 2),
            (Exit::Declined, 3),
            (Exit::Auth, 4),
            (Exit::NotFound, 5),
            (Exit::Conflict, 6),
            (Exit::Unreachable, 7),
            (Exit::Degraded, 10),
            (Exit::Interrupted, 130),
        ];
        for (exit, code) in codes {
            assert_eq!(exit as u8, code);
        }
    }

    #[test]
    fn errors_end_with_the_code_of_their_kind() {
        let code = |kind| Quit::from(Error::new(kind, "x")).exit;
        assert_eq!(code(ErrorKind::Unavailable), Exit::Unreachable);
        assert_eq!(code(ErrorKind::NotFound), Exit::NotFound);
        assert_eq!(code(ErrorKind::Conflict), Exit::Conflict);
        assert_eq!(code(ErrorKind::Invalid), Exit::Usage);
        assert_eq!(code(ErrorKind::Poison), Exit::Failed);
    }
}
