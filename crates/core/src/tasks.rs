//! Tasks and leases: their commands, rules, events and state.
//!
//! **Invariant:** a task has at most one lease, and an outcome counts only under the live one.

mod bus;
mod capture;
mod command;
mod decide;
mod event;
mod explain;
mod fold;
#[cfg(test)]
mod histories;
mod keys;
mod queries;
mod section;
mod state;
mod task;
mod view;

use crate::entity::{Asked, Entity, Moment};
use crate::{Decision, Refusal, State, TermStarted, Timestamp, WITH_BUS};

pub(crate) use bus::BusChange;
pub use command::{HeldLease, Lease, Offer, Retention, TaskCommand};
pub use event::*;
pub use explain::Place;
pub use queries::{Counts, Filter};
pub use state::QueueCounts;
pub(crate) use state::Tasks;
pub use task::{Attempt, Ending, KeyClaim, LiveLease, Past, Task, TaskState, Terms, Via};

impl Entity for Tasks {
    type Command = TaskCommand;
    type Event = TaskEvent;

    fn validate(command: &TaskCommand) -> Result<(), Refusal> {
        command.validate()
    }

    #[inline]
    fn decide(state: &State, command: &TaskCommand, asked: Asked) -> Result<Decision, Refusal> {
        if command.is_of_bus() {
            state.needs(WITH_BUS)?;
        }
        state.tasks.judge(command, asked)
    }

    #[inline]
    fn pass_time(&mut self, at: Timestamp) {
        self.forget_keys(at);
    }

    fn begin_term(&mut self, _: &TermStarted, last: Timestamp, here: Moment) {
        self.prolong_leases(last, here.at);
    }

    #[inline]
    fn apply(&mut self, event: TaskEvent, here: Moment) {
        self.fold(event, here);
    }
}
