//! A producer that writes in Kafka transactions, and one such transaction from begin to end.
//!
//! Promise: rows are committed together or not at all, and a writer that another one of the same id has
//! replaced commits nothing. Every call ends a little after its deadline. Not promised: that a commit
//! whose answer did not come has not happened.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;

use super::kafka::{KafkaOptions, QUEUE_FULL_WAIT, YIELD_ROWS, is_of_the_topic, judge, record};
use super::kafka_groups::Fault;
use super::kafka_polled::Polled;
use super::{Outcome, Outgoing, Refusal};

/// What an abort, or a commit that is begun at the last moment, may take beyond the deadline.
const END_WAIT: Duration = Duration::from_secs(2);

type Client = Polled<Reports>;

/// How a transaction ended.
pub(super) enum Ended {
    Committed,
    /// Nothing of it is visible, because of these rows. The writer may be of no more use.
    Refused {
        faults: Vec<Fault>,
        usable: bool,
    },
    /// It may or may not be visible, and no row is to blame. The writer is of no more use.
    Unknown(Refusal),
}

/// The producer of one transactional id. Dropping it leaves an open transaction to the next one.
pub(super) struct Writer {
    id: String,
    /// The `producer` header.
    producer: Option<String>,
    reports: Reports,
    client: Option<Arc<Client>>,
}

impl Writer {
    /// Makes a producer. What an older one of this id has left open is aborted, and it can commit no more.
    pub(super) async fn open(options: &KafkaOptions, shard: i16, deadline: Instant) -> Result<Self, Refusal> {
        let reports = Reports::default();
        let id = options.transactional_id_of(shard);
        let made = options.transactional_config(&id).create_with_context(reports.clone());
        let made: BaseProducer<Reports> =
            made.map_err(|error: KafkaError| refusal(&id, "making the producer", &error))?;
        let no_thread = |error| Refusal::new("KAFKA", format!("transactional id {id}: starting a thread: {error}"));
        let client = Polled::new(made).map_err(no_thread)?;
        let writer = Self { id, producer: options.producer.clone(), reports, client: Some(Arc::new(client)) };
        let left = deadline.saturating_duration_since(Instant::now());
        match writer.call(move |client| client.init_transactions(left)).await {
            Ok(()) => Ok(writer),
            Err(error) => Err(refusal(&writer.id, "fencing older producers", &error)),
        }
    }

    /// One transaction with all the rows.
    pub(super) async fn write(&self, rows: &[Outgoing<'_>], deadline: Instant) -> Ended {
        if let Err(error) = self.call(|client| client.begin_transaction()).await {
            return self.lost("beginning a transaction", &error);
        }
        let over = self.reports.open(rows.len());
        let faults = self.send_all(rows, deadline).await;
        let mut reason = None;
        if faults.is_empty() && tokio::time::timeout_at(deadline, over).await.is_ok() {
            // Where something has failed librdkafka refuses to commit, and tells why only so.
            match self.commit(deadline.max(Instant::now() + END_WAIT)).await {
                Ok(()) if self.reports.all_arrived() => return Ended::Committed,
                Ok(()) => return Ended::Unknown(self.late()),
                Err(error) if !requires_abort(&error) => return self.lost("committing", &error),
                Err(error) => reason = Some(error),
            }
        }
        let aborted = self.call(|client| client.abort_transaction(END_WAIT)).await;
        // All reports are in now: an abort waits for them. Nothing becomes visible if it failed, either:
        // the next producer of this id, or the broker in time, aborts what was not committed.
        self.aborted(rows.len(), faults, reason, aborted.err())
    }

    /// Hands the rows to librdkafka and tells which it does not take. Ends early when the transaction has
    /// broken meanwhile.
    async fn send_all(&self, rows: &[Outgoing<'_>], deadline: Instant) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (place, row) in rows.iter().enumerate() {
            if place % YIELD_ROWS == YIELD_ROWS - 1 {
                tokio::task::yield_now().await;
            }
            match self.send(row, self.reports.opaque(place), deadline).await {
                Ok(()) => {}
                Err(outcome) if is_the_rows(&outcome) => faults.push(Fault { place, outcome, exact: true }),
                Err(_) => break,
            }
        }
        faults
    }

    async fn send(&self, row: &Outgoing<'_>, opaque: usize, deadline: Instant) -> Result<(), Outcome> {
        let mut record = record(row, self.producer.as_deref(), opaque)?;
        loop {
            match self.client().send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(Code::QueueFull), again)) if Instant::now() < deadline => {
                    record = again;
                    tokio::time::sleep(QUEUE_FULL_WAIT).await;
                }
                Err((error, _)) => return Err(judge(&error)),
            }
        }
    }

    /// A commit whose answer is late goes on in the background, and asking again waits for the same.
    async fn commit(&self, deadline: Instant) -> KafkaResult<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.call(move |client| client.commit_transaction(left)).await {
                Err(KafkaError::Transaction(error)) if error.is_retriable() && Instant::now() < deadline => {
                    tokio::time::sleep(QUEUE_FULL_WAIT).await;
                }
                ended => return ended,
            }
        }
    }

    /// Nothing is visible. Who is to blame?
    fn aborted(
        &self,
        rows: usize,
        mut faults: Vec<Fault>,
        reason: Option<KafkaError>,
        unaborted: Option<KafkaError>,
    ) -> Ended {
        let mut trouble = Vec::new();
        for (place, error) in self.reports.failed() {
            let code = error.rdkafka_error_code();
            let outcome = judge(&error);
            if is_the_rows(&outcome) {
                faults.push(Fault { place, outcome, exact: code.is_some_and(is_of_the_topic) });
            } else if !code.is_some_and(is_consequence) {
                trouble.push(error);
            }
        }
        trouble.extend(reason.into_iter().chain(unaborted.clone()));
        if let Some(error) = trouble.iter().find(|error| is_fenced(error)) {
            return self.lost("sending", error);
        }
        if faults.is_empty()
            && let Some(outcome) = trouble.iter().map(judge).find(is_the_rows)
        {
            // A partition could not join the transaction, and it is not said for which rows.
            faults.extend((0..rows).map(|place| Fault { place, outcome: outcome.clone(), exact: false }));
        }
        match trouble.first() {
            _ if !faults.is_empty() => {
                // What the broker refused has used up sequence numbers: librdkafka would go on behind the
                // hole, and the broker would take nothing more. A new producer begins at zero.
                let usable = unaborted.is_none() && faults.iter().all(|fault| fault.exact);
                Ended::Refused { faults, usable }
            }
            Some(error) => self.lost("sending", error),
            None => Ended::Unknown(self.late()),
        }
    }

    fn lost(&self, doing: &str, error: &KafkaError) -> Ended {
        let fatal = self.client().client().fatal_error();
        let error = fatal.map_or_else(|| error.clone(), |(code, _)| KafkaError::Global(code));
        let refusal = refusal(&self.id, doing, &error);
        warn!(code = refusal.code, reason = refusal.message, "a transactional producer is dropped");
        Ended::Unknown(refusal)
    }

    fn late(&self) -> Refusal {
        let message = format!("transactional id {}: no answer in time, the transaction was aborted", self.id);
        Refusal::new("KAFKA_NO_REPORT", message)
    }

    /// Transaction calls block their thread.
    async fn call(&self, call: impl FnOnce(&Client) -> KafkaResult<()> + Send + 'static) -> KafkaResult<()> {
        let client = Arc::clone(self.client());
        tokio::task::spawn_blocking(move || call(&client)).await.unwrap_or(Err(KafkaError::Canceled))
    }

    fn client(&self) -> &Arc<Client> {
        self.client.as_ref().expect("only drop takes it")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let client = self.client.take();
        // Ending a producer waits for its threads, so not on a thread that others need.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(client));
        }
    }
}

