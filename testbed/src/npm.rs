//! Programs for Node.js with the packages they need from the npm registry, fetched once per user and version.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::jars::is_missing;
use crate::process;

/// A directory of the cache that holds what the `package.json` in `source` names, in the versions it names,
/// and beside it a fresh copy of the modules (`.mjs`) in `source` and in `shared`.
///
/// Scripts of packages do not run.
pub fn npm_program(name: &str, source: &Path, shared: &Path) -> Result<PathBuf> {
    let manifest = source.join("package.json");
    let packages = fs::read_to_string(&manifest).with_context(|| format!("reading {}", manifest.display()))?;
    let mut hasher = DefaultHasher::new();
    packages.hash(&mut hasher);
    let version = format!("npm-{name}-{:016x}", hasher.finish());
    let dir = cache::kept(&format!("npm-{name}"), &version, |partial| {
        fs::write(partial.join("package.json"), &packages)?;
        install(partial).with_context(|| format!("fetching {name} from the npm registry"))?;
        Ok(partial.to_path_buf())
    })?;
    copy_modules(source, &dir)?;
    copy_modules(shared, &dir)?;
    Ok(dir)
}

fn install(dir: &Path) -> Result<()> {
    let mut npm = Command::new("npm");
    npm.args(["install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]);
    match process::run(npm.current_dir(dir)) {
        Err(error) if is_missing(&error) => {
            bail!("npm not found: install Node.js (Debian and Ubuntu: apt install npm), whose npm fetches it once")
        }
        done => done.map(drop),
    }
}

/// A module finds packages in its own directory and those above it, hence the copies.
fn copy_modules(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let file = entry?.path();
        if let (Some("mjs"), Some(name)) = (file.extension().and_then(|end| end.to_str()), file.file_name()) {
            fs::copy(&file, to.join(name)).with_context(|| format!("copying {}", file.display()))?;
        }
    }
    Ok(())
}
