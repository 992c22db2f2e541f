//! The definitions that an orchestrator knows: every version by its hash, and one a name for new sagas.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compiled::Compiled;
use super::definition::Definition;
use super::rules::Flaw;

/// Cheap to clone: the compiled definitions are shared.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    versions: BTreeMap<(String, String), Arc<Compiled>>,
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
        self.versions.insert((name, hash), compiled);
    }

    /// The version with which new sagas begin.
    pub fn current(&self, name: &str) -> Option<&Arc<Compiled>> {
        self.version(name, self.current.get(name)?)
    }

    pub fn version(&self, name: &str, hash: &str) -> Option<&Arc<Compiled>> {
        self.versions.get(&(name.to_owned(), hash.to_owned()))
    }

    /// Every version of every definition.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Compiled>> {
        self.versions.values()
    }

    /// The names under which sagas can be started, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.current.keys().map(String::as_str)
    }
}
