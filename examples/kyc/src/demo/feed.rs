//! Sends the plan: into the outbox, as another module of the same database would, or to Kafka.

use std::time::Duration;

use anyhow::{Context, Result};
use dipmo::store::postgres::Db;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};

use super::plan::Input;

/// What one transaction, or one wait for the broker, takes.
const BATCH: usize = 100;
const ANSWER_MAX: Duration = Duration::from_secs(30);

const APPEND: &str = "
-- demo.append
select dipmo.outbox_append_bytes(destination => 'INTERNAL', aggregate_type => m.aggregate_type,
    aggregate_id => m.aggregate_id, event_type => m.event_type, payload => m.payload,
    aggregate_version => m.aggregate_version, key => m.key, message_id => m.message_id)
from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::text[], $7::uuid[])
    as m (aggregate_type, aggregate_id, event_type, payload, aggregate_version, key, message_id)";

/// Where the inputs go.
#[derive(Clone)]
pub(super) enum Feed {
    Internal(Db),
    Kafka(FutureProducer),
}

impl Feed {
    pub(super) fn kafka(brokers: &str) -> Result<Self> {
        let mut config = ClientConfig::new();
        // Idempotent, because the producer itself must not reorder what the plan has in order.
        config.set("bootstrap.servers", brokers).set("enable.idempotence", "true").set("linger.ms", "5");
        Ok(Self::Kafka(config.create().context("making a Kafka producer")?))
    }

    /// Sends everything, in order.
    pub(super) async fn send(&self, inputs: &[Input]) -> Result<()> {
        for batch in inputs.chunks(BATCH) {
            match self {
                Feed::Internal(db) => append(db, batch).await?,
                Feed::Kafka(producer) => produce(producer, batch).await?,
            }
        }
        Ok(())
    }
}

async fn append(db: &Db, batch: &[Input]) -> Result<()> {
    fn column<'a, T>(batch: &'a [Input], of: impl Fn(&'a Input) -> T) -> Vec<T> {
        batch.iter().map(of).collect()
    }
    let client = db.client().await?;
    let statement = client.prepare_cached(APPEND).await?;
    // The outbox itself refuses a version that it has seen. What a careless sender repeats comes without
    // one here, so that the inbox has something to absorb.
    let versions = column(batch, |input| input.number.filter(|_| !input.repeats));
    client
        .execute(
            &statement,
            &[
                &column(batch, |input| input.flow.aggregate_type()),
                &column(batch, |input| input.case_id.as_str()),
                &column(batch, |input| input.flow.event_type()),
                &column(batch, |input| input.body.as_slice()),
                &versions,
                &column(batch, |input| input.customer.as_str()),
                &column(batch, |input| input.message_id),
            ],
        )
        .await
        .context("appending to the outbox")?;
    Ok(())
}

async fn produce(producer: &FutureProducer, batch: &[Input]) -> Result<()> {
    let mut answers = Vec::with_capacity(batch.len());
    for input in batch {
        let id = input.message_id.to_string();
        let number = input.number.map(|number| number.to_string());
        let fields = [
            ("event-id", Some(id.as_str())),
            ("event-type", Some(input.flow.event_type())),
            ("aggregate-id", Some(input.case_id.as_str())),
            ("aggregate-version", number.as_deref()),
        ];
        let headers = fields
            .into_iter()
            .filter(|(_, value)| value.is_some())
            .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value }));
        let record = FutureRecord::to(input.flow.topic()).key(&input.customer).payload(&input.body).headers(headers);
        answers.push(producer.send_result(record).map_err(|(error, _)| error).context("producing to Kafka")?);
    }
    for answer in answers {
        answer.await.context("the producer went away")?.map_err(|(error, _)| error).context("producing to Kafka")?;
    }
    producer.flush(ANSWER_MAX).context("waiting for Kafka")
}
