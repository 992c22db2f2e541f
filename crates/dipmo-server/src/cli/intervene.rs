//! The verbs that move a saga by hand.

use clap::Args;
use dipmo::process::OperatorVerb;
use uuid::Uuid;

use super::ChangeArgs;

/// One saga, and who answers for what is done to it.
#[derive(Debug, Clone, Args)]
pub(crate) struct InterveneArgs {
    pub(crate) id: Uuid,
    /// Say what would happen, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The version that `show` told: refuse if the saga has moved on since
    #[arg(long)]
    pub(crate) seen_version: Option<i64>,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

/// What is to be done to which saga.
pub(crate) struct Wish {
    pub(crate) verb: OperatorVerb,
    pub(crate) args: InterveneArgs,
    /// Cannot be taken back: asked for twice.
    pub(crate) dangerous: bool,
}

impl Wish {
    pub(crate) fn new(verb: OperatorVerb, args: InterveneArgs) -> Self {
        let dangerous = !matches!(verb, OperatorVerb::Pause | OperatorVerb::Resume | OperatorVerb::Resubmit);
        Self { verb, args, dangerous }
    }
}
