//! Shards: what a service divides among its workers, each to one at a time.
//!
//! A shard is free, held, or withdrawn: its worker was told to stop and has not let go yet. Only what is free is granted.
//! Who is alive is not known here: whoever knows it says when a worker has let go, left or run out of time.
//!
//! **Invariant:** a shard has at most one worker, and gets the next one only after an event that says why the one before
//! is done with it: it let go, it left, or its time ran out.

mod allocate;
mod judge;
mod promises;
mod runs;
mod stored;

use std::collections::{BTreeMap, BTreeSet};

use minicbor::{Decode, Encode};

use crate::event::{
    Grant, LeaveReason, NewCapacity, ShardCountSet, ShardWeightsSet, ShardWorkerJoined, ShardWorkerLeft,
    ShardsLetGo, ShardsMoved,
};
use crate::limits::{SHARD_GRANTS_MAX, SHARD_WORDS_MAX};
use crate::{Name, Position, State, is_planted};

use allocate::dealt_anew;
pub use allocate::{Place, Plan, plan};
pub(crate) use promises::Promises;
pub use promises::kept_ms;
pub use runs::Runs;
pub(crate) use stored::Stored;

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
    /// Told to stop at a position; not let go yet.
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
    /// The shards that it has, also those that it was told to stop.
    #[cbor(skip)]
    shards: BTreeSet<u32>,
}

impl Shard {
    /// Whoever may serve it or may not have stopped yet.
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
    fn had_workers(&self) -> bool {
        !self.said.is_empty()
    }

    /// The shards that a worker should serve, each with its token.
    pub fn held_by(&self, worker: &Name) -> impl Iterator<Item = (u32, Position)> {
        self.of(worker).filter_map(|(number, shard)| match shard {
            Shard::Held { token, .. } => Some((number, *token)),
            Shard::Free | Shard::Withdrawn { .. } => None,
        })
    }

    /// The shards that a worker was told to stop, each with when.
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

    fn of(&self, worker: &Name) -> impl Iterator<Item = (u32, &Shard)> {
        let numbers = self.workers.get(worker).map(|worker| &worker.shards).into_iter().flatten();
        numbers.map(|number| (*number, &self.shards[*number as usize]))
    }

    /// How many shards are on their way from one worker to another.
    #[must_use]
    pub fn on_their_way(&self) -> usize {
        self.shards.iter().filter(|shard| matches!(shard, Shard::Withdrawn { .. })).count()
    }

    /// Moves that would make shares even, so many withdrawals at a time.
    fn moves(&self, most: usize) -> Option<(Runs, Vec<Grant>)> {
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
        // What a worker was told to stop takes room until it has let go.
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
    fn place(&mut self, worker: &Name) {
        let taken: BTreeSet<u32> = self.workers.values().filter_map(|worker| worker.place).collect();
        let free = (0..).find(|place| !taken.contains(place));
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.place = worker.place.or(free);
        }
    }

    /// A worker says another number of shards than before, and that counts.
    fn changed(&mut self, worker: &Name, count: u32) {
        self.note(worker, count);
        self.ordered = false;
        self.resize(count);
    }

    /// Notes what a worker says about the number of shards.
    fn note(&mut self, worker: &Name, count: u32) {
        self.said.insert(worker.clone(), count);
        if self.said.len() > SHARD_WORDS_MAX {
            // What was said by one that is gone can be forgotten; it would count as a change when it comes again.
            let gone = self.said.keys().find(|name| !self.workers.contains_key(*name)).cloned();
            gone.and_then(|gone| self.said.remove(&gone));
        }
    }

    fn resize(&mut self, count: u32) {
        self.count = count;
        if self.shards.len() < count as usize {
            self.shards.resize(count as usize, Shard::Free);
        }
        self.trim();
    }

    /// Shards above the number go when nobody has them.
    fn trim(&mut self) {
        while self.shards.len() > self.count as usize && self.shards.last() == Some(&Shard::Free) {
            self.shards.pop();
        }
    }

    fn shard_mut(&mut self, number: u32) -> &mut Shard {
        self.shards.get_mut(number as usize).expect("an event names a shard that is there")
    }
}

fn numbered(shards: &[Shard]) -> impl Iterator<Item = (u32, &Shard)> {
    (0..).zip(shards)
}

impl State {
    #[must_use]
    pub fn service(&self, service: &Name) -> Option<&Service> {
        self.services.get(service)
    }

    /// All services, by name.
    pub fn services(&self) -> impl Iterator<Item = (&Name, &Service)> {
        self.services.iter()
    }

    pub(crate) fn shard_worker_joined(&mut self, event: ShardWorkerJoined) {
        let ShardWorkerJoined { service, worker, group, count, capacity, said, by, session } = event;
        let joined = self.position;
        let known = self.services.entry(service).or_default();
        if !known.had_workers() {
            known.group = group;
        }
        if let Some(count) = count {
            known.changed(&worker, count);
        } else if let Some(said) = said {
            known.note(&worker, said);
        }
        known.by = by.or(known.by.take());
        let (place, shards) = (None, BTreeSet::new());
        let there = ShardWorker { joined, capacity, place, session, shards };
        let before = known.workers.insert(worker, there);
        assert!(before.is_none(), "a worker joins once");
        known.generation = joined;
    }

