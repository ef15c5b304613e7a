//! Events of the journal itself: terms, formats, positions. Every entity is notified of a new term.

use crate::entity::Moment;
use crate::event::events;
use crate::limits::ID_MAX;
use crate::{Decision, Name, Position, State, Term, Timestamp};

/// What may be asked about the journal itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TermCommand {
    /// `actor` is who asked for a change of leader, if known by name.
    Start {
        epoch: u64,
        node: String,
        actor: Option<Name>,
        /// Milliseconds that workers of services are promised in this term.
        shard_lease_ms: Option<u64>,
    },
}

impl From<TermCommand> for crate::Command {
    fn from(command: TermCommand) -> Self {
        Self::Term(command)
    }
}

events! {
    /// What happens to the journal itself.
    TermEvent of Term;

    /// A node became the leader. Prolongs every live lease to now plus its length, once between two extensions by its
    /// worker; another time, by what passed since the last event.
    1 TermStarted {
        #[n(0)] pub epoch: u64,
        #[n(1)] pub node: String,
        /// The name of the caller who requested a change of leader, if there is one.
        #[n(2)] pub actor: Option<Name>,
        /// Milliseconds that workers of services are promised in this term: the next one waits for them.
        #[n(3)] pub shard_lease_ms: Option<u64>,
    }

    /// From here on, records of this format may follow.
    2 FormatRaised {
        #[n(0)] pub format: u8,
    }

    /// Nothing happened for a while. A leader shows with it that it can still write.
    15 Tick {}

    /// The engine has lost what this journal had at some positions, and the operator has accepted that. This event
    /// stands at that many positions, so that no id that was given out then is given out again.
    16 PositionsSkipped {
        #[n(0)] pub count: u32,
    }
}

impl State {
    pub(crate) fn judge_term(&self, command: &TermCommand) -> Decision {
        let TermCommand::Start { epoch, node, actor, shard_lease_ms } = command;
        let (epoch, shard_lease_ms) = ((*epoch).max(self.epoch + 1), *shard_lease_ms);
        let term = TermStarted { epoch, node: node.clone(), actor: actor.clone(), shard_lease_ms };
        Decision::Event(term.into())
    }

    pub(crate) fn apply_term(&mut self, event: &TermEvent, last: Timestamp, here: Moment) {
        match event {
            TermEvent::TermStarted(event) => self.term_started(event, last, here),
            TermEvent::FormatRaised(event) => self.format_raised(event),
            TermEvent::Tick(_) => {}
            TermEvent::PositionsSkipped(event) => self.positions_skipped(event),
        }
    }

    fn term_started(&mut self, event: &TermStarted, last: Timestamp, here: Moment) {
        assert!(event.epoch > self.epoch || self.term.0 == 0, "the epoch rises with every term");
        self.term = Term(here.position.0);
        self.epoch = event.epoch;
        self.begin_term(event, last, here);
    }

    fn format_raised(&mut self, event: &FormatRaised) {
        assert!(event.format > self.format, "a format is only raised");
        self.format = event.format;
    }

    fn positions_skipped(&mut self, event: &PositionsSkipped) {
        // It stands at the first of them already.
        self.position = Position(self.position.0 + u64::from(event.count.max(1)) - 1);
        assert!(self.position.0 <= ID_MAX, "ids fit a JSON number");
    }
}
