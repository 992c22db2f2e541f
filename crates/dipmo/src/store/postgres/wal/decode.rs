//! pgoutput (protocol 1) into rows: column bytes stay where they are, only numbers are read.
//!
//! A table is known by its Relation message, which the server sends before the first row and after every
//! change of the table; columns are found by name, so that their order does not matter.

use std::collections::HashMap;

use bytes::Bytes;

use super::cell::{self, Cells, bytes, integer, micros, required, uuid};
use super::frame::{Reader, malformed};
use super::row::{Origin, Span, TEXTS, Text, Texts, WalRow};
use super::{ForeignTable, Lsn, envelope};
use crate::error::{Error, Result};

/// The columns of the outbox, in the order of [`Cells`].
const OUTBOX: &[&str] = &[
    "destination",
    "key",
    "tenant",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "correlation_id",
    "causation_id",
    "traceparent",
    "headers",
    "shard",
    "id",
    "message_id",
    "aggregate_version",
    "event_version",
    "payload",
    "occurred_at",
    "created_at",
];
const FOREIGN: &[&str] = &["id", "aggregate_id", "aggregate_type", "event_type", "timestamp", "payload", "metadata"];

const TRANSACTIONAL: u8 = 1;

/// What one frame says.
#[derive(Debug)]
pub(super) enum Change {
    Begin {
        commit: Lsn,
    },
    Commit {
        end: Lsn,
    },
    Row(Box<WalRow>),
    /// A message outside any transaction: there at once, and not undone by a rollback.
    Loose {
        at: Lsn,
        row: Box<WalRow>,
    },
    Nothing,
}

/// Knows the tables that were announced, and the transaction it is in.
pub(super) struct Decoder {
    schema: String,
    /// Of emitted messages.
    prefix: String,
    foreign: Vec<ForeignTable>,
    relations: HashMap<u32, Relation>,
    committed_at: i64,
}

struct Relation {
    kind: Kind,
    /// For each column of the table its place in [`Cells`].
    places: Vec<Option<usize>>,
    /// For each place the type of its column.
    types: Vec<u32>,
}

#[derive(Clone, Copy)]
enum Kind {
    Outbox,
    Foreign(u16),
    /// Somebody else's table in our publication.
    Unknown,
}

impl Decoder {
    pub(super) fn new(schema: &str, foreign: &[ForeignTable]) -> Self {
        Self {
            schema: schema.to_owned(),
            prefix: format!("{schema}.outbox"),
            foreign: foreign.to_vec(),
            relations: HashMap::new(),
            committed_at: 0,
        }
    }

    pub(super) fn decode(&mut self, frame: Bytes) -> Result<Change> {
        let mut reader = Reader::new(&frame);
        match reader.u8()? {
            b'I' => self.insert(&frame, reader),
            b'B' => {
                let commit = Lsn(reader.u64()?);
                self.committed_at = reader.i64()?;
                Ok(Change::Begin { commit })
            }
            b'C' => {
                reader.take(1 + 8)?;
                Ok(Change::Commit { end: Lsn(reader.u64()?) })
            }
            b'R' => {
                let id = reader.u32()?;
                let relation = self.relation(reader)?;
                self.relations.insert(id, relation);
                Ok(Change::Nothing)
            }
            b'M' => self.message(&frame, reader),
            // Origin, type, and what the publication does not publish.
            b'O' | b'Y' | b'U' | b'D' | b'T' => Ok(Change::Nothing),
            other => Err(malformed(format!("a message of unknown kind {other:#04x}"))),
        }
    }

    fn relation(&self, mut reader: Reader<'_>) -> Result<Relation> {
        let (schema, table) = (reader.text()?, reader.text()?);
        reader.take(1)?;
        let (kind, names) = match self.foreign.iter().position(|f| f.schema == schema && f.table == table) {
            Some(index) => (Kind::Foreign(index as u16), FOREIGN),
            None if schema == self.schema && table == "outbox" => (Kind::Outbox, OUTBOX),
            None => (Kind::Unknown, &[] as &[&str]),
        };
        let count = reader.i16()?.max(0) as usize;
        let mut relation = Relation { kind, places: Vec::with_capacity(count), types: vec![0; names.len()] };
        for _ in 0..count {
            reader.take(1)?;
            let name = reader.text()?;
            let place = names.iter().position(|known| *known == name);
            if let Some(place) = place {
                relation.types[place] = reader.u32()?;
            } else {
                reader.take(4)?;
            }
            reader.take(4)?;
            relation.places.push(place);
        }
        for (place, name) in names.iter().enumerate() {
            if relation.types[place] == 0 {
                return Err(Error::invalid(format!(
                    "table {schema}.{table} has no column {name}: it is not laid out as an outbox, or the publication leaves the column out"
                )));
            }
        }
        if matches!(kind, Kind::Foreign(_)) {
            cell::check_types(&format!("{schema}.{table}"), names, &relation.types)?;
        }
        Ok(relation)
    }

