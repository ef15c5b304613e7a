//! What workers were told: each assignment is what the journal says at its generation, and only one process hears of a
//! token.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::wire::Assignment;
use orchestrix_core::{Event, Name, Position, ShardEvent};
use orchestrix_node::ShardAsk;

use super::{Rights, Versions};
use crate::check::Violation;
use crate::history::{Answer, Call, History, Question};
use crate::shards::record::Record;

/// An assignment that was given.
struct Told<'a> {
    process: usize,
    service: &'a Name,
    worker: &'a Name,
    ask: &'a ShardAsk,
    assignment: &'a Assignment,
}

impl Told<'_> {
    /// Whether it is told that it may serve.
    fn promises(&self) -> bool {
        match self.ask {
            ShardAsk::Register { .. } | ShardAsk::Heartbeat { .. } => self.assignment.lease_ms > 0,
            ShardAsk::Deregister { .. }
            | ShardAsk::Change { .. }
            | ShardAsk::Assignment { .. }
            | ShardAsk::Service(_)
            | ShardAsk::Services { .. } => false,
        }
    }

    fn shards(&self) -> impl Iterator<Item = (u32, Position)> {
        let tokens = self.assignment.tokens.iter().copied();
        self.assignment.assigned_shards.iter().copied().zip(tokens)
    }
}

/// The assignment of an answer, unless it says that there is none.
fn told(call: &Call) -> Option<Told<'_>> {
    let (Question::Shards { process, ask }, Ok(Answer::Assignment(assignment))) =
        (&call.question, &call.answer)
    else {
        return None;
    };
    let (service, worker) = match &**ask {
        ShardAsk::Register { service, worker, .. }
        | ShardAsk::Heartbeat { service, worker, .. }
        | ShardAsk::Assignment { service, worker, .. } => (service, worker),
        ShardAsk::Deregister { .. }
        | ShardAsk::Change { .. }
        | ShardAsk::Service(_)
        | ShardAsk::Services { .. } => return None,
    };
    let is_one = !assignment.fenced && assignment.generation > Position(0);
    is_one.then_some(Told { process: *process, service, worker, ask, assignment })
}

/// Who may serve what until when, by what it was told. What it told itself is not asked here.
pub(super) fn rights(history: &History, record: &Record) -> Rights {
    let mut rights = Rights::new();
    for call in &history.calls {
        let Some(told) = told(call).filter(Told::promises) else { continue };
        let length = record.processes[told.process].world_us(told.assignment.lease_ms);
        for (shard, token) in told.shards() {
            let of = rights.entry((told.service.clone(), shard, token)).or_default();
            let until = of.entry(told.process).or_default();
            *until = (*until).max(call.asked_us + length);
        }
    }
    rights
}

/// Heartbeats that came after one that had heard of more, from the same process.
pub(super) fn overtaken(history: &History) -> u64 {
    let mut highest: BTreeMap<usize, Position> = BTreeMap::new();
    let mut overtaken = 0;
    for call in &history.calls {
        let Question::Shards { process, ask } = &call.question else { continue };
        if let ShardAsk::Heartbeat { body, .. } = &**ask
            && let Some(generation) = body.generation
        {
            let highest = highest.entry(*process).or_default();
            overtaken += u64::from(generation < *highest);
            *highest = (*highest).max(generation);
        }
    }
    overtaken
}

pub(super) fn check(history: &History, record: &Record, versions: &Versions) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut look = Look::default();
    for entry in &history.log {
        if let Event::Shard(ShardEvent::ShardWorkerJoined(event)) = &entry.event {
            look.joined.entry((&event.service, &event.worker)).or_default().insert(entry.position);
        }
    }
    for call in &history.calls {
        let Some(told) = told(call) else { continue };
        found.extend(look.generation(call, &told).err());
        found.extend(is_of_the_journal(versions, &told).err());
        found.extend(look.identity(record, &told).err());
    }
    found
}

