//! One database, the orchestrator on it, and a handler in each language, all on one broker.

use std::time::Duration;

use dipmo::backoff::RetryPolicy;
use dipmo::clock::Clock;
use dipmo::command::Envelope;
use dipmo::command::envelope::{header, kind};
use dipmo::consumer::Consumer;
use dipmo::node::{Loops, Node, NodeOptions};
use dipmo::saga::{Definition, Options, Orchestrator, Registry, Step};
use dipmo::shutdown::ShutdownTrigger;
use serde_json::{Map, json};
use testbed::{CommandHandler, HandlerOptions, HoldAt, Language};
use time::OffsetDateTime;
use tokio::task::block_in_place;
use uuid::Uuid;

use crate::PATIENCE;
use crate::client::{Any, Client, artemis, correlation_of, data, message};
use crate::queues::Queues;
use crate::world::{World, connect, postgres_url};

pub const CHECK_BALANCE: &str = "STEP_CHECK_BALANCE";
pub const CHECK_LIMIT: &str = "STEP_CHECK_LIMIT";
pub const LIMIT: &str = "CheckDailyLimit";

/// A step that is not answered is not sent again within a test: what comes twice comes twice by intent.
const TIMEOUT: Duration = Duration::from_secs(3_600);

pub struct Scene {
    pub world: World,
    pub queues: Queues,
    pub client: Client,
    python: CommandHandler,
    java: CommandHandler,
    loops: Loops,
    trigger: ShutdownTrigger,
}

impl Scene {
    /// Everything runs, and one account has 1000.00 and may spend 500.00 a day.
    pub async fn on(queues: Queues, hold_at: Option<HoldAt>) -> Self {
        let mut client = Client::open(&artemis()).await;
        for queue in queues.used_before() {
            // What was left behind there would have effects here.
            client.take_rest(queue).await;
        }
        let database = own_database().await;
        let world = World::on(&database, Clock::database()).await;
        let (python, java) = tokio::join!(
            start_handler(Language::Python, handler_options(&database, &queues, Language::Python, hold_at)),
            start_handler(Language::Java, handler_options(&database, &queues, Language::Java, hold_at)),
        );
        world
            .execute(
                "insert into accounts_python.account (account, balance) values ('A-7', 1000.00);
                 insert into limits_java.daily_limit (account, amount) values ('A-7', 500.00)",
            )
            .await;
        let (trigger, shutdown) = ShutdownTrigger::new();
        let options = NodeOptions { amqp: Some(artemis()), ..NodeOptions::new(format!("n{}", Uuid::now_v7())) };
        let node = Node::new(world.db.clone(), options).consumer(orchestrator(&queues));
        let loops = node.start(shutdown).await.unwrap();
        Self { world, queues, client, python, java, loops, trigger }
    }

    /// Ends what runs here in order; the handlers end with the scene.
    pub async fn stop(mut self) {
        self.trigger.stop();
        while let Some(ended) = self.loops.next_end().await {
            ended.unwrap();
        }
    }

    /// Starts a payment by a message, as any program would.
    pub async fn start(&mut self, amount: &str) -> Uuid {
        let saga = Uuid::now_v7();
        let start = Envelope {
            message_id: Uuid::now_v7(),
            kind: kind::REQUESTED.to_owned(),
            name: "Payment".to_owned(),
            command_id: saga,
            correlation_id: saga,
            causation_id: None,
            occurred_at: OffsetDateTime::now_utc(),
            key: format!("P-{saga}"),
            headers: Map::new(),
            payload: json!({ "account": "A-7", "amount": amount }),
            rest: Map::new(),
        };
        let start = start.with_header(header::REPLY_TO, self.queues.caller.as_str());
        let queue = self.queues.start.clone();
        self.client.put(&queue, [as_message(&start, &self.queues.caller)]).await;
        saga
    }

    /// Waits for the end of the saga, which its caller is told.
    pub async fn answer_to(&mut self, saga: Uuid) -> Envelope {
        let caller = self.queues.caller.clone();
        let answer: Envelope = serde_json::from_str(&text_of(&self.client.take(&caller, 1).await[0])).unwrap();
        assert_eq!(answer.correlation_id, saga);
        answer
    }

