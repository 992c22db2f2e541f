//! The worked example of commands, sagas and batches: a day of scheduled payments across four contexts.
//!
//! Each context has its own tables, its own login and its own worker, and knows the others by nothing but
//! commands: [`accounts`], [`limits`], [`fx`] (which stands before a bank), [`payments`]. `payment.toml` says
//! in which order they are asked and how each step is undone. [`wiring`] says where everything is: in one
//! database, or a database each with a broker between them. [`demo`] runs a day and checks the books, [`soak`] payments at a
//! steady rate.

pub mod accounts;
pub mod bank;
pub mod books;
pub mod context;
pub mod demo;
pub mod fx;
pub mod limits;
pub mod payments;
pub mod setup;
pub mod soak;
pub mod wiring;
