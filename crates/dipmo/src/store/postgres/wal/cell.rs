//! The columns of a row in the frame: binary as asked for, or text where the server prefers it.

use std::borrow::Cow;

use bytes::Bytes;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use uuid::Uuid;

use super::frame::{Reader, malformed};
use super::row::{Span, micros_of, piece};
use crate::error::{Error, Result};

/// As many as the outbox has columns.
pub(super) const CELLS: usize = 18;

pub(super) type Cells = [Cell; CELLS];

/// How ISO style in UTC, which the connection asks for, prints a time.
const TIMESTAMP: &[BorrowedFormatItem<'_>] = format_description!(
    "[year]-[month]-[day] [hour]:[minute]:[second][optional [.[subsecond]]][offset_hour sign:mandatory]"
);

/// The type of a column, by the number that PostgreSQL gives it.
mod oid {
    pub(super) const BYTEA: u32 = 17;
    pub(super) const NAME: u32 = 19;
    pub(super) const INT8: u32 = 20;
    pub(super) const INT2: u32 = 21;
    pub(super) const INT4: u32 = 23;
    pub(super) const TEXT: u32 = 25;
    pub(super) const JSON: u32 = 114;
    pub(super) const BPCHAR: u32 = 1042;
    pub(super) const VARCHAR: u32 = 1043;
    pub(super) const TIMESTAMP: u32 = 1114;
    pub(super) const TIMESTAMPTZ: u32 = 1184;
    pub(super) const UUID: u32 = 2950;
    pub(super) const JSONB: u32 = 3802;
    /// From here on types are the users': enums and domains, whose values are texts.
    pub(super) const USERS: u32 = 16_384;
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Form {
    #[default]
    Null,
    Binary,
    Text,
}

/// Where a value stands in the frame.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Cell {
    form: Form,
    span: Span,
}

impl Cell {
    pub(super) fn span(self) -> Option<Span> {
        (self.form != Form::Null).then_some(self.span)
    }

    fn value(self, frame: &[u8]) -> Option<(Form, &[u8])> {
        (self.form != Form::Null).then(|| (self.form, piece(frame, self.span)))
    }
}

/// Reads a row; `places` says for each of its columns where it belongs.
pub(super) fn read(reader: &mut Reader<'_>, places: &[Option<usize>]) -> Result<Cells> {
    let count = reader.i16()?;
    if usize::try_from(count) != Ok(places.len()) {
        return Err(malformed(format!("a row of {count} columns in a table of {}", places.len())));
    }
    let mut cells = Cells::default();
    for place in places {
        let form = match reader.u8()? {
            b'n' => continue,
            b'b' => Form::Binary,
            b't' => Form::Text,
            other => return Err(malformed(format!("a column of form {other:#04x} in a new row"))),
        };
        let len = reader.len()?;
        let start = reader.at();
        reader.take(len)?;
        if let Some(cell) = place.and_then(|place| cells.get_mut(place)) {
            *cell = Cell { form, span: Span { start: start as u32, len: len as u32 } };
        }
    }
    Ok(cells)
}

/// Says at once which column of a foreign table cannot be sent, instead of failing at its first row.
pub(super) fn check_types(table: &str, names: &[&str], types: &[u32]) -> Result<()> {
    for (name, of) in names.iter().zip(types) {
        let fine = match *name {
            "id" => *of == oid::UUID,
            "timestamp" => matches!(*of, oid::TIMESTAMPTZ | oid::TIMESTAMP),
            "payload" => *of == oid::BYTEA || is_text(*of),
            _ => is_text(*of),
        };
        if !fine {
            return Err(Error::invalid(format!(
                "column {name} of table {table} has a type (oid {of}) that is not supported"
            )));
        }
    }
    Ok(())
}

fn is_text(of: u32) -> bool {
    let texts = [
        oid::TEXT,
        oid::VARCHAR,
        oid::BPCHAR,
        oid::NAME,
        oid::JSON,
        oid::JSONB,
        oid::UUID,
        oid::INT2,
        oid::INT4,
        oid::INT8,
    ];
    texts.contains(&of) || of >= oid::USERS
}

pub(super) fn required<T>(value: Option<T>, column: &str) -> Result<T> {
    value.ok_or_else(|| malformed(format!("column {column} is null")))
}

