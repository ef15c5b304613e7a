//! A commit group: what is decided together, written together, and answered after.

use orchestrix_core::{Event, Position, State, TaskId, Timestamp, Undecoded, encode_record};

use crate::bus::BusAnswer;
use crate::event_queues::EventQueues;
use crate::request::{Answer, Error};

/// Events of one group, plus at most one question's worth. Bounds the wait of the first answer in it, and the
/// time that the loop is at work without a look at the clock.
const EVENTS_MAX: u32 = 1_024;
/// Bytes of events of one group, plus at most one question's worth.
const BYTES_MAX: usize = 4 << 20;
/// What the answers of one group may weigh, plus at most one. Bounds what waits in memory while the disk is
/// slow, and how long looks keep the loop from decisions.
const WEIGHT_MAX: usize = 8_192;
/// Bytes that a group has room for because the last one had as many. Bounds what one event keeps in memory.
const ROOM_MAX: usize = 256 << 10;

/// What one round of decisions comes to.
#[derive(Debug)]
pub struct CommitGroup<R> {
    /// The position of its first event, or of the next one if it has none: it is written after all before that.
    pub first: Position,
    /// Written and synced first: the records of `count` events.
    pub records: Vec<u8>,
    pub count: u32,
    /// Of the tasks that these events name.
    pub(crate) queues: EventQueues,
    /// Sent after.
    pub replies: Vec<(R, Result<Answer, Error>)>,
    /// Purged tasks, whose output is deleted afterwards.
    pub purged: Vec<TaskId>,
    /// What its answers weigh, see [`weight`].
    weight: usize,
    /// Bytes of events that there is room for from the first one on, so that they are not moved.
    room: usize,
}

impl<R> Default for CommitGroup<R> {
    fn default() -> Self {
        let (records, replies, purged) = (Vec::new(), Vec::new(), Vec::new());
        let queues = EventQueues::default();
        Self { first: Position(0), records, count: 0, queues, replies, purged, weight: 0, room: 0 }
    }
}

impl<R> CommitGroup<R> {
    /// An empty one, which is probably as large once it is full.
    pub(crate) fn next(&self) -> Self {
        let room = if self.count == 0 { self.room } else { self.records.len().min(ROOM_MAX) };
        Self { room, ..Self::default() }
    }

    /// Takes an event that follows this state.
    pub(crate) fn record(&mut self, state: &State, at: Timestamp, event: &Event) {
        if self.count == 0 {
            self.records.reserve_exact(self.room);
        }
        self.queues.note(state, event);
        encode_record(state.format_of(event), at, event, &mut self.records);
        self.count += 1;
    }

    pub(crate) fn reply(&mut self, to: R, answer: Result<Answer, Error>) {
        self.weight += weight(&answer);
        self.replies.push((to, answer));
    }

    /// It is large enough: it should be written before more is decided.
    pub(crate) fn is_full(&self) -> bool {
        self.count >= EVENTS_MAX || self.records.len() >= BYTES_MAX || self.weight >= WEIGHT_MAX
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.replies.is_empty()
    }
}

/// Cuts records off so that those before fit so many bytes; one stays in any case. Gives back what was cut off, and how
/// many they are.
pub(crate) fn split_records(records: &mut Vec<u8>, fit_bytes: u64) -> (Vec<u8>, u32) {
    let (mut keep, mut kept, mut count) = (0, 0, 0);
    for record in Undecoded::new(records) {
        let bytes = record.expect("we have written it ourselves").bytes();
        count += 1;
        if kept + 1 == count && (kept == 0 || (keep + bytes) as u64 <= fit_bytes) {
            keep += bytes;
            kept = count;
        }
    }
    (records.split_off(keep), count - kept)
}

/// What an answer costs to find and to keep, in answers of one task.
fn weight(answer: &Result<Answer, Error>) -> usize {
    match answer {
        // A page can scan many tasks, even if few match.
        Ok(Answer::Tasks { tasks, .. }) => 1_000 + tasks.len(),
        Ok(Answer::Queues(list)) => 1 + list.queues.len(),
        Ok(Answer::Workers(list)) => 1 + list.workers.len(),
        Ok(Answer::Unknown(_)) => 1_000,
        Ok(Answer::Leases { leases, .. }) => 1 + leases.leases.len(),
        // Numbers in a row are cheaper than answers.
        Ok(Answer::Assignment(assignment)) => 1 + assignment.tokens.len() / 32,
        Ok(Answer::Service(service)) => 1 + service.shards.len() / 8,
        Ok(Answer::Services(list)) => 1 + list.services.len(),
        Ok(Answer::Bus(answer)) => match &**answer {
            BusAnswer::Done | BusAnswer::Joined(_) | BusAnswer::Gone => 1,
            BusAnswer::Pulled(pulled) => 1 + pulled.offers.len() + pulled.ended.len() + pulled.cancels.len(),
            BusAnswer::Heard(cancels) => 1 + cancels.len(),
            BusAnswer::Reported(reported) => 1 + reported.owned.len(),
        },
        Ok(
            Answer::Outcome { .. }
            | Answer::Batch(_)
            | Answer::Extended(_)
            | Answer::WorkerExtended(_)
            | Answer::Attempt(_)
            | Answer::Task(_)
            | Answer::Explanation(_)
            | Answer::Cluster(_),
        )
        | Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_core::{FIRST_FORMAT, TaskExpired};

    use super::*;

    #[test]
    fn records_are_cut_between_two_of_them() {
        let mut three = Vec::new();
        for task in 1..=3 {
            encode_record(FIRST_FORMAT, Timestamp(1), &TaskExpired { task: TaskId(task) }.into(), &mut three);
        }
        let one = three.len() / 3;
        let cut = |fit: usize| {
            let mut records = three.clone();
            let (rest, count) = split_records(&mut records, fit as u64);
            assert_eq!([records.as_slice(), &rest].concat(), three);
            assert_eq!(rest.len(), count as usize * one);
            count
        };
        assert_eq!((cut(3 * one), cut(3 * one - 1), cut(2 * one), cut(2 * one - 1)), (0, 1, 1, 2));
        assert_eq!((cut(one), cut(one - 1), cut(0)), (2, 2, 2), "one is tried in any case");
    }
}
