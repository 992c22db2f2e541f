//! The definitions of sagas and commands: read from files, registered in the database, given to the
//! orchestrator and to the API.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dipmo::batch::{BATCH_QUEUE, BatchStarter};
use dipmo::consumer::{Consumer, Handler};
use dipmo::saga::{self, Compiled, Definition, Orchestrator, Registry, START_QUEUE};
use dipmo::shutdown::Shutdown;
use dipmo::store::postgres::Db;
use dipmo::store::postgres::definitions::{self as store, NewDefinition, StoredDefinition};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::catalog::Commands;
use crate::config::{Config, SagasConfig};
use crate::exit::{Exit, Quit};

/// A version that another node has registered is known here after this long.
const RELOAD_EVERY: Duration = Duration::from_secs(5);
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Something wrong in a file of definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) file: PathBuf,
    pub(crate) problem: saga::Problem,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.problem)
    }
}

impl Mistake {
    pub(crate) fn json(&self) -> Value {
        let saga::Problem { line, column, what, why, hint } = &self.problem;
        json!({ "file": self.file, "line": line, "column": column, "what": what, "why": why, "hint": hint })
    }
}

/// What the files define.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    pub(crate) registry: Registry,
    commands: Commands,
    versions: Vec<NewDefinition>,
}

/// Reads and checks every file; all mistakes are told at once.
pub(crate) fn read(files: &[PathBuf]) -> Result<Definitions, Vec<Mistake>> {
    let (mut found, mut mistakes) = (Vec::new(), Vec::new());
    for file in files {
        let wrong = |problem| Mistake { file: file.clone(), problem };
        match text_of(file).map_err(|problem| vec![problem]).and_then(|text| saga::check(&text)) {
            Ok(definitions) => found.extend(definitions.into_iter().map(|definition| (file, definition))),
            Err(problems) => mistakes.extend(problems.into_iter().map(wrong)),
        }
    }
    for (n, (file, definition)) in found.iter().enumerate() {
        if let Some((other, _)) = found[..n].iter().find(|(_, other)| other.name == definition.name) {
            let what = format!("{} is defined in {} too", definition.name, other.display());
            let why = "sagas and commands are started by their names alone";
            mistakes.push(Mistake { file: (*file).clone(), problem: whole_file(what, why, "give each its own name") });
        }
    }
    let (schemas, wrong): (Vec<_>, Vec<_>) = found.iter().map(|(file, d)| schema_of(file, d)).partition(Result::is_ok);
    mistakes.extend(wrong.into_iter().filter_map(Result::err));
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let commands = Commands::new(schemas.into_iter().filter_map(Result::ok));
    let commands = commands.expect("every schema was compiled when it was read");
    let mut definitions = Definitions { commands, ..Definitions::default() };
    for (_, definition) in found {
        let body = serde_json::to_value(&definition).expect("a definition is plain data");
        let compiled = definitions.registry.register(definition).expect("the file was checked when it was read");
        let (name, hash) = (compiled.name().to_owned(), compiled.hash().to_owned());
        definitions.versions.push(NewDefinition { name, hash, body });
    }
    Ok(definitions)
}

/// The files of the configuration.
pub(crate) fn files(config: &SagasConfig) -> Result<Vec<PathBuf>, Quit> {
    config.paths().map_err(|problem| Quit::new(Exit::Usage, format!("{}: {}", problem.key, problem.message)))
}

/// The definitions of the configuration.
pub(crate) fn configured(config: &SagasConfig) -> Result<Definitions, Quit> {
    read(&files(config)?).map_err(|mistakes| {
        let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        Quit::new(Exit::Usage, lines.join("\n")).hint("see docs/sagas.md for how definitions are written")
    })
}

fn text_of(file: &Path) -> Result<String, saga::Problem> {
    let unreadable = |why: String| whole_file("the file cannot be read".to_owned(), &why, "check path and permissions");
    let size = std::fs::metadata(file).map_err(|e| unreadable(e.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable(format!("it has {size} bytes, more than {FILE_BYTES_MAX}")));
    }
    std::fs::read_to_string(file).map_err(|e| unreadable(e.to_string()))
}

