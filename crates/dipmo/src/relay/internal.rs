//! The INTERNAL lane: hands rows to consumers in the same database, exactly once, because the hand-over
//! and the cursor are one transaction.

use std::sync::Arc;

use tokio::sync::Notify;

use super::horizon::View;
use super::lane::{LATE_MAX, Lane, LaneStep};
use crate::error::Result;
use crate::store::postgres::relay_rows::IdRow;

impl Lane {
    pub(super) async fn hand_over(&mut self, view: &View) -> Result<LaneStep> {
        let late = self.late_ranges(view);
        let late_rows = if late.0.is_empty() { Vec::new() } else { self.link.read_late_ids(&late, LATE_MAX).await? };
        let late_complete = i64::try_from(late_rows.len()).is_ok_and(|count| count < LATE_MAX);
        let cursors = self.cursors(view, &late, late_complete);
        let limit = self.options.batch_rows;
        let fresh = if cursors.0.is_empty() {
            Vec::new()
        } else {
            self.link.read_fresh_ids(&cursors, view.safe, i64::try_from(limit).unwrap_or(i64::MAX)).await?
        };
        let found = self.found(view, (late_rows, late_complete), (&cursors, fresh, limit), place);
        let sent = found.late.len() + found.fresh.len();
        let step = LaneStep { sent, more: found.more, ..LaneStep::default() };
        let logs = self.advance(view, &found, place);
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
        if handed > 0 {
            wake(&self.options.inbox_wake);
        }
        Ok(step)
    }
}

fn place(row: &IdRow) -> (i16, i64) {
    (row.shard, row.id)
}

/// Everyone who waits now, and the next one who would.
fn wake(signal: &Arc<Notify>) {
    signal.notify_waiters();
    signal.notify_one();
}
