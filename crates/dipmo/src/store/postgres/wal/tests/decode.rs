//! Frames made by hand: what the server may send in another form, and what it never should.

use super::*;
use crate::error::ErrorKind;
use crate::store::postgres::wal::ForeignTable;

/// Column types as numbers of PostgreSQL, in the order of [`OUTBOX`].
const TYPES: [u32; 18] = [25, 25, 25, 25, 25, 25, 25, 25, 25, 3802, 21, 20, 2950, 20, 23, 17, 1184, 1184];

#[derive(Default)]
struct Frame(Vec<u8>);

impl Frame {
    fn of(kind: u8) -> Self {
        Self(vec![kind])
    }

    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn i16(mut self, value: i16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn text(mut self, value: &str) -> Self {
        self.0.extend(value.as_bytes());
        self.u8(0)
    }

    fn cell(mut self, form: u8, value: &[u8]) -> Self {
        self.0.push(form);
        if form != b'n' {
            self = self.u32(value.len() as u32);
            self.0.extend(value);
        }
        self
    }

    fn bytes(self) -> Bytes {
        self.0.into()
    }
}

fn relation(schema: &str, table: &str, columns: &[(&str, u32)]) -> Bytes {
    let frame = Frame::of(b'R').u32(1).text(schema).text(table).u8(b'd').i16(columns.len() as i16);
    columns.iter().fold(frame, |frame, (name, of)| frame.u8(0).text(name).u32(*of).u32(u32::MAX)).bytes()
}

fn outbox_relation() -> Bytes {
    let columns: Vec<_> = OUTBOX.iter().copied().zip(TYPES).collect();
    relation("dipmo", "outbox", &columns)
}

fn insert(cells: &[(u8, &[u8])]) -> Bytes {
    let frame = Frame::of(b'I').u32(1).u8(b'N').i16(cells.len() as i16);
    cells.iter().fold(frame, |frame, (form, value)| frame.cell(*form, value)).bytes()
}

/// A row as a server sends it that prefers text.
fn printed() -> Vec<(u8, &'static [u8])> {
    let values: [&[u8]; 18] = [
        b"KAFKA:t",
        b"k",
        b"",
        b"order",
        b"o",
        b"placed",
        b"",
        b"",
        b"",
        b"{\"a\": 1}",
        b"17",
        b"4711",
        b"00000000-0000-7000-8000-000000000001",
        b"-5",
        b"2",
        b"\\x00fF",
        b"2024-01-01 10:00:00.5+00",
        b"infinity",
    ];
    values.map(|value| (b't', value)).to_vec()
}

fn decoder() -> Decoder {
    let foreign = ForeignTable::new("app", "outbox_messages");
    let mut decoder = Decoder::new("dipmo", &[foreign]);
    decoder.decode(outbox_relation()).expect("the outbox is known");
    decoder
}

fn row(change: Change) -> WalRow {
    match change {
        Change::Row(row) => *row,
        other => panic!("no row: {other:?}"),
    }
}

#[test]
fn values_in_text_form_mean_the_same() {
    let row = row(decoder().decode(insert(&printed())).expect("a row"));
    assert_eq!((row.shard(), row.id(), row.aggregate_version(), row.event_version()), (17, 4711, Some(-5), 2));
    assert_eq!(row.message_id().as_u128(), 0x0000_0000_0000_7000_8000_0000_0000_0001);
    assert_eq!((row.headers(), row.payload()), (Some("{\"a\": 1}"), Some(&[0x00, 0xff][..])));
    assert_eq!(row.occurred_at(), time::macros::datetime!(2024-01-01 10:00:00.5 UTC));
    assert_eq!(row.created_at().year(), 9999);
}

#[test]
fn columns_are_found_by_name() {
    let mut columns: Vec<_> = OUTBOX.iter().copied().zip(TYPES).collect();
    let mut cells = printed();
    columns.reverse();
    cells.reverse();
    columns.insert(3, ("added_later", 25));
    cells.insert(3, (b'b', b"unknown"));
    let mut decoder = decoder();
    decoder.decode(relation("dipmo", "outbox", &columns)).expect("known by name");
    let row = row(decoder.decode(insert(&cells)).expect("a row"));
    assert_eq!((row.destination(), row.key(), row.id(), row.event_type()), ("KAFKA:t", "k", 4711, "placed"));
}

#[test]
fn a_table_without_an_expected_column_is_named_with_it() {
    for missing in 0..OUTBOX.len() {
        let mut columns: Vec<_> = OUTBOX.iter().copied().zip(TYPES).collect();
        let (name, _) = columns.remove(missing);
        let error = decoder().decode(relation("dipmo", "outbox", &columns)).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&format!("dipmo.outbox has no column {name}:")), "{error}");
    }
}

