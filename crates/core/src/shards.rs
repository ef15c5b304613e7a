//! Shards: a service divides them among its workers, each shard to one worker at a time.
//!
//! A shard is free, held, or withdrawn: its worker must stop and has not released it yet. Only a free shard is granted.
//! The rules do not know which workers are alive: commands say when a worker released a shard, left or expired.
//!
//! **Invariant:** a shard has at most one worker, and gets the next one only after an event that says why the one before
//! is done with it: it let go, it left, or its time ran out.

mod allocate;
mod command;
mod decide;
mod event;
mod fold;
mod promises;
mod runs;
mod section;
mod state;

use crate::entity::{Asked, Entity, Moment};
use crate::{Decision, Name, Refusal, State, TermStarted, Timestamp};

pub use allocate::{Place, Plan, plan};
pub use command::ShardCommand;
pub use event::*;
pub(crate) use promises::Promises;
pub use promises::kept_ms;
pub use runs::Runs;
pub(crate) use state::Shards;
pub use state::{Service, Shard, ShardWorker};

/// The group of services whose workers name none.
pub const DEFAULT_GROUP: &str = "default";

/// How sessions begin that a connection has because its worker names none. Such a worker has another session after a
/// reconnect; one that names its session keeps it as long as its process lives.
pub const CONNECTION_SESSION: &str = "zmq-";

/// Whether a session was named by its process.
#[must_use]
pub fn is_named(session: &Name) -> bool {
    !session.as_str().starts_with(CONNECTION_SESSION)
}

impl Entity for Shards {
    type Command = ShardCommand;
    type Event = ShardEvent;

    fn validate(command: &ShardCommand) -> Result<(), Refusal> {
        command.validate()
    }

    fn decide(state: &State, command: &ShardCommand, _: Asked) -> Result<Decision, Refusal> {
        state.shards.judge(command)
    }

    fn begin_term(&mut self, term: &TermStarted, last: Timestamp, here: Moment) {
        self.promises = self.promises.next(term.shard_lease_ms, last, here.at);
    }

    fn apply(&mut self, event: ShardEvent, here: Moment) {
        self.fold(event, here.position);
    }
}

impl State {
    #[must_use]
    pub fn service(&self, service: &Name) -> Option<&Service> {
        self.shards.services.get(service)
    }

    /// All services, by name.
    pub fn services(&self) -> impl Iterator<Item = (&Name, &Service)> {
        self.shards.services.iter()
    }
}

#[cfg(test)]
mod tests;
