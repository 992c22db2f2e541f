//! Batches as arrays: one parameter a column.

/// Collects one value a row into a vector, for an array parameter.
pub(super) fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}
