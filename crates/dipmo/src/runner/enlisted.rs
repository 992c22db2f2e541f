//! Runs enlisted handlers: one transaction a group, groups of different keys side by side.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tracing::{Instrument as _, debug};

use super::fold::{self, Batch, Delivery, Known};
use super::{CONFLICTS_MAX, Foreknown, Report, Runner};
use crate::consumer::Grouping;
use crate::error::{ErrorKind, Result};
use crate::handler::EnlistedHandler;
use crate::inbox::Settled;
use crate::message::Message;
use crate::process::Failure;
use crate::store::{Enlistment, Loaded};

/// How a group ended.
enum Group {
    /// With the keys that it parked.
    Settled(Report, HashSet<String>),
    /// Nothing was settled: which message is at fault shows when each is handled apart.
    Apart,
}

/// What a group does with a message that its handler refuses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusals {
    Settle,
    TakeApart,
}

/// What every group of a batch shares.
struct GroupWork<'a> {
    handler: &'a dyn EnlistedHandler,
    batch: Batch<'a>,
    loaded: &'a Loaded,
    refusals: Refusals,
}

impl Runner {
    pub(super) async fn enlist(
        &self,
        handler: &dyn EnlistedHandler,
        grouping: Grouping,
        batch: Batch<'_>,
    ) -> Result<Report> {
        // Loaded once for all groups; whatever changes meanwhile is found out when a group settles.
        let loaded = self.load(batch).await?;
        if grouping == Grouping::Batch {
            let group = GroupWork { handler, batch, loaded: &loaded, refusals: Refusals::TakeApart };
            let whole = self.enlist_group(&group, batch.deliveries, Known::default()).await?;
            if let Group::Settled(report, _) = whole {
                return Ok(report);
            }
        }
        let single = grouping == Grouping::Record;
        let work = GroupWork { handler, batch, loaded: &loaded, refusals: Refusals::Settle };
        let groups = by_key(batch.deliveries).into_iter().map(|group| self.enlist_key(&work, group, single));
        stream::iter(groups)
            .buffer_unordered(self.consumer.concurrency)
            .try_fold(Report::default(), |mut sum, report| async move {
                sum += report;
                Ok(sum)
            })
            .await
    }

    /// The messages of one key, together or one by one, in order.
    async fn enlist_key(&self, work: &GroupWork<'_>, group: Vec<Delivery>, single: bool) -> Result<Report> {
        let mut sum = Report::default();
        let mut blocked = HashSet::new();
        let size = if single { 1 } else { group.len() };
        for part in group.chunks(size) {
            let known = Known { blocked: blocked.clone(), ..Known::default() };
            match self.enlist_group(work, part, known).await? {
                Group::Settled(report, parked) => {
                    sum += report;
                    blocked.extend(parked);
                }
                Group::Apart => sum += Box::pin(self.enlist_key(work, part.to_vec(), true)).await?,
            }
        }
        Ok(sum)
    }

    async fn enlist_group(&self, work: &GroupWork<'_>, deliveries: &[Delivery], mut known: Known) -> Result<Group> {
        let batch = Batch { deliveries, ..work.batch };
        batch.spans.open(deliveries);
        let mut loaded = Cow::Borrowed(work.loaded);
        let mut conflicts = 0;
        while conflicts < CONFLICTS_MAX {
            let folded = fold::fold_enlisted(batch, &loaded, &known);
            let handled = folded.handled.iter().filter_map(|at| deliveries[*at].message());
            let handled: Vec<Cow<'_, Message>> = handled.map(|message| batch.spans.as_handled(message)).collect();
            let messages: Vec<&Message> = handled.iter().map(AsRef::as_ref).collect();
            let once = self.enlist_once(&folded, work.handler, &messages);
            let fault = match once.instrument(batch.spans.around(&messages)).await {
                Ok(Enlistment::Settled(Settled::Committed)) => {
                    batch.spans.settled(deliveries, &folded.settlement);
                    return Ok(Group::Settled(folded.report, folded.blocked));
                }
                Ok(Enlistment::Settled(Settled::Duplicates(keys))) => {
                    known.duplicates.extend(keys);
                    continue;
                }
                Ok(Enlistment::Settled(Settled::Conflict)) => {
                    conflicts += 1;
                    let foreknown = Foreknown { parked: true, ..batch.foreknown };
                    loaded = Cow::Owned(self.load(Batch { foreknown, ..batch }).await?);
                    continue;
                }
                Ok(Enlistment::Refused(_)) if work.refusals == Refusals::TakeApart => return Ok(Group::Apart),
                Ok(Enlistment::Refused(refused)) => {
                    debug!(consumer = self.consumer.name, failure = %refused.failure, "handler refused a message");
                    // A handler that names a message it was not given can only mean the last one.
                    let at = folded.handled[refused.at.min(folded.handled.len() - 1)];
                    known.failures.insert(at, refused.failure);
                    continue;
                }
                Ok(Enlistment::Settled(Settled::VersionsTaken(_))) => {
                    Failure::permanent("VERSION_TAKEN", "this version of the aggregate has emitted that event")
                }
                Err(error) if error.kind() == ErrorKind::Poison => {
                    Failure::permanent("NOT_STORABLE", error.to_string())
                }
                Err(error) => return Err(error),
            };
            // Only the database knows about it, and it does not say which message is at fault.
            match folded.handled[..] {
                [only] => drop(known.failures.insert(only, fault)),
                _ if deliveries.len() > 1 => return Ok(Group::Apart),
                _ => {
                    return self.keep_raw(batch).await.map(|report| Group::Settled(report, HashSet::new()));
                }
            }
        }
        Err(self.too_many_conflicts())
    }

    async fn enlist_once(
        &self,
        folded: &fold::Folded,
        handler: &dyn EnlistedHandler,
        messages: &[&Message],
    ) -> Result<Enlistment> {
        if messages.is_empty() {
            return self.store.settle(&folded.settlement).await.map(Enlistment::Settled);
        }
        self.store.enlist(&folded.settlement, handler, messages).await
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
