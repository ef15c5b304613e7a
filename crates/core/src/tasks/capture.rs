//! Tasks in a snapshot that is taken while they go on changing.
//!
//! Keys of purged tasks never change; those that are forgotten before their turn are kept for it. Tasks are written out in
//! the order of their ids, some at a time. A task that is about to change before its turn has come is written down as it
//! was first. So the items together are the tasks at the position where the capture began, whatever happened meanwhile.

use std::collections::{BTreeMap, VecDeque};

use super::keys::{Keys, Remembered};
use super::{Task, Tasks};
use crate::TaskId;
use crate::entity::Moment;
use crate::snapshot::{Room, Step, encode_item};

/// A capture under way.
#[derive(Debug)]
pub(super) struct Capture {
    /// Tasks up to this one belong to the snapshot.
    last: TaskId,
    /// Tasks up to this one are written out.
    reached: Option<TaskId>,
    /// Tasks that changed before their turn, as they were.
    saved: BTreeMap<TaskId, Task>,
    /// The number of the next key that is written out, and of the one after the last.
    keys: (u64, u64),
    /// Keys that were forgotten before their turn, in order.
    forgotten: VecDeque<Remembered>,
}

impl Capture {
    pub(super) fn begin(here: Moment, keys: &Keys) -> Self {
        let (saved, forgotten) = (BTreeMap::new(), VecDeque::new());
        Self { last: TaskId(here.position.0), reached: None, saved, keys: keys.numbers(), forgotten }
    }
}

impl Tasks {
    /// Writes some more keys or tasks.
    pub(super) fn capture_some(&mut self, room: Room, chunk: &mut Vec<u8>) -> Step {
        let Some(capture) = &mut self.capture else { return Step::Done };
        let mut written = 0;
        while capture.keys.0 < capture.keys.1 && written < room.items && chunk.len() < room.bytes {
            match capture.forgotten.pop_front() {
                Some(key) => encode_item(&key, chunk),
                None => encode_item(
                    self.remembered.get(capture.keys.0).expect("a key that was not forgotten"),
                    chunk,
                ),
            }
            capture.keys.0 += 1;
            written += 1;
        }
        if written > 0 || chunk.len() >= room.bytes {
            return Step::Full;
        }
        let mut current =
            self.all.after(capture.reached).take_while(|task| task.id <= capture.last).peekable();
        for _ in 0..room.items {
            let next = current.peek().map(|task| task.id);
            let saved = capture.saved.first_key_value().map(|(id, _)| *id);
            let Some(id) = next.into_iter().chain(saved).min() else {
                return Step::Done;
            };
            let task = if next == Some(id) { current.next() } else { None };
            match (capture.saved.remove(&id), task) {
                (Some(as_it_was), _) => encode_item(&as_it_was, chunk),
                (None, Some(task)) => encode_item(task, chunk),
                (None, None) => unreachable!("the id came from one of the two"),
            }
            capture.reached = Some(id);
            if chunk.len() >= room.bytes {
                break;
            }
        }
        Step::Full
    }

    /// Called when a key of a purged task was forgotten.
    pub(crate) fn save_key_for_capture(&mut self, number: u64, key: Remembered) {
        if let Some(capture) = &mut self.capture
            && (capture.keys.0..capture.keys.1).contains(&number)
        {
            capture.forgotten.push_back(key);
        }
    }

    /// Called before a task changes or goes.
    pub(crate) fn save_for_capture(&mut self, id: TaskId) {
        let Some(capture) = &mut self.capture else { return };
        if crate::is_planted("capture-misses-changes") {
            return;
        }
        let written = capture.reached.is_some_and(|reached| id <= reached);
        if written || id > capture.last || capture.saved.contains_key(&id) {
            return;
        }
        // A payload is shared, not copied.
        let task = self.all.get(id).expect("a task that changes is there").clone();
        capture.saved.insert(id, task);
    }
}
