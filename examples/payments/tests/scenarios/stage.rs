//! The platform as it is in production: a database for each context, a broker between them, events over
//! Kafka, every node running. Only time is the test's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dipmo::clock::Clock;
use dipmo::node::Node;
use dipmo::shutdown::{Shutdown, ShutdownTrigger};
use dipmo::store::postgres::Db;
use dipmo::transport::amqp::AmqpOptions;
use payments::bank::{Bank, Script};
use payments::context::Context;
use payments::fx::{BankClient, BreakerOptions, ClientOptions};
use payments::payments::OpenRail;
use payments::setup;
use payments::wiring::{Outside, Platform};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::outside::{Client, Events, Reply};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const AMOUNT: i64 = 10_000;
pub(crate) const DAY: &str = "2026-11-16";
const INITIAL: i64 = 1_000_000;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The queues of the platform have one name each: a broker carries one platform at a time.
static BROKER: Mutex<()> = Mutex::const_new(());

pub(crate) struct Stage {
    pub(crate) platform: Platform,
    pub(crate) bank: Bank,
    pub(crate) core: Db,
    pub(crate) client: Client,
    pub(crate) events: Events,
    databases: BTreeMap<Context, Db>,
    waiting: Vec<(Option<Context>, Node)>,
    running: Vec<JoinHandle<dipmo::Result<()>>>,
    trigger: ShutdownTrigger,
    shutdown: Shutdown,
    _broker: MutexGuard<'static, ()>,
}

impl Stage {
    /// With every node running but that of `late`, which is there when it is called.
    pub(crate) async fn new(script: Script, late: Option<Context>) -> Self {
        let broker = BROKER.lock().await;
        let server = |name: &str| std::env::var(name).expect("run the tests by `cargo xtask test`");
        let (url, amqp, kafka) =
            (server("DIPMO_TEST_POSTGRES"), server("DIPMO_TEST_ARTEMIS"), server("DIPMO_TEST_KAFKA"));
        let suffix = format!("_{}", Uuid::now_v7().simple());
        let databases = setup::make_databases(&url, &suffix).await.unwrap();
        let options = AmqpOptions::from_url(&amqp).unwrap();
        let mut platform = Platform::apart(&url, &suffix, &databases, options).unwrap();
        setup::make_topics(&kafka).await.unwrap();
        platform.kafka = Some(kafka.clone());
        platform.connections_max = 4;
        platform.clock = Clock::manual(OffsetDateTime::now_utc());
        setup::prepare(&platform).await.unwrap();
        let bank = Bank::open(script).await.unwrap();
        let breaker = BreakerOptions { failures_max: 100, ..BreakerOptions::default() };
        let bank_client = BankClient::new(ClientOptions { breaker, ..ClientOptions::new(bank.address()) });
        let outside = Outside { bank: Arc::new(bank_client), rail: Arc::new(OpenRail) };
        let names = [None].into_iter().chain(Context::ALL.map(Some));
        let waiting = names.zip(platform.nodes(&outside).unwrap()).collect();
        let open = |context: Context| (context, platform.db(&platform.contexts[&context], "test").unwrap());
        let databases = Context::ALL.map(open).into();
        let (trigger, shutdown) = ShutdownTrigger::new();
        let core = platform.db(&platform.core, "test").unwrap();
        let (client, events) = (Client::open(&amqp).await, Events::open(&kafka));
        let running = Vec::new();
        let _broker = broker;
        let mut stage =
            Self { platform, bank, core, client, events, databases, waiting, running, trigger, shutdown, _broker };
        stage.fill().await;
        stage.start(|part| late.is_none() || part != late);
        stage
    }

    /// One account with money and a limit.
    async fn fill(&self) {
        let account = format!(
            "insert into domain.account (id, currency, initial, balance)
                               values ('A', 'USD', {INITIAL}, {INITIAL})"
        );
        self.change(Context::Accounts, &account).await;
        let limit = format!("insert into domain.daily_limit values ('A', {INITIAL})");
        self.change(Context::Limits, &limit).await;
    }

    fn start(&mut self, wanted: impl Fn(Option<Context>) -> bool) {
        for (_, node) in self.waiting.extract_if(.., |(part, _)| wanted(*part)) {
            self.running.push(tokio::spawn(node.run(self.shutdown.clone())));
        }
    }

