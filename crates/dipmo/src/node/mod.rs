//! A node: the loops of one process, started together, told to stop together, noticed when one ends.
//!
//! Any number of nodes may run on one database; they share the work by leases.

mod local;

pub use local::LocalRunners;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tracing::error;

use crate::batch::BatchWatcher;
use crate::consumer::{Consumer, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::ingress::{AmqpIngress, KafkaIngress};
use crate::message::Destination;
use crate::relay::{Relay, RelayOptions};
use crate::runner::{Runner, Worker};
use crate::shutdown::Shutdown;
use crate::store::postgres::listen::{Channel, Listener};
use crate::store::postgres::{Db, schema};
use crate::trace::TraceContext;
use crate::transport::amqp::{AmqpOptions, AmqpPublisher};
use crate::transport::kafka::{KafkaOptions, KafkaPublisher};
use crate::upkeep::{Upkeep, UpkeepOptions};
use crate::wake::Wake;

/// What a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    pub ingress: bool,
    pub worker: bool,
    pub relay: bool,
    pub upkeep: bool,
}

impl Default for Roles {
    fn default() -> Self {
        Self { ingress: true, worker: true, relay: true, upkeep: true }
    }
}

/// How a node works.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Unique among the running processes: leases and heartbeats carry it.
    pub name: String,
    pub roles: Roles,
    /// Without it, no topic is read or sent to.
    pub kafka: Option<KafkaOptions>,
    /// Without it, no queue of a broker is read or sent to.
    pub amqp: Option<AmqpOptions>,
    /// `node`, `kafka`, `amqp` and `inbox_wake` are set by the node.
    pub relay: RelayOptions,
    pub upkeep: UpkeepOptions,
    /// Where the end of a batch is told, beside the table.
    pub batch_events: Option<Destination>,
    /// Where spans are exported; without it none are opened.
    pub trace: Option<Arc<dyn TraceContext>>,
}

impl NodeOptions {
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            relay: RelayOptions::new(&name),
            upkeep: UpkeepOptions { node: name.clone(), ..UpkeepOptions::default() },
            name,
            roles: Roles::default(),
            kafka: None,
            amqp: None,
            batch_events: None,
            trace: None,
        }
    }

    /// Reads from and sends to this cluster: `host:port`, separated by commas.
    #[must_use]
    pub fn kafka(mut self, brokers: &str) -> Self {
        self.kafka = Some(KafkaOptions::new(brokers));
        self
    }
}

/// The loops of this process, not started yet.
#[derive(Debug)]
pub struct Node {
    db: Db,
    options: NodeOptions,
    consumers: Vec<Arc<Consumer>>,
}

impl Node {
    pub fn new(db: Db, options: NodeOptions) -> Self {
        Self { db, options, consumers: Vec::new() }
    }

    #[must_use]
    pub fn consumer(mut self, consumer: Consumer) -> Self {
        self.consumers.push(Arc::new(consumer));
        self
    }

    /// Runs until asked to stop, and finishes what is under way. A loop that panics is an error.
    pub async fn run(self, shutdown: Shutdown) -> Result<()> {
        let mut loops = self.start(shutdown).await?;
        while let Some(ended) = loops.next_end().await {
            ended?;
        }
        Ok(())
    }

