//! At most one leader whose acts are accepted, for any service with several instances.
//!
//! - [`Leadership`] seeks the office, keeps it, and runs [`Duty`]s while it has it.
//! - [`Options`] says how long an office lasts and who stands.
//! - [`LeadershipEvent`] is what happens meanwhile, for those who watch.
//! - [`Elector`] and [`Presence`] are the rules, without any I/O.
//!
//! **Invariant:** election only decides who *tries* to act. What makes an act safe is the token: every office has an
//! epoch, higher than all before it, and whatever the leader writes to refuses a lower one.

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
pub use options::{LEADER_TTL_MAX, LEADER_TTL_MIN, Options, OptionsError, Policy, Roster};
pub use roster::Presence;
