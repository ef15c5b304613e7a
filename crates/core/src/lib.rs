//! The rules of Orchestrix: what may happen to tasks and leases, and what has happened.
//!
//! - [`Command`] asks, [`State::decide`] answers with a [`Decision`] or a [`Refusal`] and changes nothing.
//! - [`State::apply`] folds an [`Event`] into the state and cannot refuse.
//! - [`wire`] holds the JSON types that the server and its clients share.
//!
//! **Invariant:** nothing here does I/O, reads a clock, draws a random number or depends on the order of a
//! hash table. The same events give the same state, everywhere, for ever.

mod capture;
mod command;
mod decide;
mod event;
mod explain;
mod fold;
#[cfg(test)]
mod histories;
mod ids;
mod json;
mod keys;
pub mod limits;
mod names;
mod planted;
mod record;
mod refusal;
pub mod shards;
mod snapshot;
mod sorted;
mod state;
mod task;
mod view;
pub mod wire;

pub use command::{Command, Decision, Lease, Outcome, Retention};
pub use event::*;
pub use explain::Place;
pub use ids::*;
pub use json::{Json, canonical_hash, is_deeper};
pub use names::{Key, Name};
pub use planted::{BUGS, Bug, FoundBy, is_planted, plant};
pub use record::{Record, RecordError, Records, Undecoded, encode_record};
pub use refusal::{Forbidden, Refusal};
pub use snapshot::{SnapshotError, SnapshotLoader};
pub use state::{Counts, Filter, QueueCounts, State};
pub use task::{Attempt, Ending, KeyClaim, LiveLease, Past, Task, TaskState, Terms};
