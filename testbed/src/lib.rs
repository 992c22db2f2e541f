//! Real servers for tests, demo and bench, and a network that can be broken on purpose.
//!
//! [`Postgres`], [`Kafka`] and [`Artemis`] each run one private server on a free port of the loopback
//! interface, with its data in a directory of its own. Each can be killed without warning,
//! restarted on the same data and port, and frozen. [`Debezium`] is a peer that reads the one and
//! writes to the other, [`Restate`] one that runs sagas. [`CommandHandler`] is a program in another
//! language on the same queues.
//! [`Proxy`] stands between a client and a server and cuts or stalls the traffic.
//!
//! Promise: no server outlives the process that started it, even if that process is killed
//! with SIGKILL (see `watchdog`). Not promised: durability against power loss, and any
//! security beyond listening on loopback only.

mod artemis;
mod cache;
mod command_handler;
mod debezium;
mod dir;
mod jars;
mod jvm;
mod kafka;
mod npm;
mod port;
mod postgres;
mod process;
mod proxy;
mod restate;
mod watchdog;

pub use artemis::{Artemis, DEAD_LETTERS, FIXED, LOCKED, Options as ArtemisOptions};
pub use command_handler::{CommandHandler, HandlerOptions, HoldAt, Language};
pub use debezium::{Debezium, DebeziumOptions};
pub use dir::cache_dir;
pub use kafka::{Kafka, Options as KafkaOptions};
pub use npm::npm_program;
pub use port::free_port;
pub use postgres::{Options as PostgresOptions, Postgres};
pub use proxy::Proxy;
pub use restate::Restate;
