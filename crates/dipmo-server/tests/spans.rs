//! What the daemon exports: a span for each message, and one trace through inbox, outbox and next inbox.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use world::World;
use world::daemon::{Daemon, until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PRODUCER: &str = "b7ad6b7169203331";

/// Stands in for a collector: answers every export with 200 and passes on what was in it.
fn collector() -> (SocketAddr, mpsc::Receiver<ExportTraceServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, exports) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            while let Some(body) = request(&mut stream) {
                stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                let export = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
                if sender.send(export).is_err() {
                    return;
                }
            }
        }
    });
    (address, exports)
}

/// The body of the next export on a connection, until it is closed.
fn request(stream: &mut impl std::io::BufRead) -> Option<Vec<u8>> {
    let head: Vec<String> = stream.lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    assert!(head.first()?.starts_with("POST /v1/traces "), "{head:?}");
    let length = head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap()];
    stream.read_exact(&mut body).unwrap();
    Some(body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|found| found.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{name} is {other:?} in {span:?}"),
    }
}

/// `first` sends an event on that `second` takes and refuses.
async fn two_consumers(world: &World) -> String {
    let schema = &world.schema;
    world
        .run_sql(&format!(
            "create function on_order(message jsonb) returns void language plpgsql set search_path = {schema} as
             $$ begin perform outbox_append('INTERNAL', 'Bill', message->>'key', 'Billed', '{{}}',
                                            traceparent => message->>'traceparent'); end $$;
             create function on_bill(message jsonb) returns void language plpgsql as
             $$ begin raise exception 'no such account' using errcode = 'DP002'; end $$"
        ))
        .await;
    let consumer = |name: &str, event: &str, function: &str| {
        format!(
            "[[consumer]]\nname = \"{name}\"\ninternal = [\"{event}\"]\nhandler = {{ sql = \"{schema}.{function}\" }}\n"
        )
    };
    consumer("first", "OrderPlaced", "on_order") + &consumer("second", "Billed", "on_bill")
}

#[tokio::test]
async fn one_trace_runs_through_every_consumer_on_the_way_of_a_message() {
    let world = World::new().await;
    let consumers = two_consumers(&world).await;
    let (address, exports) = collector();
    let otlp = format!("{consumers}[otlp]\nendpoint = \"http://{address}\"\nservice_name = \"billing-daemon\"\n");
    // Spans are exported whatever is logged.
    let daemon = Daemon::start(&world, &format!("{otlp}[log]\nlevel = \"warn\"\n"), &[]);
    daemon.ready().await;
    let append = format!(
        "select outbox_append('INTERNAL', 'Order', 'o-1', 'OrderPlaced', '{{}}',
                              traceparent => '00-{TRACE}-{PRODUCER}-01')"
    );
    world.run_sql(&append).await;
    let dead = "select count(*) from inbox_status where state = 'DEAD'";
    until("the second has refused it", async || world.number(dead).await == 1).await;
    daemon.signal("-TERM");
    assert_eq!(daemon.ended().code, 0);

    let resources: Vec<_> = exports.try_iter().flat_map(|export| export.resource_spans).collect();
    let services = resources.iter().flat_map(|resource| &resource.resource.as_ref().unwrap().attributes);
    assert!(services.clone().any(|a| a.key == "service.name" && format!("{a:?}").contains("billing-daemon")));
    let spans: Vec<Span> = resources.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans).collect();
    let named = |name: &str| {
        let mut found = spans.iter().filter(|span| span.name == name);
        let span = found.next().unwrap_or_else(|| panic!("no span {name} in {spans:?}"));
        assert!(found.next().is_none(), "one span for each message: {spans:?}");
        span
    };
    let (first, second) = (named("first process"), named("second process"));
    assert_eq!([hex(&first.trace_id), hex(&second.trace_id)], [TRACE, TRACE]);
    assert_eq!(hex(&first.parent_span_id), PRODUCER);
    assert_eq!(second.parent_span_id, first.span_id, "what the first sent is the cause of the second");
    assert_eq!([first.kind, second.kind], [SpanKind::Consumer as i32; 2]);
    for (span, consumer, outcome) in [(first, "first", "PROCESSED"), (second, "second", "DEAD")] {
        assert_eq!(attribute(span, "consumer"), consumer);
        assert_eq!(attribute(span, "outcome"), outcome);
        assert_eq!(attribute(span, "key"), "o-1");
        assert_eq!(attribute(span, "attempt"), "1");
        assert_eq!(attribute(span, "messaging.system"), "dipmo");
        assert_eq!(attribute(span, "messaging.destination.name"), "INTERNAL");
    }
    assert_eq!(
        attribute(first, "messaging.message.id"),
        world.text("select message_id from inbox where event_type = 'OrderPlaced'").await.trim_matches(['(', ')'])
    );
    assert_eq!(attribute(second, "error.type"), "DP002");
    assert_eq!(second.status.as_ref().unwrap().code, StatusCode::Error as i32);
}
