//! The daemon between two queues of a real broker: out of the outbox, in, through a SQL function, and on.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use std::sync::{Mutex, OnceLock};

use testbed::{Artemis, ArtemisOptions};
use world::World;
use world::daemon::{Daemon, until};
use world::worker::{Worker, ok};

/// The shared Artemis of this test run; one is started where none is given.
fn broker() -> &'static str {
    static URL: OnceLock<(String, Option<Mutex<Artemis>>)> = OnceLock::new();
    let (url, _) = URL.get_or_init(|| match std::env::var("DIPMO_TEST_ARTEMIS") {
        Ok(url) => (url, None),
        Err(_) => {
            let broker = Artemis::start(ArtemisOptions::default()).unwrap();
            (broker.url(), Some(Mutex::new(broker)))
        }
    });
    url
}

/// The `[amqp]` section for the broker, and the password that it names.
fn section(world: &World) -> (String, &'static str) {
    let (login, place) = broker().strip_prefix("amqp://").unwrap().split_once('@').unwrap();
    let (user, password) = login.split_once(':').unwrap();
    let secret = world.write("password", &format!("{password}\n")).display().to_string();
    let section = format!("[amqp]\nurl = \"amqp://{place}\"\nuser = \"{user}\"\npassword_file = \"{secret}\"\n");
    (section, password)
}

#[tokio::test]
async fn a_command_goes_to_a_queue_and_its_reply_comes_back_by_another() {
    let world = World::new().await;
    let (commands, replies) = (format!("{}.CMD", world.schema), format!("{}.REPLY", world.schema));
    let schema = &world.schema;
    world
        .run_sql(&format!(
            "create table answered (command text, correlation text, payload jsonb);
             create function on_command(message jsonb) returns bigint language sql as $$
             select {schema}.outbox_append('AMQP:' || (message->'headers'->>'replyTo'), 'Check', message->>'key', 'Checked',
                 '{{\"ok\": true}}', correlation_id => message->>'correlationId',
                 headers => jsonb_build_object('commandId', message->'headers'->>'commandId')) $$;
             create function on_reply(message jsonb) returns void language sql as $$
             insert into {schema}.answered values (message->'headers'->>'amqpCorrelationId', message->>'correlationId',
                 message->'payload') $$"
        ))
        .await;
    let (section, password) = section(&world);
    let consumer = |name: &str, queue: &str, function: &str| {
        format!(
            "[[consumer]]\nname = \"{name}\"\nqueues = [\"{queue}\"]\nhandler = {{ sql = \"{schema}.{function}\" }}\n"
        )
    };
    let file =
        format!("{section}{}{}", consumer("engine", &commands, "on_command"), consumer("asker", &replies, "on_reply"));
    let daemon = Daemon::start(&world, &file, &[]);
    daemon.ready().await;
    world
        .run_sql(&format!(
            "select outbox_append('AMQP:{commands}', 'Check', 'k-' || n, 'Check', '{{}}', correlation_id => 'journey-' || n,
                 headers => jsonb_build_object('commandId', 'command-' || n, 'replyTo', '{replies}'))
             from generate_series(1, 3) n"
        ))
        .await;
    until("every command is answered", async || world.number("select count(*) from answered").await == 3).await;
    daemon.signal("-TERM");
    let ended = daemon.ended();
    assert_eq!(ended.code, 0);
    assert!(!ended.err.contains(password), "no secret is logged");
    let answered = world.text("select command, correlation, payload from answered order by 1").await;
    let expected = (1..=3).map(|n| format!(r#"(command-{n},journey-{n},"{{""ok"": true}}")"#));
    assert_eq!(answered, expected.collect::<Vec<_>>().join("\n"));
}

#[tokio::test]
async fn a_worker_over_http_does_commands_of_the_broker_and_its_answers_go_back_there() {
    let world = World::new().await;
    let schema = &world.schema;
    let (commands, replies) = (format!("{schema}.FX"), format!("{schema}.FX.REPLY"));
    world
        .run_sql(&format!(
            "create table answered (command text, payload jsonb);
             create function on_reply(message jsonb) returns void language sql as $$
             insert into {schema}.answered values (message->'headers'->>'amqpCorrelationId',
                 message->'payload'->'payload') $$"
        ))
        .await;
    let worker = Worker::saying([ok(r#"{"contract":"FX-7"}"#)]).await;
    let file = format!(
        "{}[[worker]]\nname = \"fx\"\nqueues = [\"{commands}\"]\nurl = \"{}\"\n\
         [[consumer]]\nname = \"asker\"\nqueues = [\"{replies}\"]\nhandler = {{ sql = \"{schema}.on_reply\" }}\n",
        section(&world).0,
        worker.url()
    );
    let daemon = Daemon::start(&world, &file, &[]);
    daemon.ready().await;
    let id = uuid::Uuid::now_v7();
    let command = serde_json::json!({
        "messageId": uuid::Uuid::now_v7(), "type": "CommandRequested", "name": "BookFx", "commandId": id,
        "correlationId": id, "occurredAt": "2025-11-02T12:34:56Z", "key": "P-1",
        "headers": { "replyTo": replies, "idempotencyKey": "k-1" }, "payload": {},
    });
    let append = "select outbox_append($1, 'Command', 'P-1', 'CommandRequested', $2)";
    world.sql.execute(append, &[&format!("AMQP:{commands}"), &command.to_string()]).await.unwrap();
    let answered = format!(r#"({id},"{{""contract"": ""FX-7""}}")"#);
    until("the answer is back", async || world.text("select command, payload from answered").await == answered).await;
    assert_eq!(worker.seen()[0].header("idempotency-key"), "k-1");
}
