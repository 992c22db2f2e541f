//! The INTERNAL lane: hands rows to consumers in the same database, exactly once, because the hand-over
//! and the cursor are one transaction.

use metrics::counter;

use super::horizon::View;
use super::lane::{Found, Lane, LaneStep, ReadRow};
use crate::error::Result;
use crate::store::postgres::relay::Link;
use crate::store::postgres::relay_rows::{Cursors, IdRow, LateRanges};

impl Lane {
    pub(super) async fn hand_over(&mut self, view: &View) -> Result<LaneStep> {
        let found: Found<IdRow> = self.read(view, self.options.batch_rows, false).await?;
        let sent = found.late.len() + found.fresh.len();
        let step = LaneStep { sent, more: found.more, ..LaneStep::default() };
        let logs = self.advance(view, &found.places());
        if sent == 0 {
            return Ok(step);
        }
        let subscriptions = self.link.read_subscriptions().await?;
        self.link.begin().await?;
        // First the fence: from here on nobody can take these shards until the hand-over has committed.
        let moved = self.settle(&logs, &[]).await?;
        let mut rows: Vec<IdRow> = found.late.into_iter().chain(found.fresh).collect();
        rows.retain(|row| moved.contains(&row.shard));
        let handed = self.link.hand_over(&subscriptions.deliveries(&rows)).await?;
        self.link.commit().await?;
        counter!("dipmo_outbox_published_total", "lane" => self.name).increment(rows.len() as u64);
        if handed > 0 {
            self.options.inbox_wake.fire();
        }
        Ok(step)
    }
}

impl ReadRow for IdRow {
    async fn late(link: &Link, ranges: &LateRanges, limit: i64) -> Result<Vec<Self>> {
        link.read_late_ids(ranges, limit).await
    }

    async fn fresh(link: &Link, cursors: &Cursors, upto: i64, limit: i64) -> Result<Vec<Self>> {
        link.read_fresh_ids(cursors, upto, limit).await
    }

    fn place(&self) -> (i16, i64) {
        (self.shard, self.id)
    }
}
