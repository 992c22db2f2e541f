//! From the outbox to the queues of a broker.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipmo::relay::{AMQP, RelayOptions};
use dipmo::transport::amqp::{AmqpOptions, AmqpPublisher, AmqpTls};
use testbed::{Artemis, ArtemisOptions, FIXED, LOCKED};

use crate::client::{Client, artemis, bytes_of, correlation_of, id_of, property};
use crate::support::{World, drain, eager};
use crate::{queue, relay};

const COMMAND: &str = "7e6f1f0e-3f9c-4f0e-9d55-0f6a3f0f1c11";

#[tokio::test]
async fn a_message_has_its_ids_its_properties_and_its_bytes() {
    let (world, to) = (World::new().await, queue("sent"));
    let id = "11111111-1111-1111-1111-111111111111";
    world
        .execute(&format!(
            "select dipmo.outbox_append('AMQP:{to}', 'order', 'o1', 'Placed', '{{\"amount\": 1.10}}',
                 aggregate_version => 4, tenant => 'acme', key => 'k', correlation_id => 'corr',
                 traceparent => '00-aa-bb-01', message_id => '{id}',
                 headers => '{{\"commandId\": \"{COMMAND}\", \"replyTo\": \"KYC.REPLY\", \"attempt\": 2, \"note\": \"n\"}}')"
        ))
        .await;
    assert_eq!(drain(&relay(&world, &artemis())).await.published, 1);
    let sent = Client::open(&artemis()).await.take(&to, 1).await.remove(0);
    assert!(sent.header.as_ref().unwrap().durable);
    let properties = sent.properties.as_ref().unwrap();
    assert_eq!((id_of(&sent).as_str(), correlation_of(&sent)), (id, Some(COMMAND)));
    assert_eq!(properties.reply_to.as_deref(), Some("KYC.REPLY"));
    assert_eq!(properties.content_type.as_ref().unwrap().as_str(), "application/json");
    let expected = [
        ("messageId", id),
        ("commandId", COMMAND),
        ("correlationId", "corr"),
        ("eventType", "Placed"),
        ("key", "k"),
        ("tenantId", "acme"),
        ("traceparent", "00-aa-bb-01"),
        ("aggregateVersion", "4"),
        ("attempt", "2"),
        ("note", "n"),
    ];
    for (name, value) in expected {
        assert_eq!(property(&sent, name), value, "{name}");
    }
    assert_eq!(bytes_of(&sent), b"{\"amount\": 1.10}", "not a byte is changed");
    assert_eq!(world.states("k").await, ["PUBLISHED"]);
}

#[tokio::test]
async fn messages_of_a_key_arrive_in_order_and_many_are_on_their_way_at_once() {
    let (world, to) = (World::new().await, queue("order"));
    world
        .execute(&format!(
            "select dipmo.outbox_append('AMQP:{to}', 'order', 'k' || n % 7, 'Placed', n::text)
             from generate_series(1, 2100) n"
        ))
        .await;
    assert_eq!(drain(&relay(&world, &artemis())).await.published, 2100);
    let mut by_key: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for sent in Client::open(&artemis()).await.take(&to, 2100).await {
        let number = String::from_utf8(bytes_of(&sent)).unwrap().parse().unwrap();
        by_key.entry(property(&sent, "key")).or_default().push(number);
    }
    assert_eq!(by_key.len(), 7);
    assert!(by_key.values().all(|numbers| numbers.len() == 300 && numbers.is_sorted()));
}

