//! Rows of INTERNAL that were read together with the horizon, before it was known which of them are safe:
//! while little happens this is a round trip less between a message and its handler.
//!
//! The rows are read after the last id and the snapshot, over the same connection. A view that rests on nothing
//! later may be used with them: up to its safe id they are all there is.

use super::INTERNAL;
use super::horizon::View;
use super::lane::{Found, Lane};
use super::shard::Shard;
use crate::error::Result;
use crate::store::postgres::relay::Link;
use crate::store::postgres::relay_internal::Subscriptions;
use crate::store::postgres::relay_out::OutRow;
use crate::store::postgres::relay_rows::Cursors;

/// So many ids beyond those that are known are looked at: partitions that are still empty need not be.
const IDS_MAX: i64 = 10_000;

/// What to read.
#[derive(Debug)]
pub(super) struct LookAhead {
    cursors: Cursors,
    limit: usize,
}

/// What was read.
#[derive(Debug)]
pub(super) struct Ahead {
    asked: LookAhead,
    /// Nothing with a later id was looked at.
    upto: i64,
    rows: Vec<OutRow>,
    subscriptions: Subscriptions,
}

impl LookAhead {
    /// Sent without waiting for the answer to what is on its way already. `known` is the last id so far.
    pub(super) async fn read(self, link: &Link, known: i64) -> Result<Ahead> {
        let (upto, limit) = (known.saturating_add(IDS_MAX), i64::try_from(self.limit).unwrap_or(i64::MAX));
        let rows = link.read_fresh(&self.cursors, upto, limit);
        let (rows, subscriptions) = tokio::join!(biased; rows, link.read_subscriptions());
        Ok(Ahead { rows: rows?, subscriptions: subscriptions?, upto, asked: self })
    }
}

impl Lane {
    /// Only where nothing can appear below the cursors.
    pub(super) fn look_ahead(&self) -> Option<LookAhead> {
        let plain = |shard: &Shard| !shard.has_gaps() && !shard.has_orphans();
        let local = self.name == INTERNAL && self.options.local.is_some();
        if !local || self.shards.is_empty() || !self.shards.values().all(plain) {
            return None;
        }
        let cursors = self.shards.iter().map(|(shard, state)| (*shard, state.cursor())).unzip();
        Some(LookAhead { cursors, limit: self.local_reads.rows() })
    }

    /// The rows that the view vouches for; `None` if the lane stands elsewhere by now.
    pub(super) fn vouched(&self, view: &View, ahead: Ahead) -> Option<(Found<OutRow>, Subscriptions)> {
        let Ahead { asked: LookAhead { cursors, limit }, upto, rows, subscriptions } = ahead;
        let as_asked = |((shard, state), (asked, cursor)): ((&i16, &Shard), (&i16, &i64))| {
            shard == asked && state.cursor() == *cursor && state.is_ready(view) && !state.has_gaps()
        };
        let same = self.shards.len() == cursors.0.len()
            && self.shards.iter().zip(cursors.0.iter().zip(&cursors.1)).all(as_asked);
        let ready = same && view.gaps.is_empty() && view.safe <= upto;
        let safe = rows.into_iter().filter(|row| row.place().1 <= view.safe).collect();
        ready.then(|| (Found::fresh(safe, cursors, view, limit), subscriptions))
    }
}