    /// Starts every loop; refuses a schema that it does not know.
    pub async fn start(self, shutdown: Shutdown) -> Result<Loops> {
        self.names_differ()?;
        schema::check(&self.db).await?;
        let wake = Wake::default();
        let mut loops = Loops::new(shutdown);
        let mut quick = Vec::new();
        for consumer in &self.consumers {
            let runner = self.start_consumer(consumer, &wake, &mut loops).await?;
            quick.extend(runner.filter(|_| local::is_quick(consumer)));
        }
        if self.options.roles.worker && !self.consumers.is_empty() {
            let (db, wake) = (self.db.clone(), wake.clone());
            loops.spawn("listener", |mut shutdown| async move {
                let _listener = Listener::spawn(db, Channel::Inbox, move || wake.fire());
                shutdown.wait().await;
            });
        }
        // After the consumers are registered: what is handed over before that would pass them by.
        if self.options.roles.relay {
            let relay = self.relay(quick, wake)?;
            loops.spawn("relay", |shutdown| async move { relay.run(shutdown).await });
        }
        if self.options.roles.upkeep {
            let upkeep = self.upkeep()?;
            loops.spawn("upkeep", |shutdown| async move { upkeep.run(shutdown).await });
            let batches = BatchWatcher::new(self.db.clone()).telling(self.options.batch_events.clone());
            loops.spawn("batches", |shutdown| async move { batches.run(shutdown).await });
        }
        Ok(loops)
    }

    /// Two consumers of one name would share their dedupe memory: each message would reach one of them.
    fn names_differ(&self) -> Result<()> {
        let mut names = HashSet::new();
        match self.consumers.iter().find(|consumer| !names.insert(&consumer.name)) {
            Some(twice) => Err(Error::invalid(format!("there are two consumers named {:?}", twice.name))),
            None => Ok(()),
        }
    }

    /// Starts the loops of a consumer; returns what handles its messages where workers run here.
    async fn start_consumer(&self, consumer: &Arc<Consumer>, wake: &Wake, loops: &mut Loops) -> Result<Option<Runner>> {
        let (roles, name) = (self.options.roles, &self.options.name);
        let mut runner = None;
        if roles.worker {
            let worker = Worker::new(self.db.clone(), consumer.clone(), name.clone(), wake).await?;
            let worker = worker.traced(self.options.trace.clone());
            runner = Some(worker.runner().clone());
            loops.spawn(format!("worker {}", consumer.name), |shutdown| worker.run(shutdown));
        }
        if roles.ingress {
            self.start_queues(consumer, wake, loops).await?;
        }
        let reads_kafka = consumer.sources.iter().any(|source| matches!(source, Source::Kafka { .. }));
        if !roles.ingress || !reads_kafka {
            return Ok(runner);
        }
        let Some(kafka) = self.options.kafka.clone() else {
            return Err(Error::invalid(format!("consumer {} reads Kafka, but no brokers are given", consumer.name)));
        };
        let (db, wake) = (self.db.clone(), wake.clone());
        let ingress = KafkaIngress::new(db, consumer.clone(), kafka, name.clone(), wake).await?;
        let ingress = ingress.traced(self.options.trace.clone());
        loops.spawn(format!("ingress {}", consumer.name), |shutdown| ingress.run(shutdown));
        Ok(runner)
    }

    /// One loop a queue, each with a connection of its own.
    async fn start_queues(&self, consumer: &Arc<Consumer>, wake: &Wake, loops: &mut Loops) -> Result<()> {
        for queue in consumer.amqp_queues() {
            let Some(amqp) = self.options.amqp.clone() else {
                return Err(Error::invalid(format!("consumer {} reads AMQP, but no broker is given", consumer.name)));
            };
            let ingress = AmqpIngress::new(self.db.clone(), consumer.clone(), amqp, queue, wake.clone()).await?;
            loops.spawn(format!("ingress {} {queue}", consumer.name), |shutdown| ingress.run(shutdown));
        }
        Ok(())
    }

    fn upkeep(&self) -> Result<Upkeep> {
        let mut options = self.options.upkeep.clone();
        // The dedupe window must outlast the retries of the consumers that are here, too.
        let spans = self.consumers.iter().map(|consumer| consumer.retry.span());
        options.retention.retry_span = spans.fold(options.retention.retry_span, Duration::max);
        Upkeep::new(self.db.clone(), options)
    }

