//! The verbs of the command line, one file a noun. Each opens the database, asks the library, prints.

mod audit;
mod batch;
mod config;
mod doctor;
mod inbox;
mod key;
mod outbox;
mod process;
mod relay;
mod schema;
mod status;

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use dipmo::operator::{Change, Changed, Page};
use dipmo::store::postgres::Db;
use serde::Serialize;

use crate::cli::{ChangeArgs, Cli, Format, PageArgs, RepairArgs, Verb};
use crate::config::Config;
use crate::daemon;
use crate::exit::{Exit, Quit};
use crate::output::{self, Row};

/// Looked for in the working directory when no file is named.
const FILE_DEFAULT: &str = "dipmo.toml";

/// What every verb needs: the configuration and how to print.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) file: Option<PathBuf>,
    pub(crate) format: Format,
}

pub(crate) async fn dispatch(cli: Cli) -> Result<Exit, Quit> {
    let context = Context::load(cli.config, cli.output)?;
    match cli.verb {
        Verb::Run { role } => daemon::run(&context.config, &role).await,
        Verb::Config(verb) => config::run(&context, &verb),
        Verb::Schema(verb) => schema::run(&context, verb).await,
        Verb::Status => status::run(&context).await,
        Verb::Doctor => doctor::run(&context).await,
        Verb::Inbox(verb) => inbox::run(&context, verb).await,
        Verb::Outbox(verb) => outbox::run(&context, verb).await,
        Verb::Relay(verb) => relay::run(&context, verb).await,
        Verb::Key(verb) => key::run(&context, verb).await,
        Verb::Process(verb) => process::run(&context, verb).await,
        Verb::Batch(verb) => batch::run(&context, verb).await,
        Verb::Audit(verb) => audit::run(&context, verb).await,
    }
}

impl Context {
    /// The file that was named, else the one in the working directory, else defaults.
    fn load(named: Option<PathBuf>, format: Format) -> Result<Self, Quit> {
        let file = named.or_else(|| Path::new(FILE_DEFAULT).exists().then(|| FILE_DEFAULT.into()));
        let config = match &file {
            Some(file) => Config::load(file)?,
            None => Config::default(),
        };
        Ok(Self { config, file, format })
    }

    /// The database, for an operator's few statements.
    pub(crate) fn db(&self) -> Result<Db, Quit> {
        let mut options = self.config.database.options("dipmo cli").map_err(|problem| {
            Quit::new(Exit::Usage, format!("{}: {}", problem.key, problem.message))
                .hint("name a file with -c, or set DIPMO_DATABASE_URL")
        })?;
        options.connections_max = 2;
        Ok(Db::open(options)?)
    }
}

/// The page that was asked for.
fn page<K: FromStr>(args: &PageArgs) -> Result<Page<K>, Quit> {
    let wrong = |text: &String| Quit::new(Exit::Usage, format!("--after {text:?} is not a row of this list"));
    let after = args.after.as_ref().map(|text| text.parse().map_err(|_| wrong(text))).transpose()?;
    Ok(Page { limit: args.limit, after })
}

/// Who and why; the actor is the one named, else the user of the shell.
fn change(args: &ChangeArgs) -> Result<Change, Quit> {
    let actor = args.actor.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_default();
    Change::new(actor, args.reason.clone()).map_err(|error| {
        Quit::new(Exit::Usage, error.to_string()).hint("say who with --actor or DIPMO_ACTOR, and why with --reason")
    })
}

/// Asks before a dangerous verb, or insists on --yes where nobody can be asked.
fn confirm(args: &ChangeArgs, question: &str) -> Result<(), Quit> {
    if args.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Quit::new(Exit::Declined, format!("{question} needs a yes, and there is no terminal to ask at"))
            .hint("add --yes"));
    }
    eprint!("{question}? Type yes: ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    if read.is_ok() && answer.trim() == "yes" { Ok(()) } else { Err(Quit::new(Exit::Declined, "nothing was changed")) }
}

/// Prints what was changed, as it happens: a later refusal must not hide an earlier change.
fn changed(format: Format, done: &Changed) -> Result<(), Quit> {
    match format {
        Format::Table => output::print(&format!("{} {}: {}\n", done.action, done.target, done.note)),
        Format::Json => output::json(done),
        Format::Jsonl => output::lines([output::compact(done)]),
        Format::Name => output::lines([done.target.clone()]),
    }
}

/// Changes one message after the other; the first refusal ends it.
async fn change_each(
    context: &Context,
    these: &RepairArgs,
    change_one: impl AsyncFn(i64, &Change) -> dipmo::Result<Changed>,
) -> Result<Exit, Quit> {
    let by = change(&these.change)?;
    for id in &these.ids {
        changed(context.format, &change_one(*id, &by).await?)?;
    }
    Ok(Exit::Ok)
}

/// Asks before messages are given up; whoever does not say who they are is not asked.
fn confirm_discard(table: &str, these: &RepairArgs) -> Result<(), Quit> {
    change(&these.change)?;
    let ids = &these.ids;
    let plural = if ids.len() == 1 { "" } else { "s" };
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    confirm(&these.change, &format!("discard {table} message{plural} {}", ids.join(", ")))
}

fn show_one<T: Serialize>(context: &Context, id: impl Display, thing: &T) -> Result<Exit, Quit> {
    output::one(context.format, thing, &id.to_string())?;
    Ok(Exit::Ok)
}

fn show_list<T: Row>(context: &Context, listing: &dipmo::operator::Listing<T>) -> Result<Exit, Quit> {
    output::list(context.format, listing)?;
    Ok(Exit::Ok)
}
