//! Takes records from a broker and makes every one of them durable before its offset is committed.

mod decode;
mod kafka;

pub use decode::decode;
pub use kafka::KafkaIngress;
