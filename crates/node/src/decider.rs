//! What all components of the decision loop decide with: the state, the group under way, and the limits.
//!
//! **Invariant:** an event is put into the group and folded into the state in one call. So the state that the next decision
//! looks at is the state that the journal will have.

use std::mem;
use std::sync::Arc;

use orchestrix_core::{Command, Event, Position, Refusal, State, Timestamp, is_planted};
use orchestrix_engine::Space;

use crate::bus::{Before, BusChanges};
use crate::commit_group::CommitGroup;
use crate::options::Options;
use crate::request::{Answer, Error, Recipient};
use crate::room;
use crate::stats::Stats;

/// The part of the decision loop that its components share.
#[derive(Debug)]
pub(crate) struct Decider<R> {
    pub(crate) state: State,
    pub(crate) options: Options,
    pub(crate) stats: Arc<Stats>,
    pub(crate) group: CommitGroup<R>,
    /// No answer after this position was sent.
    pub(crate) durable: Position,
    /// Of leases of the bus, if there is a bus.
    pub(crate) bus: Option<BusChanges>,
    space: Space,
    /// New work was refused for want of room, and there has not been plenty since.
    refuses_work: bool,
}

impl<R: Recipient> Decider<R> {
    pub(crate) fn new(state: State, options: Options, stats: Arc<Stats>) -> Self {
        let (durable, group) = (state.position(), CommitGroup::default());
        let bus = options.bus.is_some().then(BusChanges::default);
        Self { state, options, stats, group, durable, bus, space: Space::Plenty, refuses_work: false }
    }

    /// The time of an event that happens now: time never goes back.
    pub(crate) fn event_time(&self, now: Timestamp) -> Timestamp {
        now.max(self.state.at())
    }

    /// Puts an event into the group and folds it into the state.
    pub(crate) fn commit(&mut self, event: Event, now: Timestamp) -> Position {
        let at = self.event_time(now);
        self.group.record(&self.state, at, &event);
        let before = self.bus.as_ref().and_then(|_| Before::of(&self.state, &event));
        let position = self.state.apply(at, event);
        if let (Some(changes), Some(before)) = (&mut self.bus, before) {
            changes.note(&self.state, before);
        }
        position
    }

    /// Nothing was heard of the bus for a while: none of its leases ends.
    pub(crate) fn is_bus_silent(&self) -> bool {
        self.bus.as_ref().is_some_and(|changes| changes.is_silent)
    }

    pub(crate) fn reply(&mut self, to: R, answer: Result<Answer, Error>) {
        if is_planted("refusal-before-durable") && answer.is_err() {
            let _ = to.send(answer);
            return;
        }
        self.group.reply(to, answer);
    }

    /// Counts a refusal.
    pub(crate) fn refuse(&self, refusal: Refusal) -> Error {
        self.stats.refused.add(1);
        if matches!(refusal, Refusal::StaleLease { .. }) {
            self.stats.stale_reports.add(1);
        }
        Error::Refused(refusal)
    }

    pub(crate) fn reply_refused(&mut self, to: R, refusal: Refusal) {
        let refused = self.refuse(refusal);
        self.reply(to, Err(refused));
    }

    /// The group is large enough: it should be written before more is decided.
    pub(crate) fn is_full(&self) -> bool {
        self.group.is_full()
    }

    /// Hands out the group, and begins the next one.
    pub(crate) fn take_group(&mut self) -> CommitGroup<R> {
        let position = self.state.position();
        self.stats.position.set(position.0);
        self.space = room::after(self.space, self.group.records.len());
        let next = self.group.next();
        let mut group = mem::replace(&mut self.group, next);
        group.first = Position(position.0 + 1 - u64::from(group.count));
        group
    }

    pub(crate) fn set_space(&mut self, space: Space) {
        self.space = space;
        if self.refuses_work && space == Space::Plenty {
            self.refuses_work = false;
            tracing::info!("the disk has room again: new tasks are accepted");
        }
        self.stats.space_low.set(u64::from(space.is_reserve() || self.refuses_work));
    }

    /// Whether commands that are decided together have room on the disk.
    pub(crate) fn check_space(&mut self, commands: &[Command]) -> Result<(), Error> {
        let checked = room::check(self.space, self.group.records.len(), commands);
        if checked == Err(Error::StorageFull) {
            self.stats.storage_full.add(1);
            self.stats.space_low.set(1);
            if !self.refuses_work {
                self.refuses_work = true;
                tracing::warn!("the disk is full: new tasks are refused until there is room");
            }
        }
        checked
    }
}

/// One part of the decision loop: what it decides about an entity, with the soft state that goes with it. Soft state is lost at
/// the end of a term, and nothing that must last is in it.
pub(crate) trait Component<R> {
    /// The term has begun, and its event is committed.
    fn begin_term(&mut self, decider: &mut Decider<R>, now: Timestamp);

    /// Does what is due by now.
    fn tick(&mut self, decider: &mut Decider<R>, now: Timestamp);

    /// Forgets what was kept long enough. Every component has ticked before.
    fn purge(&mut self, _decider: &mut Decider<R>, _now: Timestamp) {}

    /// When the component has something to do next, without new asks.
    fn next_due(&self, decider: &Decider<R>) -> Option<Timestamp>;

    /// Answers all calls that wait, because the loop ends.
    fn dismiss(&mut self, decider: &mut Decider<R>, now: Timestamp);
}
