//! How spans of this library are tied to those of other systems.
//!
//! The library opens `tracing` spans and knows no exporter. Whoever runs a node and exports its spans
//! gives it a [`TraceContext`]; without one no span is opened, and the `traceparent` of a message is
//! passed on to the messages it causes.
//!
//! With `tracing-opentelemetry` an implementation sets the parent that its propagator extracts from
//! `traceparent` and injects the context of the span; `tracing_export.rs` of the daemon is one.

use std::fmt::Debug;

use tracing::Span;

/// Ties spans to W3C trace contexts, for the exporter at hand.
pub trait TraceContext: Debug + Send + Sync + 'static {
    /// Makes a span that has just been opened a child of `traceparent`, and tells its own traceparent.
    ///
    /// `None` where the span is not exported: then the one that came in is passed on.
    fn adopt(&self, span: &Span, traceparent: Option<&str>) -> Option<String>;
}
