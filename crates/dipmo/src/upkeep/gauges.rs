//! Gauges that are read from the database, so that every node shows the same figures.

use std::collections::HashSet;
use std::sync::Mutex;

use metrics::gauge;

use crate::error::Result;
use crate::store::postgres::Db;
use crate::store::postgres::operator::look;
use crate::store::postgres::operator_relay;
use crate::store::postgres::operator_status::{self as store, ConsumerStatus, LaneStatus, NodeStatus};

/// Remembers what was shown: a label that has no rows any more must fall to zero, not stay.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    shown: Mutex<HashSet<Labels>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Labels {
    Exception {
        lane: String,
        state: String,
    },
    Process {
        process_type: String,
        status: String,
        state: String,
    },
    /// Sagas that are under way.
    ActiveSagas {
        saga: String,
    },
    SlotActive {
        slot: String,
    },
    SlotKept {
        slot: String,
    },
}

impl Labels {
    fn set(&self, value: f64) {
        match self.clone() {
            Labels::Exception { lane, state } => {
                gauge!("dipmo_outbox_exceptions", "lane" => lane, "state" => state).set(value);
            }
            Labels::Process { process_type, status, state } => {
                let labels = [("type", process_type), ("status", status), ("state", state)];
                gauge!("dipmo_process_instances", &labels).set(value);
            }
            Labels::ActiveSagas { saga } => gauge!("saga_active_total", "type" => saga).set(value),
            Labels::SlotActive { slot } => gauge!("dipmo_relay_slot_active", "slot" => slot).set(value),
            Labels::SlotKept { slot } => gauge!("dipmo_relay_slot_kept_bytes", "slot" => slot).set(value),
        }
    }
}

impl Gauges {
    pub(super) async fn refresh(&self, db: &Db) -> Result<()> {
        let slots = operator_relay::slots(db).await?;
        let mut client = db.client().await?;
        let tx = look(&mut client).await?;
        store::consumers(db, &tx).await?.iter().for_each(show_consumer);
        store::lanes(db, &tx).await?.iter().for_each(show_lane);
        show_relay(&store::nodes(db, &tx).await?);
        let mut values = Vec::new();
        for (slot, status) in slots {
            values.push((Labels::SlotActive { slot: slot.clone() }, f64::from(u8::from(status.active))));
            values.push((Labels::SlotKept { slot }, status.kept_bytes.unwrap_or(0) as f64));
        }
        for x in store::exceptions(db, &tx).await? {
            values.push((Labels::Exception { lane: x.lane, state: x.state }, x.count.n as f64));
        }
        let (sagas, dead_letters) = store::sagas(db, &tx).await?;
        gauge!("dlq_depth").set(dead_letters as f64);
        values.extend(sagas.into_iter().map(|(saga, active)| (Labels::ActiveSagas { saga }, active as f64)));
        for p in store::processes(db, &tx).await? {
            let labels = Labels::Process { process_type: p.process_type, status: p.status, state: p.state };
            values.push((labels, p.count.n as f64));
        }
        self.show(values);
        Ok(())
    }

    fn show(&self, values: Vec<(Labels, f64)>) {
        let mut shown = self.shown.lock().expect("no code panics while it holds the labels");
        let now: HashSet<Labels> = values.iter().map(|(labels, _)| labels.clone()).collect();
        shown.difference(&now).for_each(|gone| gone.set(0.0));
        values.iter().for_each(|(labels, value)| labels.set(*value));
        *shown = now;
    }
}

fn show_consumer(c: &ConsumerStatus) {
    let states = [
        ("RECEIVED", c.received),
        ("RETRY", c.retry),
        ("PARKED", c.parked),
        ("DEAD", c.dead),
        ("SERDE_ERROR", c.serde_error),
    ];
    for (state, count) in states {
        gauge!("dipmo_inbox_depth", "consumer" => c.consumer.clone(), "state" => state).set(count.n as f64);
    }
    gauge!("queue_depth", "consumer" => c.consumer.clone()).set(c.received.n as f64);
    gauge!("dipmo_parked_keys", "consumer" => c.consumer.clone()).set(c.parked_keys.n as f64);
    gauge!("dipmo_inbox_oldest_age_seconds", "consumer" => c.consumer.clone()).set(c.oldest_age_seconds.unwrap_or(0.0));
}

fn show_lane(lane: &LaneStatus) {
    gauge!("dipmo_outbox_pending", "lane" => lane.lane.clone()).set(lane.pending.n as f64);
    gauge!("dipmo_outbox_oldest_age_seconds", "lane" => lane.lane.clone()).set(lane.oldest_age_seconds.unwrap_or(0.0));
}

/// The age of the youngest heartbeat: as long as one relay lives, messages go out.
fn show_relay(nodes: &[NodeStatus]) {
    let relays = nodes.iter().filter(|node| node.role == "relay" || node.role.starts_with("relay:"));
    if let Some(age) = relays.map(|node| node.heartbeat_age_seconds).min_by(f64::total_cmp) {
        gauge!("dipmo_relay_heartbeat_age_seconds").set(age);
    }
}