#[tokio::test]
async fn a_queue_that_the_broker_refuses_stops_its_own_keys_and_says_why() {
    let (world, good) = (World::new().await, queue("good"));
    let absent = format!("{FIXED}{}", queue("absent"));
    let locked = format!("{LOCKED}{}", queue("locked"));
    for to in [&absent, &locked, &good] {
        world.append(&format!("AMQP:{to}"), "k", &["1", "2"]).await;
    }
    assert_eq!(drain(&relay(&world, &artemis())).await.published, 2);
    Client::open(&artemis()).await.take(&good, 2).await;
    for (to, code) in [(&absent, "AMQP_NOT_FOUND"), (&locked, "AMQP_UNAUTHORIZED_ACCESS")] {
        let found = world
            .texts(&format!(
                "select concat_ws('|', state, error_code, position('{to}' in error_message) > 0)
                 from dipmo.outbox_status where destination = 'AMQP:{to}' order by id"
            ))
            .await;
        assert_eq!(found, [format!("RETRY|{code}|t"), "PARKED".to_owned()]);
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_without_it_and_nothing_is_marked_or_lost() {
    let (world, to) = (World::new().await, queue("login"));
    world.append(&format!("AMQP:{to}"), "k", &["1", "2"]).await;
    let wrong = AmqpOptions { password: Some("s3cret".to_owned()), ..artemis() };
    let publisher = Arc::new(AmqpPublisher::new(wrong).unwrap());
    let step = drain(&world.relay(RelayOptions { amqp: Some(publisher.clone()), ..eager("r1") })).await;
    assert_eq!((step.published, step.excepted), (0, 0));
    assert_eq!(world.states("k").await, ["PENDING"; 2]);
    let told = crate::contract::refusal(&*publisher, &to).await;
    assert_eq!(told.code, "AMQP_LOGIN");
    assert!(told.message.contains("check user and password") && !told.message.contains("s3cret"), "{told:?}");
    world.execute("update dipmo.relay_shard set owner = null, until = null").await;
    assert_eq!(drain(&relay(&world, &artemis())).await.published, 2);
}

#[tokio::test]
async fn an_encrypted_connection_needs_a_broker_that_somebody_vouches_for() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let certificate = (made.cert.pem(), made.signing_key.serialize_pem());
    let broker =
        Artemis::start(ArtemisOptions { certificate: Some(certificate), ..ArtemisOptions::default() }).unwrap();
    let ca_file = broker.data_dir().join("ca.pem");
    std::fs::write(&ca_file, made.cert.pem()).unwrap();
    let plain = AmqpOptions::from_url(&broker.url()).unwrap();
    let over_tls =
        |ca_file| AmqpOptions { port: broker.tls_port().unwrap(), tls: Some(AmqpTls { ca_file }), ..plain.clone() };
    let (world, to) = (World::new().await, queue("tls"));
    world.append(&format!("AMQP:{to}"), "k", &["1"]).await;
    let stranger = AmqpPublisher::new(over_tls(None)).unwrap();
    assert_eq!(crate::contract::refusal(&stranger, &to).await.code, "AMQP_TLS");
    assert_eq!(drain(&relay(&world, &over_tls(Some(ca_file)))).await.published, 1);
    assert_eq!(bytes_of(&Client::open(&plain).await.take(&to, 1).await[0]), b"1");
}

#[tokio::test]
async fn a_broker_that_is_away_holds_up_neither_internal_nor_kafka() {
    let (world, to) = (World::new().await, queue("away"));
    world.subscribe("billing", "Placed").await;
    for destination in [format!("AMQP:{to}"), "INTERNAL".to_owned(), "KAFKA:orders".to_owned()] {
        world.append(&destination, "k", &["1"]).await;
    }
    let nobody = AmqpOptions::new("127.0.0.1", testbed::free_port().unwrap());
    let kafka = crate::support::Scripted::new();
    let amqp = Arc::new(AmqpPublisher::new(nobody).unwrap());
    let relay = world.relay(RelayOptions { amqp: Some(amqp), ..kafka.options("r1") });
    let step = drain(&relay).await;
    assert_eq!((step.handed_over, step.published, step.excepted), (1, 1, 0));
    assert_eq!(
        world.count(&format!("dipmo.outbox_status where state = 'PENDING' and destination like '{AMQP}:%'")).await,
        1
    );
}
