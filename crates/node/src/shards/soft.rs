//! What a leader knows of services besides the journal; a new leader starts without it.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::limits::SERVICE_KEPT_MS;
use orchestrix_core::shards::{ShardCommand, is_named};
use orchestrix_core::wire::ShardRegister;
use orchestrix_core::{Name, Position, Timestamp, is_planted};

use super::DEBOUNCE_MS;
use super::ended::Ended;
use super::overrule::PRESSING_MS;
use crate::request::Recipient;

/// What is known of all services besides the state.
#[derive(Debug)]
pub(crate) struct ShardDecisions<R> {
    pub(super) services: BTreeMap<Name, Soft<R>>,
    /// When a service has something to do next.
    pub(super) due: BTreeSet<(Timestamp, Name)>,
    pub(super) ended: Ended,
}

impl<R> Default for ShardDecisions<R> {
    fn default() -> Self {
        Self { services: BTreeMap::new(), due: BTreeSet::new(), ended: Ended::default() }
    }
}

impl<R> ShardDecisions<R> {
    /// Shards have no worker any more.
    pub(crate) fn vacate(&mut self, service: &Name, shards: impl Iterator<Item = u32>, now: Timestamp) {
        let Some(soft) = self.services.get_mut(service) else { return };
        soft.vacant.extend(shards.map(|shard| (shard, now)));
    }

    /// Shards get a worker. Tells how many milliseconds each had none, as far as that is known.
    pub(crate) fn fill(
        &mut self,
        service: &Name,
        shards: impl Iterator<Item = u32>,
        now: Timestamp,
    ) -> impl Iterator<Item = u64> {
        let soft = self.services.get_mut(service).into_iter();
        let since = soft.zip(std::iter::once(shards));
        since.flat_map(move |(soft, shards)| {
            shards.filter_map(|shard| soft.vacant.remove(&shard)).map(move |since| now.since(since))
        })
    }
}

/// What is known of one service besides the state.
#[derive(Debug)]
pub(super) struct Soft<R> {
    pub(super) workers: BTreeMap<Name, Known>,
    /// When the time of each worker is over.
    pub(super) ends: BTreeSet<(Timestamp, Name)>,
    pub(super) rebalance_at: Option<Timestamp>,
    pub(super) last_rebalance: Timestamp,
    pub(super) waiting: Vec<Waiting<R>>,
    pub(super) due: Option<Timestamp>,
    /// It has no workers since then.
    pub(super) idle_since: Option<Timestamp>,
    /// Shards that had a worker in this term and have none, and since when.
    vacant: BTreeMap<u32, Timestamp>,
}

impl<R> Default for Soft<R> {
    fn default() -> Self {
        Self {
            workers: BTreeMap::new(),
            ends: BTreeSet::new(),
            rebalance_at: None,
            last_rebalance: Timestamp(0),
            waiting: Vec::new(),
            due: None,
            idle_since: None,
            vacant: BTreeMap::new(),
        }
    }
}

/// A worker that is believed to live.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) until: Timestamp,
    /// The process that represents it; unknown after a change of leader, unless it names its session.
    pub(super) session: Option<Name>,
    /// That is known from the journal, and the process was not heard of in this term.
    pub(super) is_unheard: bool,
    /// Another process registered with its name: no process is accepted and nothing promised until its lease ends.
    pub(super) replaced: bool,
    /// It has echoed a generation: what comes without one is older, or from another process.
    pub(super) echoes: bool,
    /// It echoes none: it came without a number, or said without a generation what it serves.
    pub(super) plain: bool,
    /// The generation of the last answer that it was given.
    pub(super) answered: Position,
    /// It is plain, and names other shards than its assignment.
    pub(super) is_deaf: bool,
    /// Shards that it said it serves though they are not its own.
    pub(super) beyond: u64,
    /// Shards that were withdrawn and missing in a heartbeat without a generation, and since when.
    pub(super) missing: BTreeMap<u32, Timestamp>,
}

/// A worker that came and waits for its share.
#[derive(Debug)]
pub(super) struct Waiting<R> {
    pub(super) to: R,
    pub(super) worker: Name,
    pub(super) session: Name,
    pub(super) body: ShardRegister,
    pub(super) until: Timestamp,
    /// Its patience is nearly over.
    pub(super) is_pressing: bool,
}

impl<R: Recipient> Soft<R> {
    pub(super) fn promise(&mut self, worker: &Name, until: Timestamp) -> &mut Known {
        let known = self.workers.entry(worker.clone()).or_default();
        self.ends.remove(&(known.until, worker.clone()));
        known.until = known.until.max(until);
        self.ends.insert((known.until, worker.clone()));
        known
    }

    pub(super) fn forget(&mut self, worker: &Name, now: Timestamp) -> Option<Known> {
        let known = self.workers.remove(worker)?;
        self.ends.remove(&(known.until, worker.clone()));
        if self.workers.is_empty() {
            self.idle_since = Some(now);
        }
        Some(known)
    }

    /// A rebalance becomes necessary; there is at most one per interval.
    pub(super) fn want_rebalance(&mut self, after_ms: u64, now: Timestamp) {
        let pause_ms = if is_planted("rounds-without-pause") { 0 } else { DEBOUNCE_MS };
        let due = now.plus(after_ms).max(self.last_rebalance.plus(pause_ms));
        self.rebalance_at = Some(self.rebalance_at.map_or(due, |at| at.min(due)));
    }

    /// Shards that plain workers said they serve though they are not theirs.
    pub(super) fn overlapping(&self) -> u64 {
        self.workers.values().map(|known| known.beyond).sum()
    }

    /// Whether it has no workers and no waiting registrations.
    pub(super) fn is_idle(&self) -> bool {
        self.workers.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let ends = self.ends.first().map(|(at, _)| *at);
        let waiting = self.waiting.iter().map(Waiting::next).min();
        let idle = self.idle_since.map(|since| since.plus(SERVICE_KEPT_MS));
        ends.into_iter().chain(self.rebalance_at).chain(waiting).chain(idle).min()
    }
}

impl<R> Waiting<R> {
    pub(super) fn new(to: R, worker: Name, session: Name, body: ShardRegister, until: Timestamp) -> Self {
        Self { to, worker, session, body, until, is_pressing: false }
    }

    /// When something is to be done for it next.
    fn next(&self) -> Timestamp {
        if self.is_pressing { self.until } else { Timestamp(self.until.0.saturating_sub(PRESSING_MS)) }
    }
}

/// The command by which a worker comes.
pub(super) fn join(service: &Name, worker: &Name, body: &ShardRegister) -> ShardCommand {
    ShardCommand::Join {
        service: service.clone(),
        worker: worker.clone(),
        group: body.group.clone(),
        count: body.max_shard_count,
        capacity: body.capacity,
        by: body.by.clone(),
        session: body.session.clone().filter(is_named),
    }
}
