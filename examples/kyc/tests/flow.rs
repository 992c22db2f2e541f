//! The whole flow on a real PostgreSQL, step by step: states, effects, events and journal.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use kyc::hits::domain::Notification;
use support::{World, application, notification};

const POSITIVE: [&str; 5] = ["RECEIVED", "HIT_CREATED", "QUALIFIED_POSITIVE", "REVIEW_STARTED", "COMPLETED"];

#[tokio::test]
async fn a_positive_hit_is_reviewed_to_the_end() {
    let world = World::new().await;
    let mut node = world.node().await;
    world.notify(&notification(1, 95), 1).await;
    node.run_to_the_end().await;
    assert_eq!(world.path("n-1").await, POSITIVE);
    assert_eq!(world.effects("n-1").await, ["hit-opened", "hit-qualified", "review-started", "review-completed"]);
    assert_eq!(world.texts("select status from dipmo.process").await, ["SUCCEEDED"]);
    assert_eq!(world.texts("select verdict from kyc.hit").await, ["positive"]);
    assert_eq!(world.texts("select outcome from kyc.review").await, ["confirmed"]);
    let events = "select event_type from dipmo.outbox order by id";
    let expected = [
        "Notification126",
        "CreateHit",
        "HitCreated",
        "QualifyHit",
        "HitQualified",
        "StartReview",
        "ReviewStarted",
        "ReviewCompleted",
    ];
    assert_eq!(world.texts(events).await, expected);
    assert_eq!(world.texts("select distinct state from dipmo.outbox_status").await, ["PUBLISHED"]);
}

#[tokio::test]
async fn every_message_of_a_case_is_tied_to_the_input_that_began_it() {
    let world = World::new().await;
    let mut node = world.node().await;
    let input = world.notify(&notification(1, 95), 1).await.to_string();
    node.run_to_the_end().await;
    let correlated = "select distinct correlation_id from dipmo.outbox where event_type <> 'Notification126'";
    assert_eq!(world.texts(correlated).await, [input]);
}

#[tokio::test]
async fn a_negative_hit_is_closed_without_review() {
    let world = World::new().await;
    let mut node = world.node().await;
    world.notify(&notification(1, 10), 1).await;
    node.run_to_the_end().await;
    assert_eq!(world.path("n-1").await, ["RECEIVED", "HIT_CREATED", "QUALIFIED_NEGATIVE", "COMPLETED"]);
    assert_eq!(world.effects("n-1").await, ["hit-opened", "hit-qualified"]);
    assert_eq!(world.texts("select count(*)::text from kyc.review").await, ["0"]);
}

#[tokio::test]
async fn an_onboarding_ends_with_a_block() {
    let world = World::new().await;
    let mut node = world.node().await;
    world.apply(&application(1, "NL"), 1).await;
    node.run_to_the_end().await;
    assert_eq!(world.path("o-1").await, ["RECEIVED", "QUALIFIED", "BLOCK_CREATED", "COMPLETED"]);
    assert_eq!(world.effects("o-1").await, ["customer-qualified", "block-created"]);
    assert_eq!(world.texts("select extent from kyc.block").await, ["full"]);
    let told =
        "select event_type from dipmo.outbox where event_type in ('CustomerQualified', 'BlockCreated') order by id";
    assert_eq!(world.texts(told).await, ["CustomerQualified", "BlockCreated"]);
}

#[tokio::test]
async fn what_the_domain_refuses_ends_in_failed_with_the_reason() {
    let world = World::new().await;
    let mut node = world.node().await;
    world.notify(&Notification { list: "GOSSIP".into(), ..notification(1, 95) }, 1).await;
    world.apply(&application(1, "KP"), 1).await;
    node.run_to_the_end().await;
    for case in ["n-1", "o-1"] {
        assert_eq!(world.path(case).await, ["RECEIVED", "FAILED"], "{case}");
        assert!(world.effects(case).await.is_empty(), "{case}");
    }
    let notes = "select detail ->> 'note' from dipmo.journal where to_state = 'FAILED' order by 1";
    assert_eq!(world.texts(notes).await, ["country KP is under embargo", "list GOSSIP is not watched"]);
}

