//! `dipmo run`: starts the loops of the roles asked for, and stops them in good order.
//!
//! A first SIGTERM or SIGINT drains: every loop finishes the step it is in. A second one ends the
//! process at once, which is safe too; what was under way is done again elsewhere. A loop that ends by
//! itself ends the daemon: half a daemon would look alive.

use std::sync::Arc;
use std::time::Duration;

use dipmo::consumer::Consumer;
use dipmo::node::{Loops, Node, NodeOptions, Roles};
use dipmo::saga::Orchestrator;
use dipmo::shutdown::{Shutdown, ShutdownTrigger};
use dipmo::store::postgres::{Db, schema};
use dipmo::trace::TraceContext;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::api::{Api, Sagas};
use crate::cli::Role;
use crate::config::{AmqpConfig, Config, Problem};
use crate::courier;
use crate::definitions::{self, Definitions};
use crate::exit::{Exit, Quit};
use crate::handler::SqlHandler;
use crate::health::Health;
use crate::tracing_export::Tracing;
use crate::{http, telemetry};

/// How often a database that is away is tried at the start.
const DATABASE_RETRY: Duration = Duration::from_secs(2);

pub(crate) async fn run(config: &Config, roles: &[Role]) -> Result<Exit, Quit> {
    let tracing = telemetry::start_logs(config).map_err(failed)?;
    let ended = run_until_stopped(config, roles, tracing.as_ref().map(Tracing::context)).await;
    if let Some(tracing) = tracing {
        tracing.stop().await;
    }
    ended
}

async fn run_until_stopped(
    config: &Config,
    roles: &[Role],
    trace: Option<Arc<dyn TraceContext>>,
) -> Result<Exit, Quit> {
    let metrics = telemetry::start_metrics().map_err(failed)?;
    let node = config.node.name();
    let db = Db::open(config.database.options(&format!("dipmo {node}")).map_err(misconfigured)?)?;
    let (trigger, shutdown) = ShutdownTrigger::new();
    // Probes are answered to the very end: whoever watches a drain must be able to see it.
    let (_until_the_end, answering) = ShutdownTrigger::new();
    let health = Arc::new(Health::default());
    let mut signals = Signals::new().map_err(failed)?;
    let mut definitions = definitions::configured(&config.sagas)?;
    let orchestrator = Orchestrator::with_options(definitions.registry.clone(), config.sagas.options());
    let sagas = Sagas { orchestrator: Arc::new(orchestrator), commands: definitions.take_commands() };
    let orchestrator = Arc::clone(&sagas.orchestrator);
    if let Some(address) = config.http.address() {
        let listener = http::bind(address)
            .await
            .map_err(|error| Quit::new(Exit::Failed, format!("cannot listen on {address}: {error}")))?;
        info!(%address, "listening");
        let api = Api::new(db.clone(), config, sagas).map_err(misconfigured)?;
        tokio::spawn(http::serve(listener, db.clone(), Arc::clone(&health), metrics, api, answering));
    }
    tokio::select! {
        up = database_is_up(&db) => up?,
        () = signals.next() => return Ok(Exit::Ok),
    }
    let has = |role: Role| roles.is_empty() || roles.contains(&role);
    let options = options(config, &node, has, trace)?;
    let mut loops = start(config, &db, options, &shutdown, (&definitions, &orchestrator)).await?;
    health.started();
    info!(node, loops = loops.names().join(", "), "running");
    let ended = tokio::select! {
        ended = loops.next_end() => Some(name_of(ended)),
        () = signals.next() => None,
    };
    if let Some(name) = &ended {
        health.ended(name);
    }
    info!("draining");
    health.draining();
    trigger.stop();
    let drained = tokio::select! {
        drained = tokio::time::timeout(config.node.drain_max.0, all_end(&mut loops)) => drained,
        () = signals.next() => return Ok(Exit::Interrupted),
    };
    match (drained, ended) {
        (Err(_), _) => {
            let left = loops.names().join(", ");
            Err(Quit::new(Exit::Failed, format!("not drained within {}: {left}", config.node.drain_max)))
        }
        (Ok(_), Some(name)) => Err(Quit::new(Exit::Failed, format!("{name} ended by itself: see the log"))),
        (Ok(Some(failed)), None) => Err(Quit::new(Exit::Failed, format!("while draining, {failed}"))),
        (Ok(None), None) => Ok(Exit::Ok),
    }
}

