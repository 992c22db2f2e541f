//! What is downloaded once, per user and version, and used by every run after that.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cache_dir;

/// The directory `version` of the cache. If it is missing, `fill` makes it inside an empty directory
/// and tells what of it is to be kept.
///
/// It is renamed into its place when it is complete, so that a partial download is never used.
pub(crate) fn kept(name: &str, version: &str, fill: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<PathBuf> {
    let cache = cache_dir()?;
    let place = cache.join(version);
    if place.is_dir() {
        return Ok(place);
    }
    fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    let lock = File::create(cache.join(format!("{name}.lock"))).context("creating the download lock")?;
    // Released when the file is closed, so a killed downloader blocks nobody.
    lock.lock().context("waiting for the download lock")?;
    if !place.is_dir() {
        let partial = cache.join(format!("{name}.partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        fs::create_dir_all(&partial)?;
        fs::rename(fill(&partial)?, &place)?;
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
    }
    Ok(place)
}