    pub(crate) fn shard_worker_left(&mut self, event: &ShardWorkerLeft) {
        let at = self.position;
        let known = self.known_service(&event.service);
        let gone = known.workers.remove(&event.worker).expect("only a worker that is there leaves");
        gone.shards.iter().for_each(|number| *known.shard_mut(*number) = Shard::Free);
        known.trim();
        known.generation = at;
        self.forget_if_empty(&event.service);
    }

    pub(crate) fn shards_let_go(&mut self, event: &ShardsLetGo) {
        let at = self.position;
        let known = self.known_service(&event.service);
        for number in event.shards.iter() {
            let shard = known.shard_mut(number);
            assert_eq!(shard.worker(), Some(&event.worker), "a worker lets go of what it had");
            *shard = Shard::Free;
            let worker =
                known.workers.get_mut(&event.worker).expect("only a worker that is there has shards");
            worker.shards.remove(&number);
        }
        known.trim();
        known.generation = at;
    }

    pub(crate) fn shard_count_set(&mut self, event: ShardCountSet) {
        let ShardCountSet { service, count, worker } = event;
        let at = self.position;
        let known = self.services.entry(service.clone()).or_default();
        match worker {
            Some(worker) => known.changed(&worker, count),
            None => {
                (known.ordered, known.kept) = (true, true);
                known.resize(count);
            }
        }
        known.generation = at;
        self.forget_if_empty(&service);
    }

    /// A service without shards and workers is none.
    fn forget_if_empty(&mut self, service: &Name) {
        if self.services.get(service).is_some_and(|known| known.count == 0 && known.workers.is_empty()) {
            self.services.remove(service);
        }
    }

    pub(crate) fn shard_weights_set(&mut self, event: ShardWeightsSet) {
        if let Some(known) = self.services.get_mut(&event.service) {
            known.weights = event.weights;
            known.kept = true;
        }
    }

    pub(crate) fn shards_moved(&mut self, event: &ShardsMoved) {
        let at = self.position;
        let known = self.known_service(&event.service);
        if let Some(NewCapacity { worker, capacity }) = &event.capacity {
            let there = known.workers.get_mut(worker).expect("only a worker that is there takes shards");
            there.capacity = *capacity;
        }
        for number in event.withdrawn.iter() {
            let shard = known.shard_mut(number);
            let Shard::Held { worker, token } = shard else { panic!("only what is held is withdrawn") };
            let worker = worker.clone();
            *shard = Shard::Withdrawn { worker: worker.clone(), token: *token, since: at };
            if is_planted("granted-before-let-go") {
                *shard = Shard::Free;
                known.workers.get_mut(&worker).expect("it had it").shards.remove(&number);
            }
        }
        for Grant { worker, shards } in &event.granted {
            known.place(worker);
            let there = known.workers.get_key_value(worker);
            // One text for all of them.
            let (worker, there) = there.expect("only a worker that is there gets shards");
            let worker = worker.clone();
            let token = if is_planted("token-of-the-worker") { there.joined } else { at };
            for number in shards.iter() {
                let shard = known.shard_mut(number);
                assert_eq!(*shard, Shard::Free, "only what is free is granted");
                *shard = Shard::Held { worker: worker.clone(), token };
                known.workers.get_mut(&worker).expect("it was just there").shards.insert(number);
            }
        }
        known.generation = at;
    }

    fn known_service(&mut self, service: &Name) -> &mut Service {
        self.services.get_mut(service).expect("an event names a service that is there")
    }
}

/// What may be asked about shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardCommand {
    /// A worker comes. `count` is how many shards it believes there are.
    Join {
        service: Name,
        worker: Name,
        group: Option<Name>,
        count: u32,
        capacity: Option<u32>,
        /// The token that it shows, if any.
        by: Option<Name>,
        /// The session that it names, if any.
        session: Option<Name>,
    },
    /// A worker has left, or its time has run out.
    Leave {
        service: Name,
        worker: Name,
        reason: LeaveReason,
    },
    /// A worker has stopped serving some of its shards.
    LetGo {
        service: Name,
        worker: Name,
        shards: Vec<u32>,
    },
    /// A worker was told to stop serving some of its shards, and does not listen.
    Overrule {
        service: Name,
        worker: Name,
        shards: BTreeSet<u32>,
    },
    /// Somebody changes the number of shards: a worker its own word, or an operator.
    SetCount {
        service: Name,
        count: u32,
        worker: Option<Name>,
    },
    /// A worker takes so many shards at most.
    SetCapacity {
        service: Name,
        worker: Name,
        capacity: Option<u32>,
    },
    SetWeights {
        service: Name,
        weights: BTreeMap<u32, u32>,
    },
    /// A service has no workers for long.
    Expire {
        service: Name,
    },
    /// Makes shares even, by at most so many withdrawals at once.
    Move {
        service: Name,
        most: usize,
    },
}

#[cfg(test)]
mod tests;
