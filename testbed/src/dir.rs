//! Where servers keep what they download (once, per user) and what they store (per start).

use std::env;
use std::fs::DirBuilder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// The directory for downloads that outlive a run: `$DIPMO_CACHE`, else
/// `$XDG_CACHE_HOME/dipmo`, else `~/.cache/dipmo`. It is not created here.
pub fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = non_empty("DIPMO_CACHE") {
        return Ok(dir);
    }
    if let Some(dir) = non_empty("XDG_CACHE_HOME") {
        return Ok(dir.join("dipmo"));
    }
    let home = non_empty("HOME").context("no cache directory: set DIPMO_CACHE or HOME")?;
    Ok(home.join(".cache/dipmo"))
}

/// Part of the name of what is cached, where a version is not one number.
pub(crate) fn fingerprint(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Creates an empty directory that nobody else has, readable by its owner only.
pub(crate) fn create_private(parent: Option<&Path>, name: &str) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let parent = parent.map_or_else(env::temp_dir, Path::to_path_buf);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("dipmo-{name}-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            // Left behind by an earlier process that had the same id and asked to keep it.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("creating {}", dir.display()));
            }
        }
    }
}

fn non_empty(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