#[test]
fn a_foreign_column_of_a_strange_type_is_named() {
    let types = [2950, 1043, 1043, 1043, 600, 3802, 3802];
    let columns: Vec<_> = FOREIGN.iter().copied().zip(types).collect();
    let error = decoder().decode(relation("app", "outbox_messages", &columns)).expect_err("a point is no time");
    assert!(error.to_string().contains("column timestamp of table app.outbox_messages"), "{error}");
}

#[test]
fn foreign_ids_may_be_numbers_or_uuids() {
    let types = [2950, 20, 99_999, 25, 1114, 17, 3802];
    let columns: Vec<_> = FOREIGN.iter().copied().zip(types).collect();
    let mut decoder = decoder();
    decoder.decode(relation("app", "outbox_messages", &columns)).expect("supported");
    let id = [7; 16];
    let number = 42_i64.to_be_bytes();
    let cells: [(u8, &[u8]); 7] = [
        (b'b', &id),
        (b'b', &number),
        (b'b', b"order"),
        (b'b', b"placed"),
        (b't', b"2024-01-01 10:00:00"),
        (b'b', b"\x00"),
        (b'n', b""),
    ];
    let row = row(decoder.decode(insert(&cells)).expect("a row"));
    assert_eq!((row.key(), row.destination(), row.payload()), ("42", "KAFKA:outbox.order", Some(&b"\x00"[..])));
    assert_eq!(row.occurred_at(), time::macros::datetime!(2024-01-01 10:00 UTC));
}

#[test]
fn a_row_that_cannot_be_read_has_no_destination() {
    let mut cells = printed();
    cells[1] = (b'b', b"\xff");
    let row = row(decoder().decode(insert(&cells)).expect("a row"));
    assert_eq!((row.destination(), row.id(), row.payload()), ("", 4711, Some(&[0x00, 0xff][..])));
}

#[test]
fn a_short_frame_is_an_error_wherever_it_ends() {
    let begin = Frame::of(b'B').u64(1).u64(2).u32(3).bytes();
    let commit = Frame::of(b'C').u8(0).u64(1).u64(2).u64(3).bytes();
    let message = Frame::of(b'M').u8(1).u64(1).text("dipmo.outbox").u32(2).u8(1).u8(2).bytes();
    // What follows is not read: the number of a transaction, and when it was committed.
    for (frame, unread) in [(begin, 4), (commit, 8), (message, 0), (outbox_relation(), 0), (insert(&printed()), 0)] {
        for len in 0..frame.len() - unread {
            assert!(decoder().decode(frame.slice(..len)).is_err(), "{} bytes of {:?}", len, frame[0] as char);
        }
        assert!(decoder().decode(frame).is_ok());
    }
}

#[test]
fn nonsense_is_an_error_and_never_a_panic() {
    let frame = insert(&printed());
    for at in 0..frame.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut broken = frame.to_vec();
            broken[at] = value;
            let _ = decoder().decode(broken.into());
        }
    }
    let known: &[u8] = b"IBCRMOYUDT";
    for kind in (0..=255).filter(|kind| !known.contains(kind)) {
        assert!(decoder().decode(Frame::of(kind).u64(1).bytes()).is_err());
    }
    assert!(Decoder::new("dipmo", &[]).decode(frame).is_err(), "a row of a table that was not announced");
    let mut unchanged = printed();
    unchanged[15] = (b'u', b"");
    assert!(decoder().decode(insert(&unchanged)).is_err());
    assert!(decoder().decode(insert(&printed()[1..])).is_err(), "fewer columns than the table");
}

#[test]
fn other_tables_and_prefixes_are_nothing() {
    let mut decoder = decoder();
    decoder.decode(relation("elsewhere", "outbox", &[("n", 23)])).expect("not ours");
    let change = decoder.decode(insert(&[(b'b', &[0, 0, 0, 1])])).expect("ignored");
    assert!(matches!(change, Change::Nothing));
    let message = Frame::of(b'M').u8(1).u64(1).text("dipmo.outbox2").u32(0).bytes();
    assert!(matches!(decoder.decode(message), Ok(Change::Nothing)));
}
