//! Rows of transactional topics: a writer for every shard, made when it is first needed.
//!
//! Promise: what one call brings of a shard is written in one Kafka transaction, groups that cannot be
//! sent left out; a shard has one transactional id wherever it is sent from, so that a relay which has
//! lost it commits nothing after the next one has begun.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::join_all;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::Instant;

use super::kafka::KafkaOptions;
use super::kafka_groups::Work;
use super::kafka_transaction::{Ended, Writer};
use super::{Outcome, Outgoing, Refusal};

/// As many as a lane has. Each holds a thread while the broker commits.
const SHARDS_AT_ONCE: usize = 16;

pub(super) struct Transactions {
    slots: Mutex<HashMap<i16, Arc<Slot>>>,
    permits: Semaphore,
}

#[derive(Default)]
struct Slot {
    /// How often the shard was forgotten; a writer from before that is not used again.
    forgotten: AtomicU64,
    writer: AsyncMutex<Option<(u64, Writer)>>,
}

impl Transactions {
    pub(super) fn new() -> Self {
        Self { slots: Mutex::default(), permits: Semaphore::new(SHARDS_AT_ONCE) }
    }

    /// Sends the rows, shards side by side; outcomes are in the order of the rows.
    pub(super) async fn publish(&self, options: &KafkaOptions, rows: &[Outgoing<'_>]) -> Vec<Outcome> {
        let deadline = Instant::now() + options.send_timeout;
        let mut shards: BTreeMap<i16, Vec<usize>> = BTreeMap::new();
        for (n, row) in rows.iter().enumerate() {
            shards.entry(row.shard).or_default().push(n);
        }
        let send = |(shard, places): (i16, Vec<usize>)| async move {
            let own = places.iter().map(|n| rows[*n]).collect();
            (self.send(options, shard, own, deadline).await, places)
        };
        let mut outcomes = vec![Outcome::Held; rows.len()];
        for (told, places) in join_all(shards.into_iter().map(send)).await {
            for (n, outcome) in places.into_iter().zip(told) {
                outcomes[n] = outcome;
            }
        }
        outcomes
    }

    /// The next use of the shards fences again.
    pub(super) fn forget(&self, shards: &[i16]) {
        for shard in shards {
            let Some(slot) = self.slots().get(shard).cloned() else { continue };
            slot.forgotten.fetch_add(1, Ordering::SeqCst);
            // In use at the moment, it is dropped by its next user.
            if let Ok(mut writer) = slot.writer.try_lock() {
                *writer = None;
            }
        }
    }

    async fn send(
        &self,
        options: &KafkaOptions,
        shard: i16,
        rows: Vec<Outgoing<'_>>,
        deadline: Instant,
    ) -> Vec<Outcome> {
        let mut work = Work::new(rows);
        let slot = Arc::clone(self.slots().entry(shard).or_default());
        let entrance = async { (self.permits.acquire().await, slot.writer.lock().await) };
        let Ok((_permit, mut place)) = tokio::time::timeout_at(deadline, entrance).await else {
            return work.finish(&late(options, shard));
        };
        let forgotten = slot.forgotten.load(Ordering::SeqCst);
        // Taken out, so that a call which is given up in the middle leaves no writer in a transaction.
        let mut writer = place.take().filter(|(made, _)| *made == forgotten).map(|(_, writer)| writer);
        let told = drain(&mut work, &mut writer, options, shard, deadline).await;
        *place = writer.map(|writer| (forgotten, writer));
        work.finish(&told)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<i16, Arc<Slot>>> {
        self.slots.lock().expect("no code panics while it holds the slots")
    }
}

/// Tries until nothing is left or the broker fails; tells why, for what is left.
async fn drain(
    work: &mut Work<'_>,
    writer: &mut Option<Writer>,
    options: &KafkaOptions,
    shard: i16,
    deadline: Instant,
) -> Refusal {
    while let Some(attempt) = work.next() {
        if Instant::now() >= deadline {
            break;
        }
        let open = match writer.take() {
            Some(open) => open,
            None => match Writer::open(options, shard, deadline).await {
                Ok(open) => open,
                Err(refusal) => return refusal,
            },
        };
        match open.write(&attempt.rows, deadline).await {
            Ended::Committed => {
                work.committed(attempt);
                *writer = Some(open);
            }
            Ended::Refused(faults) => {
                // What the broker refused has used up sequence numbers: librdkafka would go on behind the
                // hole, and the broker would take nothing more. A new producer begins at zero.
                *writer = faults.iter().all(|fault| fault.exact).then_some(open);
                work.refused(attempt, &faults);
            }
            Ended::Unknown(refusal) => return refusal,
        }
    }
    late(options, shard)
}

fn late(options: &KafkaOptions, shard: i16) -> Refusal {
    let id = options.transactional_id_of(shard);
    Refusal::new("KAFKA_NO_REPORT", format!("transactional id {id}: the time was over before it was sent"))
}