    /// Status of the saga, and of the command that started it.
    pub async fn status(&self, saga: Uuid) -> String {
        let sql = "select concat_ws('|', p.status, c.status)
             from dipmo.process p join dipmo.command c on c.id = p.id";
        self.one(&format!("{sql} where p.id = '{saga}'")).await
    }

    /// Status, code and number of sends.
    pub async fn command_row(&self, id: Uuid) -> String {
        let sql = "select concat_ws('|', status, error_code, attempts) from dipmo.command";
        self.one(&format!("{sql} where id = '{id}'")).await
    }

    /// What a saga sent for a step.
    pub async fn command(&self, saga: Uuid, step: &str) -> Envelope {
        let sql = format!(
            "select convert_from(o.payload, 'UTF8') from dipmo.outbox o join dipmo.command c
                 on c.process_id = '{saga}' and c.step = '{step}' and o.headers->>'commandId' = c.id::text"
        );
        serde_json::from_str(&self.one(&sql).await).unwrap()
    }

    /// The reply to a command, as the orchestrator got it.
    pub async fn first_reply(&self, command: &Envelope) -> String {
        let id = command.command_id;
        let sql = format!(
            "select convert_from(payload, 'UTF8') from dipmo.inbox
             where event_type like 'Command%ed' and headers->>'commandId' = '{id}'"
        );
        self.one(&sql).await
    }

    /// Sends copies of a command and gives back the replies to them, in any order.
    pub async fn send_again(&mut self, language: Language, copies: [&Envelope; 2]) -> [String; 2] {
        let answers = format!("AGAIN.{}", Uuid::now_v7().simple());
        let command = copies[0].command_id.to_string();
        let copies = copies.map(|copy| as_message(copy, &answers));
        let queue = self.queues.of(language).to_owned();
        self.client.put(&queue, copies).await;
        let replies = self.client.take(&answers, 2).await;
        assert!(replies.iter().all(|reply| correlation_of(reply) == Some(&command)), "{replies:?}");
        [text_of(&replies[0]), text_of(&replies[1])]
    }

    /// What the handlers have done to the account.
    pub async fn effects(&self) -> String {
        self.one(
            "select format('held %s, used %s', (select held from accounts_python.account),
                 (select coalesce(sum(amount), 0) from limits_java.used))",
        )
        .await
    }

    /// What a handler has noted about the messages it got: these columns of its inbox.
    pub async fn noted(&self, language: Language, columns: &str) -> Vec<String> {
        let schema = schema(language);
        self.world.texts(&format!("select concat_ws('|', {columns}) from {schema}.inbox order by message_id")).await
    }

    /// Waits until the one message that a handler got has come that often.
    pub async fn until_delivered(&self, language: Language, times: u32) {
        let schema = schema(language);
        self.until(&format!("select deliveries::text from {schema}.inbox"), |got| got == times.to_string()).await;
    }

    /// Waits until the saga has sent the command of this name more than once.
    pub async fn until_asked_again(&self, saga: Uuid, name: &str) {
        let sql = "select attempts::text from dipmo.command";
        let sql = format!("{sql} where process_id = '{saga}' and name = '{name}'");
        self.until(&sql, |attempts| attempts.parse::<u32>().is_ok_and(|attempts| attempts > 1)).await;
    }

    pub fn wait_until_held(&mut self, language: Language) {
        block_in_place(|| self.handler(language).wait_until_held()).unwrap();
    }

    pub fn kill_and_restart(&mut self, language: Language) {
        block_in_place(|| self.handler(language).restart()).unwrap();
    }

    fn handler(&mut self, language: Language) -> &mut CommandHandler {
        match language {
            Language::Python => &mut self.python,
            Language::Java => &mut self.java,
        }
    }

    async fn one(&self, sql: &str) -> String {
        let mut rows = self.world.texts(sql).await;
        assert_eq!(rows.len(), 1, "{sql}: {rows:?}");
        rows.remove(0)
    }

    async fn until(&self, sql: &str, reached: impl Fn(&str) -> bool) {
        let waited = async {
            let mut tick = tokio::time::interval(Duration::from_millis(30));
            while !self.world.texts(sql).await.iter().any(|row| reached(row)) {
                tick.tick().await;
            }
        };
        if tokio::time::timeout(PATIENCE, waited).await.is_err() {
            panic!("{sql}: {:?}", self.world.texts(sql).await);
        }
    }
}

