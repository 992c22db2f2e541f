//! Logs, spans and metrics of the daemon. Logs go to stderr, as text for eyes or JSON for collectors.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::config::{Config, LogFormat};
use crate::tracing_export::Tracing;

/// Latencies from a millisecond to minutes; counts of rows use the same bounds without harm.
const BUCKETS: [f64; 14] = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

pub(crate) type Boxed = Box<dyn Layer<Registry> + Send + Sync>;

/// Installs the logger and, where it is configured, the export of spans; call it once.
pub(crate) fn start_logs(config: &Config) -> anyhow::Result<Option<Tracing>> {
    let filter = EnvFilter::builder().parse(&config.log.level).context("log.level")?;
    let logs: Boxed = match config.log.format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal();
            fmt::layer().with_ansi(colours).with_writer(std::io::stderr).with_filter(filter).boxed()
        }
        LogFormat::Json => {
            fmt::layer().json().flatten_event(true).with_writer(std::io::stderr).with_filter(filter).boxed()
        }
    };
    let tracing = config.otlp.as_ref().map(|otlp| Tracing::start(otlp, &config.node.name())).transpose()?;
    let spans = tracing.as_ref().map(Tracing::layer);
    let layers: Vec<Boxed> = std::iter::once(logs).chain(spans).collect();
    tracing_subscriber::registry().with(layers).try_init().context("starting the logger")?;
    Ok(tracing)
}

/// Installs the recorder behind /metrics; call it once.
pub(crate) fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    let in_ms = BUCKETS.map(|seconds| seconds * 1_000.0);
    let builder = PrometheusBuilder::new().set_buckets(&BUCKETS).context("metric buckets")?;
    let builder =
        builder.set_buckets_for_metric(Matcher::Suffix("_ms".to_owned()), &in_ms).context("metric buckets")?;
    builder.install_recorder().context("starting the metrics")
}
