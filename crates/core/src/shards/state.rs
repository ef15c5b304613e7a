//! The state of services: the worker of each shard, and the moves that make shares even.

use std::collections::{BTreeMap, BTreeSet};

use minicbor::{Decode, Encode};

use super::allocate::{Place, dealt_anew, plan};
use super::{Grant, Promises, Runs};
use crate::limits::{SHARD_GRANTS_MAX, SHARD_WORDS_MAX};
use crate::snapshot::Written;
use crate::{Name, Position, is_planted};

/// All services.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    pub(super) services: BTreeMap<Name, Service>,
    pub(super) promises: Promises,
    /// A snapshot that is being taken.
    pub(super) capture: Written,
}

/// A service and all that is known of its shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    pub group: Option<Name>,
    /// Shards are numbered from 0 up to this; those above are only there until their workers let go.
    pub count: u32,
    pub shards: Vec<Shard>,
    pub workers: BTreeMap<Name, ShardWorker>,
    /// The event that changed last who has what.
    pub generation: Position,
    /// Weights that are not 1.
    pub weights: BTreeMap<u32, u32>,
    /// What each worker last said about the number of shards, also of those that have left: to say the same again is no
    /// change.
    pub said: BTreeMap<Name, u32>,
    /// The number is an operator's, and no worker has changed its own word since.
    pub ordered: bool,
    /// An operator has made or changed it: it is kept without workers.
    pub kept: bool,
    /// The token by which a worker made it.
    pub by: Option<Name>,
}

/// Where a shard is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shard {
    #[default]
    Free,
    /// The token is the position of the event that granted it.
    Held { worker: Name, token: Position },
    /// Withdrawn at a position; not released yet.
    Withdrawn { worker: Name, token: Position, since: Position },
}

/// A worker of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ShardWorker {
    /// The event by which it joined.
    #[n(0)]
    pub joined: Position,
    /// How many shards it takes at most.
    #[n(1)]
    pub capacity: Option<u32>,
    /// The lowest number that no other worker of the service had when it got its first shards; it keeps it.
    #[n(2)]
    pub place: Option<u32>,
    /// The session of the process that joined, if it named one. Another session is another process.
    #[n(3)]
    pub session: Option<Name>,
    /// The shards that it has, withdrawn ones included.
    #[cbor(skip)]
    pub(super) shards: BTreeSet<u32>,
}

impl Shard {
    /// The worker that may serve it or may not have stopped yet.
    #[must_use]
    pub fn worker(&self) -> Option<&Name> {
        match self {
            Self::Free => None,
            Self::Held { worker, .. } | Self::Withdrawn { worker, .. } => Some(worker),
        }
    }
}

impl Service {
    /// Whether a worker has ever come. Until then it belongs to no group.
    pub(super) fn had_workers(&self) -> bool {
        !self.said.is_empty()
    }

    /// The shards that a worker should serve, each with its token.
    pub fn held_by(&self, worker: &Name) -> impl Iterator<Item = (u32, Position)> {
        self.of(worker).filter_map(|(number, shard)| match shard {
            Shard::Held { token, .. } => Some((number, *token)),
            Shard::Free | Shard::Withdrawn { .. } => None,
        })
    }

    /// The withdrawn shards of a worker, each with its position.
    pub fn withdrawn_from(&self, worker: &Name) -> impl Iterator<Item = (u32, Position)> {
        self.of(worker).filter_map(|(number, shard)| match shard {
            Shard::Withdrawn { since, .. } => Some((number, *since)),
            Shard::Free | Shard::Held { .. } => None,
        })
    }

    /// The shards that a worker may serve or may not have stopped yet, each with its token.
    pub fn tokens_of(&self, worker: &Name) -> impl Iterator<Item = (u32, Position)> {
        self.of(worker).filter_map(|(number, shard)| match shard {
            Shard::Held { token, .. } | Shard::Withdrawn { token, .. } => Some((number, *token)),
            Shard::Free => None,
        })
    }

    pub(super) fn of(&self, worker: &Name) -> impl Iterator<Item = (u32, &Shard)> {
        let numbers = self.workers.get(worker).map(|worker| &worker.shards).into_iter().flatten();
        numbers.map(|number| (*number, &self.shards[*number as usize]))
    }

    /// How many shards are on their way from one worker to another.
    #[must_use]
    pub fn on_their_way(&self) -> usize {
        self.shards.iter().filter(|shard| matches!(shard, Shard::Withdrawn { .. })).count()
    }

