//! The command line: verbs, arguments, and nothing else.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use dipmo::relay::Reader;
use uuid::Uuid;

/// Durable inbox, process manager and outbox over PostgreSQL and Kafka.
#[derive(Debug, Parser)]
#[command(name = "dipmo", version, propagate_version = true)]
pub(crate) struct Cli {
    /// The configuration file; without it ./dipmo.toml, or DIPMO_DATABASE_URL alone
    #[arg(short, long, global = true, env = "DIPMO_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How to print
    #[arg(short, long, global = true, value_enum, default_value_t)]
    pub(crate) output: Format,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Json,
    /// One JSON object a line
    Jsonl,
    /// One name or id a line, for scripts
    Name,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the daemon
    Run {
        /// Roles of this process, all by default
        #[arg(long, value_enum, value_delimiter = ',', num_args = 1..)]
        role: Vec<Role>,
    },
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    /// The tables of dipmo in the database
    #[command(subcommand)]
    Schema(SchemaVerb),
    /// How it is going: consumers, lanes, nodes, processes
    Status,
    /// Look for what is wrong; exit code 10 when something is
    Doctor,
    /// Received messages
    #[command(subcommand)]
    Inbox(InboxVerb),
    /// Messages to send
    #[command(subcommand)]
    Outbox(OutboxVerb),
    /// From where the outbox is read: its table or the WAL
    #[command(subcommand)]
    Relay(RelayVerb),
    /// Keys that wait behind a failed message
    #[command(subcommand)]
    Key(KeyVerb),
    /// Process instances
    #[command(subcommand)]
    Process(ProcessVerb),
    /// Batches of sagas
    #[command(subcommand)]
    Batch(BatchVerb),
    /// Who changed what, and why
    #[command(subcommand)]
    Audit(AuditVerb),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Take messages from Kafka
    Ingress,
    /// Handle stored messages, retries and timers
    Worker,
    /// Send what the outbox holds
    Relay,
    /// Partitions, retention, gauges
    Upkeep,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Check the file and print what was understood, without secrets
    Check,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum SchemaVerb {
    /// Bring the schema up to date
    Migrate,
    /// Show the SQL that migrate would run
    Plan,
    /// Is the schema the one this version knows?
    Check,
}

/// A part of a list.
#[derive(Debug, Clone, Args)]
pub(crate) struct PageArgs {
    /// The most rows to show
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: u32,
    /// Continue after this row, as printed at the end of the page before
    #[arg(long)]
    pub(crate) after: Option<String>,
}

/// Who changes something, and why.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChangeArgs {
    /// Why; kept in the audit trail
    #[arg(long)]
    pub(crate) reason: String,
    /// Who; kept in the audit trail
    #[arg(long, env = "DIPMO_ACTOR")]
    pub(crate) actor: Option<String>,
    /// Do not ask; needed for dangerous verbs when there is no terminal
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// One message.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShowArgs {
    /// As `list` shows it
    pub(crate) id: i64,
    /// Show the payload too, up to 64 kB
    #[arg(long)]
    pub(crate) payload: bool,
}