fn refusal(id: &str, doing: &str, error: &KafkaError) -> Refusal {
    if is_fenced(error) {
        let message = format!("transactional id {id}: {doing}: another producer with this id has taken over");
        return Refusal::new("KAFKA_FENCED", message);
    }
    let code = error.rdkafka_error_code().map_or_else(|| "KAFKA".to_owned(), |code| format!("KAFKA_{code:?}"));
    Refusal::new(code, format!("transactional id {id}: {doing}: {error}"))
}

fn is_fenced(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch))
}

fn requires_abort(error: &KafkaError) -> bool {
    matches!(error, KafkaError::Transaction(error) if error.txn_requires_abort())
}

/// Poison, or something that only rows of its topic suffer from.
fn is_the_rows(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Rejected(_) => true,
        Outcome::Retry(refusal) => refusal.code == "KAFKA_TopicAuthorizationFailed",
        _ => false,
    }
}

/// What befalls a row because another one has failed.
fn is_consequence(code: Code) -> bool {
    matches!(code, Code::PurgeQueue | Code::PurgeInflight | Code::State)
}

/// Gathers the delivery reports of the transaction under way.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Round>>);

#[derive(Default)]
struct Round {
    /// Tells late reports of an earlier transaction apart.
    number: u32,
    waiting: usize,
    failed: Vec<(usize, KafkaError)>,
    /// Told when all have arrived, and when the first has failed.
    over: Option<oneshot::Sender<()>>,
}

impl Round {
    fn end(&mut self) {
        self.over.take().map(|over| over.send(()));
    }
}

impl Reports {
    fn open(&self, rows: usize) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut round = self.lock();
        let number = round.number.wrapping_add(1);
        *round = Round { number, waiting: rows, failed: Vec::new(), over: Some(sender) };
        receiver
    }

    fn opaque(&self, place: usize) -> usize {
        ((self.lock().number as usize) << 32) | place
    }

    fn all_arrived(&self) -> bool {
        let round = self.lock();
        round.waiting == 0 && round.failed.is_empty()
    }

    fn failed(&self) -> Vec<(usize, KafkaError)> {
        std::mem::take(&mut self.lock().failed)
    }

    fn lock(&self) -> MutexGuard<'_, Round> {
        self.0.lock().expect("no code panics while it holds the reports")
    }
}

impl ClientContext for Reports {
    fn error(&self, error: KafkaError, reason: &str) {
        warn!(%error, reason, "librdkafka");
        // A producer that is broken, or fenced, reports on nothing any more.
        if error.rdkafka_error_code() == Some(Code::Fatal) {
            self.lock().end();
        }
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let mut round = self.lock();
        if opaque >> 32 != round.number as usize {
            return;
        }
        match result {
            Ok(_) => round.waiting -= 1,
            Err((error, _)) => round.failed.push((opaque & 0xffff_ffff, error.clone())),
        }
        if round.waiting == 0 || result.is_err() {
            round.end();
        }
    }
}
