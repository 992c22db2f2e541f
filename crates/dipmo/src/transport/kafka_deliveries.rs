//! Delivery reports of plain sends, gathered for the calls that wait for them.
//!
//! One completion a batch, no allocation a row: the opaque of a message is the number of its batch and its
//! place in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use tokio::sync::oneshot;

use super::kafka::{is_of_the_topic, judge};
use super::{Outcome, Refusal};

#[derive(Clone, Default)]
pub(super) struct Deliveries(Arc<Mutex<HashMap<u32, Batch>>>);

struct Batch {
    told: Told,
    left: usize,
    done: Option<oneshot::Sender<()>>,
}

/// What became of the rows of a batch.
#[derive(Default)]
pub(super) struct Told {
    pub(super) outcomes: Vec<Option<Outcome>>,
    /// Places of rows that the broker refused, healthy ones among them: it refuses what came together.
    pub(super) suspects: Vec<usize>,
    /// Places of rows that the broker does not have, because of others.
    pub(super) unsent: Vec<usize>,
    /// Places of rows whose topic takes nothing.
    pub(super) of_the_topic: Vec<usize>,
}

impl Told {
    pub(super) fn outcomes(self) -> Vec<Outcome> {
        let unknown = || Outcome::Unknown(Refusal::new("KAFKA_NO_REPORT", "no delivery report in time"));
        self.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unknown)).collect()
    }
}

/// What a failed row says of itself.
#[derive(Clone, Copy)]
enum Blame {
    Own,
    Topic,
    Suspect,
    Unsent,
}

impl Deliveries {
    pub(super) fn open(&self, batch: u32, rows: usize) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let told = Told { outcomes: vec![None; rows], ..Told::default() };
        self.lock().insert(batch, Batch { told, left: rows, done: Some(sender) });
        receiver
    }

    pub(super) fn tell(&self, batch: u32, n: usize, outcome: Outcome) {
        self.put(batch, n, outcome, Blame::Own);
    }

    /// librdkafka does not take it, or the broker does not.
    pub(super) fn tell_failed(&self, batch: u32, n: usize, error: &KafkaError) {
        let outcome = judge(error);
        let blame = match error.rdkafka_error_code() {
            // What was purged is not on its way; a broken producer takes nothing.
            Some(Code::PurgeQueue | Code::Fatal | Code::InvalidDifferentRecord) => Blame::Unsent,
            Some(code) if is_of_the_topic(code) => Blame::Topic,
            _ if matches!(outcome, Outcome::Rejected(_)) => Blame::Suspect,
            _ => Blame::Own,
        };
        self.put(batch, n, outcome, blame);
    }

    fn put(&self, batch: u32, n: usize, outcome: Outcome, blame: Blame) {
        let mut batches = self.lock();
        // A report that comes after the batch was closed has been counted as unknown.
        let Some(batch) = batches.get_mut(&batch) else { return };
        if batch.told.outcomes[n].is_none() {
            batch.told.outcomes[n] = Some(outcome);
            match blame {
                Blame::Own => {}
                Blame::Topic => batch.told.of_the_topic.push(n),
                Blame::Suspect => batch.told.suspects.push(n),
                Blame::Unsent => batch.told.unsent.push(n),
            }
            batch.left -= 1;
            if batch.left == 0 {
                batch.done.take().map(|done| done.send(()));
            }
        }
    }

    pub(super) fn close(&self, batch: u32) -> Told {
        self.lock().remove(&batch).map(|batch| batch.told).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Batch>> {
        self.0.lock().expect("no code panics while it holds the deliveries")
    }
}

pub(super) fn opaque(batch: u32, n: usize) -> usize {
    ((batch as usize) << 32) | n
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        #[allow(clippy::cast_possible_truncation)] // Two halves, as `opaque` joined them.
        let (batch, n) = ((opaque >> 32) as u32, opaque & 0xffff_ffff);
        match result {
            Ok(_) => self.tell(batch, n, Outcome::Done),
            Err((error, _)) => self.tell_failed(batch, n, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_done_when_every_row_was_told_once() {
        let deliveries = Deliveries::default();
        let mut done = deliveries.open(7, 3);
        deliveries.tell(7, 0, Outcome::Done);
        deliveries.tell(7, 0, Outcome::Held);
        deliveries.tell(7, 2, Outcome::Done);
        deliveries.tell(8, 0, Outcome::Done);
        assert!(done.try_recv().is_err());
        deliveries.tell(7, 1, Outcome::Done);
        assert!(done.try_recv().is_ok());
        assert_eq!(deliveries.close(7).outcomes(), [Outcome::Done, Outcome::Done, Outcome::Done]);
    }

    #[test]
    fn who_is_to_blame_is_known_only_of_a_topic() {
        let deliveries = Deliveries::default();
        let codes = [Code::MessageSizeTooLarge, Code::PurgeQueue, Code::UnknownTopic, Code::PurgeInflight];
        let _done = deliveries.open(7, codes.len());
        for (n, code) in codes.into_iter().enumerate() {
            deliveries.tell_failed(7, n, &KafkaError::MessageProduction(code));
        }
        let told = deliveries.close(7);
        assert_eq!((told.suspects, told.unsent, told.of_the_topic), (vec![0], vec![1], vec![2]));
    }
}
