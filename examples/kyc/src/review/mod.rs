//! The review of positive hits.

mod desk;
pub mod domain;

pub use desk::ReviewDesk;

pub const START_REVIEW: &str = "StartReview";
pub const REVIEW_STARTED: &str = "ReviewStarted";
pub const REVIEW_COMPLETED: &str = "ReviewCompleted";
