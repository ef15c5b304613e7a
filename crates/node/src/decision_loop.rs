//! The decision loop: asks in, commit groups out. One writer, one order.
//!
//! An ask is decided against the state. Its event is put into the group and folded into the state, and its answer waits in
//! the same group. The caller of the loop writes the events first and sends the answers after. Answers without events
//! travel in groups, too, so no answer shows anything that is not durable.
//!
//! The loop is a list of components, one for each entity ([`DecisionLoop::components`]).

use std::sync::Arc;

use orchestrix_core::{
    Command, Decision, FormatRaised, Name, Position, Refusal, State, TermCommand, Tick, Timestamp,
};
use orchestrix_engine::Space;

use crate::bus::BusDecisions;
use crate::caller;
use crate::commit_group::CommitGroup;
use crate::decider::{Component, Decider};
use crate::options::Options;
use crate::request::{Answer, Ask, Recipient};
use crate::shards::ShardDecisions;
use crate::stats::Stats;
use crate::tasks::{Abandoned, TaskDecisions};

/// The loop without its threads.
#[derive(Debug)]
pub struct DecisionLoop<R> {
    decider: Decider<R>,
    tasks: TaskDecisions<R>,
    shards: ShardDecisions<R>,
    bus: Option<BusDecisions<R>>,
    /// After so many milliseconds without an event there is a `Tick`.
    tick_ms: Option<u64>,
}

impl<R: Recipient> DecisionLoop<R> {
    #[must_use]
    pub fn new(state: State, options: Options, stats: Arc<Stats>) -> Self {
        let bus = options.bus.as_ref().map(BusDecisions::new);
        Self {
            bus,
            decider: Decider::new(state, options, stats),
            tasks: TaskDecisions::default(),
            shards: ShardDecisions::default(),
            tick_ms: None,
        }
    }

    /// The components in the order in which they act.
    fn components(&mut self) -> (&mut Decider<R>, [&mut dyn Component<R>; 2]) {
        (&mut self.decider, [&mut self.tasks, &mut self.shards])
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.decider.state
    }

    pub fn state_mut(&mut self) -> &mut State {
        &mut self.decider.state
    }

    #[must_use]
    pub(crate) fn stats(&self) -> &Stats {
        &self.decider.stats
    }

    /// The journal is durable up to here.
    pub fn is_durable(&mut self, position: Position) {
        self.decider.durable = self.decider.durable.max(position);
    }

    /// From now on there is an event at least every so many milliseconds.
    pub fn tick_every(&mut self, tick_ms: Option<u64>) {
        self.tick_ms = tick_ms;
    }

    /// Begins a term: every live lease is prolonged, so that downtime takes no work from a worker.
    ///
    /// # Panics
    /// Never: a term can always begin.
    pub fn start_term(&mut self, epoch: u64, actor: Option<Name>, now: Timestamp) {
        let (node, shards) = (self.decider.options.node.clone(), self.decider.options.shards);
        let shard_lease_ms = Some(shards.lease_ms);
        let command = Command::Term(TermCommand::Start { epoch, node, actor, shard_lease_ms });
        let Ok(Decision::Event(event)) = self.state().decide(&command, now) else {
            panic!("a term can always begin");
        };
        let stats = &self.decider.stats;
        stats.term.set(self.decider.state.position().0 + 1);
        stats.epoch.set(epoch);
        stats.format.set(u64::from(self.decider.state.format()));
        self.decider.commit(event, now);
        let (decider, components) = self.components();
        for component in components {
            component.begin_term(decider, now);
        }
        if let Some(bus) = &mut self.bus {
            bus.begin_term(&self.decider, now);
        }
    }

    /// Raises the format of the journal to one that every node reads.
    pub fn raise_format(&mut self, format: u8, now: Timestamp) {
        let format = format.min(self.decider.options.reads);
        if format > self.state().format() {
            tracing::info!(format, "every node reads a newer format of the journal; using it from now on");
            self.decider.commit(FormatRaised { format }.into(), now);
            self.decider.stats.format.set(u64::from(format));
        }
    }

    /// From now on, for some seconds, only so many lease calls are decided at a time: those of all workers may come at
    /// once when the leader changes.
    pub fn admit_slowly(&mut self, now: Timestamp) {
        self.tasks.admit_slowly(now);
    }

