//! The output of tasks: an object for each chunk, named by how many of its task were stored before it.
//!
//! A chunk is created under the number that its writer knows to be the next, or not at all. A node that appends has read
//! all that were stored before: so a place (lease and offset) that was stored once is found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orchestrix_core::{LeaseId, TaskId};

use super::keys::{Keys, number};
use super::record::{RECORD_BYTES_MORE, decode, encode, place};
use super::store::{Failure, LIST_MAX, Listed, Object, SharedStore};
use crate::fault::invalid;
use crate::file::TASK_CHUNKS_MAX;
use crate::limit::fitting;
use crate::{Bookmark, Error, LogChunk, LogPlace, Logged, Logs};

/// Tasks whose places are remembered. Bounds memory; of others they are read again.
const TASKS_MAX: usize = 4096;
/// Chunks that are looked at in one step on the way to the last.
const STEP_MAX: u64 = 32;
/// Chunks in one answer. Bounds what is read at once.
const READ_CHUNKS_MAX: usize = 512;

const DO_WRITE: &str = "write task log";
const DO_READ: &str = "read task log";
const DO_LIST: &str = "list task logs";
const DO_DELETE: &str = "delete task logs";

type Place = (LeaseId, u64);

/// The logs of all tasks.
#[derive(Debug)]
pub(super) struct S3Logs {
    store: SharedStore,
    keys: Arc<Keys>,
    known: Mutex<BTreeMap<TaskId, Known>>,
}

/// What is known to be stored of a task.
#[derive(Clone, Debug, Default)]
struct Known {
    /// All numbers below it are taken.
    next: u64,
    places: BTreeMap<Place, u64>,
}

