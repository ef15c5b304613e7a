//! Nodes of a cluster, and which of them owns a lease of the bus: it listens to what the worker says, and stores the output.
//!
//! Ownership is no right to a task. Who has the lease may report; the owner passes that on. So an owner that is wrong for a
//! moment costs a repeat, and no more.
//!
//! **Invariant:** every lease of the bus has exactly one entry here, with one owner or none. An owner counts only while its node
//! is there: a node that leaves frees all that it owned at once.

mod capture;
mod command;
mod decide;
mod event;
mod fold;
#[cfg(test)]
mod histories;
mod queries;
mod section;
mod state;
#[cfg(test)]
mod tests;

use crate::entity::{Asked, Entity, Moment};
use crate::{Decision, Refusal, State, WITH_BUS};

pub use command::{Claim, OwnershipCommand};
pub use event::*;
pub use queries::{Claimed, JoinedNode};
pub(crate) use state::Ownership;

impl Entity for Ownership {
    type Command = OwnershipCommand;
    type Event = OwnershipEvent;

    fn validate(command: &OwnershipCommand) -> Result<(), Refusal> {
        command.validate()
    }

    fn decide(state: &State, command: &OwnershipCommand, _: Asked) -> Result<Decision, Refusal> {
        state.needs(WITH_BUS)?;
        state.ownership.judge(command)
    }

    fn apply(&mut self, event: OwnershipEvent, here: Moment) {
        self.fold(event, here);
    }
}
