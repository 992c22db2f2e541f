//! `[sagas]`: where the definitions of sagas and commands are, and who runs them.

use std::path::{Path, PathBuf};

use dipmo::Destination;
use dipmo::saga::{Options, REPLY_QUEUE};
use serde::Deserialize;

use super::Problem;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SagasConfig {
    /// Paths; `*` in a file name stands for any text.
    pub(crate) files: Vec<String>,
    /// The consumer that runs them.
    pub(crate) consumer: String,
    /// Workers answer to this queue.
    pub(crate) reply_queue: String,
    /// Where the end of a batch is told, such as `KAFKA:events.Orchestrations`; nowhere unless given.
    pub(crate) batch_events: Option<String>,
    /// The transport of a `replyTo` that names only a queue.
    pub(crate) answer_transport: Transport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Transport {
    Internal,
    Amqp,
    Kafka,
}

impl Default for SagasConfig {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            consumer: "orchestrator".to_owned(),
            reply_queue: REPLY_QUEUE.to_owned(),
            batch_events: None,
            answer_transport: Transport::Internal,
        }
    }
}

impl SagasConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        for (n, pattern) in self.files.iter().enumerate() {
            let in_directory = Path::new(pattern).parent().is_some_and(|dir| dir.to_string_lossy().contains('*'));
            if pattern.is_empty() || in_directory {
                let message = format!("{pattern:?}: `*` may stand in the name of a file, not of a directory");
                return Err(Problem::new(format!("sagas.files[{n}]"), message));
            }
        }
        for (key, text) in [("consumer", &self.consumer), ("reply_queue", &self.reply_queue)] {
            if text.is_empty() || text.len() > 200 || text.chars().any(char::is_control) {
                return Err(Problem::new(format!("sagas.{key}"), "must have 1 to 200 characters"));
            }
        }
        self.batch_events().map(drop)
    }

    pub(crate) fn batch_events(&self) -> Result<Option<Destination>, Problem> {
        let parsed = self.batch_events.as_deref().map(str::parse).transpose();
        parsed.map_err(|error: dipmo::Error| Problem::new("sagas.batch_events", error.to_string()))
    }

    pub(crate) fn options(&self) -> Options {
        let transport = match self.answer_transport {
            Transport::Internal => "INTERNAL",
            Transport::Amqp => "AMQP",
            Transport::Kafka => "KAFKA",
        };
        Options { reply_queue: self.reply_queue.clone(), answer_transport: transport.to_owned() }
    }

    /// The files that are meant, in order. A pattern that means none is a mistake.
    pub(crate) fn paths(&self) -> Result<Vec<PathBuf>, Problem> {
        let mut all = Vec::new();
        for (n, pattern) in self.files.iter().enumerate() {
            let key = format!("sagas.files[{n}]");
            let found = matching(pattern).map_err(|why| Problem::new(&*key, why))?;
            if found.is_empty() {
                return Err(Problem::new(key, format!("{pattern:?} matches no file")));
            }
            all.extend(found.into_iter().filter(|path| !all.contains(path)).collect::<Vec<_>>());
        }
        Ok(all)
    }
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>, String> {
    let path = Path::new(pattern);
    let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| name.contains('*')) else {
        return Ok(vec![path.to_owned()]);
    };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(dir).map_err(|e| format!("cannot read {}: {e}", dir.display()))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|file| fits(name, file))
        .map(|file| path.with_file_name(file))
        .collect();
    found.sort();
    Ok(found)
}

/// Whether a name is the pattern with any text in place of each `*`.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| fits(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for name in ["a.toml", ".toml", "é.toml"] {
            assert!(fits("*.toml", name), "{name}");
        }
        assert!(fits("pay*-v*.toml", "payments-v2.toml"));
        for name in ["a.tom", "a.toml~", "toml"] {
            assert!(!fits("*.toml", name), "{name}");
        }
    }
}