/// The schema of a definition's input. As text it is the path of a file beside the definition's.
fn schema_of(file: &Path, definition: &Definition) -> Result<(String, Option<Value>), Mistake> {
    let name = definition.name.clone();
    let wrong = |why: String| {
        let what = format!("the schema of {name} cannot be used");
        Mistake { file: file.to_owned(), problem: whole_file(what, &why, "give a JSON Schema, or the path of one") }
    };
    let schema = match &definition.schema {
        Some(Value::String(path)) => {
            let path = file.parent().unwrap_or(Path::new("")).join(path);
            let text = text_of(&path).map_err(|problem| wrong(format!("{}: {}", path.display(), problem.why)))?;
            Some(serde_json::from_str(&text).map_err(|e| wrong(format!("{}: {e}", path.display())))?)
        }
        other => other.clone(),
    };
    Commands::new([(name.clone(), schema.clone())]).map_err(wrong)?;
    Ok((definition.name.clone(), schema))
}

fn whole_file(what: String, why: &str, hint: &str) -> saga::Problem {
    saga::Problem { line: 1, column: 1, what, why: why.to_owned(), hint: hint.to_owned() }
}

impl Definitions {
    pub(crate) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Which commands may be sent; whoever takes them is the one to ask from then on.
    pub(crate) fn take_commands(&mut self) -> Commands {
        std::mem::take(&mut self.commands)
    }

    /// Makes these versions current in the database, and gives the orchestrator all that are there.
    pub(crate) async fn register(&self, db: &Db, orchestrator: &Orchestrator) -> dipmo::Result<()> {
        for name in store::register(db, &self.versions).await? {
            info!(name, "new sagas begin with the version of this node's files");
        }
        orchestrator.replace(registry(&store::all(db).await?));
        Ok(())
    }
}

/// The consumer that runs the sagas; with a broker, they are started and answered there too.
pub(crate) fn consumer(config: &Config, orchestrator: Arc<Orchestrator>) -> Consumer {
    let queues = [START_QUEUE, &*config.sagas.reply_queue];
    let consumer = Consumer::new(config.sagas.consumer.clone(), Handler::Process(orchestrator));
    let consumer = consumer.from_internal_queues(&queues);
    if config.amqp.is_some() { consumer.from_amqp(&queues) } else { consumer }
}

/// The consumer that starts the sagas of batches.
pub(crate) fn batches(config: &Config) -> dipmo::Result<Consumer> {
    let consumer = BatchStarter::internal()?.consumer().from_internal_queues(&[BATCH_QUEUE]);
    Ok(if config.amqp.is_some() { consumer.from_amqp(&[BATCH_QUEUE]) } else { consumer })
}

/// Decides on operators' wishes as the nodes would: it knows every version in the database.
pub(crate) async fn stored(db: &Db, config: &SagasConfig) -> dipmo::Result<Orchestrator> {
    Ok(Orchestrator::with_options(registry(&store::all(db).await?), config.options()))
}

/// Learns what other nodes register, until asked to stop.
pub(crate) async fn follow(db: Db, orchestrator: Arc<Orchestrator>, mut shutdown: Shutdown) {
    let mut known = Vec::new();
    while !shutdown.requested() {
        shutdown.wait_up_to(RELOAD_EVERY).await;
        match store::all(&db).await {
            Ok(stored) if stored != known => {
                orchestrator.replace(registry(&stored));
                known = stored;
            }
            Ok(_) => {}
            Err(error) => warn!(%error, "cannot look for new definitions"),
        }
    }
}

/// Every version that this program understands.
fn registry(stored: &[StoredDefinition]) -> Registry {
    let mut registry = Registry::new();
    for StoredDefinition { name, hash, current, body, .. } in stored {
        let definition = serde_json::from_value::<Definition>(body.clone()).map_err(|e| e.to_string());
        match definition.and_then(|d| Compiled::new(d).map_err(|flaws| format!("{flaws:?}"))) {
            Ok(compiled) => registry.add(Arc::new(compiled), *current),
            // A later program may have written it; its sagas wait for a node that knows it.
            Err(why) => warn!(name, hash, why, "a stored definition is not understood"),
        }
    }
    registry
}
