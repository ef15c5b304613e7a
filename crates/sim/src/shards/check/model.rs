//! The rules of shards a second time, naively: whether each event of the journal may follow those before it.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::{
    Event, LeaveReason, Name, NewCapacity, Position, ShardCountSet, ShardEvent, ShardWorkerJoined,
    ShardWorkerLeft, ShardsLetGo, ShardsMoved, TermEvent, Timestamp,
};

use super::{Rights, Versions};
use crate::check::Violation;
use crate::history::{Entry, History};
use crate::shards::coverage::ShardCovered;
use crate::shards::record::{Kind, Message, Process, Record};

/// Milliseconds between two rounds of a service at least.
const DEBOUNCE_MS: u64 = 250;

/// What came of the walk.
pub(super) struct Walked {
    pub(super) found: Vec<Violation>,
    pub(super) versions: Versions,
}

#[derive(Default)]
struct Service {
    count: u32,
    shards: BTreeMap<u32, Slot>,
    /// Workers, each with how many shards it takes at most.
    workers: BTreeMap<Name, Option<u32>>,
    said: BTreeMap<Name, u32>,
    /// The number is an operator's.
    ordered: bool,
    last_round: Option<Timestamp>,
    /// A worker came or left since the last rebalance, or the shard count changed.
    changed: bool,
}

/// A shard, and who had it before.
#[derive(Clone, Default)]
struct Slot {
    has: Option<Held>,
    before: Option<Held>,
}

#[derive(Clone)]
struct Held {
    worker: Name,
    token: Position,
    /// It was withdrawn.
    withdrawn: Option<Position>,
}

impl Service {
    fn held(&self, worker: &Name) -> usize {
        let has = |slot: &&Slot| {
            slot.has.as_ref().is_some_and(|held| held.worker == *worker && held.withdrawn.is_none())
        };
        self.shards.values().filter(has).count()
    }

    /// Its shards, withdrawn ones included.
    fn taken(&self, worker: &Name) -> usize {
        let has = |slot: &&Slot| slot.has.as_ref().is_some_and(|held| held.worker == *worker);
        self.shards.values().filter(has).count()
    }

    fn has_room(&self, worker: &Name) -> bool {
        self.workers[worker].is_none_or(|most| self.held(worker) < most as usize)
    }

    fn free(&mut self, shard: u32) {
        if let Some(slot) = self.shards.get_mut(&shard) {
            slot.before = slot.has.take().or(slot.before.take());
        }
    }

    fn resize(&mut self, count: u32) {
        self.count = count;
        for shard in 0..count {
            self.shards.entry(shard).or_default();
        }
    }

    fn version(&self) -> BTreeMap<Name, BTreeMap<u32, Position>> {
        let mut version: BTreeMap<Name, BTreeMap<u32, Position>> = BTreeMap::new();
        for (shard, slot) in &self.shards {
            if let Some(held) = slot.has.as_ref().filter(|held| held.withdrawn.is_none()) {
                version.entry(held.worker.clone()).or_default().insert(*shard, held.token);
            }
        }
        version
    }
}

struct Walk<'a> {
    record: &'a mut Record,
    rights: &'a Rights,
    services: BTreeMap<Name, Service>,
    versions: Versions,
    found: Vec<Violation>,
}

pub(super) fn walk(history: &History, record: &mut Record, rights: &Rights) -> Walked {
    let (services, versions) = (BTreeMap::new(), Versions::new());
    let mut walk = Walk { record, rights, services, versions, found: Vec::new() };
    for entry in &history.log {
        walk.take(entry);
    }
    if walk.record.rested_us.is_some() {
        walk.rest();
    }
    Walked { found: walk.found, versions: walk.versions }
}