#[derive(Default)]
struct Look<'a> {
    /// The highest generation of each service that was told, when, and what was told before that moment.
    highest: BTreeMap<&'a Name, (u64, Position, Position)>,
    /// Who heard of a token, and who spoke last for a worker.
    heard: BTreeMap<(&'a Name, u32, Position), usize>,
    speaks: BTreeMap<(&'a Name, &'a Name), usize>,
    /// When each worker joined.
    joined: BTreeMap<(&'a Name, &'a Name), BTreeSet<Position>>,
}

impl<'a> Look<'a> {
    /// H4: generations only grow, whoever tells of them, and nobody tells of one that could still be lost.
    fn generation(&mut self, call: &Call, told: &Told<'a>) -> Result<(), Violation> {
        let generation = told.assignment.generation;
        let (at, highest, before) = self.highest.entry(told.service).or_default();
        // Answers of one moment are taken in any order.
        if call.answered_us > *at {
            (*at, *before) = (call.answered_us, *highest);
        }
        *highest = (*highest).max(generation);
        if generation < *before {
            let what = format!("{} was told of generation {generation} after {before}", told.worker);
            return Err(Violation::new("H4", what));
        }
        if generation > call.durable_after {
            let durable = call.durable_after;
            let what = format!("{} was told of {generation}, and {durable} is durable", told.worker);
            return Err(Violation::new("H4", what));
        }
        Ok(())
    }

    /// H7: a token is for one process, and whoever was replaced speaks again only when it comes with nothing.
    fn identity(&mut self, record: &Record, told: &Told<'a>) -> Result<(), Violation> {
        if record.processes[told.process].kind.is_plain() {
            return Ok(());
        }
        for (shard, token) in told.shards() {
            let first = *self.heard.entry((told.service, shard, token)).or_insert(told.process);
            if first != told.process {
                let (worker, second) = (told.worker, told.process);
                let what =
                    format!("processes {first} and {second} of {worker} have token {token} of {shard}");
                return Err(Violation::new("H7", what));
            }
        }
        if !told.promises() {
            return Ok(());
        }
        if let ShardAsk::Heartbeat { body, .. } = told.ask
            && let Some(generation) = body.generation.filter(|_| !body.assigned_shards.is_empty())
            && let Some(joined) = self.joined.get(&(told.service, told.worker))
            && let Some(at) = joined.range(..=told.assignment.generation).next_back()
            && generation < *at
        {
            let (worker, process) = (told.worker, told.process);
            let what =
                format!("process {process} of {worker} is believed in {generation}, and joined at {at}");
            return Err(Violation::new("H7", what));
        }
        let before = self.speaks.insert((told.service, told.worker), told.process);
        let serves = match told.ask {
            ShardAsk::Heartbeat { body, .. } => !body.assigned_shards.is_empty(),
            ShardAsk::Register { .. }
            | ShardAsk::Deregister { .. }
            | ShardAsk::Change { .. }
            | ShardAsk::Assignment { .. }
            | ShardAsk::Service(_)
            | ShardAsk::Services { .. } => false,
        };
        if let Some(other) = before.filter(|before| *before != told.process && serves) {
            let (worker, process) = (told.worker, told.process);
            let what = format!("process {process} of {worker} is believed after process {other} came");
            return Err(Violation::new("H7", what));
        }
        Ok(())
    }
}

/// H4, H5: what is told is what the worker has at that generation, with the tokens of its grants.
fn is_of_the_journal(versions: &Versions, told: &Told<'_>) -> Result<(), Violation> {
    let Told { service, worker, assignment, .. } = told;
    let generation = assignment.generation;
    let version = versions.get(*service).and_then(|of| of.get(&generation));
    let Some(version) = version else {
        let what = format!("{worker} was told of generation {generation}, which {service} never had");
        return Err(Violation::new("H4", what));
    };
    let has = version.get(*worker).cloned().unwrap_or_default();
    let given: BTreeMap<u32, Position> = told.shards().collect();
    if !given.keys().eq(has.keys()) || assignment.assigned_shards.len() != has.len() {
        let what = format!("{worker} has {has:?} in generation {generation}, and was told {assignment:?}");
        return Err(Violation::new("H4", what));
    }
    if given != has {
        let what = format!("{worker} was granted {has:?}, and its tokens are {given:?}");
        return Err(Violation::new("H5", what));
    }
    Ok(())
}
