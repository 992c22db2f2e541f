//! The process sweep: every input repeated, and every case failing once at each of its steps.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use dipmo::Message;
use dipmo::consumer::{Consumer, Grouping, Handler};
use dipmo::handler::{Enlisted, EnlistedHandler};
use dipmo::process::{Decision, Failure, Input, Instance, Process};
use dipmo::runner::Report;
use support::{World, application, notification};
use time::OffsetDateTime;

/// Cases of each flow; more than either has steps.
const CASES: u32 = 12;

/// The n-th case fails at the first attempt of its n-th step, however often that attempt is made: whoever decides
/// may be asked again before anything is settled.
#[derive(Default)]
struct Script {
    /// By case: which messages were steps of which consumers, in order.
    steps: Mutex<HashMap<String, Vec<(String, String)>>>,
    failed: Mutex<HashSet<(String, String)>>,
}

impl Script {
    fn step(&self, consumer: &str, message: &Message) -> Result<(), Failure> {
        let case = message.aggregate_id.clone().unwrap();
        let number: usize = case.split('-').next_back().unwrap().parse().unwrap();
        let this = (consumer.to_owned(), message.message_id.clone());
        let mut steps = self.steps.lock().unwrap();
        let steps = steps.entry(case).or_default();
        if !steps.contains(&this) {
            steps.push(this.clone());
        }
        if steps.iter().position(|step| *step == this) != Some(number - 1) || message.attempt > 1 {
            return Ok(());
        }
        self.failed.lock().unwrap().insert(this);
        Err(Failure::transient("SCRIPTED", "fails once"))
    }
}

struct FaultyProcess {
    inner: Arc<dyn Process>,
    consumer: String,
    script: Arc<Script>,
}

impl Process for FaultyProcess {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn business_key(&self, message: &Message) -> String {
        self.inner.business_key(message)
    }

    fn decide(&self, current: Option<&Instance>, input: Input<'_>, now: OffsetDateTime) -> Result<Decision, Failure> {
        let decision = self.inner.decide(current, input, now)?;
        if let Input::Message(message) = input {
            self.script.step(&self.consumer, message)?;
        }
        Ok(decision)
    }
}

/// Does its work and then reports failure, or fails before it began.
struct FaultyHandler {
    inner: Arc<dyn EnlistedHandler>,
    consumer: String,
    script: Arc<Script>,
    after: bool,
}

#[async_trait]
impl EnlistedHandler for FaultyHandler {
    async fn handle(&self, enlisted: &mut Enlisted<'_>, message: &Message) -> Result<(), Failure> {
        if self.after {
            self.inner.handle(enlisted, message).await?;
            return self.script.step(&self.consumer, message);
        }
        self.script.step(&self.consumer, message)?;
        self.inner.handle(enlisted, message).await
    }
}

fn faulty(consumer: Consumer, script: &Arc<Script>, after: bool) -> Consumer {
    let (script, name) = (Arc::clone(script), consumer.name.clone());
    let handler = match consumer.handler.clone() {
        Handler::Process(inner) => Handler::Process(Arc::new(FaultyProcess { inner, consumer: name, script })),
        // By key: a failure in a batch would have the other cases of the batch repeat their step.
        Handler::Enlisted { handler, .. } => Handler::Enlisted {
            handler: Arc::new(FaultyHandler { inner: handler, consumer: name, script, after }),
            grouping: Grouping::Key,
        },
    };
    Consumer { handler, ..consumer }
}

async fn send_all(world: &World) {
    for n in 1..=CASES {
        world.notify(&notification(n, 95), 1).await;
        world.apply(&application(n, "NL"), 1).await;
    }
}

async fn assert_all_went_through(world: &World) {
    for n in 1..=CASES {
        let (hit, onboarding) = (format!("n-{n}"), format!("o-{n}"));
        assert_eq!(world.path(&hit).await.len(), 5, "{hit}");
        assert_eq!(world.path(&onboarding).await.len(), 4, "{onboarding}");
        let effects = ["hit-opened", "hit-qualified", "review-started", "review-completed"];
        assert_eq!(world.effects(&hit).await, effects, "{hit}");
        assert_eq!(world.effects(&onboarding).await, ["customer-qualified", "block-created"], "{onboarding}");
    }
    let open = "select count(*)::text from dipmo.inbox_work";
    assert_eq!(world.texts(open).await, ["0"]);
}

#[tokio::test]
async fn a_failure_at_any_step_changes_nothing_in_the_end() {
    for after in [false, true] {
        let world = World::new().await;
        let script = Arc::new(Script::default());
        let consumers = kyc::consumers(&world.options);
        let mut node = world.node_of(consumers.into_iter().map(|c| faulty(c, &script, after)).collect()).await;
        send_all(&world).await;
        node.run_to_the_end().await;
        assert_all_went_through(&world).await;
        // A hit takes 9 steps, an onboarding 5: the sweep has been at every one of them.
        assert_eq!(script.failed.lock().unwrap().len(), 9 + 5, "after: {after}");
    }
}

#[tokio::test]
async fn everything_sent_twice_under_the_same_id_changes_nothing() {
    let world = World::new().await;
    let mut node = world.node().await;
    send_all(&world).await;
    node.run_to_the_end().await;
    assert_all_went_through(&world).await;
    let before = world.outcome().await;
    world.repeat_everything("message_id").await;
    let report = node.run_to_the_end().await;
    assert_eq!(world.outcome().await, before);
    assert_eq!(report.processed, 0, "nothing got as far as a handler");
}

#[tokio::test]
async fn everything_sent_twice_under_another_id_changes_nothing() {
    let world = World::new().await;
    let mut node = world.node().await;
    send_all(&world).await;
    node.run_to_the_end().await;
    let before = world.outcome().await;
    world.repeat_everything("gen_random_uuid()").await;
    let report = node.run_to_the_end().await;
    assert_eq!(world.outcome().await, before);
    assert!(report.ignored > 0, "the processes saw the repetitions and ignored them");
    assert_all_went_through(&world).await;
}

#[tokio::test]
async fn a_node_that_is_dropped_after_any_number_of_steps_is_replaced_by_another() {
    let world = World::new().await;
    send_all(&world).await;
    // Every step by another node, whose predecessor never gave its leases back.
    for _ in 0..40 {
        let mut node = world.node().await;
        node.round(&mut Report::default()).await;
        world.clock.advance(std::time::Duration::from_secs(60));
    }
    world.node().await.run_to_the_end().await;
    assert_all_went_through(&world).await;
}
