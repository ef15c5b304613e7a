//! At most one leader whose acts are accepted, for any service with several instances.
//!
//! - [`Leadership`] stands for leader, renews the leader lease, and runs [`Duty`]s while it holds it.
//! - [`Options`] sets the TTL of the lease and which candidate stands.
//! - [`LeadershipEvent`] is published at every change.
//! - [`Elector`] and [`Presence`] are the rules, without any I/O.
//!
//! **Invariant:** election only decides who *tries* to act. The fencing token makes an act safe: every acquisition has an
//! epoch higher than all before it, and the system that the leader writes to refuses a lower one.

mod driver;
mod duty;
mod election;
mod elector;
mod event;
mod leadership;
mod lister;
mod options;
mod own_name;
mod roster;

pub use duty::{Duty, Term, Work};
pub use election::{Candidate, Change, Peer, Reason, Stands, Step, Timing};
pub use elector::Elector;
pub use event::{LeadershipEvent, Phase};
pub use leadership::{EnsureError, Leadership, Status, worker_id};
pub use lister::NODES;
pub use options::{LEADER_TTL_MAX, LEADER_TTL_MIN, Options, OptionsError, Policy, Roster};
pub use roster::{Presence, presence_claim};
