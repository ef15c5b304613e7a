//! The contracts without a disk: for tests, for trials, and as the simplest implementation of what an engine does.
//! Nothing survives the process.

mod bus;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrix_core::{LeaseId, Position, TaskId, is_planted};

pub use self::bus::{Fault, MemoryBus, Moment};
use crate::fault::invalid;
use crate::file::TASK_CHUNKS_MAX;
use crate::limit::fitting;
use crate::{
    Appended, BATCH_BYTES_MAX, Batch, Bookmark, Cell, Claim, Error, Journal, JournalId, Link, LogChunk,
    LogPlace, Logged, Logs, Read, Register, SNAPSHOT_CHUNK_MAX, Set, Shared, SnapshotReader, SnapshotWriter,
    Snapshots, Space, Version,
};

/// A journal in memory. Clones share one journal, as nodes share one engine.
#[derive(Clone, Debug)]
pub struct MemoryJournal {
    id: JournalId,
    inner: Arc<Mutex<Inner>>,
    snapshots: MemorySnapshots,
}

#[derive(Debug, Default)]
struct Inner {
    batches: Vec<Batch>,
    end: Link,
    floor: Position,
}

impl MemoryJournal {
    /// An empty journal. Two with the same id and the same batches have the same links.
    #[must_use]
    pub fn new(id: JournalId) -> Self {
        Self { id, inner: Arc::default(), snapshots: MemorySnapshots::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for MemoryJournal {
    fn id(&self) -> JournalId {
        self.id
    }

    fn end(&self) -> Link {
        self.inner().end
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        if batch.count == 0 || batch.records.len() > BATCH_BYTES_MAX {
            let why = format!("{} events in {} bytes is not a valid batch", batch.count, batch.records.len());
            return Err(invalid("append to the journal", why));
        }
        let link = batch.link(self.id);
        let mut inner = self.inner();
        if link == inner.end {
            return Ok(Appended::Done(link));
        }
        if batch.previous != inner.end {
            return Ok(Appended::Conflict(inner.end));
        }
        inner.batches.push(batch.clone());
        inner.end = link;
        Ok(Appended::Done(link))
    }

    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error> {
        let inner = self.inner();
        if after < inner.floor {
            return Ok(Read::Truncated(inner.floor));
        }
        let start = inner.batches.partition_point(|batch| batch.last() <= after);
        let rest = &inner.batches[start..];
        let count = fitting(rest.iter().map(|batch| batch.records.len()), limit_bytes);
        let found = rest[..count].to_vec();
        Ok(if found.is_empty() { Read::End } else { Read::Batches(found) })
    }

    fn rest(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn space(&self) -> Space {
        Space::Plenty
    }

    fn snapshots(&self) -> Box<dyn Snapshots> {
        Box::new(self.snapshots.clone())
    }

    fn truncate(&mut self) -> Result<Position, Error> {
        let older = self.snapshots.list()?.get(1).copied();
        let mut inner = self.inner();
        let needless = older.map_or(0, |older| inner.batches.partition_point(|batch| batch.last() <= older));
        if let Some(last) = needless.checked_sub(1) {
            inner.floor = inner.batches[last].last();
            inner.batches.drain(..needless);
        }
        Ok(inner.floor)
    }
}

/// The snapshots of a journal in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct MemorySnapshots {
    complete: Arc<Mutex<BTreeMap<Position, Snapshot>>>,
}

#[derive(Clone, Debug)]
struct Snapshot {
    link: Link,
    chunks: Arc<Vec<Vec<u8>>>,
}

impl MemorySnapshots {
    fn complete(&self) -> MutexGuard<'_, BTreeMap<Position, Snapshot>> {
        self.complete.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshots for MemorySnapshots {
    fn list(&self) -> Result<Vec<Position>, Error> {
        Ok(self.complete().keys().rev().copied().collect())
    }

    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error> {
        Ok(Box::new(Writer { snapshots: self.clone(), link: at, chunks: Vec::new() }))
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error> {
        match self.complete().get(&at) {
            Some(snapshot) => Ok(Box::new(Reader { snapshot: snapshot.clone(), next: 0 })),
            None => Err(invalid("open snapshot", format!("no snapshot at position {at}"))),
        }
    }

    fn prune(&self) -> Result<(), Error> {
        let mut complete = self.complete();
        while complete.len() > 2 {
            complete.pop_first();
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Writer {
    snapshots: MemorySnapshots,
    link: Link,
    chunks: Vec<Vec<u8>>,
}

impl SnapshotWriter for Writer {
    fn chunk(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > SNAPSHOT_CHUNK_MAX {
            let why = format!("chunk of {} bytes exceeds the limit of {SNAPSHOT_CHUNK_MAX}", bytes.len());
            return Err(invalid("write snapshot", why));
        }
        self.chunks.push(bytes.to_vec());
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let snapshot = Snapshot { link: self.link, chunks: Arc::new(self.chunks) };
        self.snapshots.complete().insert(self.link.position, snapshot);
        Ok(())
    }
}

#[derive(Debug)]
struct Reader {
    snapshot: Snapshot,
    next: usize,
}

impl SnapshotReader for Reader {
    fn link(&self) -> Link {
        self.snapshot.link
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let chunk = self.snapshot.chunks.get(self.next).cloned();
        self.next += 1;
        Ok(chunk)
    }
}

/// Task logs in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct MemoryLogs {
    tasks: Arc<Mutex<BTreeMap<TaskId, TaskLog>>>,
}

#[derive(Debug, Default)]
struct TaskLog {
    chunks: Vec<LogChunk>,
    places: BTreeSet<(LeaseId, u64)>,
}

impl MemoryLogs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<TaskId, TaskLog>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Logs for MemoryLogs {
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error> {
        let LogPlace { task, number, lease, offset } = at;
        let mut tasks = self.lock();
        let stored = tasks.get(&task).map_or(0, |log| log.chunks.len());
        if tasks.get(&task).is_some_and(|log| log.places.contains(&(lease, offset))) {
            return Ok(Logged::Existed);
        }
        if stored != number && !is_planted("output-unfenced") {
            return Ok(Logged::Conflict);
        }
        let log = tasks.entry(task).or_default();
        if log.chunks.len() >= TASK_CHUNKS_MAX {
            let why = format!("task {task} has reached the limit of {TASK_CHUNKS_MAX} chunks");
            return Err(invalid("write task log", why));
        }
        log.places.insert((lease, offset));
        log.chunks.push(LogChunk { lease, offset, bytes: bytes.to_vec() });
        Ok(Logged::Stored)
    }

    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error> {
        let tasks = self.lock();
        let Some(log) = tasks.get(&task) else { return Ok(Vec::new()) };
        let rest = log.chunks.get(skip..).unwrap_or_default();
        let count = fitting(rest.iter().map(|chunk| chunk.bytes.len()), limit_bytes);
        Ok(rest[..count].to_vec())
    }

    fn some_tasks(&self, from: Bookmark, about: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error> {
        let tasks = self.lock();
        let some: Vec<TaskId> = tasks.range(TaskId(from.0)..).map(|(task, _)| *task).take(about).collect();
        let next = some.last().filter(|_| some.len() == about).map(|last| Bookmark(last.0 + 1));
        Ok((some, next))
    }

    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error> {
        let mut all = self.lock();
        for task in tasks {
            all.remove(task);
        }
        Ok(())
    }
}

/// A whole engine in memory, for nodes in one process. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryPlace {
    journal: MemoryJournal,
    register: MemoryRegister,
    logs: Arc<MemoryLogs>,
}

impl MemoryPlace {
    #[must_use]
    pub fn new(id: JournalId) -> Self {
        Self { journal: MemoryJournal::new(id), register: MemoryRegister::default(), logs: Arc::default() }
    }
}

impl Shared for MemoryPlace {
    fn journal(&self) -> Result<Box<dyn Journal>, Error> {
        Ok(Box::new(self.journal.clone()))
    }

    fn register(&self) -> Arc<dyn Register> {
        Arc::new(self.register.clone())
    }

    fn logs(&self) -> Arc<dyn Logs> {
        Arc::<MemoryLogs>::clone(&self.logs)
    }

    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn warnings(&self) -> Vec<String> {
        vec!["data is kept in memory only and is lost when the process ends".to_owned()]
    }
}

/// A register in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryRegister {
    cells: Arc<Mutex<Cells>>,
}

#[derive(Debug, Default)]
struct Cells {
    by_key: BTreeMap<String, Cell>,
    writes: u64,
}

impl MemoryRegister {
    fn lock(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Register for MemoryRegister {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        Ok(self.lock().by_key.get(key).cloned())
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        let mut cells = self.lock();
        let current = cells.by_key.get(key);
        if current.map(|cell| &cell.version) != seen {
            return Ok(Set::Conflict(current.cloned()));
        }
        cells.writes += 1;
        let version = Version(cells.writes.to_string());
        cells.by_key.insert(key.to_owned(), Cell { version: version.clone(), claim: claim.clone() });
        Ok(Set::Done(version))
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        let mut cells = self.lock();
        if cells.by_key.get(key).is_some_and(|cell| cell.version == *seen) {
            cells.by_key.remove(key);
        }
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        let cells = self.lock();
        let from = cells.by_key.range(prefix.to_owned()..);
        let found = from.take_while(|(key, _)| key.starts_with(prefix));
        Ok(found.map(|(key, cell)| (key.clone(), cell.clone())).collect())
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(10)
    }
}
