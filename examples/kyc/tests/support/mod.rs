//! A world of its own for each test: both schemas on the server that `cargo xtask test` started, a clock
//! that the test drives, and every loop of a node as single steps.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use dipmo::clock::Clock;
use dipmo::consumer::Consumer;
use dipmo::relay::{Relay, RelayOptions};
use dipmo::runner::{Report, Worker};
use dipmo::store::postgres::{Db, DbOptions, schema};
use dipmo::wake::Wake;
use kyc::hits::domain::Notification;
use kyc::onboarding::domain::Application;
use kyc::tables::Tables;
use time::macros::datetime;
use uuid::Uuid;

/// Longer than any retry delay.
const A_WHILE: Duration = Duration::from_secs(400);
/// No flow here takes so long, even on a machine that does much else.
const END_MAX: Duration = Duration::from_secs(120);

pub(crate) struct World {
    pub(crate) db: Db,
    pub(crate) clock: Clock,
    pub(crate) options: kyc::Options,
}

pub(crate) struct Node {
    pub(crate) workers: Vec<Worker>,
    relay: Relay,
    db: Db,
    clock: Clock,
}

impl World {
    pub(crate) async fn new() -> Self {
        let url = std::env::var("DIPMO_TEST_POSTGRES")
            .expect("run the tests by `cargo xtask test`, which starts the servers");
        let id = Uuid::now_v7().simple().to_string();
        let clock = Clock::manual(datetime!(2026-03-01 12:00 UTC));
        let options =
            DbOptions { schema: format!("t{id}"), connections_max: 8, clock: clock.clone(), ..DbOptions::new(url) };
        let db = Db::open(options).unwrap();
        schema::migrate(&db).await.unwrap();
        let tables = Tables::new(format!("k{id}"));
        tables.create(&db).await.unwrap();
        Self { db, clock, options: kyc::Options { tables, ..kyc::Options::default() } }
    }

    pub(crate) async fn node(&self) -> Node {
        self.node_of(kyc::consumers(&self.options)).await
    }

    pub(crate) async fn node_of(&self, consumers: Vec<Consumer>) -> Node {
        let mut workers = Vec::new();
        for consumer in consumers {
            let wake = Wake::default();
            workers.push(Worker::new(self.db.clone(), Arc::new(consumer), "node".into(), &wake).await.unwrap());
        }
        let relay = Relay::new(self.db.clone(), RelayOptions::new("node")).unwrap();
        Node { workers, relay, db: self.db.clone(), clock: self.clock.clone() }
    }