/// Messages to repair.
#[derive(Debug, Clone, Args)]
pub(crate) struct RepairArgs {
    /// One or more, as `list` shows them; the first refusal ends it
    #[arg(required = true)]
    pub(crate) ids: Vec<i64>,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum InboxVerb {
    /// Open messages, oldest first
    List {
        #[arg(long)]
        consumer: Option<String>,
        /// RECEIVED, RETRY, PARKED, DEAD or SERDE_ERROR
        #[arg(long)]
        state: Option<String>,
        #[arg(long)]
        key: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// One message, open or closed
    Show(ShowArgs),
    /// Has a consumer seen this message?
    Seen {
        #[arg(long)]
        consumer: String,
        /// The topic, or the source system of the consumer
        #[arg(long)]
        source: String,
        #[arg(long)]
        message_id: String,
    },
    /// Try a DEAD or RETRY message again now, with fresh attempts
    Retry(RepairArgs),
    /// Give a message up; what waits behind it goes on
    Discard(RepairArgs),
    /// Decode a SERDE_ERROR again, by the rules of the configuration
    Redecode(RepairArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxVerb {
    /// What could not be sent, oldest first
    List {
        /// PENDING, RETRY, PARKED, DEAD, PUBLISHED or DISCARDED
        #[arg(long)]
        state: Option<String>,
        /// INTERNAL, INTERNAL:QUEUE, KAFKA:TOPIC or AMQP:QUEUE
        #[arg(long)]
        destination: Option<String>,
        #[arg(long)]
        key: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// One message in any state
    Show(ShowArgs),
    /// Send a DEAD or RETRY message again now, with fresh attempts
    Retry(RepairArgs),
    /// Give a message up: it is never sent, what waits behind it follows
    Discard(RepairArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RelayVerb {
    /// Readers, slots, relays, and what stands in the way of the WAL
    Status,
    /// Show or change who reads the outbox for Kafka
    Reader(ReaderArgs),
    /// The replication slot behind the WAL's reader
    #[command(subcommand)]
    Slot(SlotVerb),
}

/// A reader to change to, or none to see which one it is.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReaderArgs {
    #[arg(value_enum, requires = "reason")]
    pub(crate) reader: Option<ReaderName>,
    /// Why; kept in the audit trail
    #[arg(long, requires = "reader")]
    pub(crate) reason: Option<String>,
    /// Who; kept in the audit trail
    #[arg(long, env = "DIPMO_ACTOR")]
    pub(crate) actor: Option<String>,
    /// Accepted as everywhere; this verb never asks
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReaderName {
    /// The table, by any number of relays together
    Poll,
    /// The WAL, by one relay; the others stand by
    Wal,
    /// The table, and the WAL beside it to compare
    Verify,
}

impl From<ReaderName> for Reader {
    fn from(name: ReaderName) -> Self {
        match name {
            ReaderName::Poll => Reader::Poll,
            ReaderName::Wal => Reader::Wal,
            ReaderName::Verify => Reader::Verify,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum SlotVerb {
    /// The slots of this schema's relays
    Status,
    /// Make the slot before a relay does; only with the reader wal
    Create(ChangeArgs),
    /// Drop a slot that nobody reads
    Drop {
        /// As `status` shows it; the one that is sent from unless given
        name: Option<String>,
        /// Also one that a relay has still to read: messages that were only emitted are lost
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        change: ChangeArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyVerb {
    /// Parked keys, oldest head first
    List {
        #[arg(long)]
        consumer: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// One parked key
    Show { consumer: String, key: String },
    /// Leave the failed head where it is and let the rest go on
    Release {
        consumer: String,
        key: String,
        /// Count missing versions as applied
        #[arg(long)]
        skip_gap: bool,
        #[command(flatten)]
        change: ChangeArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProcessVerb {
    /// Process instances
    List {
        #[arg(long = "type")]
        process_type: Option<String>,
        /// NEW, RUNNING, SUCCEEDED, FAILED, COMPENSATING, COMPENSATED or PAUSED
        #[arg(long)]
        status: Option<String>,
        #[arg(long)]
        state: Option<String>,
        #[arg(long)]
        tenant: Option<String>,
        #[arg(long)]
        business_key: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// One instance with its data, timers and journal
    Show { id: Uuid },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BatchVerb {
    /// Batches and how far they are
    List {
        #[arg(long = "type")]
        saga: Option<String>,
        /// NEW, RUNNING, SUCCEEDED, FAILED or PARTIAL
        #[arg(long)]
        status: Option<String>,
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// One batch with its counts and what failed in it
    Show { id: Uuid },
    /// Show the progress until it ends; exit code 10 unless every item succeeded
    Watch { id: Uuid },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditVerb {
    /// Changes, newest first
    List {
        #[arg(long)]
        actor: Option<String>,
        #[arg(long)]
        action: Option<String>,
        #[arg(long)]
        target: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
}