    /// The late one begins to work.
    pub(crate) fn start_the_rest(&mut self) {
        self.start(|_| true);
    }

    /// Every node finishes what it does, and stops.
    pub(crate) async fn end(self) {
        self.trigger.stop();
        for node in self.running {
            node.await.unwrap().unwrap();
        }
    }

    pub(crate) fn advance(&self, seconds: u64) {
        self.platform.clock.advance(Duration::from_secs(seconds));
    }

    /// A start of the command, as somebody outside writes it.
    pub(crate) fn start_of(&self, name: &str, key: &str, payload: Value) -> (Uuid, Value) {
        let id = Uuid::now_v7();
        let reply_to = format!("AMQP:{}", self.client.reply_queue);
        let envelope = json!({
            "messageId": Uuid::now_v7(), "type": "CommandRequested", "name": name, "commandId": id,
            "correlationId": id, "occurredAt": "2026-11-16T06:00:00Z", "key": key,
            "headers": { "schemaVersion": "1", "idempotencyKey": key, "replyTo": reply_to }, "payload": payload,
        });
        (id, envelope)
    }

    pub(crate) fn payment(&self, key: &str, pay_currency: &str) -> (Uuid, Value) {
        let payload = json!({
            "accountId": "A", "amount": AMOUNT, "currency": "USD", "payCurrency": pay_currency, "day": DAY,
        });
        self.start_of("PaymentExecution", key, payload)
    }

    pub(crate) async fn send(&mut self, envelope: &Value) {
        self.client.put(dipmo::saga::START_QUEUE, envelope).await;
    }

    /// The answer to this very command.
    pub(crate) async fn reply_to(&mut self, command: Uuid) -> Value {
        let Reply { correlation, envelope } = self.client.reply().await;
        assert_eq!(correlation, command.to_string(), "{envelope}");
        assert_eq!(envelope["commandId"], command.to_string());
        envelope
    }

    /// The columns of the rows, as text.
    pub(crate) async fn core_rows(&self, sql: &str) -> Vec<String> {
        rows(&self.core, sql).await
    }

    /// As the owner of the context sees it.
    pub(crate) async fn rows(&self, context: Context, sql: &str) -> Vec<String> {
        rows(&self.databases[&context], &self.platform.domain(context).sql(sql)).await
    }

    pub(crate) async fn change(&self, context: Context, sql: &str) {
        let client = self.databases[&context].client().await.unwrap();
        client.batch_execute(&self.platform.domain(context).sql(sql)).await.unwrap();
    }

    pub(crate) async fn saga(&self, id: Uuid) -> String {
        let sql = format!("select status || ' ' || state from dipmo.process where id = '{id}'");
        self.core_rows(&sql).await.pop().unwrap_or_default()
    }

    /// The commands of a saga: name, status, attempts.
    pub(crate) async fn commands(&self, id: Uuid) -> Vec<String> {
        let sql = format!("select name, status, attempts from dipmo.command where process_id = '{id}' order by name");
        self.core_rows(&sql).await
    }

    pub(crate) async fn dead_letters(&self) -> Vec<String> {
        let sql =
            "select c.name, c.status, d.error from dipmo.command_dlq d join dipmo.command c on c.id = d.command_id";
        self.core_rows(sql).await
    }

    pub(crate) async fn account(&self) -> (i64, i64) {
        let row = self.rows(Context::Accounts, "select balance, held from domain.account").await.remove(0);
        let (balance, held) = row.split_once(' ').unwrap();
        (INITIAL - balance.parse::<i64>().unwrap(), held.parse().unwrap())
    }

    /// Waits until it is so.
    pub(crate) async fn until<T: PartialEq + std::fmt::Debug>(&self, wanted: T, now: impl AsyncFn(&Self) -> T) {
        let (begun, mut tick) = (Instant::now(), tokio::time::interval(LOOK_EVERY));
        loop {
            let found = now(self).await;
            if found == wanted {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "it stays {found:?} and never becomes {wanted:?}");
            tick.tick().await;
        }
    }
}

async fn rows(db: &Db, sql: &str) -> Vec<String> {
    let sql = sql.replace("dipmo.", &format!("{}.", db.schema()));
    let sql = format!(
        "select concat_ws(' ', variadic (select array_agg(value order by n)
                       from json_each_text(to_json(r)) with ordinality as c (name, value, n))) from ({sql}) r"
    );
    let rows = db.client().await.unwrap().query(&sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