/// A database of its own, because the schemas of the handlers have names that are given.
async fn own_database() -> String {
    let url = postgres_url();
    let name = format!("d{}", Uuid::now_v7().simple());
    let server = connect(&url, "test").await.expect("the test database is reachable");
    server.batch_execute(&format!("create database {name}")).await.unwrap();
    let (server, _) = url.rsplit_once('/').unwrap();
    format!("{server}/{name}")
}

fn orchestrator(queues: &Queues) -> Consumer {
    let to = |language| format!("AMQP:{}", queues.of(language)).parse().unwrap();
    let mapping = json!({ "account": "input.account", "amount": "input.amount" });
    let retry = RetryPolicy { attempts_max: 1_000, delay_max: Duration::from_secs(1), ..RetryPolicy::default() };
    let step = |name, command, language| {
        Step::new(name, command, to(language)).payload(mapping.clone()).timeout(TIMEOUT).retry(retry.clone())
    };
    let definition = Definition::new("Payment")
        .step(step(CHECK_BALANCE, "CheckBalance", Language::Python))
        .step(step(CHECK_LIMIT, LIMIT, Language::Java))
        .output(json!({ "remaining": format!("steps.{CHECK_LIMIT}.result.remaining") }));
    let mut registry = Registry::new();
    registry.register(definition).unwrap_or_else(|flaws| panic!("{flaws:?}"));
    let options = Options { reply_queue: queues.reply.clone(), answer_transport: "AMQP".to_owned() };
    Consumer::process("orchestrator", Orchestrator::with_options(registry, options))
        .from_amqp(&[&queues.start, &queues.reply])
}

fn handler_options(database: &str, queues: &Queues, language: Language, hold_at: Option<HoldAt>) -> HandlerOptions {
    let broker = artemis();
    HandlerOptions {
        broker: format!("{}:{}", broker.host, broker.port),
        user: broker.user.unwrap(),
        password: broker.password.unwrap(),
        database: database.to_owned(),
        queue: Some(queues.of(language).to_owned()).filter(|_| !queues.are_the_usual),
        hold_at,
    }
}

async fn start_handler(language: Language, options: HandlerOptions) -> CommandHandler {
    let started = tokio::task::spawn_blocking(move || CommandHandler::start(language, options)).await.unwrap();
    started.unwrap_or_else(|error| panic!("{language:?}: {error:?}"))
}

/// An envelope as dipmo sends it.
fn as_message(envelope: &Envelope, reply_to: &str) -> Any {
    let id = envelope.message_id.to_string();
    let body = serde_json::to_vec(envelope).unwrap();
    let mut message = message(&id, &[("messageId", &id), ("key", &envelope.key)], data(&body));
    let properties = message.properties.as_mut().unwrap();
    properties.correlation_id = Some(envelope.command_id.to_string().into());
    properties.reply_to = Some(reply_to.to_owned());
    properties.content_type = Some("application/json".into());
    message
}

fn text_of(message: &Any) -> String {
    use fe2o3_amqp::types::messaging::Body;
    use fe2o3_amqp::types::primitives::Value;
    match &message.body {
        Body::Value(value) => match &value.0 {
            Value::String(text) => text.clone(),
            other => panic!("{other:?} is no text"),
        },
        _ => String::from_utf8(crate::client::bytes_of(message)).unwrap(),
    }
}

fn schema(language: Language) -> &'static str {
    match language {
        Language::Python => "accounts_python",
        Language::Java => "limits_java",
    }
}
