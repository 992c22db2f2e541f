//! Whether the definitions of a node may become others while sagas are running.
//!
//! Running sagas keep to the version they began with, so a new version harms none of them. What harms is a
//! version that they keep to and nobody knows any more.

use super::registry::Registry;

/// How many sagas that have not ended keep to one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    pub name: String,
    pub hash: String,
    pub count: u64,
}

/// Refuses to forget versions that are in use and to give a version another body. What is only worth
/// knowing comes back when it may be done: how many sagas keep to which older version.
pub fn compatible(old: &Registry, new: &Registry, live: &[Live]) -> Result<Vec<String>, Vec<String>> {
    let mut refusals = Vec::new();
    let mut remarks = Vec::new();
    for Live { name, hash, count } in live.iter().filter(|live| live.count > 0) {
        match (new.version(name, hash), new.current(name)) {
            (None, _) => refusals.push(format!(
                "{name} version {hash} would be forgotten, but {count} sagas keep to it: register it beside the new one"
            )),
            (Some(_), None) => refusals.push(format!(
                "{name} would be removed, but {count} sagas of version {hash} have not ended: keep it until they have"
            )),
            (Some(_), Some(current)) if current.hash() != hash => {
                remarks.push(format!(
                    "{count} sagas keep to {name} version {hash}; new ones begin with {}",
                    current.hash()
                ));
            }
            _ => {}
        }
    }
    for version in new.all() {
        let same = old.version(version.name(), version.hash());
        if same.is_some_and(|same| same.definition() != version.definition()) {
            refusals.push(format!("{} version {} has another body than before", version.name(), version.hash()));
        }
    }
    if refusals.is_empty() { Ok(remarks) } else { Err(refusals) }
}
