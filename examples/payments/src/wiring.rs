//! Where everything is, as data: which database and schema each context has, and by which transport it is
//! reached. The contexts themselves know nothing of it.
//!
//! By default everything is in one database and one dipmo schema, over INTERNAL; each context has a login
//! that sees its own tables and those of dipmo. A context may as well have a database of its own, with its
//! own inbox and outbox in it, and be reached by AMQP.
//! Not kept apart in the shared database: the messages themselves, because the inbox and the outbox are
//! common. Whoever needs that gives the context its own database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use dipmo::Destination;
use dipmo::backoff::RetryPolicy;
use dipmo::batch::{BATCH_QUEUE, BatchStarter};
use dipmo::clock::Clock;
use dipmo::command::CommandWorker;
use dipmo::consumer::{Consumer, DeadPolicy, Grouping};
use dipmo::node::{Node, NodeOptions, Roles};
use dipmo::saga::{self, Definition, Orchestrator, REPLY_QUEUE, Registry, START_QUEUE};
use dipmo::store::postgres::{Db, DbOptions};
use dipmo::transport::amqp::AmqpOptions;

use crate::context::{Context, Domain};
use crate::fx::BankClient;
use crate::payments::Rail;
use crate::{accounts, fx, limits, payments};

/// Where the core tells of sagas and batches.
pub const ORCHESTRATIONS: &str = "events.Orchestrations";

const DEFINITIONS: &str = include_str!("../payment.toml");

/// By which a context is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// The database itself, for a context that shares it.
    Internal,
    /// A broker that speaks AMQP 1.0.
    Amqp,
}

impl Transport {
    fn prefix(self) -> &'static str {
        match self {
            Transport::Internal => "INTERNAL",
            Transport::Amqp => "AMQP",
        }
    }

    fn take(self, consumer: Consumer, queues: &[&str]) -> Consumer {
        match self {
            Transport::Internal => consumer.from_internal_queues(queues),
            Transport::Amqp => consumer.from_amqp(queues),
        }
    }

    fn destination(self, queue: &str) -> Result<Destination> {
        Ok(format!("{}:{queue}", self.prefix()).parse()?)
    }
}

/// Where something is. The URL is never printed.
#[derive(Clone)]
pub struct Site {
    pub url: String,
    pub dipmo_schema: String,
    pub domain_schema: String,
    pub transport: Transport,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (schema, transport) = (&self.domain_schema, self.transport);
        f.debug_struct("Site").field("schema", schema).field("transport", &transport).finish_non_exhaustive()
    }
}

/// What the contexts reach outside.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a rail has nothing to show")]
pub struct Outside {
    pub bank: Arc<BankClient>,
    pub rail: Arc<dyn Rail>,
}

/// The whole platform.
#[derive(Clone)]
pub struct Platform {
    /// Where sagas and batches live.
    pub core: Site,
    pub contexts: BTreeMap<Context, Site>,
    /// Where events go; without it nobody hears of them.
    pub kafka: Option<String>,
    pub amqp: Option<AmqpOptions>,
    pub clock: Clock,
    pub connections_max: usize,
}

impl std::fmt::Debug for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Platform").field("contexts", &self.contexts).finish_non_exhaustive()
    }
}

impl Platform {
    /// Everything in one database, the contexts by their own logins; `suffix` tells several of them apart.
    /// [`crate::setup::prepare`] makes it so.
    pub fn shared(url: &str, suffix: &str) -> Result<Self> {
        let dipmo_schema = format!("dipmo{suffix}");
        let core = Site {
            url: url.to_owned(),
            dipmo_schema: dipmo_schema.clone(),
            domain_schema: String::new(),
            transport: Transport::Internal,
        };
        let mut contexts = BTreeMap::new();
        for context in Context::ALL {
            let name = format!("{}{suffix}", context.name());
            let url = crate::setup::url_of(url, &name)?;
            let dipmo_schema = dipmo_schema.clone();
            contexts.insert(context, Site { url, dipmo_schema, domain_schema: name, transport: Transport::Internal });
        }
        Ok(Self { core, contexts, kafka: None, amqp: None, clock: Clock::database(), connections_max: 8 })
    }

    /// A database for each context, as `databases` names them, with a broker between them.
    pub fn apart(url: &str, suffix: &str, databases: &BTreeMap<Context, String>, amqp: AmqpOptions) -> Result<Self> {
        let mut platform = Self { amqp: Some(amqp), ..Self::shared(url, suffix)? };
        for (context, site) in &mut platform.contexts {
            let Some(url) = databases.get(context) else { bail!("{context:?} has no database") };
            *site = Site { url: url.clone(), transport: Transport::Amqp, ..site.clone() };
        }
        Ok(platform)
    }

    pub fn db(&self, site: &Site, name: &str) -> Result<Db> {
        Ok(Db::open(DbOptions {
            schema: site.dipmo_schema.clone(),
            connections_max: self.connections_max,
            application_name: format!("payments {name}"),
            clock: self.clock.clone(),
            ..DbOptions::new(&site.url)
        })?)
    }