    /// Moves that would make shares even, so many withdrawals at a time.
    pub(super) fn moves(&self, most: usize) -> Option<(Runs, Vec<Grant>)> {
        let names: Vec<&Name> = self.workers.keys().collect();
        let places: Vec<Place> = self
            .workers
            .values()
            .map(|worker| Place {
                capacity: worker.capacity.filter(|_| !is_planted("shard-capacity-ignored")),
            })
            .collect();
        let within = &self.shards[..self.count as usize];
        let mut holders: Vec<Option<usize>> = vec![None; within.len()];
        for (place, worker) in self.workers.values().enumerate() {
            for number in worker.shards.range(..self.count) {
                if let Shard::Held { .. } = within[*number as usize] {
                    holders[*number as usize] = Some(place);
                }
            }
        }
        let is_free = |number: u32| match &within[number as usize] {
            Shard::Free => true,
            Shard::Held { .. } | Shard::Withdrawn { .. } => false,
        };
        let weights: Option<Vec<u32>> = (!self.weights.is_empty())
            .then(|| (0..self.count).map(|number| self.weights.get(&number).copied().unwrap_or(1)).collect());
        let plan = if is_planted("shards-dealt-anew") {
            dealt_anew(&places, &holders, is_free)
        } else {
            plan(&places, &holders, weights.as_deref(), is_free)
        };
        let beyond = numbered(&self.shards).skip(self.count as usize);
        let beyond =
            beyond.filter(|(_, shard)| matches!(shard, Shard::Held { .. })).map(|(number, _)| number);
        let beyond = beyond.filter(|_| !is_planted("shards-beyond-the-number"));
        let withdrawn: Runs = plan.withdraw.into_iter().chain(beyond).take(most).collect();
        // A withdrawn shard counts against the capacity until it is released.
        let taken = self.workers.values().map(|worker| worker.shards.len());
        let mut room: Vec<usize> = places
            .iter()
            .zip(taken)
            .map(|(place, taken)| {
                place.capacity.map_or(usize::MAX, |most| (most as usize).saturating_sub(taken))
            })
            .collect();
        if is_planted("withdrawn-takes-no-room") {
            room.fill(usize::MAX);
        }
        let mut given: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (shard, worker) in plan.give.into_iter().take(SHARD_GRANTS_MAX) {
            if let Some(left) = room[worker].checked_sub(1) {
                room[worker] = left;
                given.entry(worker).or_default().push(shard);
            }
        }
        let granted: Vec<Grant> = given
            .into_iter()
            .map(|(worker, shards)| Grant {
                worker: names[worker].clone(),
                shards: shards.into_iter().collect(),
            })
            .collect();
        (!withdrawn.is_empty() || !granted.is_empty()).then_some((withdrawn, granted))
    }

    /// Gives a worker a place, if it has none.
    pub(super) fn place(&mut self, worker: &Name) {
        let taken: BTreeSet<u32> = self.workers.values().filter_map(|worker| worker.place).collect();
        let free = (0..).find(|place| !taken.contains(place));
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.place = worker.place.or(free);
        }
    }

    /// A worker says another number of shards than before, and that counts.
    pub(super) fn changed(&mut self, worker: &Name, count: u32) {
        self.note(worker, count);
        self.ordered = false;
        self.resize(count);
    }

    /// Notes what a worker says about the number of shards.
    pub(super) fn note(&mut self, worker: &Name, count: u32) {
        self.said.insert(worker.clone(), count);
        if self.said.len() > SHARD_WORDS_MAX {
            // What was said by one that is gone can be forgotten; it would count as a change when it comes again.
            let gone = self.said.keys().find(|name| !self.workers.contains_key(*name)).cloned();
            gone.and_then(|gone| self.said.remove(&gone));
        }
    }

    pub(super) fn resize(&mut self, count: u32) {
        self.count = count;
        if self.shards.len() < count as usize {
            self.shards.resize(count as usize, Shard::Free);
        }
        self.trim();
    }

    /// Shards above the shard count disappear when they are free.
    pub(super) fn trim(&mut self) {
        while self.shards.len() > self.count as usize && self.shards.last() == Some(&Shard::Free) {
            self.shards.pop();
        }
    }

    pub(super) fn shard_mut(&mut self, number: u32) -> &mut Shard {
        self.shards.get_mut(number as usize).expect("an event names a shard that is there")
    }
}

pub(super) fn numbered(shards: &[Shard]) -> impl Iterator<Item = (u32, &Shard)> {
    (0..).zip(shards)
}
