//! How many rows of a shard one read takes: many while they are small, few when they are large.

use crate::store::postgres::relay_out::OutRow;

/// What one read may bring into memory, about.
const READ_BYTES_MAX: usize = 1536 * 1024;
/// The first read; reads double from here while rows stay small.
const READ_ROWS_FIRST: usize = 64;

#[derive(Debug)]
pub(super) struct ReadSize(usize);

impl Default for ReadSize {
    fn default() -> Self {
        Self(READ_ROWS_FIRST)
    }
}

impl ReadSize {
    pub(super) fn rows(&self) -> usize {
        self.0
    }

    pub(super) fn adapt(&mut self, rows: &[OutRow], shards: usize, batch_rows: usize) {
        let bytes: usize = rows.iter().map(OutRow::size).sum();
        let Some(mean) = bytes.checked_div(rows.len()) else { return };
        let fits = READ_BYTES_MAX / (mean.max(1) * shards.max(1));
        self.0 = (self.0 * 2).min(batch_rows).min(fits).max(1);
    }
}
