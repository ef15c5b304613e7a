//! One coordinator: the decision loop over a journal, ready to be embedded in another program.
//!
//! - [`Node`] is the handle: one method per thing that can be asked.
//! - [`DecisionLoop`] is the logic of the loop without threads, clocks or disks: questions go in, groups come
//!   out, and a group says what is written first and what is sent after.
//! - [`open`] recovers a journal and starts the threads around the loop.
//!
//! **Invariant:** nothing is answered, published or snapshotted before the position it was decided on is durable.

mod bus;
mod caller;
mod clock;
mod commit_group;
mod decider;
mod decision_loop;
mod event_queues;
mod events;
mod follower;
mod growth;
mod high_water;
mod inbox;
pub mod link;
mod loading;
mod logs;
mod member;
mod node;
mod open;
mod options;
mod pending_group;
mod progress;
mod request;
mod room;
mod runner;
mod shards;
mod snapshotter;
mod standby;
mod stats;
mod stepped;
mod sync;
mod tasks;
mod write_guard;
mod writer;

#[cfg(all(test, feature = "shuttle"))]
mod tests {
    mod interleavings;
}

pub use bus::{
    Asked, BusAnswer, BusOptions, BusPlace, BusServices, DispatchAsk, OfferedTask, Output, OutputOf,
    OwnedLease, OwnerAsk, Pulled, Report, ReportItem, Reported, Said,
};
pub use caller::Caller;
pub use clock::TermClock;
pub use commit_group::CommitGroup;
pub use decision_loop::DecisionLoop;
pub use event_queues::TaskQueues;
pub use events::{Batches, EventFeed, Events, Happening};
pub use follower::{Follower, Following, Progress};
pub use high_water::{HighWater, Mark};
pub use logs::OutputCall;
pub use member::{DUTY, Member, Membership, NodeRole, presence_note, readable};
pub use node::{Node, OnTaken};
pub use open::{Failure, Recovered, Storage, open};
pub use options::Options;
pub use orchestrix_engine::{Clock, SystemClock};
pub use request::{Answer, Ask, Error, Recipient, Seen};
pub use shards::{ServicePage, ShardAsk, ShardTimes};
pub use standby::{Beginning, Standby};
pub use stats::{Counter, Histogram, Stats};
pub use stepped::{Sent, Stepped};
pub use tasks::Abandoned;
pub use write_guard::{LeaderLease, WriteGuard};
