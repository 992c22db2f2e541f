//! `dipmo status`: consumers, lanes, exceptions, nodes and processes on one page.

use dipmo::operator::{Status, status};

use super::Context;
use crate::cli::Format;
use crate::exit::{Exit, Quit};
use crate::output::{self, age, bytes, or_dash, table};

pub(super) async fn run(context: &Context) -> Result<Exit, Quit> {
    let status = status(&context.db()?).await?;
    match context.format {
        Format::Table => output::print(&sheet(&status))?,
        Format::Name => output::lines(status.consumers.iter().map(|c| c.consumer.clone()))?,
        format => output::one(format, &status, "")?,
    }
    Ok(Exit::Ok)
}

fn sheet(status: &Status) -> String {
    let consumers: Vec<Vec<String>> = status
        .consumers
        .iter()
        .map(|c| {
            let counts = [c.received, c.retry, c.parked, c.dead, c.serde_error, c.parked_keys];
            let mut row = vec![c.consumer.clone()];
            row.extend(counts.iter().map(ToString::to_string));
            row.push(age(c.oldest_age_seconds));
            row
        })
        .collect();
    let lanes: Vec<Vec<String>> = status
        .lanes
        .iter()
        .map(|l| {
            let (pending, unowned) = (l.pending.to_string(), l.shards_unowned.to_string());
            let reader = or_dash(l.reader.as_deref());
            vec![l.lane.clone(), pending, age(l.oldest_age_seconds), unowned, reader, bytes(l.wal_behind_bytes)]
        })
        .collect();
    let exceptions: Vec<Vec<String>> =
        status.exceptions.iter().map(|x| vec![x.lane.clone(), x.state.clone(), x.count.to_string()]).collect();
    let nodes: Vec<Vec<String>> = status
        .nodes
        .iter()
        .map(|n| vec![n.name.clone(), n.role.clone(), age(Some(n.up_seconds)), age(Some(n.heartbeat_age_seconds))])
        .collect();
    let processes: Vec<Vec<String>> = status
        .processes
        .iter()
        .map(|p| vec![p.process_type.clone(), p.status.clone(), p.state.clone(), p.count.to_string()])
        .collect();
    let inbox = ["consumer", "received", "retry", "parked", "dead", "serde error", "parked keys", "oldest"];
    let parts = [
        table(&inbox, &consumers),
        table(&["lane", "pending", "oldest", "shards without owner", "reader", "WAL behind"], &lanes),
        table(&["lane", "not sent", "count"], &exceptions),
        table(&["node", "role", "up", "heartbeat"], &nodes),
        table(&["process", "status", "state", "count"], &processes),
    ];
    parts.join("\n")
}
