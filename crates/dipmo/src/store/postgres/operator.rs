//! What every operator statement shares: bounded reads, audited changes, payloads fit to be shown.
//!
//! Reads run in a read-only transaction with a time limit, so that a question never hurts the flow.

use bytes::Bytes;
use deadpool_postgres::Object;
use serde::{Serialize, Serializer};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Db, Tx, execute, failed, query};
use crate::error::Result;

/// How much of a payload is shown; the rest stays in the table.
pub(crate) const PAYLOAD_SHOWN_MAX: i32 = 65_536;

/// A count that stops at 10 000, because nobody acts differently at eleven thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Count {
    pub n: i64,
    /// There are more.
    pub capped: bool,
}

/// Counts stop here. Statements count up to one more, to tell.
pub const COUNT_MAX: i64 = 10_000;

impl Count {
    pub(crate) fn of(counted: i64) -> Self {
        Self { n: counted.min(COUNT_MAX), capped: counted > COUNT_MAX }
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.capped { f.write_str("10 000+") } else { write!(f, "{}", self.n) }
    }
}

/// Bytes in a form that can be shown: text when they are text, hex when not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Payload {
    pub bytes: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hex: Option<String>,
    /// Only the beginning is shown.
    pub truncated: bool,
}

impl Payload {
    pub(crate) fn of(bytes: Option<i64>, shown: Option<Vec<u8>>) -> Option<Self> {
        let (bytes, shown) = (bytes?, shown?);
        let truncated = bytes > shown.len() as i64;
        let (text, hex) = match String::from_utf8(shown) {
            Ok(text) => (Some(text), None),
            // A cut in the middle of a character is not a reason to show hex.
            Err(e) if truncated && e.utf8_error().error_len().is_none() => {
                let valid = e.utf8_error().valid_up_to();
                (Some(String::from_utf8_lossy(&e.as_bytes()[..valid]).into_owned()), None)
            }
            Err(e) => (None, Some(e.as_bytes().iter().map(|b| format!("{b:02x}")).collect())),
        };
        Some(Self { bytes, text, hex, truncated })
    }
}

/// One line of the audit trail.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditRow {
    pub id: i64,
    #[serde(serialize_with = "rfc3339")]
    pub at: OffsetDateTime,
    pub actor: String,
    pub action: String,
    pub target: String,
    pub reason: String,
    pub detail: Value,
}

/// Who changes what, and why; written in the transaction of the change itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AuditEntry<'a> {
    pub actor: &'a str,
    pub action: &'a str,
    pub target: &'a str,
    pub reason: &'a str,
    pub detail: &'a Value,
}

// Capped counts look cheap to the planner as sequential scans, and are not when what is sought is rare:
// every figure has an index that gives it. Compiling them would cost more than running them.
const LOOK_LIMITS: &str = "
-- operator.look_limits
set local statement_timeout = '10s'; set local lock_timeout = '2s';
set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off";

// A worker may hold the row while its handler runs: waiting longer would only hide that.
const CHANGE_LIMITS: &str = "
-- operator.change_limits
set local statement_timeout = '30s'; set local lock_timeout = '5s'";

const AUDIT: &str = "
-- operator.audit
insert into dipmo.audit (actor, action, target, reason, detail, at)
values ($1, $2, $3, $4, $5, coalesce($6, now()))";

const AUDIT_LIST: &str = "
-- operator.audit_list
select id, at, actor, action, target, reason, detail
from dipmo.audit
where id < $1
  and ($2::text is null or actor = $2)
  and ($3::text is null or action = $3)
  and ($4::text is null or target = $4)
order by id desc
limit $5";

/// Begins a bounded read.
pub(crate) async fn look(client: &mut Object) -> Result<Tx<'_>> {
    let tx = Tx::begin_read_only(client)?;
    tx.batch_execute(LOOK_LIMITS).await.map_err(|e| failed(LOOK_LIMITS, e))?;
    Ok(tx)
}

/// Begins a change that would rather give up than wait.
pub(crate) async fn change(client: &mut Object) -> Result<Tx<'_>> {
    let tx = Tx::begin(client)?;
    tx.batch_execute(CHANGE_LIMITS).await.map_err(|e| failed(CHANGE_LIMITS, e))?;
    Ok(tx)
}

pub(crate) async fn audit(db: &Db, tx: &Tx<'_>, entry: AuditEntry<'_>) -> Result<()> {
    let AuditEntry { actor, action, target, reason, detail } = entry;
    let now = db.clock().for_statement();
    execute(db, tx, AUDIT, &[&actor, &action, &target, &reason, detail, &now]).await?;
    Ok(())
}

/// Newest first, below the id `before`.
pub(crate) async fn audit_list(
    db: &Db,
    tx: &Tx<'_>,
    before: i64,
    (actor, action, target): (Option<&str>, Option<&str>, Option<&str>),
    limit: i64,
) -> Result<Vec<AuditRow>> {
    let rows = query(db, tx, AUDIT_LIST, &[&before, &actor, &action, &target, &limit]).await?;
    let row = |r: &tokio_postgres::Row| AuditRow {
        id: r.get(0),
        at: r.get(1),
        actor: r.get(2),
        action: r.get(3),
        target: r.get(4),
        reason: r.get(5),
        detail: r.get(6),
    };
    Ok(rows.iter().map(row).collect())
}

/// Columns hold bytes as vectors; messages share them.
pub(crate) fn bytes(column: Option<Vec<u8>>) -> Option<Bytes> {
    column.map(Bytes::from)
}

pub(crate) fn rfc3339<S: Serializer>(at: &OffsetDateTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&at.format(&Rfc3339).map_err(serde::ser::Error::custom)?)
}

pub(crate) fn rfc3339_option<S: Serializer>(at: &Option<OffsetDateTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => rfc3339(at, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_says_that_there_is_more() {
        assert_eq!(Count::of(10_000).to_string(), "10000");
        assert_eq!(Count::of(10_001).to_string(), "10 000+");
    }

    #[test]
    fn a_payload_is_text_or_hex_and_a_cut_character_is_no_reason_for_hex() {
        let euro = "a€".as_bytes();
        assert_eq!(Payload::of(Some(4), Some(euro.to_vec())).unwrap().text.as_deref(), Some("a€"));
        assert_eq!(Payload::of(Some(99), Some(euro[..2].to_vec())).unwrap().text.as_deref(), Some("a"));
        assert_eq!(Payload::of(Some(2), Some(vec![0xff, 0x00])).unwrap().hex.as_deref(), Some("ff00"));
        assert_eq!(Payload::of(None, None), None);
    }
}