    fn insert(&self, frame: &Bytes, mut reader: Reader<'_>) -> Result<Change> {
        let id = reader.u32()?;
        let relation = self
            .relations
            .get(&id)
            .ok_or_else(|| malformed(format!("a row of table {id}, which was not announced")))?;
        if matches!(relation.kind, Kind::Unknown) {
            return Ok(Change::Nothing);
        }
        if reader.u8()? != b'N' {
            return Err(malformed("an insert without a new row".to_owned()));
        }
        let cells = cell::read(&mut reader, &relation.places)?;
        let row = match relation.kind {
            Kind::Foreign(index) => self.foreign_row(frame, &cells, &relation.types, index)?,
            Kind::Outbox | Kind::Unknown => outbox_row(frame, &cells)?,
        };
        Ok(Change::Row(Box::new(row)))
    }

    /// Debezium's event router would send the same bytes: the server's own text of the JSON.
    fn foreign_row(&self, frame: &Bytes, cells: &Cells, types: &[u32], index: u16) -> Result<WalRow> {
        let text = |place: usize| cell::text(frame, cells[place], types[place]);
        let (key, aggregate_type) = (text(1)?.unwrap_or_default(), text(2)?.unwrap_or_default());
        let prefix = self.foreign.get(usize::from(index)).map_or("", |table| &table.topic_prefix);
        let mut texts = Texts::default();
        texts.set(Text::Destination, &["KAFKA:", prefix, &aggregate_type]);
        texts.set(Text::Key, &[&key]);
        texts.set(Text::AggregateId, &[&key]);
        texts.set(Text::AggregateType, &[&aggregate_type]);
        texts.set_some(Text::EventType, text(3)?.as_deref());
        let metadata = text(6)?.filter(|metadata| metadata.trim_start().starts_with('{'));
        texts.set_some(Text::Headers, metadata.as_deref());
        let payload = cell::document(frame, cells[5], types[5])?;
        let message_id = required(uuid(frame, cells[0])?, FOREIGN[0])?;
        let mut row = texts.into_row(Origin::Foreign(index), message_id, payload, frame.len());
        row.occurred_at = micros(frame, cells[4])?.unwrap_or(self.committed_at);
        row.created_at = row.occurred_at;
        Ok(row)
    }

    fn message(&self, frame: &Bytes, mut reader: Reader<'_>) -> Result<Change> {
        let flags = reader.u8()?;
        let at = Lsn(reader.u64()?);
        if reader.text()? != self.prefix {
            return Ok(Change::Nothing);
        }
        let len = reader.len()?;
        let start = reader.at();
        reader.take(len)?;
        let content = frame.slice(start..start + len);
        let row = Box::new(envelope::row(&self.prefix, at, content, self.committed_at));
        Ok(if flags & TRANSACTIONAL == 0 { Change::Loose { at, row } } else { Change::Row(row) })
    }
}

fn outbox_row(frame: &Bytes, cells: &Cells) -> Result<WalRow> {
    let mut texts = [None; TEXTS];
    for (text, cell) in texts.iter_mut().zip(cells) {
        *text = cell.span();
    }
    let headers = Text::Headers as usize;
    texts[headers] = cell::json(frame, cells[headers])?;
    let number = |place: usize| integer(frame, cells[place]);
    let given = |place: usize| required(number(place)?, OUTBOX[place]);
    let moment = |place: usize| required(micros(frame, cells[place])?, OUTBOX[place]);
    let row = WalRow {
        origin: Origin::Outbox,
        shard: fits(given(10)?, OUTBOX[10])?,
        id: given(11)?,
        message_id: required(uuid(frame, cells[12])?, OUTBOX[12])?,
        aggregate_version: number(13)?,
        event_version: fits(given(14)?, OUTBOX[14])?,
        occurred_at: moment(16)?,
        created_at: moment(17)?,
        held: frame.clone(),
        texts,
        payload: bytes(frame, cells[15])?,
        size: frame.len(),
    };
    Ok(readable(row))
}

/// A row that cannot be read must be seen, not stop the stream: without destination, it becomes an exception.
fn readable(mut row: WalRow) -> WalRow {
    if !row.is_readable() {
        row.texts[Text::Destination as usize] = Some(Span::default());
    }
    row
}

fn fits<T: TryFrom<i64>>(number: i64, column: &str) -> Result<T> {
    T::try_from(number).map_err(|_| malformed(format!("{number} in column {column}")))
}

#[cfg(test)]
#[path = "tests/decode.rs"]
mod tests;
