//! Values that need more than a type: spans of time written as `15s`, and secrets that never print.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A span of time: `500ms`, `15s`, `10m`, `1h30m`, `7d`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl Span {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        dipmo::span::parse(text).map(Self)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&dipmo::span::show(self.0))
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Span::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Text that is never shown: every way of printing it says `[hidden]`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself; whoever calls this answers for where it goes.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// Reads a secret from an environment variable; what is wrong names the variable, never the value.
pub(crate) fn from_env(name: &str) -> Result<Secret, String> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(Secret::new(value)),
        Ok(_) => Err(format!("the environment variable {name} is empty")),
        Err(std::env::VarError::NotPresent) => Err(format!("the environment variable {name} is not set")),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("the environment variable {name} is not text")),
    }
}

/// Reads a secret from a file, without the line end that editors add.
pub(crate) fn from_file(path: &PathBuf) -> Result<Secret, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_back_what_they_print() {
        for text in ["0s", "500ms", "15s", "10m", "1h30m", "7d", "1d1h1m1s1ms"] {
            assert_eq!(Span::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Span::parse("90s").unwrap(), Span::parse("1m30s").unwrap());
        for text in ["", "15", "s", "1.5s", "-1s", "1 h", "5y", "99999999999999999999s", "18446744073709551615d"] {
            assert!(Span::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_secret_prints_as_hidden() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "[hidden] [hidden] Some([hidden])");
        assert_eq!(secret.expose(), "hunter2");
    }
}
