//! Notification 126 -> hit -> qualification. The review of positive hits is the `review` module's.

mod desk;
pub mod domain;
mod process;
pub mod screening;
pub mod state;

pub use desk::HitDesk;
pub use process::HitProcess;

/// The process type; stored with every instance.
pub const PROCESS: &str = "hit";

/// The input, from Kafka or from another module.
pub const NOTIFICATION: &str = "Notification126";
pub const CREATE_HIT: &str = "CreateHit";
pub const QUALIFY_HIT: &str = "QualifyHit";
pub const HIT_CREATED: &str = "HitCreated";
pub const HIT_REFUSED: &str = "HitRefused";
pub const HIT_QUALIFIED: &str = "HitQualified";

/// What the process goes on with.
pub const EVENTS: [&str; 5] =
    [HIT_CREATED, HIT_REFUSED, HIT_QUALIFIED, crate::review::REVIEW_STARTED, crate::review::REVIEW_COMPLETED];
