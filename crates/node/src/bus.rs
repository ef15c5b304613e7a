//! The bus: tasks for workers that know only channels.
//!
//! - [`BusServices`] are the threads of a node that read and write channels. They decide nothing.
//! - [`BusDecisions`](self::decisions::BusDecisions) is the component of the decision loop: what is offered to whom, and what becomes of
//!   what workers say.
//!
//! **Invariant:** a message is a hint. Nothing is published before it is durable, and nothing that was read is removed from a
//! channel before what it says is durable, or refused.

mod changes;
mod complaints;
mod credit;
mod decisions;
mod dispatcher;
mod drain;
mod heartbeat;
mod job;
mod listener;
mod nodes;
mod opening;
mod options;
mod output;
mod owner;
mod reports;
mod request;
mod services;
mod sweep;

pub(crate) use changes::{Before, BusChanges};
pub(crate) use decisions::BusDecisions;
pub use options::BusOptions;
pub use output::{Output, OutputOf};
pub use request::{
    BusAnswer, DispatchAsk, OfferedTask, OwnedLease, OwnerAsk, Pulled, Report, ReportItem, Reported, Said,
};
pub use services::{Asked, BusPlace, BusServices};