pub(super) fn integer(frame: &[u8], cell: Cell) -> Result<Option<i64>> {
    let Some((form, value)) = cell.value(frame) else { return Ok(None) };
    let mut reader = Reader::new(value);
    let number = match (form, value.len()) {
        (Form::Binary, 2) => reader.i16()?.into(),
        (Form::Binary, 4) => reader.i32()?.into(),
        (Form::Binary, 8) => reader.i64()?,
        (Form::Binary, len) => return Err(malformed(format!("a number of {len} bytes"))),
        _ => printed(value)?.parse().map_err(|_| malformed("a number that is none".to_owned()))?,
    };
    Ok(Some(number))
}

pub(super) fn uuid(frame: &[u8], cell: Cell) -> Result<Option<Uuid>> {
    let Some((form, value)) = cell.value(frame) else { return Ok(None) };
    let id = if form == Form::Binary { Uuid::from_slice(value) } else { Uuid::try_parse_ascii(value) };
    id.map(Some).map_err(|_| malformed("a uuid that is none".to_owned()))
}

pub(super) fn micros(frame: &[u8], cell: Cell) -> Result<Option<i64>> {
    let Some((form, value)) = cell.value(frame) else { return Ok(None) };
    if form == Form::Binary {
        return integer(frame, cell);
    }
    Ok(Some(match printed(value)? {
        "infinity" => i64::MAX,
        "-infinity" => i64::MIN,
        text => {
            let zoned = if text.get(10..).is_some_and(|time| time.contains(['+', '-'])) { "" } else { "+00" };
            OffsetDateTime::parse(&format!("{text}{zoned}"), TIMESTAMP)
                .map(micros_of)
                .map_err(|_| malformed("a time that is none".to_owned()))?
        }
    }))
}

/// The text of a jsonb value, which in binary stands behind the number of its format.
pub(super) fn json(frame: &[u8], cell: Cell) -> Result<Option<Span>> {
    let Some((form, value)) = cell.value(frame) else { return Ok(None) };
    match (form, value.first()) {
        (Form::Binary, Some(1)) => Ok(Some(Span { start: cell.span.start + 1, len: cell.span.len - 1 })),
        (Form::Binary, version) => Err(malformed(format!("jsonb of version {version:?}"))),
        _ => Ok(Some(cell.span)),
    }
}

pub(super) fn bytes(frame: &Bytes, cell: Cell) -> Result<Option<Bytes>> {
    match cell.value(frame) {
        None => Ok(None),
        Some((Form::Text, text)) => unhex(text).map(Some),
        Some((_, value)) => Ok(Some(frame.slice_ref(value))),
    }
}

/// A value to send as it is.
pub(super) fn document(frame: &Bytes, cell: Cell, of: u32) -> Result<Option<Bytes>> {
    match of {
        oid::BYTEA => bytes(frame, cell),
        oid::JSONB => Ok(json(frame, cell)?.map(|span| frame.slice_ref(piece(frame, span)))),
        _ => Ok(text(frame, cell, of)?.map(|text| Bytes::from(text.into_owned().into_bytes()))),
    }
}

/// A value as the server would print it.
pub(super) fn text(frame: &[u8], cell: Cell, of: u32) -> Result<Option<Cow<'_, str>>> {
    let Some((form, value)) = cell.value(frame) else { return Ok(None) };
    Ok(Some(match (form, of) {
        (Form::Binary, oid::UUID) => required(uuid(frame, cell)?, "uuid")?.to_string().into(),
        (Form::Binary, oid::INT2 | oid::INT4 | oid::INT8) => {
            required(integer(frame, cell)?, "integer")?.to_string().into()
        }
        (_, oid::JSONB) => String::from_utf8_lossy(piece(frame, required(json(frame, cell)?, "jsonb")?)),
        _ => String::from_utf8_lossy(value),
    }))
}

fn printed(value: &[u8]) -> Result<&str> {
    std::str::from_utf8(value).map_err(|_| malformed("a value that is not UTF-8".to_owned()))
}

/// `\x0aff`
fn unhex(text: &[u8]) -> Result<Bytes> {
    let wrong = || malformed("bytes that are not in hex form".to_owned());
    let digits = text.strip_prefix(b"\\x").filter(|digits| digits.len() % 2 == 0).ok_or_else(wrong)?;
    let digit = |byte: u8| (byte as char).to_digit(16);
    let decoded: Option<Vec<u8>> =
        digits.chunks_exact(2).map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect();
    decoded.map(Bytes::from).ok_or_else(wrong)
}