    /// Takes an ask of a caller that is limited to its `own` queues, or is not. Its answer is in this group, or in a later
    /// one if it waits.
    pub fn ask(&mut self, ask: Ask, own: Option<&[Name]>, to: R, now: Timestamp) {
        let Self { decider, tasks, shards, bus, .. } = self;
        // Calls that wait come before this one.
        tasks.serve_waiting(decider, now);
        if let Err(refusal) = own.map_or(Ok(()), |own| caller::check(&decider.state, &ask, own)) {
            return decider.reply_refused(to, refusal);
        }
        match ask {
            Ask::Shards(ask) => shards.ask(decider, *ask, to, now),
            Ask::Owner(ask) => match bus {
                Some(bus) => {
                    let answer = bus.owner(decider, tasks, *ask, now);
                    decider.reply(to, answer.map(|answer| Answer::Bus(Box::new(answer))));
                }
                None => decider.reply_refused(to, no_bus()),
            },
            Ask::Dispatch(ask) => match bus {
                Some(bus) => bus.ask(decider, tasks, *ask, to, now),
                None => decider.reply_refused(to, no_bus()),
            },
            Ask::Command(_)
            | Ask::Batch(_)
            | Ask::Heartbeat(_)
            | Ask::HeartbeatAll { .. }
            | Ask::Lease(_)
            | Ask::Attempt { .. }
            | Ask::Task(_)
            | Ask::Tasks { .. }
            | Ask::Explain(_)
            | Ask::Queues
            | Ask::Workers
            | Ask::Cluster
            | Ask::Unknown(_) => tasks.ask(decider, ask, own, to, now),
        }
        tasks.serve_polls(decider, now);
    }

    /// Gives back leases in answers that were not taken, unless another answer with the same lease was taken or still may be.
    pub fn abandon(&mut self, abandoned: &[Abandoned], durable: Position, now: Timestamp) {
        self.tasks.abandon(&mut self.decider, abandoned, durable, now);
    }

    /// Gives back leases in an answer to another node whose caller had disconnected.
    pub fn give_back(&mut self, abandoned: &Abandoned, now: Timestamp) {
        self.tasks.give_back(&mut self.decider, abandoned, now);
    }

    /// Does what is due by now.
    pub fn tick(&mut self, now: Timestamp) {
        if let Some(bus) = &self.bus {
            bus.look(&mut self.decider, now);
        }
        let (decider, mut components) = self.components();
        for component in &mut components {
            component.tick(decider, now);
        }
        for component in components {
            component.purge(decider, now);
        }
        if self.next_tick().is_some_and(|due| due <= now) {
            self.decider.commit(Tick {}.into(), now);
        }
        if let Some(bus) = &mut self.bus {
            bus.tick(&mut self.decider, &mut self.tasks, now);
        }
        self.tasks.observe(&self.decider);
    }

    /// When [`DecisionLoop::tick`] has something to do next, without new asks.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let components: [&dyn Component<R>; 2] = [&self.tasks, &self.shards];
        let due = components.iter().filter_map(|component| component.next_due(&self.decider));
        let of_bus = self.bus.as_ref().and_then(BusDecisions::next_due);
        due.chain(of_bus).chain(self.next_tick()).min()
    }

    fn next_tick(&self) -> Option<Timestamp> {
        self.tick_ms.map(|every| self.state().at().plus(every))
    }

    /// The group is large enough: it should be written before more is decided.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.decider.is_full()
    }

    #[must_use]
    pub fn has_group(&self) -> bool {
        !self.decider.group.is_empty()
    }

    /// Hands out what was decided since the last call.
    pub fn take_group(&mut self) -> CommitGroup<R> {
        self.decider.take_group()
    }

    /// Goes on with a group that was handed out and not written.
    ///
    /// # Panics
    /// If something was decided since.
    pub(crate) fn take_back(&mut self, group: CommitGroup<R>) {
        assert!(!self.has_group(), "groups are written in the order of their decisions");
        self.decider.group = group;
    }

    pub fn set_space(&mut self, space: Space) {
        self.decider.set_space(space);
    }

    /// Answers all calls that wait, before the loop ends.
    pub fn dismiss(&mut self, now: Timestamp) {
        let (decider, components) = self.components();
        for component in components {
            component.dismiss(decider, now);
        }
        if let Some(bus) = &mut self.bus {
            bus.dismiss(&mut self.decider);
        }
    }
}

fn no_bus() -> Refusal {
    Refusal::Invalid { field: "bus", problem: "this node has no bus; start it with --bus".to_owned() }
}
