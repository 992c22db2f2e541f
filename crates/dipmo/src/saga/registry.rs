//! The definitions that an orchestrator knows: every version by its hash, and one a name for new sagas.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::compiled::Compiled;
use super::definition::Definition;
use super::rules::Flaw;
use crate::error::{Error, Result};

/// Cheap to clone: the compiled definitions are shared.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// By name, then by hash.
    versions: BTreeMap<String, BTreeMap<String, Arc<Compiled>>>,
    current: BTreeMap<String, String>,
}

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks a definition, keeps it, and begins new sagas of its name with it.
    pub fn register(&mut self, definition: Definition) -> Result<Arc<Compiled>, Vec<Flaw>> {
        let compiled = Arc::new(Compiled::new(definition)?);
        self.add(compiled.clone(), true);
        Ok(compiled)
    }

    /// Keeps a version; an older one that sagas still keep to is not `current`.
    pub fn add(&mut self, compiled: Arc<Compiled>, current: bool) {
        let (name, hash) = (compiled.name().to_owned(), compiled.hash().to_owned());
        if current {
            self.current.insert(name.clone(), hash.clone());
        }
        self.versions.entry(name).or_default().insert(hash, compiled);
    }

    /// Takes back a version that was stored as JSON. One whose body is not what its hash says is refused:
    /// sagas that keep to it would go on by other rules than they began with.
    pub fn restore(&mut self, hash: &str, body: Value, current: bool) -> Result<Arc<Compiled>> {
        let definition: Definition = serde_json::from_value(body)
            .map_err(|error| Error::invalid(format!("stored version {hash} cannot be read: {error}")))?;
        let (name, found) = (definition.name.clone(), definition.hash());
        if found != hash {
            return Err(Error::invalid(format!(
                "{name} version {hash} is stored with another body, of version {found}"
            )));
        }
        let compiled = Compiled::new(definition).map_err(|flaws| {
            let flaws: Vec<String> = flaws.iter().map(ToString::to_string).collect();
            Error::invalid(format!("{name} version {hash} does not pass its check any more: {}", flaws.join("; ")))
        })?;
        let compiled = Arc::new(compiled);
        self.add(compiled.clone(), current);
        Ok(compiled)
    }

    /// The version with which new sagas begin.
    pub fn current(&self, name: &str) -> Option<&Arc<Compiled>> {
        self.version(name, self.current.get(name)?)
    }

    pub fn version(&self, name: &str, hash: &str) -> Option<&Arc<Compiled>> {
        self.versions.get(name)?.get(hash)
    }

    /// Every version of every definition.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Compiled>> {
        self.versions.values().flat_map(BTreeMap::values)
    }

    /// The names under which sagas can be started, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.current.keys().map(String::as_str)
    }
}