    fn relay(&self, quick: Vec<Runner>, inbox_wake: Wake) -> Result<Relay> {
        let mut options = self.options.relay.clone();
        if !quick.is_empty() {
            options.local = Some(Arc::new(LocalRunners::new(quick, inbox_wake.clone())));
        }
        options.node.clone_from(&self.options.name);
        options.inbox_wake = inbox_wake;
        options.trace.clone_from(&self.options.trace);
        if let Some(kafka) = &self.options.kafka {
            options.kafka = Some(Arc::new(KafkaPublisher::new(kafka.clone())?));
        }
        if let Some(amqp) = &self.options.amqp {
            options.amqp = Some(Arc::new(AmqpPublisher::new(amqp.clone())?));
        }
        Relay::new(self.db.clone(), options)
    }
}

/// The running loops of a node.
#[derive(Debug)]
pub struct Loops {
    set: JoinSet<()>,
    running: HashMap<Id, String>,
    shutdown: Shutdown,
}

impl Loops {
    fn new(shutdown: Shutdown) -> Self {
        Self { set: JoinSet::new(), running: HashMap::new(), shutdown }
    }

    fn spawn<F>(&mut self, name: impl Into<String>, body: impl FnOnce(Shutdown) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let handle = self.set.spawn(body(self.shutdown.clone()));
        self.running.insert(handle.id(), name.into());
    }

    /// Those that still run, in order.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.running.values().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The name of the next loop that ends, or its failure; `None` when all have ended.
    pub async fn next_end(&mut self) -> Option<Result<String>> {
        self.set.join_next_with_id().await.map(|ended| self.note(ended))
    }

    fn note(&mut self, ended: Result<(Id, ()), JoinError>) -> Result<String> {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let name = self.running.remove(&id).unwrap_or_default();
        match ended {
            Ok(_) => Ok(name),
            Err(error) => {
                error!(name, %error, "a loop failed");
                Err(Error::new(ErrorKind::Bug, format!("{name} failed")).source(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::tests::Nothing;
    use crate::shutdown::ShutdownTrigger;
    use crate::store::postgres::DbOptions;

    /// A node that is never connected.
    fn node() -> Node {
        Node::new(Db::open(DbOptions::new("postgres://localhost/nowhere")).unwrap(), NodeOptions::new("n"))
    }

    #[tokio::test]
    async fn two_consumers_of_one_name_are_refused() {
        let (_trigger, shutdown) = ShutdownTrigger::new();
        let twice = node().consumer(Consumer::enlisted("c", Nothing)).consumer(Consumer::enlisted("c", Nothing));
        let refusal = twice.start(shutdown).await.unwrap_err();
        assert!(refusal.to_string().contains("two consumers named \"c\""), "{refusal}");
    }

    #[test]
    fn a_dedupe_window_shorter_than_the_retries_of_a_consumer_is_refused() {
        let mut patient = Consumer::enlisted("patient", Nothing);
        patient.retry.attempts_max = 100;
        patient.retry.delay_max = Duration::from_secs(86_400);
        node().upkeep().unwrap();
        let refusal = node().consumer(patient).upkeep().unwrap_err();
        assert!(refusal.to_string().contains("retention.dedupe = 35d is too short"), "{refusal}");
    }

    #[tokio::test]
    async fn a_loop_that_panics_is_named_and_the_others_end_when_told() {
        let (trigger, shutdown) = ShutdownTrigger::new();
        let mut loops = Loops::new(shutdown);
        loops.spawn("steady", |mut shutdown| async move { shutdown.wait().await });
        loops.spawn("broken", |_| async { panic!("on purpose") });
        let failure = loops.next_end().await.unwrap().unwrap_err();
        assert!(failure.to_string().starts_with("broken failed"), "{failure}");
        assert_eq!(loops.names(), ["steady"]);
        trigger.stop();
        assert_eq!(loops.next_end().await.unwrap().unwrap(), "steady");
        assert!(loops.next_end().await.is_none());
    }
}
