//! The coordinator of a world: the one that ships, started, killed and read back.

use std::sync::Arc;

use orchestrix_core::{Event, LeaseId, Name, Position, Records, State, TaskEvent, TaskId};
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::{Batch, Read};
use orchestrix_node::{Failure, Node, Recovered, Stepped};

use crate::check::Violation;
use crate::clock::SimClock;
use crate::history::{Counted, Entry};
use crate::plan::Plan;

/// A running process.
pub(crate) struct Process {
    pub(crate) node: Node,
    pub(crate) stepped: Stepped,
    /// The end of the journal when it started.
    pub(crate) after: Position,
}

/// The journal as the world has seen it become durable, and the state that it amounts to.
///
/// Built from the first event on, never from a snapshot, so that it can be held against what a start recovers.
pub(crate) struct Mirror {
    pub(crate) log: Vec<Entry>,
    pub(crate) state: State,
    /// A stopped process reported this position as durable; it was not read back yet.
    promised: Position,
}

impl Process {
    /// Starts on what is on the disk.
    pub(crate) fn start(
        disk: &SimDisk,
        plan: &Plan,
        clock: &Arc<SimClock>,
        start: u32,
    ) -> Result<(Self, Recovered), Failure> {
        let clock: Arc<SimClock> = Arc::clone(clock);
        let (node, mut stepped, recovered) =
            Stepped::open(Arc::new(disk.clone()), plan.files(), plan.node(0, start), clock)?;
        if plan.hang_ups > 0 {
            stepped.never_writes_itself();
        }
        Ok((Self { node, stepped, after: recovered.position }, recovered))
    }
}

/// What a process says that it has done since `after`; all of it is durable.
pub(crate) fn counted(node: &Node, after: Position) -> Counted {
    let stats = node.stats();
    let counters = [
        ("submitted", &stats.submitted),
        ("leased", &stats.leased),
        ("extended", &stats.extended),
        ("completed", &stats.completed),
        ("failed", &stats.failed),
        ("released", &stats.released),
        ("expired_silent", &stats.expired_silent),
        ("expired_timeout", &stats.expired_timeout),
        ("cancelled", &stats.cancelled),
        ("ttl_expired", &stats.ttl_expired),
        ("retried", &stats.retried),
        ("purged", &stats.purged),
        ("dead_letters", &stats.dead_letters),
    ];
    let counts = counters.into_iter().map(|(name, counter)| (name, counter.get())).collect();
    Counted { after, until: Position(stats.durable.get()), counts }
}

impl Mirror {
    pub(crate) fn new() -> Self {
        Self { log: Vec::new(), state: State::new(), promised: Position(0) }
    }

    pub(crate) fn durable(&self) -> Position {
        Position(self.log.len() as u64)
    }

    pub(crate) fn promised(&mut self, durable: Position) {
        self.promised = self.promised.max(durable);
    }

    /// Up to where everything is durable, read or only promised.
    pub(crate) fn acknowledged(&self) -> Position {
        self.durable().max(self.promised)
    }

    /// Reads what has become durable since the last look.
    pub(crate) fn follow(&mut self, process: &Process) -> Result<(), Violation> {
        self.take(process.stepped.read(self.durable()))
    }

    fn take(&mut self, read: Result<Read, Failure>) -> Result<(), Violation> {
        match read {
            Ok(Read::Batches(batches)) => batches.iter().try_for_each(|batch| self.add(batch)),
            Ok(Read::End) => Ok(()),
            Ok(Read::Truncated(floor)) => {
                Err(Violation::new("W12", format!("all up to {floor} was dropped before anybody read it")))
            }
            Err(failure) => Err(Violation::new("W1", format!("what is durable cannot be read: {failure}"))),
        }
    }

