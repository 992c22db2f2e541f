//! Against a peer that refuses what IBM MQ is documented to refuse: the profile for it gets through, the other
//! does not. What a queue manager really does was never seen.

use dipmo::transport::Outcome;
use dipmo::transport::Publisher as _;
use dipmo::transport::amqp::{AmqpOptions, AmqpPublisher, Profile};
use fe2o3_amqp::types::messaging::{MessageAnnotations, MessageId, Target};
use fe2o3_amqp::types::primitives::Symbol;
use fe2o3_amqp::{Connection, Sender, Session};

use crate::client::{Any, data, message, property, sequence};
use crate::contract;
use crate::peer::Peer;
use crate::support::World;
use crate::{Reading, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_profile_for_ibm_mq_gets_through() {
    let peer = Peer::start().await;
    contract::holds(&peer.options(Profile::IbmMq), "Q.STRICT").await;
    assert_eq!(peer.refused(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_can_never_be_stored_is_copied_to_the_backout_queue_and_then_accepted() {
    let (peer, world) = (Peer::start().await, World::real_time().await);
    peer.put("Q.POISON", message("poison", &[("note", "n")], sequence()));
    peer.put("Q.POISON", message("fine", &[("messageId", "fine")], data(b"1")));
    let reading = Reading::start(&world, &peer.options(Profile::IbmMq), "Q.POISON").await;
    let copy = peer.content("BACKOUT").await.remove(0);
    until(&world, "dipmo.inbox", 1).await;
    reading.stop().await;
    assert_eq!((property(&copy, "dipmoAttempt"), property(&copy, "note")), ("1".into(), "n".into()));
    assert!(property(&copy, "dipmoReason").contains("sequence"));
    assert_eq!(copy.body, sequence());
    assert!(peer.is_empty("Q.POISON"));
    assert_eq!(peer.refused(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_profile_for_artemis_does_not() {
    let (peer, world) = (Peer::start().await, World::real_time().await);
    let options = peer.options(Profile::Artemis);
    let told = AmqpPublisher::new(options.clone()).unwrap().publish(&[contract::row("Q", "k", 1).outgoing()]).await;
    assert!(matches!(&told[0], Outcome::Retry(refusal) if refusal.code == "AMQP_NOT_IMPLEMENTED"), "{told:?}");
    peer.refuses("correlation id of more than 24 bytes").await;
    peer.put("Q.POISON", message("poison", &[], sequence()));
    let reading = Reading::start(&world, &options, "Q.POISON").await;
    peer.refuses("outcome Rejected").await;
    reading.stop().await;
    assert!(!peer.is_empty("Q.POISON"), "a message that was not accepted stays");
}

#[tokio::test]
async fn a_reader_of_ibm_mq_needs_a_backout_queue() {
    let world = World::new().await;
    let options = AmqpOptions { profile: Profile::IbmMq, ..AmqpOptions::new("127.0.0.1", 1) };
    let consumer = std::sync::Arc::new(crate::reader("Q"));
    let wake = dipmo::wake::Wake::default();
    let refused = dipmo::ingress::AmqpIngress::new(world.db.clone(), consumer, options, "Q", wake).await.unwrap_err();
    assert!(refused.to_string().contains("backout_queue"), "{refused}");
}

/// A client that does one thing that is not allowed.
async fn offend(peer: &Peer, id: &str, capability: &str, message: Option<Any>, sessions: usize) {
    let options = peer.options(Profile::IbmMq);
    let url = format!("amqp://app:word@{}:{}", options.host, options.port);
    let mut connection = Connection::open(id, url.as_str()).await.unwrap();
    let mut session = Session::begin(&mut connection).await.unwrap();
    let target = Target::builder().address("Q").capabilities(vec![Symbol::from(capability)]).build();
    let sender = Sender::builder().name("offender").target(target).attach(&mut session).await;
    if let (Ok(mut sender), Some(message)) = (sender, message) {
        let _ = sender.send(message).await;
    }
    for _ in 1..sessions {
        let _ = Session::begin(&mut connection).await;
    }
}

/// Otherwise the tests above would prove nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_peer_refuses_each_thing_that_it_is_there_to_refuse() {
    let peer = Peer::start().await;
    let plain = || message("m", &[], data(b"1"));
    let with_id = |id: MessageId| {
        let mut message = plain();
        message.properties.get_or_insert_default().message_id = Some(id);
        message
    };
    offend(&peer, "fine.1", "queue", Some(plain()), 1).await;
    assert_eq!(peer.refused(), [""; 0]);
    let ulong = with_id(MessageId::Ulong(7));
    let uuid = with_id(MessageId::Uuid([7_u8; 16].into()));
    let mut annotated = plain();
    annotated.message_annotations = Some(MessageAnnotations::builder().insert("x-opt", 1).build());
    let offences = [
        ("fine.2", "queue", Some(ulong), 1, "message id"),
        ("fine.3", "queue", Some(uuid), 1, "message id"),
        ("fine.4", "queue", Some(annotated), 1, "annotations"),
        ("fine.5", "topic", None, 1, "capability"),
        ("fine.6", "queue", None, 2, "second session"),
    ];
    for (id, capability, message, sessions, what) in offences {
        let before = peer.refused().len();
        offend(&peer, id, capability, message, sessions).await;
        peer.refuses(what).await;
        assert_eq!(peer.refused().len(), before + 1, "{what}: {:?}", peer.refused());
    }
    let options = peer.options(Profile::IbmMq);
    let url = format!("amqp://app:word@{}:{}", options.host, options.port);
    let mut connection = Connection::open("not-allowed", url.as_str()).await.unwrap();
    peer.refuses("container id \"not-allowed\"").await;
    assert!(connection.on_close().await.is_err());
}
