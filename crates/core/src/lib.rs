//! The rules of Orchestrix: what may happen to tasks and leases, and what has happened.
//!
//! - [`Command`] asks, [`State::decide`] answers with a [`Decision`] or a [`Refusal`] and changes nothing.
//! - [`State::apply`] folds an [`Event`] into the state and cannot refuse.
//! - [`wire`] holds the JSON types that the server and its clients share.
//!
//! **Invariant:** nothing here does I/O, reads a clock, draws a random number or depends on the order of a
//! hash table. The same events give the same state, everywhere, for ever.

mod command;
mod entity;
mod event;
mod ids;
mod json;
pub mod limits;
mod names;
#[cfg(test)]
mod notes;
pub mod ownership;
mod planted;
mod record;
mod refusal;
pub mod shards;
mod snapshot;
mod sorted;
mod state;
mod tasks;
mod term;
pub mod wire;

pub use command::{Decision, Outcome};
pub use entity::{Command, Event, State};
pub use event::{FIRST_FORMAT, FORMAT, WITH_BUS};
pub use ids::*;
pub use json::{Json, canonical_hash, is_deeper};
pub use names::{Key, NAME_PATTERN, Name};
pub use ownership::{
    Claim, Claimed, JoinedNode, NodeDraining, NodeJoined, NodeLeft, NodeLeftReason, OwnersAssigned,
    OwnersReleased, OwnershipCommand, OwnershipEvent,
};
pub use planted::{BUGS, Bug, FoundBy, is_planted, plant};
pub use record::{Record, RecordError, Records, Undecoded, encode_record};
pub use refusal::{Forbidden, Refusal};
pub use shards::{
    Grant, LeaveReason, NewCapacity, ShardCommand, ShardCountSet, ShardEvent, ShardWeightsSet,
    ShardWorkerJoined, ShardWorkerLeft, ShardsLetGo, ShardsMoved,
};
pub use snapshot::{SnapshotError, SnapshotLoader};
pub use tasks::*;
pub use term::{FormatRaised, PositionsSkipped, TermCommand, TermEvent, TermStarted, Tick};