#[tokio::test]
async fn a_service_that_times_out_is_asked_again() {
    let world = World::new().await;
    let mut node = world.node().await;
    world.notify(&Notification { subject: "slow-2".into(), ..notification(1, 95) }, 1).await;
    let report = node.run_to_the_end().await;
    assert_eq!(report.retried, 2);
    assert_eq!(world.path("n-1").await, POSITIVE);
    assert_eq!(world.effects("n-1").await.len(), 4);
}

#[tokio::test]
async fn poison_is_dead_and_holds_up_its_customer_but_not_what_is_under_way() {
    let world = World::new().await;
    let mut node = world.node().await;
    let of_one = |id: &str, score| Notification { notification_id: id.into(), ..notification(1, score) };
    world.notify(&of_one("n-before", 95), 1).await;
    world.notify(&of_one("n-poison", 300), 2).await;
    world.notify(&of_one("n-behind", 95), 3).await;
    world.notify(&notification(2, 95), 1).await;
    node.run_to_the_end().await;
    assert_eq!(world.path("n-before").await, POSITIVE);
    assert_eq!(world.path("n-2").await, POSITIVE);
    assert!(world.path("n-poison").await.is_empty() && world.path("n-behind").await.is_empty());
    let open = "select concat_ws(' ', aggregate_id, state, error_code) from dipmo.inbox_status
                where state not in ('PROCESSED', 'IGNORED') order by id";
    assert_eq!(world.texts(open).await, ["n-poison DEAD INVALID_SCORE", "n-behind PARKED"]);
}

#[tokio::test]
async fn what_cannot_be_decoded_is_kept_and_holds_nobody_up() {
    let world = World::new().await;
    let mut node = world.node().await;
    world.append("Notification126", ("n-0", "c-1"), 1, b"{\"notificationId\": 126").await;
    world.apply(&application(1, "NL"), 1).await;
    node.run_to_the_end().await;
    let kept = "select concat_ws(' ', aggregate_id, state, convert_from(payload, 'UTF8')) from dipmo.inbox_status
                where state = 'SERDE_ERROR'";
    assert_eq!(world.texts(kept).await, ["n-0 SERDE_ERROR {\"notificationId\": 126"]);
    assert_eq!(world.path("o-1").await.last().unwrap(), "COMPLETED");
}

#[tokio::test]
async fn notifications_that_overtook_each_other_take_effect_in_the_order_of_their_numbers() {
    let world = World::new().await;
    let mut node = world.node().await;
    for number in [3, 1, 5, 4, 2] {
        let notification = Notification { notification_id: format!("n-{number}"), ..notification(1, 95) };
        world.notify(&notification, number).await;
    }
    node.run_to_the_end().await;
    for kind in ["hit-opened", "hit-qualified", "review-started", "review-completed"] {
        let order = format!("select case_id from kyc.effect where kind = '{kind}' order by n");
        assert_eq!(world.texts(&order).await, ["n-1", "n-2", "n-3", "n-4", "n-5"], "{kind}");
    }
}

#[tokio::test]
async fn with_kafka_reviews_are_told_there_as_well() {
    let mut world = World::new().await;
    let mut consumers = kyc::consumers(&world.options);
    world.options.kafka = true;
    // The intakes stay on INTERNAL: this test has no broker, and looks only at what is meant for one.
    for (of, with_kafka) in consumers.iter_mut().zip(kyc::consumers(&world.options)) {
        of.handler = with_kafka.handler;
    }
    let mut node = world.node_of(consumers).await;
    world.notify(&notification(1, 95), 1).await;
    node.run_to_the_end().await;
    let to_kafka = "select concat_ws(' ', destination, event_type, key) from dipmo.outbox
                    where destination <> 'INTERNAL' order by id";
    let expected = ["KAFKA:kyc.reviews ReviewStarted c-1", "KAFKA:kyc.reviews ReviewCompleted c-1"];
    assert_eq!(world.texts(to_kafka).await, expected);
}
