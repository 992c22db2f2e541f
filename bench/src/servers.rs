//! The private servers of a run, and databases and topics on them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use dipmo::store::postgres::{Db, DbOptions, schema};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use testbed::{Kafka, KafkaOptions, Postgres, PostgresOptions};
use tokio_postgres::{Client, NoTls};

use crate::meter::Meter;

/// 2 GB of them.
const WAL_SEGMENTS: usize = 128;
pub(crate) const KAFKA_TIMEOUT: Duration = Duration::from_secs(30);

/// Durable as in production; checkpoints are far apart, so that they fall into no run by chance.
pub(crate) const SETTINGS: &[(&str, &str)] = &[
    ("max_wal_size", "4GB"),
    // What a server in use has: segments to write again, instead of new ones to fill with zeroes first.
    ("min_wal_size", "2GB"),
    ("checkpoint_timeout", "30min"),
    ("effective_cache_size", "4GB"),
    ("shared_preload_libraries", "pg_stat_statements"),
    ("pg_stat_statements.track", "none"),
    // A relay that stands still while its backlog is written keeps its connection.
    ("wal_sender_timeout", "0"),
];
pub(crate) const SHARED_BUFFERS: &str = "512MB";

pub(crate) struct Servers {
    postgres: Postgres,
    kafka: Option<Kafka>,
}

impl Servers {
    pub(crate) fn start() -> Result<Self> {
        eprintln!("starting PostgreSQL and Kafka (the first time downloads Kafka)");
        let kafka = std::thread::spawn(|| Kafka::start(KafkaOptions::for_bench()));
        let postgres = start_postgres(&[]);
        let kafka = kafka.join().map_err(|_| anyhow!("the thread that starts Kafka panicked"))?;
        Ok(Self { postgres: postgres?, kafka: Some(kafka.context("starting Kafka")?) })
    }

    /// Without a broker; with `settings` of PostgreSQL beside those of all benches.
    pub(crate) fn postgres_only(settings: &[(&str, &str)]) -> Result<Self> {
        eprintln!("starting PostgreSQL");
        Ok(Self { postgres: start_postgres(settings)?, kafka: None })
    }

    /// Makes WAL segments for the runs to use again; a server just made has none.
    pub(crate) async fn age(&self) -> Result<()> {
        let admin = connect(&self.url("postgres")).await?;
        for _ in 0..WAL_SEGMENTS {
            admin.batch_execute("select pg_logical_emit_message(true, 'bench', 'x')").await?;
            admin.batch_execute("select pg_switch_wal()").await?;
        }
        admin.batch_execute("checkpoint").await?;
        Ok(())
    }

    pub(crate) fn brokers(&self) -> String {
        self.kafka.as_ref().map_or(String::new(), Kafka::bootstrap)
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.postgres.port())
    }

    pub(crate) fn postgres_port(&self) -> u16 {
        self.postgres.port()
    }

    /// Where psql and pg_recvlogical are.
    pub(crate) fn postgres_programs(&self) -> &Path {
        self.postgres.bin_dir()
    }

    /// A new database with dipmo's schema, right after a checkpoint.
    pub(crate) async fn fresh_database(&self, name: &str) -> Result<()> {
        self.empty_database(name).await?;
        let db = Db::open(DbOptions::new(self.url(name)))?;
        schema::migrate(&db).await.context("migrating")?;
        self.checkpoint().await
    }

    /// A new database with nothing in it, right after a checkpoint.
    pub(crate) async fn empty_database(&self, name: &str) -> Result<()> {
        self.drop_database(name).await?;
        let admin = connect(&self.url("postgres")).await?;
        admin.batch_execute(&format!("create database {name}")).await?;
        Ok(admin.batch_execute("checkpoint").await?)
    }

    /// With its replication slots, which would hold it and the WAL back.
    pub(crate) async fn drop_database(&self, name: &str) -> Result<()> {
        let admin = connect(&self.url("postgres")).await?;
        // Waits until the walsenders are gone: a slot in use cannot be dropped.
        let end = "select pg_terminate_backend(active_pid, 10000) from pg_replication_slots
                   where database = $1 and active_pid is not null";
        admin.query(end, &[&name]).await?;
        let drop = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = $1";
        admin.query(drop, &[&name]).await.with_context(|| format!("dropping the replication slots of {name}"))?;
        Ok(admin.batch_execute(&format!("drop database if exists {name} with (force)")).await?)
    }

    pub(crate) async fn checkpoint(&self) -> Result<()> {
        Ok(connect(&self.url("postgres")).await?.batch_execute("checkpoint").await?)
    }

    pub(crate) async fn meter(&self, database: &str) -> Result<Meter> {
        let postmaster = self.postgres.pid().context("PostgreSQL is down")?;
        let broker = self.kafka.as_ref().map(|kafka| kafka.pid().context("Kafka is down"));
        Meter::new(connect(&self.url(database)).await?, postmaster, broker.transpose()?).await
    }

    pub(crate) async fn create_topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> = self.kafka_client().create()?;
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        topic.config = settings.to_vec();
        let options = AdminOptions::new().operation_timeout(Some(KAFKA_TIMEOUT));
        let made = admin.create_topics([&topic], &options).await?;
        made.into_iter().try_for_each(|one| one.map(drop)).map_err(|(name, code)| anyhow!("topic {name}: {code}"))
    }

    pub(crate) fn has_topic(&self, name: &str) -> Result<bool> {
        let consumer: BaseConsumer = self.kafka_client().create()?;
        let all = consumer.fetch_metadata(None, KAFKA_TIMEOUT)?;
        Ok(all.topics().iter().any(|topic| topic.name() == name))
    }

    pub(crate) fn kafka_client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.brokers());
        config
    }
}

fn start_postgres(more: &[(&str, &str)]) -> Result<Postgres> {
    let options = PostgresOptions {
        shared_buffers: SHARED_BUFFERS.into(),
        settings: SETTINGS.iter().chain(more).map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        ..PostgresOptions::default()
    };
    Postgres::start(options).context("starting PostgreSQL")
}

pub(crate) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connecting to PostgreSQL")?;
    tokio::spawn(connection);
    Ok(client)
}
