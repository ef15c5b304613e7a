//! The answers to workers: each assignment is what the journal says at its generation, and only one process gets a
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
struct Answered<'a> {
    process: usize,
    service: &'a Name,
    worker: &'a Name,
    ask: &'a ShardAsk,
    assignment: &'a Assignment,
}

impl Answered<'_> {
    /// Whether it may serve by this answer.
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
fn answered(call: &Call) -> Option<Answered<'_>> {
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
    is_one.then_some(Answered { process: *process, service, worker, ask, assignment })
}

/// Which process may serve which shard until when, by its answers. Its own record is not used here.
pub(super) fn rights(history: &History, record: &Record) -> Rights {
    let mut rights = Rights::new();
    for call in &history.calls {
        let Some(answered) = answered(call).filter(Answered::promises) else { continue };
        let length = record.processes[answered.process].world_us(answered.assignment.lease_ms);
        for (shard, token) in answered.shards() {
            let of = rights.entry((answered.service.clone(), shard, token)).or_default();
            let until = of.entry(answered.process).or_default();
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
        let Some(answered) = answered(call) else { continue };
        found.extend(look.generation(call, &answered).err());
        found.extend(is_of_the_journal(versions, &answered).err());
        found.extend(look.identity(record, &answered).err());
    }
    found
}

#[derive(Default)]
struct Look<'a> {
    /// The highest generation of each service in an answer, its time, and the answers before that moment.
    highest: BTreeMap<&'a Name, (u64, Position, Position)>,
    /// Who heard of a token, and who spoke last for a worker.
    heard: BTreeMap<(&'a Name, u32, Position), usize>,
    speaks: BTreeMap<(&'a Name, &'a Name), usize>,
    /// When each worker joined.
    joined: BTreeMap<(&'a Name, &'a Name), BTreeSet<Position>>,
}

impl<'a> Look<'a> {
    /// H4: generations only grow, on every node, and no answer has one that could still be lost.
    fn generation(&mut self, call: &Call, answered: &Answered<'a>) -> Result<(), Violation> {
        let generation = answered.assignment.generation;
        let (at, highest, before) = self.highest.entry(answered.service).or_default();
        // Answers of one moment are taken in any order.
        if call.answered_us > *at {
            (*at, *before) = (call.answered_us, *highest);
        }
        *highest = (*highest).max(generation);
        if generation < *before {
            let what = format!("{} was told of generation {generation} after {before}", answered.worker);
            return Err(Violation::new("H4", what));
        }
        if generation > call.durable_after {
            let durable = call.durable_after;
            let what = format!("{} was told of {generation}, and {durable} is durable", answered.worker);
            return Err(Violation::new("H4", what));
        }
        Ok(())
    }

    /// H7: a token is for one process, and a replaced process counts again only when it registers without shards.
    fn identity(&mut self, record: &Record, answered: &Answered<'a>) -> Result<(), Violation> {
        if record.processes[answered.process].kind.is_plain() {
            return Ok(());
        }
        for (shard, token) in answered.shards() {
            let first = *self.heard.entry((answered.service, shard, token)).or_insert(answered.process);
            if first != answered.process {
                let (worker, second) = (answered.worker, answered.process);
                let what =
                    format!("processes {first} and {second} of {worker} have token {token} of {shard}");
                return Err(Violation::new("H7", what));
            }
        }
        if !answered.promises() {
            return Ok(());
        }
        if let ShardAsk::Heartbeat { body, .. } = answered.ask
            && let Some(generation) = body.generation.filter(|_| !body.assigned_shards.is_empty())
            && let Some(joined) = self.joined.get(&(answered.service, answered.worker))
            && let Some(at) = joined.range(..=answered.assignment.generation).next_back()
            && generation < *at
        {
            let (worker, process) = (answered.worker, answered.process);
            let what =
                format!("process {process} of {worker} is believed in {generation}, and joined at {at}");
            return Err(Violation::new("H7", what));
        }
        let before = self.speaks.insert((answered.service, answered.worker), answered.process);
        let serves = match answered.ask {
            ShardAsk::Heartbeat { body, .. } => !body.assigned_shards.is_empty(),
            ShardAsk::Register { .. }
            | ShardAsk::Deregister { .. }
            | ShardAsk::Change { .. }
            | ShardAsk::Assignment { .. }
            | ShardAsk::Service(_)
            | ShardAsk::Services { .. } => false,
        };
        if let Some(other) = before.filter(|before| *before != answered.process && serves) {
            let (worker, process) = (answered.worker, answered.process);
            let what = format!("process {process} of {worker} is believed after process {other} came");
            return Err(Violation::new("H7", what));
        }
        Ok(())
    }
}

/// H4, H5: an answer has the shards of the worker at that generation, with the tokens of its grants.
fn is_of_the_journal(versions: &Versions, answered: &Answered<'_>) -> Result<(), Violation> {
    let Answered { service, worker, assignment, .. } = answered;
    let generation = assignment.generation;
    let version = versions.get(*service).and_then(|of| of.get(&generation));
    let Some(version) = version else {
        let what = format!("{worker} was told of generation {generation}, which {service} never had");
        return Err(Violation::new("H4", what));
    };
    let has = version.get(*worker).cloned().unwrap_or_default();
    let given: BTreeMap<u32, Position> = answered.shards().collect();
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
