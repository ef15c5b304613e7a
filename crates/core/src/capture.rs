//! A snapshot taken while the state goes on changing: exact at one position, in steps of bounded length.
//!
//! Services are few and written down at once. Keys of purged tasks never change; those that are forgotten before their turn
//! are kept for it. Tasks are written out in the order of their ids, some at a time. A task that is about to change before its
//! turn has come is written down as it was first. So the chunks together are the state at the position where
//! the capture began, whatever happened meanwhile.

use std::collections::{BTreeMap, VecDeque};

use crate::keys::Remembered;
use crate::snapshot::{Header, encode_key, encode_service, encode_task};
use crate::{State, Task, TaskId};

/// A capture under way.
#[derive(Debug)]
pub(crate) struct Capture {
    /// Tasks up to this one belong to the snapshot.
    last: TaskId,
    /// Tasks up to this one are written out.
    reached: Option<TaskId>,
    /// Tasks that changed before their turn, as they were.
    saved: BTreeMap<TaskId, Task>,
    /// Services as they were, in writing.
    services: VecDeque<Vec<u8>>,
    /// The number of the next key that is written out, and of the one after the last.
    keys: (u64, u64),
    /// Keys that were forgotten before their turn, in order.
    forgotten: VecDeque<Remembered>,
}

impl State {
    /// Begins a capture at the present position; answers its first chunk.
    ///
    /// # Panics
    /// When one is under way already.
    pub fn begin_capture(&mut self) -> Vec<u8> {
        assert!(self.capture.is_none(), "one capture at a time");
        let services = self.services.iter().map(|(name, service)| encode_service(name, service)).collect();
        let last = TaskId(self.position.0);
        let keys = self.remembered.numbers();
        let (saved, forgotten) = (BTreeMap::new(), VecDeque::new());
        self.capture = Some(Capture { last, reached: None, saved, services, keys, forgotten });
        Header::of(self).encode()
    }

    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.capture.is_some()
    }

    /// Writes some more keys or tasks to `chunk`, at most `tasks` of them and about `bytes` bytes. Answers whether
    /// there are more.
    pub fn step_capture(&mut self, tasks: usize, bytes: usize, chunk: &mut Vec<u8>) -> bool {
        let Some(capture) = &mut self.capture else { return false };
        // A large one has a chunk of its own.
        while let Some(service) = capture.services.front() {
            if !chunk.is_empty() && chunk.len() + service.len() > bytes {
                return true;
            }
            chunk.extend_from_slice(service);
            capture.services.pop_front();
        }
        let mut written = 0;
        while capture.keys.0 < capture.keys.1 && written < tasks && chunk.len() < bytes {
            match capture.forgotten.pop_front() {
                Some(key) => encode_key(&key, chunk),
                None => encode_key(
                    self.remembered.get(capture.keys.0).expect("a key that was not forgotten"),
                    chunk,
                ),
            }
            capture.keys.0 += 1;
            written += 1;
        }
        if written > 0 || chunk.len() >= bytes {
            return true;
        }
        let mut current =
            self.tasks.after(capture.reached).take_while(|task| task.id <= capture.last).peekable();
        for _ in 0..tasks {
            let next = current.peek().map(|task| task.id);
            let saved = capture.saved.first_key_value().map(|(id, _)| *id);
            let Some(id) = next.into_iter().chain(saved).min() else {
                drop(current);
                self.capture = None;
                return false;
            };
            let task = if next == Some(id) { current.next() } else { None };
            match (capture.saved.remove(&id), task) {
                (Some(as_it_was), _) => encode_task(&as_it_was, chunk),
                (None, Some(task)) => encode_task(task, chunk),
                (None, None) => unreachable!("the id came from one of the two"),
            }
            capture.reached = Some(id);
            if chunk.len() >= bytes {
                break;
            }
        }
        true
    }

    /// Gives the capture up.
    pub fn end_capture(&mut self) {
        self.capture = None;
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
        let task = self.tasks.get(id).expect("a task that changes is there").clone();
        capture.saved.insert(id, task);
    }
}