/// Which loop ended, or how.
fn name_of(ended: Option<dipmo::Result<String>>) -> String {
    match ended {
        Some(Ok(name)) => name,
        Some(Err(error)) => error.to_string(),
        None => "every loop".to_owned(),
    }
}

/// Waits for every loop; says which one failed on the way, if one did.
async fn all_end(loops: &mut Loops) -> Option<String> {
    let mut failed = None;
    while let Some(end) = loops.next_end().await {
        failed = failed.or(end.err().map(|error| error.to_string()));
    }
    failed
}

/// What the configuration and the command line ask for.
fn options(
    config: &Config,
    node: &str,
    has: impl Fn(Role) -> bool,
    trace: Option<Arc<dyn TraceContext>>,
) -> Result<NodeOptions, Quit> {
    Ok(NodeOptions {
        roles: Roles {
            ingress: has(Role::Ingress),
            worker: has(Role::Worker),
            relay: has(Role::Relay),
            upkeep: has(Role::Upkeep),
        },
        kafka: config
            .kafka
            .as_ref()
            .map(|kafka| kafka.options(&config.database.schema))
            .transpose()
            .map_err(misconfigured)?,
        amqp: config.amqp.as_ref().map(AmqpConfig::options).transpose().map_err(misconfigured)?,
        relay: config.relay.options(node),
        upkeep: config.upkeep(),
        batch_events: config.sagas.batch_events().map_err(misconfigured)?,
        trace,
        ..NodeOptions::new(node)
    })
}

async fn start(
    config: &Config,
    db: &Db,
    options: NodeOptions,
    shutdown: &Shutdown,
    (definitions, orchestrator): (&Definitions, &Arc<Orchestrator>),
) -> Result<Loops, Quit> {
    let mut running = Node::new(db.clone(), options);
    let workers = courier::consumers(config).map_err(misconfigured)?;
    for consumer in consumers(config, db).await?.into_iter().chain(workers) {
        running = running.consumer(consumer);
    }
    if !definitions.is_empty() {
        definitions.register(db, orchestrator).await?;
        running = running.consumer(definitions::consumer(config, Arc::clone(orchestrator)));
        running = running.consumer(definitions::batches(config)?);
        tokio::spawn(definitions::follow(db.clone(), Arc::clone(orchestrator), shutdown.clone()));
    }
    let loops = running.start(shutdown.clone()).await?;
    if loops.names().is_empty() {
        return Err(Quit::new(Exit::Usage, "there is nothing to run for these roles")
            .hint("configure a [[consumer]] or a [[worker]]"));
    }
    Ok(loops)
}

/// The consumers of the file, with their functions known to exist.
async fn consumers(config: &Config, db: &Db) -> Result<Vec<Consumer>, Quit> {
    let mut consumers = Vec::new();
    for (n, section) in config.consumer.iter().enumerate() {
        let handler = SqlHandler::checked(db, &section.handler.sql).await.map_err(|error| {
            let quit = Quit::from(error);
            Quit { message: format!("consumer[{n}] {}: {}", section.name, quit.message), ..quit }
        })?;
        consumers.push(section.consumer(Arc::new(handler)));
    }
    Ok(consumers)
}

/// Waits for a database that is away; refuses one whose schema does not fit.
async fn database_is_up(db: &Db) -> Result<(), Quit> {
    loop {
        match schema::check(db).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_unavailable() => {
                let quit = Quit::from(error);
                if quit.exit == Exit::Auth {
                    return Err(quit);
                }
                warn!(error = quit.message, "waiting for the database");
                tokio::time::sleep(DATABASE_RETRY).await;
            }
            Err(error) => return Err(Quit::new(Exit::Failed, error.to_string())),
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => info!("SIGTERM"),
            _ = self.interrupt.recv() => info!("SIGINT"),
        }
    }
}

fn failed(error: anyhow::Error) -> Quit {
    Quit::new(Exit::Failed, format!("{error:#}"))
}

fn misconfigured(problem: Problem) -> Quit {
    Quit::new(Exit::Usage, format!("{}: {}", problem.key, problem.message))
}