impl S3Logs {
    pub(super) fn new(store: SharedStore, keys: Arc<Keys>) -> Self {
        Self { store, keys, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<TaskId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, task: TaskId, known: Known) {
        let mut all = self.known();
        if all.len() >= TASKS_MAX {
            all.clear();
        }
        // Another thread may have come further.
        if all.get(&task).is_none_or(|other| other.next <= known.next) {
            all.insert(task, known);
        }
    }

    /// Learns all chunks of a task that are stored.
    fn catch_up(&self, task: TaskId, known: &mut Known) -> Result<(), Failure> {
        let mut step = 1;
        loop {
            let names: Vec<_> =
                (known.next..known.next + step).map(|at| self.keys.log_chunk(task, at)).collect();
            for object in self.store.get_all(&names)? {
                let Some(object) = object else { return Ok(()) };
                known.take(task, &object);
            }
            step = (step * 2).min(STEP_MAX);
        }
    }

    /// There is a chunk already. It stays, unless it is damaged.
    fn keep_or_mend(&self, task: TaskId, number: u64, record: &[u8]) -> Result<Option<Logged>, Failure> {
        let name = self.keys.log_chunk(task, number);
        let Some(there) = self.store.get(&name)? else { return Ok(None) };
        if decode(task, &there.bytes).is_some() {
            return Ok(Some(Logged::Existed));
        }
        match self.store.replace(&name, &there.etag, record) {
            // Another node has repaired it.
            Ok(_) | Err(Failure::Unmet | Failure::Contested) => Ok(Some(Logged::Existed)),
            Err(failure @ (Failure::Unsent(_) | Failure::Refused(_) | Failure::Lost(_))) => Err(failure),
        }
    }

    /// Stores a chunk under its number, unless its place or its number is taken; `None` if there is no number left.
    fn store(&self, at: LogPlace, record: &[u8], known: &mut Known) -> Result<Option<Logged>, Failure> {
        let LogPlace { task, number, lease, offset } = at;
        let wanted = number as u64;
        if known.next != wanted {
            // Another node has appended to it, or deleted it.
            *known = Known::default();
            self.catch_up(task, known)?;
        }
        loop {
            if let Some(number) = known.places.get(&(lease, offset)).copied() {
                if let Some(logged) = self.keep_or_mend(task, number, record)? {
                    return Ok(Some(logged));
                }
                // Deleted by another node: it begins again.
                *known = Known::default();
                self.catch_up(task, known)?;
                continue;
            }
            if known.next != wanted {
                return Ok(Some(Logged::Conflict));
            }
            if known.next >= TASK_CHUNKS_MAX as u64 {
                return Ok(None);
            }
            match self.store.create(&self.keys.log_chunk(task, wanted), record) {
                Ok(_) => {
                    known.places.insert((lease, offset), wanted);
                    known.next += 1;
                    return Ok(Some(Logged::Stored));
                }
                Err(Failure::Unmet | Failure::Contested) => self.catch_up(task, known)?,
                Err(failure @ (Failure::Unsent(_) | Failure::Refused(_) | Failure::Lost(_))) => {
                    return Err(failure);
                }
            }
        }
    }
}

impl Known {
    fn take(&mut self, task: TaskId, object: &Object) {
        // A chunk whose place cannot be read takes a number, and no place.
        if let Some(place) = place(task, &object.bytes) {
            self.places.entry(place).or_insert(self.next);
        }
        self.next += 1;
    }
}

impl Logs for S3Logs {
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error> {
        let LogPlace { task, lease, offset, .. } = at;
        let record = encode(task, lease, offset, bytes);
        let mut known = self.known().get(&task).cloned().unwrap_or_default();
        let stored = self.store(at, &record, &mut known);
        let logged = stored.map_err(|failure| self.store.error(DO_WRITE, failure))?;
        self.keep(task, known);
        logged.ok_or_else(|| {
            let why = format!("task {task} has reached the limit of {TASK_CHUNKS_MAX} chunks");
            invalid(DO_WRITE, why)
        })
    }

    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error> {
        let failed = |failure: Failure| self.store.error(DO_READ, failure);
        let listed = self.store.list(&self.keys.log(task), None, usize::MAX).map_err(failed)?;
        let rest = listed.get(skip..).unwrap_or_default();
        let rest = &rest[..rest.len().min(READ_CHUNKS_MAX)];
        let sizes = rest.iter().map(|listed| listed.size.saturating_sub(RECORD_BYTES_MORE));
        let names: Vec<String> =
            rest.iter().take(fitting(sizes, limit_bytes)).map(|listed| listed.name.clone()).collect();
        let objects = self.store.get_all(&names).map_err(failed)?;
        // What was deleted since it was listed is not there.
        let objects: Vec<(&String, Object)> =
            names.iter().zip(objects).filter_map(|(name, object)| Some((name, object?))).collect();
        let chunks: Vec<LogChunk> =
            objects.iter().map_while(|(_, object)| decode(task, &object.bytes)).collect();
        match objects.first() {
            Some((name, _)) if chunks.is_empty() => {
                Err(self.store.damaged(DO_READ, name, "checksum mismatch"))
            }
            Some(_) | None => Ok(chunks),
        }
    }

    fn some_tasks(&self, from: Bookmark, about: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error> {
        // Folders are not asked for: a store that has some keeps empty ones.
        let mut tasks = BTreeSet::new();
        let mut after = from.0.checked_sub(1).map(|task| self.keys.after_log(TaskId(task)));
        while tasks.len() < about {
            let listed = self.store.list(&self.keys.logs(), after.as_deref(), LIST_MAX);
            let listed = listed.map_err(|failure| self.store.error(DO_LIST, failure))?;
            let folder =
                |listed: &Listed| listed.name.rsplit_once('/').and_then(|(folder, _)| number(folder));
            tasks.extend(listed.iter().filter_map(folder).map(TaskId));
            match listed.last() {
                Some(last) if listed.len() == LIST_MAX => after = Some(last.name.clone()),
                Some(_) | None => return Ok((tasks.into_iter().collect(), None)),
            }
        }
        let next = tasks.last().map(|last| Bookmark(last.0.saturating_add(1)));
        Ok((tasks.into_iter().collect(), next))
    }

    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error> {
        let folders: Vec<String> = tasks.iter().map(|task| self.keys.log(*task)).collect();
        let deleted = self.store.clear(&folders);
        tasks.iter().for_each(|task| drop(self.known().remove(task)));
        deleted.map_err(|failure| self.store.error(DO_DELETE, failure))
    }
}