    pub fn is_shared(&self, context: Context) -> bool {
        self.contexts[&context].transport == Transport::Internal
    }

    pub fn domain(&self, context: Context) -> Domain {
        Domain::new(context, &self.contexts[&context].domain_schema, self.kafka.is_some())
    }

    /// How the core is reached from the contexts, each way once.
    fn ways_in(&self) -> Vec<Transport> {
        let mut ways: Vec<Transport> = self.contexts.values().map(|site| site.transport).collect();
        ways.push(Transport::Internal);
        ways.sort_unstable();
        ways.dedup();
        ways
    }

    /// The definitions, with the queues of each context on its transport.
    pub fn definitions(&self) -> Result<Vec<Definition>> {
        let mut definitions = saga::check(DEFINITIONS).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(|problem| format!("payment.toml:{problem}")).collect();
            anyhow::anyhow!(problems.join("\n"))
        })?;
        for step in definitions.iter_mut().flat_map(|definition| &mut definition.steps) {
            step.to = self.queue_of(&step.command)?;
            if let Some(undo) = &mut step.compensation {
                undo.to = self.queue_of(&undo.command)?;
            }
        }
        if self.kafka.is_some() {
            let events = Destination::Kafka { topic: ORCHESTRATIONS.to_owned() };
            definitions.iter_mut().for_each(|definition| definition.events = Some(events.clone()));
        }
        Ok(definitions)
    }

    fn queue_of(&self, command: &str) -> Result<Destination> {
        let context = Context::of(command).with_context(|| format!("no context does {command}"))?;
        self.contexts[&context].transport.destination(&context.queue(command))
    }

    /// What runs in the core: the orchestrator and the start of batches.
    pub fn core_consumers(&self) -> Result<Vec<Consumer>> {
        let mut registry = Registry::new();
        for definition in self.definitions()? {
            registry.register(definition).map_err(|flaws| anyhow::anyhow!("payment.toml: {flaws:?}"))?;
        }
        let mut orchestrator = Consumer::process("orchestrator", Orchestrator::new(registry));
        let mut batches = BatchStarter::internal()?.consumer();
        for way in self.ways_in() {
            orchestrator = way.take(orchestrator, &[START_QUEUE, REPLY_QUEUE]);
            batches = way.take(batches, &[BATCH_QUEUE]);
        }
        Ok(vec![orchestrator, batches])
    }

    /// What runs in a context: one worker for all its commands.
    pub fn context_consumer(&self, context: Context, outside: &Outside) -> Result<Consumer> {
        let (domain, site) = (self.domain(context), &self.contexts[&context]);
        let handlers = match context {
            Context::Accounts => accounts::handlers(&domain),
            Context::Limits => limits::handlers(&domain),
            // Connections of its own: those of the worker may all be busy with calls that wait for this one.
            Context::Fx => fx::handlers(&domain, &self.db(site, "fx ledger")?, &outside.bank),
            Context::Payments => payments::handlers(&domain, outside.rail.clone(), site.transport.prefix()),
        };
        let queues: Vec<String> = context.commands().iter().map(|command| context.queue(command)).collect();
        let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
        let worker = CommandWorker::new(handlers).replies_by(site.transport.prefix());
        let mut consumer = site.transport.take(Consumer::enlisted(context.name(), worker), &queues);
        // A call to the bank keeps its transaction open: each has its own, and several run side by side.
        consumer = consumer.grouped(if context == Context::Fx { Grouping::Record } else { Grouping::Batch });
        // The desk of fx takes a second connection while it holds the one of its transaction.
        let enough = if context == Context::Fx { self.connections_max / 2 } else { self.connections_max };
        consumer.concurrency = enough.clamp(1, 4);
        consumer.retry = RetryPolicy { attempts_max: 3, delay_max: Duration::from_secs(1), ..RetryPolicy::default() };
        // A command that cannot be handled is answered by the timeout of its step, and what undoes it must
        // not wait behind it.
        consumer.on_dead = DeadPolicy::Skip;
        Ok(consumer)
    }

    /// The processes of the platform. In a shared database the core's sends for all of them.
    pub fn nodes(&self, outside: &Outside) -> Result<Vec<Node>> {
        let options = |name: &str, roles: Roles| {
            let mut options = NodeOptions { roles, amqp: self.amqp.clone(), ..NodeOptions::new(name) };
            if let Some(brokers) = &self.kafka {
                options = options.kafka(brokers);
                options.batch_events = Some(Destination::Kafka { topic: ORCHESTRATIONS.to_owned() });
            }
            options
        };
        let core = Node::new(self.db(&self.core, "core")?, options("core", Roles::default()));
        let mut nodes = vec![self.core_consumers()?.into_iter().fold(core, Node::consumer)];
        for context in Context::ALL {
            let worker_only = Roles { ingress: false, worker: true, relay: false, upkeep: false };
            let roles = if self.is_shared(context) { worker_only } else { Roles::default() };
            let db = self.db(&self.contexts[&context], context.name())?;
            let consumer = self.context_consumer(context, outside)?;
            nodes.push(Node::new(db, options(context.name(), roles)).consumer(consumer));
        }
        Ok(nodes)
    }
}