    /// Puts a message into the outbox, as another module would, and returns its id.
    pub(crate) async fn append(&self, event_type: &str, case: (&str, &str), version: i64, body: &[u8]) -> Uuid {
        let (id, customer) = case;
        let message_id = Uuid::now_v7();
        let append = self.sql(
            "select dipmo.outbox_append_bytes('INTERNAL', 'Input', $1, $2, $3, aggregate_version => $4,
                                              key => $5, message_id => $6)",
        );
        let client = self.db.client().await.unwrap();
        client.execute(&append, &[&id, &event_type, &body, &version, &customer, &message_id]).await.unwrap();
        message_id
    }

    pub(crate) async fn notify(&self, notification: &Notification, version: i64) -> Uuid {
        let case = (notification.notification_id.as_str(), notification.customer_id.as_str());
        self.append("Notification126", case, version, &serde_json::to_vec(notification).unwrap()).await
    }

    pub(crate) async fn apply(&self, application: &Application, version: i64) -> Uuid {
        let case = (application.onboarding_id.as_str(), application.customer_id.as_str());
        self.append("OnboardingCustomer", case, version, &serde_json::to_vec(application).unwrap()).await
    }

    /// Sends everything that was ever sent once more, under the same ids or under new ones.
    pub(crate) async fn repeat_everything(&self, id: &str) {
        let again = format!(
            "select dipmo.outbox_append_bytes(destination, aggregate_type, aggregate_id, event_type, payload,
                                              key => key, message_id => {id})
             from (select * from dipmo.outbox order by id) o"
        );
        self.db.client().await.unwrap().batch_execute(&self.sql(&again)).await.unwrap();
    }

    /// One column of a query, as text; `dipmo.` and `kyc.` stand for this world's schemas.
    pub(crate) async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.db.client().await.unwrap().query(&self.sql(sql), &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, Option<String>>(0).unwrap_or_else(|| "-".into())).collect()
    }

    /// The states a case has passed through, as the journal tells.
    pub(crate) async fn path(&self, case: &str) -> Vec<String> {
        self.texts(&format!(
            "select j.to_state from dipmo.journal j join dipmo.process p on p.id = j.process_id
             where p.business_key = '{case}' order by j.id"
        ))
        .await
    }

    /// The effects of a case, in order.
    pub(crate) async fn effects(&self, case: &str) -> Vec<String> {
        self.texts(&format!("select kind from kyc.effect where case_id = '{case}' order by n")).await
    }

    /// Everything that has come of the inputs, to compare.
    pub(crate) async fn outcome(&self) -> Vec<String> {
        let mut all = self.texts("select concat_ws(' ', n, kind, case_id, key, seq) from kyc.effect order by n").await;
        let processes = "select concat_ws(' ', type, business_key, state, status, version) from dipmo.process
                         order by type, business_key";
        all.extend(self.texts(processes).await);
        let kept = "select concat_ws(' ', 'review', notification_id, outcome) from kyc.review order by 1";
        all.extend(self.texts(kept).await);
        all.extend(self.texts("select count(*) || ' lines' from dipmo.journal").await);
        all
    }

    fn sql(&self, sql: &str) -> String {
        self.options.tables.sql(sql).replace("dipmo.", &format!("{}.", self.db.schema()))
    }
}

impl Node {
    /// Relays and works until nothing is left that would move by itself.
    ///
    /// A step that finds nothing is not the end: the relay may be waiting for a transaction of another
    /// test on the same server.
    pub(crate) async fn run_to_the_end(&mut self) -> Report {
        let begun = Instant::now();
        let mut sum = Report::default();
        while !self.is_quiet().await {
            if !self.round(&mut sum).await {
                self.clock.advance(A_WHILE);
            }
            assert!(begun.elapsed() < END_MAX, "the flow does not come to an end: {sum:?}");
        }
        sum
    }

    /// One step of every loop; whether any of them found something.
    pub(crate) async fn round(&mut self, sum: &mut Report) -> bool {
        let relayed = self.relay.run_once().await.unwrap();
        let mut moved = relayed.handed_over + relayed.published + relayed.excepted > 0;
        for worker in &mut self.workers {
            let step = worker.run_once().await.unwrap();
            *sum += step.report;
            moved |= !step.is_idle();
        }
        moved
    }

    async fn is_quiet(&self) -> bool {
        let quiet = "select not exists (select 1 from dipmo.inbox_work where state in ('RECEIVED', 'RETRY'))
            and not exists (select 1 from dipmo.parked_key where state = 'DRAINING')
            and not exists (select 1 from dipmo.outbox_status where state = 'PENDING' and destination = 'INTERNAL')";
        let quiet = quiet.replace("dipmo.", &format!("{}.", self.db.schema()));
        self.db.client().await.unwrap().query_one(&quiet, &[]).await.unwrap().get(0)
    }
}

pub(crate) fn notification(n: u32, score: u16) -> Notification {
    Notification {
        notification_id: format!("n-{n}"),
        customer_id: format!("c-{n}"),
        list: "EU".into(),
        subject: "J. Doe".into(),
        score,
    }
}

pub(crate) fn application(n: u32, country: &str) -> Application {
    Application {
        onboarding_id: format!("o-{n}"),
        customer_id: format!("c-{n}"),
        product: "credit".into(),
        country: country.into(),
    }
}
