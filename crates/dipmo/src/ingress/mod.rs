//! Takes records from a broker and makes every one of them durable before the broker is told that it may forget it.

mod amqp;
mod decode;
mod kafka;
mod letter;

pub use amqp::AmqpIngress;
pub use decode::decode;
pub use kafka::KafkaIngress;
