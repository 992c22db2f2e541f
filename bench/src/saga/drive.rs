//! Starts sagas as the bench asks for it: one line of JSON a request on stdin, one an answer on stdout.
//!
//! bench/peers/drive.mjs does the same for the peers.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::node::say;

/// As many connections as there may be starters.
pub(crate) const STARTERS_MAX: usize = 64;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Request {
    /// By starters that each start the next one as soon as the last has begun.
    Drain { first: usize, count: usize, starters: usize },
    /// Saga n is due n intervals after the beginning, whatever became of those before it.
    Pace { first: usize, count: usize, rate: u32 },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// From the first start to the last end.
    Seconds(f64),
    /// From the start of each to its end.
    Milliseconds(Vec<f64>),
}

/// Microseconds of the wall clock of this machine, which PostgreSQL has too.
pub(crate) type Moment = i64;

#[async_trait]
pub(crate) trait Sagas: Send + Sync + 'static {
    /// Returns when payment n has durably begun.
    async fn begin(&self, starter: usize, n: usize) -> Result<()>;

    /// Waits until all have succeeded, and tells when.
    async fn ends(&self, numbers: Range<usize>) -> Result<HashMap<usize, Moment>>;
}

/// Serves requests until stdin is closed.
pub(crate) async fn drive(sagas: impl Sagas) -> Result<()> {
    let sagas = Arc::new(sagas);
    say("ready")?;
    while let Some(line) = next_line().await? {
        let answer = match serde_json::from_str(&line).context("reading a request")? {
            Request::Drain { first, count, starters } => drained(&sagas, first..first + count, starters).await?,
            Request::Pace { first, count, rate } => paced(&sagas, first..first + count, rate).await?,
        };
        say(&serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

async fn next_line() -> Result<Option<String>> {
    let mut line = String::new();
    let read = tokio::task::spawn_blocking(move || std::io::stdin().read_line(&mut line).map(|bytes| (bytes, line)));
    let (bytes, line) = read.await??;
    Ok((bytes > 0).then_some(line))
}

async fn drained<S: Sagas>(sagas: &Arc<S>, numbers: Range<usize>, starters: usize) -> Result<Answer> {
    let began = now();
    let next = Arc::new(AtomicUsize::new(numbers.start));
    let starting: Vec<_> = (0..starters.min(STARTERS_MAX))
        .map(|starter| {
            let (sagas, next, end) = (Arc::clone(sagas), Arc::clone(&next), numbers.end);
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= end {
                        return anyhow::Ok(());
                    }
                    sagas.begin(starter, n).await?;
                }
            })
        })
        .collect();
    for starter in starting {
        starter.await??;
    }
    let last = sagas.ends(numbers).await?.into_values().max().context("nothing was started")?;
    Ok(Answer::Seconds((last - began) as f64 / 1e6))
}

async fn paced<S: Sagas>(sagas: &Arc<S>, numbers: Range<usize>, rate: u32) -> Result<Answer> {
    let began = tokio::time::Instant::now();
    let starting: Vec<_> = numbers
        .clone()
        .enumerate()
        .map(|(at, n)| {
            let sagas = Arc::clone(sagas);
            let due = began + Duration::from_secs_f64(at as f64 / f64::from(rate));
            tokio::spawn(async move {
                tokio::time::sleep_until(due).await;
                let start = now();
                sagas.begin(n % STARTERS_MAX, n).await.map(|()| (n, start))
            })
        })
        .collect();
    let mut starts = Vec::new();
    for starter in starting {
        starts.push(starter.await??);
    }
    let ends = sagas.ends(numbers).await?;
    let took = |(n, start): (usize, Moment)| {
        let end = ends.get(&n).with_context(|| format!("payment {n} has no end"))?;
        Ok((end - start) as f64 / 1e3)
    };
    Ok(Answer::Milliseconds(starts.into_iter().map(took).collect::<Result<_>>()?))
}

pub(crate) fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
