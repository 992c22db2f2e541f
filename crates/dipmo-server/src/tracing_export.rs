//! Export of spans over OTLP/HTTP, and the W3C traceparent that ties them to other systems' spans.
//!
//! Plain HTTP only: TLS towards a distant backend is the work of a collector beside the daemon.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use dipmo::trace::TraceContext;
use opentelemetry::KeyValue;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tracing::{Span, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::filter_fn;

use crate::config::OtlpConfig;
use crate::telemetry::Boxed;

const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
const TRACEPARENT: &str = "traceparent";

/// The running export.
#[derive(Debug)]
pub(crate) struct Tracing {
    provider: SdkTracerProvider,
}

impl Tracing {
    pub(crate) fn start(config: &OtlpConfig, node: &str) -> anyhow::Result<Self> {
        let client =
            OnRuntime { runtime: Handle::current(), client: HyperClient::with_default_connector(EXPORT_TIMEOUT, None) };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(format!("{}/v1/traces", config.endpoint.trim_end_matches('/')))
            .build()
            .context("otlp.endpoint")?;
        let resource = Resource::builder_empty()
            .with_service_name(config.service_name.clone())
            .with_attribute(KeyValue::new("service.instance.id", node.to_owned()))
            .build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Self { provider })
    }

    /// Only our own spans: those of the HTTP client that exports them would never end.
    pub(crate) fn layer(&self) -> Boxed {
        let ours = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("dipmo"));
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("dipmo")).with_filter(ours).boxed()
    }

    /// Ties the spans of a node to those of other systems.
    pub(crate) fn context(&self) -> Arc<dyn TraceContext> {
        Arc::new(W3c)
    }

    /// Sends what is left; a collector that is away costs a moment, not the shutdown.
    pub(crate) async fn stop(self) {
        let stopped = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(EXPORT_TIMEOUT)).await;
        if let Ok(Err(error)) = stopped {
            warn!(%error, "the last spans were not exported");
        }
    }
}

/// The exporter runs on a thread of its own, where hyper would find no runtime: it is lent ours.
#[derive(Debug)]
struct OnRuntime {
    runtime: Handle,
    client: HyperClient,
}

#[async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}

/// W3C trace contexts for the library's spans.
#[derive(Debug)]
struct W3c;

impl TraceContext for W3c {
    fn adopt(&self, span: &Span, traceparent: Option<&str>) -> Option<String> {
        let propagator = TraceContextPropagator::new();
        if let Some(traceparent) = traceparent {
            let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
            // Fails only where no spans are exported, and then there is nothing to tie together.
            let _ = span.set_parent(propagator.extract(&carrier));
        }
        let mut carrier = HashMap::new();
        propagator.inject_context(&span.context(), &mut carrier);
        carrier.remove(TRACEPARENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_export_the_traceparent_is_left_alone() {
        let span = tracing::info_span!("dipmo.test");
        let incoming = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(W3c.adopt(&span, Some(incoming)), None);
    }
}