impl Walk<'_> {
    fn ensure(&mut self, holds: bool, invariant: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            self.found.push(Violation::new(invariant, what()));
        }
    }

    fn take(&mut self, entry: &Entry) {
        let at = entry.position;
        if let Event::Term(TermEvent::TermStarted(_)) = &entry.event {
            return self.term_began();
        }
        let Event::Shard(event) = &entry.event else { return };
        let service = match event {
            ShardEvent::ShardWorkerJoined(event) => {
                self.joined(at, event);
                &event.service
            }
            ShardEvent::ShardWorkerLeft(event) => {
                self.left(at, event);
                &event.service
            }
            ShardEvent::ShardCountSet(event) => {
                self.count_set(at, event);
                &event.service
            }
            ShardEvent::ShardsLetGo(event) => {
                self.let_go(at, event);
                &event.service
            }
            ShardEvent::ShardsMoved(ShardsMoved {
                service,
                withdrawn,
                granted,
                capacity: Some(capacity),
            }) => {
                self.ensure(withdrawn.is_empty() && granted.is_empty(), "H6", || {
                    format!("shards of {service} moved with a change of capacity at {at}")
                });
                self.capacity_set(at, service, capacity);
                service
            }
            ShardEvent::ShardsMoved(event) => {
                self.round(entry, event);
                self.withdraw(at, event);
                self.grant(at, event);
                &event.service
            }
            ShardEvent::ShardWeightsSet(_) => return,
        };
        let known = self.services.entry(service.clone()).or_default();
        if known.count == 0 && known.workers.is_empty() {
            // A service without shards and workers is none, and what was said in it is forgotten.
            known.said.clear();
            known.ordered = false;
        }
        let version = known.version();
        self.versions.entry(service.clone()).or_default().insert(at, version);
    }

    fn term_began(&mut self) {
        for service in self.services.values_mut() {
            service.last_round = None;
            let moves = |slot: &Slot| slot.has.as_ref().is_some_and(|held| held.withdrawn.is_some());
            if service.shards.values().any(moves) {
                self.record.coverage.add(ShardCovered::TermBeganWithAMoveUnderWay);
            }
        }
    }

    fn joined(&mut self, at: Position, event: &ShardWorkerJoined) {
        let ShardWorkerJoined { service, worker, count, capacity, said, .. } = event;
        if let Some(count) = count {
            let known = self.services.entry(service.clone()).or_default();
            let undone = known.ordered && !known.said.contains_key(worker);
            self.ensure(!undone, "H8", || format!("{worker} is new at {at}, and undid what an operator set"));
            self.says(at, service, worker, *count);
        }
        if let Some(said) = said {
            let known = self.services.entry(service.clone()).or_default();
            let stands = known.ordered && known.said.insert(worker.clone(), *said).is_none();
            self.ensure(stands, "H8", || format!("what {worker} said at {at} did not count"));
        }
        let known = self.services.entry(service.clone()).or_default();
        let (said, there) = (known.said.contains_key(worker), known.workers.contains_key(worker));
        known.workers.insert(worker.clone(), *capacity);
        known.changed = true;
        self.ensure(said, "H8", || format!("{worker} came at {at}, and nobody knows what it said"));
        self.ensure(!there, "H7", || format!("{worker} came at {at}, and was there"));
    }

    /// H8: a worker's word counts when it is another than before, and when it said so.
    fn says(&mut self, at: Position, service: &Name, worker: &Name, count: u32) {
        self.record.coverage.add(ShardCovered::CountChanged);
        let known = self.services.entry(service.clone()).or_default();
        let before = known.said.insert(worker.clone(), count);
        known.ordered = false;
        known.resize(count);
        known.changed = true;
        self.ensure(before != Some(count), "H8", || {
            format!("{worker} said {count} again, and at {at} the number changed")
        });
        let said = self.record.sent.iter().any(|said| {
            let process = &self.record.processes[said.process];
            let counts = match &said.what {
                Message::Comes { count: said } | Message::Serves { count: said, .. } => *said == count,
                Message::Goes => false,
            };
            counts && process.service == *service && process.worker == *worker
        });
        self.ensure(said, "H8", || format!("{worker} never said that there are {count} shards"));
    }

    fn count_set(&mut self, at: Position, event: &ShardCountSet) {
        let ShardCountSet { service, count, worker } = event;
        if let Some(worker) = worker {
            return self.says(at, service, worker, *count);
        }
        let known = self.services.entry(service.clone()).or_default();
        known.resize(*count);
        known.ordered = true;
        known.changed = true;
        let ordered = self.record.orders.contains(&(service.clone(), *count));
        self.ensure(ordered, "H8", || format!("nobody set {count} shards of {service} at {at}"));
    }

    fn capacity_set(&mut self, at: Position, service: &Name, NewCapacity { worker, capacity }: &NewCapacity) {
        let known = self.services.entry(service.clone()).or_default();
        known.changed = true;
        let before = known.workers.insert(worker.clone(), *capacity);
        self.ensure(before.is_some_and(|before| before != *capacity), "H7", || {
            format!("the capacity of {worker} changed at {at}, and it was not there or had the same")
        });
    }

    fn left(&mut self, at: Position, event: &ShardWorkerLeft) {
        let ShardWorkerLeft { service, worker, reason } = event;
        self.record.coverage.add(match reason {
            LeaveReason::Deregistered => ShardCovered::LeftByWord,
            LeaveReason::Silent => ShardCovered::LeftSilent,
            LeaveReason::Fenced => ShardCovered::LeftFenced,
        });
        let known = self.services.entry(service.clone()).or_default();
        let there = known.workers.remove(worker).is_some();
        let had = |slot: &Slot| slot.has.as_ref().is_some_and(|held| held.worker == *worker);
        let its: Vec<u32> =
            known.shards.iter().filter(|(_, slot)| had(slot)).map(|(shard, _)| *shard).collect();
        its.into_iter().for_each(|shard| known.free(shard));
        known.changed = true;
        self.ensure(there, "H7", || format!("{worker} left at {at}, and was not there"));
    }

    /// H3: only what was withdrawn is let go.
    fn let_go(&mut self, at: Position, event: &ShardsLetGo) {
        let ShardsLetGo { service, worker, shards, overruled } = event;
        if *overruled == Some(true) {
            self.overruled(at, event);
        }
        for shard in shards.iter() {
            self.record.coverage.add(ShardCovered::LetGo);
            let known = self.services.entry(service.clone()).or_default();
            let has = known.shards.get(&shard).and_then(|slot| slot.has.clone());
            known.free(shard);
            let withdrawn = has.is_some_and(|held| held.worker == *worker && held.withdrawn.is_some());
            self.ensure(withdrawn, "H3", || {
                format!("{worker} let go of {shard} at {at}, and was not told to stop")
            });
            let kind = |process: &Process| {
                process.service == *service && process.worker == *worker && process.kind.is_plain()
            };
            if self.record.processes.iter().any(kind) {
                self.record.coverage.add(ShardCovered::PlainMove);
            }
        }
    }

    /// H3: no worker is overruled in a service in which one worker can release on request.
    fn overruled(&mut self, at: Position, event: &ShardsLetGo) {
        self.record.coverage.add_many(ShardCovered::Overruled, event.shards.len());
        let known = self.services.entry(event.service.clone()).or_default();
        let is_aware = |worker: &&Name| {
            let is = |it: &&Process| it.service == event.service && it.worker == **worker;
            self.record.processes.iter().find(is).is_some_and(|it| it.kind == Kind::Aware)
        };
        let aware = known.workers.keys().find(is_aware).cloned();
        self.ensure(aware.is_none(), "H3", || {
            format!("{} was overruled at {at}, and {aware:?} echoes generations", event.worker)
        });
    }

    /// HL2: two rebalances of a service are always some time apart.
    fn round(&mut self, entry: &Entry, event: &ShardsMoved) {
        let known = self.services.entry(event.service.clone()).or_default();
        let last = known.last_round.replace(entry.at);
        let apart = last.map(|last| entry.at.since(last));
        self.ensure(apart.is_none_or(|apart| apart >= DEBOUNCE_MS), "HL2", || {
            format!("the round at {} is {apart:?} ms after the one before", entry.position)
        });
    }

    /// H6: only surplus moves, and only when something has changed.
    fn withdraw(&mut self, at: Position, event: &ShardsMoved) {
        let ShardsMoved { service, withdrawn, .. } = event;
        let known = self.services.entry(service.clone()).or_default();
        let changed = std::mem::take(&mut known.changed);
        let count = known.count;
        let mut from = BTreeSet::new();
        let mut wrong = None;
        for shard in withdrawn.iter() {
            self.record.coverage.add(ShardCovered::Withdrawn);
            let held = known.shards.get_mut(&shard).and_then(|slot| slot.has.as_mut());
            match held.filter(|held| held.withdrawn.is_none()) {
                Some(held) => {
                    held.withdrawn = Some(at);
                    if shard < count {
                        from.insert(held.worker.clone());
                    }
                }
                None => wrong = Some(shard),
            }
        }
        let share = count as usize / known.workers.len().max(1);
        let robbed: Vec<Name> = from
            .iter()
            .filter(|worker| {
                let most = known.workers.get(*worker).copied().flatten();
                known.held(worker) < share.min(most.map_or(usize::MAX, |most| most as usize))
            })
            .cloned()
            .collect();
        self.ensure(wrong.is_none(), "H3", || format!("{wrong:?} was withdrawn at {at}, and nobody has it"));
        self.ensure(from.is_empty() || changed, "H6", || {
            format!("shards of {from:?} move at {at}, and nothing has changed")
        });
        self.ensure(robbed.is_empty(), "H6", || {
            format!("{robbed:?} had to give up more than surplus at {at}")
        });
    }

    fn grant(&mut self, at: Position, event: &ShardsMoved) {
        let service = &event.service;
        for grant in &event.granted {
            for shard in grant.shards.iter() {
                self.record.coverage.add(ShardCovered::Granted);
                self.granted(at, service, &grant.worker, shard);
            }
            let known = &self.services[service];
            if known.workers.contains_key(&grant.worker) && !known.has_room(&grant.worker) {
                self.record.coverage.add(ShardCovered::CapacityFull);
            }
        }
    }

    fn granted(&mut self, at: Position, service: &Name, worker: &Name, shard: u32) {
        let known = self.services.entry(service.clone()).or_default();
        let (count, there) = (known.count, known.workers.contains_key(worker));
        let room = there && known.workers[worker].is_none_or(|most| known.taken(worker) < most as usize);
        let slot = known.shards.entry(shard).or_default();
        let (has, before) = (slot.has.clone(), slot.before.clone());
        slot.has = Some(Held { worker: worker.clone(), token: at, withdrawn: None });
        self.ensure(shard < count, "H1", || format!("{shard} of {count} shards was granted at {at}"));
        self.ensure(there, "H1", || format!("{shard} was granted to {worker} at {at}, which is not there"));
        self.ensure(!there || room, "H6", || format!("{worker} has more than it takes at {at}"));
        self.ensure(has.is_none(), "H3", || {
            let has = has.as_ref().map(|held| held.worker.clone());
            format!("{shard} was granted to {worker} at {at}, and {has:?} has it")
        });
        let before = has.as_ref().or(before.as_ref());
        if let Some(problem) = before.and_then(|before| self.still_entitled(at, service, shard, before)) {
            self.ensure(false, "H3", || problem);
        }
    }

    /// H3: the worker that may still serve a shard has released it; only it can know.
    fn still_entitled(&self, at: Position, service: &Name, shard: u32, before: &Held) -> Option<String> {
        let index = usize::try_from(at.0 - 1).unwrap_or(usize::MAX);
        let now = self.record.durable_us.get(index).copied().unwrap_or(u64::MAX);
        let rights = self.rights.get(&(service.clone(), shard, before.token))?;
        let aware = |process: &usize| self.record.processes[*process].kind == Kind::Aware;
        let live = rights.iter().filter(|(process, until)| aware(process) && **until > now);
        for (process, until) in live {
            let stopped = self.record.sent.iter().any(|said| {
                let stops = match &said.what {
                    Message::Comes { .. } => false,
                    Message::Serves { shards, generation, .. } => {
                        let heard = before.withdrawn.is_some_and(|since| *generation >= Some(since));
                        heard && !shards.contains(&shard)
                    }
                    Message::Goes => true,
                };
                said.process == *process && said.at_us <= now && stops
            });
            if !stopped {
                let (token, worker) = (before.token, &before.worker);
                return Some(format!(
                    "shard {shard} of {service} was granted at {at}, durable at {now} µs, and process {process} of \
                     {worker} may serve it under {token} until {until} µs"
                ));
            }
        }
        None
    }

    /// H1 and H6 when everything has come to rest.
    fn rest(&mut self) {
        let services = std::mem::take(&mut self.services);
        for (name, service) in &services {
            if service.workers.is_empty() || self.record.is_stuck(name) {
                continue;
            }
            let full = service.workers.keys().all(|worker| !service.has_room(worker));
            for (shard, slot) in &service.shards {
                let held = slot.has.as_ref().filter(|held| held.withdrawn.is_none());
                let inside = *shard < service.count;
                let fits = if inside { held.is_some() || full } else { slot.has.is_none() };
                self.ensure(fits, "H1", || {
                    let has = slot.has.as_ref().map(|held| &held.worker);
                    format!("at rest {has:?} has {shard} of {} shards of {name}", service.count)
                });
            }
            let counts: Vec<(usize, bool)> =
                service.workers.keys().map(|it| (service.held(it), service.has_room(it))).collect();
            let most = counts.iter().map(|(count, _)| *count).max().unwrap_or(0);
            let least = counts.iter().filter(|(_, room)| *room).map(|(count, _)| *count).min();
            self.ensure(least.is_none_or(|least| most <= least + 1), "H6", || {
                format!("at rest workers of {name} have {counts:?} shards, each with whether it takes more")
            });
        }
    }
}
