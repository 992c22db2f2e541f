//! Runs enlisted handlers: one transaction a group, groups of different keys side by side.

use std::collections::HashMap;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tracing::debug;

use super::fold::{self, Delivery, Known};
use super::{CONFLICTS_MAX, Report, Runner};
use crate::consumer::Grouping;
use crate::error::{ErrorKind, Result};
use crate::handler::EnlistedHandler;
use crate::inbox::{Fence, Settled};
use crate::message::Message;
use crate::process::Failure;
use crate::store::Enlistment;

/// How a group ended.
enum Group {
    Settled(Report, Known),
    /// A message of a batch group was refused: the batch is taken apart.
    Refused,
}

impl Runner {
    pub(super) async fn enlist(
        &self,
        handler: &dyn EnlistedHandler,
        grouping: Grouping,
        fence: &Fence,
        deliveries: &[Delivery],
    ) -> Result<Report> {
        if grouping == Grouping::Batch
            && let Group::Settled(report, _) =
                self.enlist_group(handler, fence, deliveries, Known::default(), false).await?
        {
            return Ok(report);
        }
        let single = grouping == Grouping::Record;
        let groups = by_key(deliveries).into_iter().map(|group| self.enlist_key(handler, fence, group, single));
        stream::iter(groups)
            .buffer_unordered(self.consumer.concurrency)
            .try_fold(Report::default(), |mut sum, report| async move {
                sum += report;
                Ok(sum)
            })
            .await
    }

    /// The messages of one key, together or one by one, in order.
    async fn enlist_key(
        &self,
        handler: &dyn EnlistedHandler,
        fence: &Fence,
        group: Vec<Delivery>,
        single: bool,
    ) -> Result<Report> {
        let mut sum = Report::default();
        let mut known = Known::default();
        let size = if single { 1 } else { group.len() };
        for part in group.chunks(size) {
            if let Group::Settled(report, after) = self.enlist_group(handler, fence, part, known, true).await? {
                sum += report;
                known = Known { blocked: after.blocked, ..Known::default() };
            } else {
                unreachable!("a group of one key settles what was refused");
            }
        }
        Ok(sum)
    }

    async fn enlist_group(
        &self,
        handler: &dyn EnlistedHandler,
        fence: &Fence,
        deliveries: &[Delivery],
        mut known: Known,
        settles_refusals: bool,
    ) -> Result<Group> {
        let mut conflicts = 0;
        while conflicts < CONFLICTS_MAX {
            let loaded = self.load(None, deliveries).await?;
            let folded = fold::fold_enlisted(&self.consumer, fence, &loaded, deliveries, &known);
            let messages: Vec<Message> =
                folded.handled.iter().filter_map(|at| deliveries[*at].message().cloned()).collect();
            match self.enlist_once(&folded, handler, &messages).await {
                Ok(Enlistment::Settled(Settled::Committed)) => {
                    known.blocked.extend(folded.blocked);
                    return Ok(Group::Settled(folded.report, known));
                }
                Ok(Enlistment::Settled(Settled::Duplicates(keys))) => known.duplicates.extend(keys),
                Ok(Enlistment::Settled(Settled::VersionsTaken(_))) => {
                    blame(&mut known, &folded.handled, 0, "VERSION_TAKEN", "this version has emitted that event");
                }
                Ok(Enlistment::Settled(Settled::Conflict)) => conflicts += 1,
                Ok(Enlistment::Refused(_)) if !settles_refusals => return Ok(Group::Refused),
                Ok(Enlistment::Refused(refused)) => {
                    debug!(consumer = self.consumer.name, failure = %refused.failure, "handler refused a message");
                    // A handler that names a message it was not given can only mean the last one.
                    let at = folded.handled[refused.at.min(folded.handled.len() - 1)];
                    known.failures.insert(at, refused.failure);
                }
                Err(error) if error.kind() == ErrorKind::Poison && !messages.is_empty() => {
                    let last = folded.handled.len() - 1;
                    blame(&mut known, &folded.handled, last, "NOT_STORABLE", &error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Err(self.too_many_conflicts())
    }

    async fn enlist_once(
        &self,
        folded: &fold::Folded,
        handler: &dyn EnlistedHandler,
        messages: &[Message],
    ) -> Result<Enlistment> {
        if messages.is_empty() {
            return self.store.settle(&folded.settlement).await.map(Enlistment::Settled);
        }
        self.store.enlist(&folded.settlement, handler, messages).await
    }
}

/// Marks a message as failed for good, for a reason that only the database knew.
fn blame(known: &mut Known, handled: &[usize], at: usize, code: &str, why: &str) {
    if let Some(at) = handled.get(at) {
        known.failures.insert(*at, Failure::permanent(code, why));
    }
}

/// The deliveries of each key, in order, keys in the order of their first delivery.
fn by_key(deliveries: &[Delivery]) -> Vec<Vec<Delivery>> {
    let mut groups: Vec<Vec<Delivery>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for delivery in deliveries {
        let Some(message) = delivery.message() else { continue };
        let place = *places.entry(&message.key).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(delivery.clone());
    }
    groups
}
