//! `dipmo relay`: from where the outbox is read, and the replication slot behind it.

use dipmo::operator::relay::{self, LaneReader, RelayNode, RelaySlot, RelayStatus};
use dipmo::store::postgres::Db;

use super::{Context, change, changed, confirm};
use crate::cli::{ChangeArgs, Format, ReaderArgs, RelayVerb, SlotVerb};
use crate::exit::{Exit, Quit};
use crate::output::{self, age, bytes, or_dash, table};

pub(super) async fn run(context: &Context, verb: RelayVerb) -> Result<Exit, Quit> {
    let db = context.db()?;
    match verb {
        RelayVerb::Status => show_status(context, &relay::status(&db).await?)?,
        RelayVerb::Reader(args) => reader(context, &db, args).await?,
        RelayVerb::Slot(verb) => slot(context, &db, verb).await?,
    }
    Ok(Exit::Ok)
}

async fn reader(context: &Context, db: &Db, args: ReaderArgs) -> Result<(), Quit> {
    let Some(wanted) = args.reader else {
        let status = relay::status(db).await?;
        let lane = status.kafka().ok_or_else(|| Quit::new(Exit::NotFound, "there is no lane KAFKA"))?;
        return output::one(context.format, lane, &lane.reader);
    };
    let by = change(&ChangeArgs { reason: args.reason.unwrap_or_default(), actor: args.actor, yes: args.yes })?;
    changed(context.format, &relay::set_reader(db, wanted.into(), &by).await?)
}

async fn slot(context: &Context, db: &Db, verb: SlotVerb) -> Result<(), Quit> {
    match verb {
        SlotVerb::Status => show_slots(context.format, &relay::status(db).await?),
        SlotVerb::Create(args) => {
            let by = change(&args)?;
            let foreign = context.config.relay.options("").foreign_tables;
            eprintln!("making the slot; this waits for the transactions that are open");
            changed(context.format, &relay::create_slot(db, &foreign, &by).await?)
        }
        SlotVerb::Drop { name, force, change: args } => {
            let by = change(&args)?;
            let which = name.as_deref().unwrap_or("of the relay");
            let loss = if force { ", and lose messages that were only emitted" } else { "" };
            confirm(&args, &format!("drop the replication slot {which}{loss}"))?;
            changed(context.format, &relay::drop_slot(db, name.as_deref(), force, &by).await?)
        }
    }
}

fn show_status(context: &Context, status: &RelayStatus) -> Result<(), Quit> {
    match context.format {
        Format::Table => output::print(&sheet(status)),
        Format::Name => output::lines(status.lanes.iter().map(|lane| format!("{}\t{}", lane.lane, lane.reader))),
        format => output::one(format, status, ""),
    }
}

fn show_slots(format: Format, status: &RelayStatus) -> Result<(), Quit> {
    match format {
        Format::Table => output::print(&slots(&status.slots)),
        Format::Json => output::json(&status.slots),
        Format::Jsonl => output::lines(status.slots.iter().map(output::compact)),
        Format::Name => output::lines(status.slots.iter().map(|slot| slot.name.clone())),
    }
}

fn sheet(status: &RelayStatus) -> String {
    let lanes: Vec<Vec<String>> = status.lanes.iter().map(lane_cells).collect();
    let relays: Vec<Vec<String>> = status.relays.iter().map(relay_cells).collect();
    let mut text = [
        table(&["lane", "reader", "slot", "position", "changed"], &lanes),
        slots(&status.slots),
        table(&["relay", "heartbeat", "lanes", "shards", "WAL behind", "problem"], &relays),
    ]
    .join("\n");
    // Whole sentences are not squeezed into columns.
    for problem in &status.problems {
        text.push_str(&format!("\nWAL: {}\n", output::harmless(problem)));
    }
    text
}

fn slots(slots: &[RelaySlot]) -> String {
    let rows: Vec<Vec<String>> = slots.iter().map(slot_cells).collect();
    table(&["slot", "for", "read by", "state", "confirmed", "restart", "kept", "behind"], &rows)
}

fn lane_cells(lane: &LaneReader) -> Vec<String> {
    vec![
        lane.lane.clone(),
        lane.reader.clone(),
        or_dash(lane.slot.as_deref()),
        or_dash(lane.position.as_deref()),
        age(Some(lane.changed_age_seconds)),
    ]
}

fn slot_cells(slot: &RelaySlot) -> Vec<String> {
    let reader = match slot.active_pid {
        Some(pid) if slot.active => format!("pid {pid}"),
        _ => "nobody".to_owned(),
    };
    vec![
        slot.name.clone(),
        slot.reader.to_owned(),
        reader,
        or_dash(slot.wal_status.as_deref()),
        or_dash(slot.confirmed_position.as_deref()),
        or_dash(slot.restart_position.as_deref()),
        bytes(slot.kept_bytes),
        bytes(slot.behind_bytes),
    ]
}

fn relay_cells(relay: &RelayNode) -> Vec<String> {
    vec![
        relay.name.clone(),
        age(Some(relay.heartbeat_age_seconds)),
        relay.lanes.join(", "),
        relay.shards.map_or("-".to_owned(), |shards| shards.to_string()),
        bytes(relay.wal_lag_bytes),
        or_dash(relay.reader_problem.as_deref()),
    ]
}
