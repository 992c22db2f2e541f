//! The small sections: `[node]`, `[relay]`, `[retention]`, `[http]`, `[log]`, `[otlp]`.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use dipmo::relay::{ForeignTable, RelayOptions};
use dipmo::upkeep::{Retention, UpkeepOptions};
use serde::Deserialize;

use super::consumer::RetryConfig;
use super::{Problem, Span};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NodeConfig {
    /// Names this process in leases and heartbeats: must differ between processes.
    pub(crate) name: Option<String>,
    /// How long a stop may take before what is under way is given up.
    pub(crate) drain_max: Span,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self { name: None, drain_max: Span(Duration::from_secs(30)) }
    }
}

impl NodeConfig {
    /// The configured name, else host and process id.
    pub(crate) fn name(&self) -> String {
        static DEFAULT: OnceLock<String> = OnceLock::new();
        let default = || {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
                .ok()
                .or_else(|| std::env::var("HOSTNAME").ok())
                .unwrap_or_else(|| "node".to_owned());
            format!("{}-{}", host.trim(), std::process::id())
        };
        self.name.clone().unwrap_or_else(|| DEFAULT.get_or_init(default).clone())
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RelayConfig {
    pub(crate) lease: Span,
    pub(crate) batch_rows: usize,
    pub(crate) poll_min: Span,
    pub(crate) poll_fallback: Span,
    pub(crate) retry: RetryConfig,
    /// Outbox tables of services that came from Debezium.
    pub(crate) foreign_tables: Vec<ForeignTableConfig>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForeignTableConfig {
    /// `schema.table`
    pub(crate) table: String,
    #[serde(default = "ForeignTableConfig::topic_prefix")]
    pub(crate) topic_prefix: String,
}

impl ForeignTableConfig {
    fn topic_prefix() -> String {
        "outbox.".to_owned()
    }

    fn table(&self) -> Option<ForeignTable> {
        let (schema, table) = self.table.split_once('.').filter(|(schema, table)| !schema.is_empty() && !table.is_empty())?;
        Some(ForeignTable { topic_prefix: self.topic_prefix.clone(), ..ForeignTable::new(schema, table) })
    }
}

impl Default for RelayConfig {
    fn default() -> Self {
        let options = RelayOptions::new("default");
        Self {
            lease: Span(options.lease),
            batch_rows: options.batch_rows,
            poll_min: Span(options.poll_min),
            poll_fallback: Span(options.poll_fallback),
            retry: RetryConfig::default(),
            foreign_tables: Vec::new(),
        }
    }
}

impl RelayConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        if self.poll_fallback.0.is_zero() || self.poll_fallback.0 > Duration::from_secs(60) {
            return Err(Problem::new("relay.poll_fallback", "must be more than 0s and at most 1m"));
        }
        if let Some(wrong) = self.foreign_tables.iter().find(|foreign| foreign.table().is_none()) {
            let what = format!("{:?} is not a table: give it as schema.table, such as public.outbox_messages", wrong.table);
            return Err(Problem::new("relay.foreign_tables", what));
        }
        let checked = self.options("check").validate();
        checked.map_err(|error| Problem::new("relay", error.to_string()))
    }

    /// Everything but what sends to Kafka and who is woken.
    pub(crate) fn options(&self, node: &str) -> RelayOptions {
        RelayOptions {
            lease: self.lease.0,
            batch_rows: self.batch_rows,
            poll_min: self.poll_min.0,
            poll_fallback: self.poll_fallback.0,
            retry: self.retry.policy(),
            foreign_tables: self.foreign_tables.iter().filter_map(ForeignTableConfig::table).collect(),
            ..RelayOptions::new(node)
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RetentionConfig {
    pub(crate) inbox: Span,
    pub(crate) outbox: Span,
    /// Kept for ever unless given.
    pub(crate) journal: Option<Span>,
    pub(crate) dedupe: Span,
    pub(crate) redrive: Span,
    pub(crate) broker: Span,
    pub(crate) partitions_ahead: i32,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        let options = UpkeepOptions::default();
        let Retention { inbox, outbox, journal, dedupe, redrive, broker, .. } = options.retention;
        Self {
            inbox: Span(inbox),
            outbox: Span(outbox),
            journal: journal.map(Span),
            dedupe: Span(dedupe),
            redrive: Span(redrive),
            broker: Span(broker),
            partitions_ahead: options.partitions_ahead,
        }
    }
}

impl RetentionConfig {
    pub(super) fn options(&self, node: String, retry_span: Option<Duration>) -> UpkeepOptions {
        let defaults = UpkeepOptions::default();
        UpkeepOptions {
            node,
            partitions_ahead: self.partitions_ahead,
            retention: Retention {
                inbox: self.inbox.0,
                outbox: self.outbox.0,
                journal: self.journal.map(|span| span.0),
                dedupe: self.dedupe.0,
                redrive: self.redrive.0,
                broker: self.broker.0,
                retry_span: retry_span.unwrap_or(defaults.retention.retry_span),
            },
            ..defaults
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HttpConfig {
    /// `address:port`, or `off`.
    pub(crate) listen: String,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self { listen: "127.0.0.1:9090".to_owned() }
    }
}

impl HttpConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        if self.listen != "off" && self.listen.parse::<SocketAddr>().is_err() {
            let message = format!("{:?} is not an address: write 127.0.0.1:9090, or off", self.listen);
            return Err(Problem::new("http.listen", message));
        }
        Ok(())
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listen.parse().ok()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogConfig {
    pub(crate) format: LogFormat,
    /// A level, or directives such as `info,dipmo::relay=debug`.
    pub(crate) level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".to_owned() }
    }
}

impl LogConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        let parsed = tracing_subscriber::EnvFilter::builder().parse(&self.level);
        parsed.map(drop).map_err(|error| Problem::new("log.level", format!("{:?}: {error}", self.level)))
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtlpConfig {
    /// The base URL of a collector that takes OTLP over HTTP, such as `http://localhost:4318`.
    pub(crate) endpoint: String,
    #[serde(default = "service_name")]
    pub(crate) service_name: String,
}

fn service_name() -> String {
    "dipmo".to_owned()
}

impl OtlpConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        if !self.endpoint.starts_with("http://") {
            let message = "write http://host:port; TLS is left to a collector beside the daemon";
            return Err(Problem::new("otlp.endpoint", message));
        }
        Ok(())
    }
}