    /// Holds all that the journal still has against what was seen of it before.
    pub(crate) fn compare(&self, process: &Process, recovered: &Recovered) -> Result<(), Violation> {
        if recovered.position < self.acknowledged() {
            let (found, expected) = (recovered.position, self.acknowledged());
            return Err(Violation::new("W1", format!("recovered up to {found}, but {expected} was durable")));
        }
        let read = |after: Position| {
            let unread = |failure| {
                Violation::new("W1", format!("the journal cannot be read after a start: {failure}"))
            };
            process.stepped.read(after).map_err(unread)
        };
        let after = match read(Position(0))? {
            Read::Truncated(floor) => floor,
            Read::Batches(_) | Read::End => Position(0),
        };
        let Read::Batches(batches) = read(after)? else { return Ok(()) };
        for batch in &batches {
            let hash = hash(batch);
            for position in batch.previous.position.0 + 1..=batch.last().0 {
                let known = usize::try_from(position - 1).ok().and_then(|index| self.log.get(index));
                if known.is_some_and(|known| known.batch != hash) {
                    return Err(Violation::new(
                        "W3",
                        format!("the batch with position {position} has changed"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Holds the state of a process with nothing under way against the fold of the whole journal.
    pub(crate) fn compare_state(&self, process: &Process) -> Result<(), Violation> {
        let state = process.stepped.state();
        if state.position() != self.durable() || state.fingerprint() == self.state.fingerprint() {
            return Ok(());
        }
        let position = state.position();
        Err(Violation::new("W6", format!("the state at {position} is not the fold of the journal")))
    }

    /// A recent lease of another worker.
    pub(crate) fn lease_of_another(&self, worker: &Name) -> Option<(TaskId, LeaseId)> {
        self.log.iter().rev().take(30).find_map(|entry| {
            let Event::Task(TaskEvent::LeaseGranted(event)) = &entry.event else { return None };
            (event.worker != *worker).then_some((event.task, LeaseId(entry.position.0)))
        })
    }

    pub(crate) fn add(&mut self, batch: &Batch) -> Result<(), Violation> {
        let hash = hash(batch);
        let mut position = batch.previous.position;
        for record in Records::new(&batch.records) {
            let (at, event) = record.map_err(|error| Violation::new("W8", error.to_string()))?;
            position = position.next();
            if position.0 != self.log.len() as u64 + 1 {
                return Err(Violation::new("W2", format!("position {position} follows {}", self.log.len())));
            }
            self.state.apply(at, event.clone());
            self.log.push(Entry { position, at, event, batch: hash });
        }
        Ok(())
    }
}

fn hash(batch: &Batch) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&batch.previous.position.0.to_le_bytes());
    hasher.update(&batch.records);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has begun its first term, and what was read of it.
    fn started() -> (Process, Recovered, Mirror) {
        let (plan, disk) = (Plan::draw(1), SimDisk::new(1));
        let clock = Arc::new(SimClock::new(0, disk.clone()));
        let (mut process, recovered) = Process::start(&disk, &plan, &clock, 1).expect("an empty disk");
        let _ = process.stepped.decide().expect("a term begins");
        process.stepped.write().expect("the beginning is written");
        let mut mirror = Mirror::new();
        mirror.follow(&process).expect("a journal that begins");
        assert!(mirror.durable() > Position(0), "a term has begun");
        // As the next start would find it.
        let recovered = Recovered { position: mirror.durable(), ..recovered };
        (process, recovered, mirror)
    }

    fn breaks(result: Result<(), Violation>, invariant: &str) {
        assert_eq!(result.expect_err("a bad history").invariant, invariant);
    }

    #[test]
    fn lost_durable_events_break_w1() {
        let (process, recovered, mut mirror) = started();
        mirror.compare(&process, &recovered).expect("all is there");
        mirror.promised(Position(recovered.position.0 + 1));
        breaks(mirror.compare(&process, &recovered), "W1");
    }

    #[test]
    fn a_batch_that_comes_twice_breaks_w2() {
        let (process, _, mut mirror) = started();
        breaks(mirror.take(process.stepped.read(Position(0))), "W2");
    }

    #[test]
    fn a_batch_that_is_not_what_it_was_breaks_w3() {
        let (process, recovered, mut mirror) = started();
        mirror.log[0].batch[0] ^= 1;
        breaks(mirror.compare(&process, &recovered), "W3");
    }

    #[test]
    fn a_state_that_is_not_the_fold_breaks_w6() {
        let (process, _, mut mirror) = started();
        mirror.compare_state(&process).expect("the fold of what was read");
        mirror.state = State::new();
        breaks(mirror.compare_state(&process), "W6");
    }

    #[test]
    fn a_journal_that_drops_unread_batches_breaks_w12() {
        let (_, _, mut mirror) = started();
        breaks(mirror.take(Ok(Read::Truncated(Position(9)))), "W12");
    }
}
