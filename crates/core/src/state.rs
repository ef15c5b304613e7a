//! The state: the fold of the journal. Each entity has its own part; this file has the common part.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::entity::{Asked, Moment};
use crate::event::FIRST_FORMAT;
use crate::limits::{ID_MAX, QUEUES_MAX};
use crate::{Command, Decision, Event, Position, Refusal, State, Term, TermEvent, Timestamp};

impl State {
    /// The state before the first event.
    #[must_use]
    pub fn new() -> Self {
        Self { format: FIRST_FORMAT, ..Self::default() }
    }

    /// The last event that is part of this state.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The time of the last event.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The format of the journal: what is newer waits until it is raised.
    #[must_use]
    pub fn format(&self) -> u8 {
        self.format.max(FIRST_FORMAT)
    }

    /// The format of the record of the event that comes next. A `FormatRaised` has the new one already, so that a reader
    /// who does not know it stops there.
    #[must_use]
    pub fn format_of(&self, event: &Event) -> u8 {
        let raised = if let Event::Term(TermEvent::FormatRaised(event)) = event { event.format } else { 0 };
        self.format().max(raised)
    }

    /// Refuses what needs a format before the journal has it.
    ///
    /// # Errors
    /// Some nodes are of an earlier version.
    pub fn needs(&self, format: u8) -> Result<(), Refusal> {
        if self.format() >= format { Ok(()) } else { Err(Refusal::Upgrading { format }) }
    }

    /// Where the last event stands.
    pub(crate) fn here(&self) -> Moment {
        Moment { position: self.position, at: self.at }
    }

    /// Decides a command that was [validated](Command::validate). A panic is a bug in the rules; it becomes
    /// the refusal `internal`, because nothing was changed.
    ///
    /// # Errors
    /// Why not.
    pub fn decide(&self, command: &Command, now: Timestamp) -> Result<Decision, Refusal> {
        self.decide_within(command, QUEUES_MAX, now)
    }

    /// The same where another number of queues may have tasks at one time.
    ///
    /// # Errors
    /// Why not.
    pub fn decide_within(
        &self,
        command: &Command,
        queues_max: usize,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        let asked = Asked { now: now.max(self.at), queues_max };
        let judged = catch_unwind(AssertUnwindSafe(|| self.judge(command, asked)));
        judged.unwrap_or(Err(Refusal::Internal))
    }

    /// Folds the next event into the state, and cannot refuse: what is impossible stops the process before it becomes
    /// history, because an event is applied before it is written. Answers its position.
    ///
    /// # Panics
    /// When the event cannot have happened in this state: a bug, or a journal that is not ours.
    pub fn apply(&mut self, at: Timestamp, event: Event) -> Position {
        assert!(at >= self.at, "time goes forward: {at:?} after {:?}", self.at);
        self.position = self.position.next();
        assert!(self.position.0 <= ID_MAX, "ids fit a JSON number");
        let last = std::mem::replace(&mut self.at, at);
        self.fold(event, last, self.here());
        if let Some(change) = self.tasks.bus_change.take() {
            self.ownership.follow(change, at);
        }
        self.position
    }
}
