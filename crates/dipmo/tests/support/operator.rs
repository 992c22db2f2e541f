//! What the tests of operators and upkeep need: a world with rows put there by SQL.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "every test file uses another part of it")]
#![allow(unreachable_pub, missing_debug_implementations, reason = "shared by several test binaries")]

mod world;

pub use world::*;

use dipmo::operator::Change;

impl World {
    /// A world by real time with the consumer `billing`.
    pub async fn with_billing() -> Self {
        let world = Self::real_time().await;
        world.run("insert into consumer (name) values ('billing')").await;
        world
    }

    pub async fn run(&self, statement: &str) {
        self.session().await.batch_execute(statement).await.unwrap_or_else(|e| panic!("{statement}: {e:?}"));
    }

    /// The first column of the first row as text; `null` when it is.
    pub async fn text(&self, query: &str) -> String {
        let rows = self.session().await.query(&format!("select (x.*)::text from ({query}) x"), &[]).await;
        let rows = rows.unwrap_or_else(|e| panic!("{query}: {e:?}"));
        let lines: Vec<String> = rows.iter().map(|r| r.get::<_, Option<String>>(0).unwrap_or("null".into())).collect();
        lines.join("\n")
    }

    pub async fn number(&self, query: &str) -> i64 {
        self.session().await.query_one(query, &[]).await.unwrap_or_else(|e| panic!("{query}: {e:?}")).get(0)
    }

    /// An open message of `billing`.
    pub async fn message(&self, key: &str, state: &str) -> i64 {
        self.message_with(key, state, b"{}").await
    }

    pub async fn message_with(&self, key: &str, state: &str, payload: &[u8]) -> i64 {
        let insert = "
            with m as (
                insert into inbox (consumer_id, source, message_id, topic, partition_no, offset_no, key, payload, headers)
                select 1, 'orders', 'm-' || gen_random_uuid(), 'orders', 0, 7, $1, $3, '{\"event-type\": \"OrderPlaced\"}'
                returning id)
            insert into inbox_work (id, consumer_id, bucket, key, state, attempts, next_attempt_at, error_stage,
                                    error_code, error_message)
            select id, 1, (hashtextextended($1, 0) & 15)::smallint, $1, $2, 3,
                   case when $2 = 'RETRY' then now() + interval '1 hour' end, 'BUSINESS',
                   case when $2 in ('DEAD', 'SERDE_ERROR', 'RETRY') then 'NO_STOCK' end,
                   case when $2 in ('DEAD', 'SERDE_ERROR', 'RETRY') then 'out of stock' end
            from m returning id";
        self.session().await.query_one(insert, &[&key, &state, &payload]).await.unwrap().get(0)
    }

    /// A DEAD head with messages parked behind it; the head's id comes first.
    pub async fn parked_key(&self, key: &str, waiting: usize) -> Vec<i64> {
        let head = self.message(key, "DEAD").await;
        let park = "insert into parked_key (consumer_id, key, bucket, head_id, state)
                    values (1, $1, (hashtextextended($1, 0) & 15)::smallint, $2, 'WAITING')";
        self.session().await.execute(park, &[&key, &head]).await.unwrap();
        let mut ids = vec![head];
        for _ in 0..waiting {
            ids.push(self.message(key, "PARKED").await);
        }
        ids
    }

    /// A message of the outbox, with an exception in the state given.
    pub async fn outbox(&self, destination: &str, key: &str, exception: Option<&str>) -> i64 {
        let append = "select outbox_append($1, 'Order', $2, 'OrderPlaced', '{\"amount\": 1}')";
        let id: i64 = self.session().await.query_one(append, &[&destination, &key]).await.unwrap().get(0);
        if let Some(state) = exception {
            let insert = "
                insert into outbox_exception (id, shard, destination, key, state, attempts, next_attempt_at, error_code)
                select id, shard, destination, key, $2, 5, case when $2 = 'RETRY' then now() + interval '1 hour' end,
                       'BROKER'
                from outbox where id = $1";
            self.session().await.execute(insert, &[&id, &state]).await.unwrap();
        }
        id
    }

    /// The relays have read everything so far.
    pub async fn relays_caught_up(&self) {
        self.run("update relay_shard set cursor = pg_sequence_last_value('outbox_seq'::regclass)").await;
    }
}

pub fn ann() -> Change {
    Change::new("ann", "checked with the shop").unwrap()
}
