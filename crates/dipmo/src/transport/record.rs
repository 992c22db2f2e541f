//! What a broker delivers, before anything in it is understood.

use bytes::Bytes;
use time::OffsetDateTime;

/// A record as a broker delivered it.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Bytes>,
    pub headers: Vec<(String, Option<Bytes>)>,
    pub payload: Option<Bytes>,
    pub timestamp: Option<OffsetDateTime>,
}
