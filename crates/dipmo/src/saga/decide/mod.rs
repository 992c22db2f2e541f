//! What a saga decides, one file a cause. All of it works on a [`Turn`]: the data of the saga, and what is
//! to happen, collected on the way.

mod compensation;
mod finish;
mod operator;
mod outgoing;
mod reply;
mod start;
mod step;
mod timer;
mod turn;

pub(super) use compensation::next_undo;
pub(super) use operator::operator;
pub(super) use reply::reply;
pub(super) use start::{start, start_again};
pub(super) use timer::timer;

use time::OffsetDateTime;

use super::compiled::Compiled;
use super::orchestrator::Options;
use turn::Turn;

/// What a decision is made with beside the saga itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) compiled: &'a Compiled,
    pub(super) options: &'a Options,
    pub(super) now: OffsetDateTime,
}
