//! The verbs for commands, dead letters and definitions.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use uuid::Uuid;

use super::{InterveneArgs, PageArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum CommandVerb {
    /// Send a command; it is carried out by the definition of its name
    Send(SendArgs),
    /// One command: its status, its result or error, and how its saga stands
    Show { id: Uuid },
    /// Commands that came from outside, newest first
    List {
        /// PENDING, RUNNING, SUCCEEDED, FAILED or TIMED_OUT
        #[arg(long)]
        status: Option<String>,
        #[arg(long)]
        name: Option<String>,
        /// All commands of this saga instead
        #[arg(long)]
        process: Option<Uuid>,
        #[command(flatten)]
        page: PageArgs,
    },
}

/// A command to send.
#[derive(Debug, Clone, Args)]
pub(crate) struct SendArgs {
    /// As in the definitions of the configuration
    pub(crate) name: String,
    /// What it is about: there is one command of a name for each key
    #[arg(long)]
    pub(crate) key: String,
    #[arg(long, default_value = "")]
    pub(crate) tenant: String,
    /// A JSON object, or @FILE that holds one
    #[arg(long, default_value = "{}", value_name = "JSON|@FILE")]
    pub(crate) payload: String,
    /// The same request under the same key again has no effect
    #[arg(long)]
    pub(crate) idempotency_key: Option<String>,
    /// The queue that gets the answer at the end
    #[arg(long)]
    pub(crate) reply_to: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DlqVerb {
    /// Commands that were given up
    List {
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Send one again, under its old idempotency key
    Resubmit(InterveneArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum DefinitionsVerb {
    /// Check files; exit code 1 and file:line:column of every mistake
    Check {
        /// Those of the configuration unless given
        files: Vec<PathBuf>,
    },
    /// Every version in the database
    List,
    /// One definition; the current version unless its hash is given
    Show {
        name: String,
        /// Or its beginning
        #[arg(long)]
        hash: Option<String>,
    },
}
