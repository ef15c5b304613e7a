//! The handles that a node has of the simulated engine; the real code uses them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrix_core::{Position, TaskId};
use orchestrix_engine::{
    Appended, BATCH_BYTES_MAX, Batch, Bookmark, Cause, Cell, Claim, Error, Journal, JournalId, Link,
    LogChunk, LogPlace, Logged, Logs, Read, Register, SNAPSHOT_CHUNK_MAX, Set, Shared, SnapshotReader,
    SnapshotWriter, Snapshots, Space, Version,
};

use crate::cluster::engine::{Flavour, Model, Snapshot, Try, Who};

/// A connection of one life of a node.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    model: Arc<Mutex<Model>>,
    who: Who,
    poll_interval: Duration,
}

pub(crate) fn lock(model: &Mutex<Model>) -> MutexGuard<'_, Model> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No answer; a later request may get one.
pub(crate) fn unreachable(operation: &str) -> Error {
    let source = Cause::Remote { place: PLACE.to_owned(), what: "nobody answers".to_owned() };
    Error { operation: operation.to_owned(), retryable: true, source }
}

/// The engine says no, and has done nothing: as one that only reads, or has no room for a client.
pub(crate) fn refused(operation: &str) -> Error {
    let source = Cause::Remote { place: PLACE.to_owned(), what: "not now".to_owned() };
    Error { operation: operation.to_owned(), retryable: false, source }
}

/// It will never be answered otherwise: another journal is there, or what was asked makes no sense.
fn exchanged(operation: &str) -> Error {
    let (path, what) = (PathBuf::from(PLACE), "it is another journal now".to_owned());
    let source = Cause::Damaged { path, offset: 0, what };
    Error { operation: operation.to_owned(), retryable: false, source }
}

const PLACE: &str = "sim://engine";

impl Connection {
    pub(crate) fn new(model: Arc<Mutex<Model>>, who: Who, poll_interval: Duration) -> Self {
        Self { model, who, poll_interval }
    }

    /// The engine, if this node reaches it.
    fn reached(&self, operation: &str) -> Result<MutexGuard<'_, Model>, Error> {
        let mut model = lock(&self.model);
        let flaky = model.flaky;
        let answers = model.reaches(self.who.node) && !model.rng.chance(flaky);
        match answers {
            true if model.refuses => Err(refused(operation)),
            true => Ok(model),
            false => Err(unreachable(operation)),
        }
    }

    /// The engine, if it still has the journal.
    fn with(&self, id: JournalId, operation: &str) -> Result<MutexGuard<'_, Model>, Error> {
        let model = self.reached(operation)?;
        if model.id() == id { Ok(model) } else { Err(exchanged(operation)) }
    }
}

impl Shared for Connection {
    fn journal(&self) -> Result<Box<dyn Journal>, Error> {
        let model = self.reached("open the journal")?;
        Ok(Box::new(SimJournal { connection: self.clone(), id: model.id(), end: model.end() }))
    }

    fn register(&self) -> Arc<dyn Register> {
        Arc::new(self.clone())
    }

    fn logs(&self) -> Arc<dyn Logs> {
        Arc::new(self.clone())
    }

    fn place(&self) -> String {
        PLACE.to_owned()
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Register for Connection {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        Ok(self.reached("read a cell")?.cell(key).map(|stored| stored.cell.clone()))
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        Ok(self.reached("write a cell")?.set(self.who, key, seen, claim, Try::First).0)
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        self.reached("remove a cell")?.remove(key, seen);
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        let model = self.reached("list cells")?;
        let found = model.cells().filter(|(key, _)| key.starts_with(prefix));
        Ok(found.map(|(key, stored)| (key.clone(), stored.cell.clone())).collect())
    }

    fn poll_interval(&self) -> Duration {
        self.poll_interval
    }
}

/// Lost, answered and not heard, or late: as requests to servers are.
impl Logs for Connection {
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error> {
        let mut model = self.reached("store output")?;
        let output = &mut model.output;
        let [lost, unheard, delayed] = output.faults;
        if output.rng.chance(lost) {
            return Err(unreachable("store output"));
        }
        if output.rng.chance(delayed) {
            output.late.push((at, bytes.to_vec()));
            return Err(unreachable("store output"));
        }
        let logged = output.logs.append(at, bytes)?;
        if output.rng.chance(unheard) { Err(unreachable("store output")) } else { Ok(logged) }
    }

    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error> {
        self.reached("read output")?.output.logs.read(task, skip, limit_bytes)
    }

    fn some_tasks(&self, from: Bookmark, about: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error> {
        self.reached("list output")?.output.logs.some_tasks(from, about)
    }

    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error> {
        self.reached("delete output")?.output.logs.delete(tasks)
    }
}

/// A handle of the journal. Like those of real servers it knows the end as it last heard of it.
#[derive(Debug)]
struct SimJournal {
    connection: Connection,
    id: JournalId,
    end: Link,
}

impl Journal for SimJournal {
    fn id(&self) -> JournalId {
        self.id
    }

    fn end(&self) -> Link {
        self.end
    }

    fn refresh(&mut self) -> Result<Link, Error> {
        self.end = self.connection.with(self.id, "ask for the end")?.end();
        Ok(self.end)
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        if batch.count == 0 || batch.records.len() > BATCH_BYTES_MAX {
            return Err(exchanged("append what is no batch"));
        }
        let mut model = self.connection.with(self.id, "append to the journal")?;
        let appended = model.append(batch);
        if let Appended::Done(_) = appended {
            model.direct.push((self.connection.who, batch.clone()));
        }
        self.end = model.end();
        Ok(appended)
    }

    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error> {
        Ok(self.connection.with(self.id, "read the journal")?.read(after, limit_bytes))
    }

    fn rest(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn space(&self) -> Space {
        Space::Plenty
    }

    fn snapshots(&self) -> Box<dyn Snapshots> {
        Box::new(SimSnapshots { connection: self.connection.clone(), id: self.id })
    }

    fn truncate(&mut self) -> Result<Position, Error> {
        Ok(self.connection.with(self.id, "truncate the journal")?.truncate())
    }
}

#[derive(Clone, Debug)]
struct SimSnapshots {
    connection: Connection,
    id: JournalId,
}

impl Snapshots for SimSnapshots {
    fn list(&self) -> Result<Vec<Position>, Error> {
        let model = self.connection.with(self.id, "list snapshots")?;
        Ok(model.snapshots.keys().rev().copied().collect())
    }

    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error> {
        Ok(Box::new(Writing { snapshots: self.clone(), link: at, chunks: Vec::new() }))
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error> {
        let model = self.connection.with(self.id, "open a snapshot")?;
        let found = model.snapshots.get(&at).cloned();
        let snapshot = found.ok_or_else(|| exchanged("open a snapshot"))?;
        Ok(Box::new(Reading { snapshot, next: 0 }))
    }

    fn prune(&self) -> Result<(), Error> {
        let mut model = self.connection.with(self.id, "prune snapshots")?;
        while model.snapshots.len() > 2 {
            model.snapshots.pop_first();
        }
        Ok(())
    }
}

struct Writing {
    snapshots: SimSnapshots,
    link: Link,
    chunks: Vec<Vec<u8>>,
}

impl SnapshotWriter for Writing {
    fn chunk(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > SNAPSHOT_CHUNK_MAX {
            return Err(exchanged("write a chunk that is too long"));
        }
        self.chunks.push(bytes.to_vec());
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Self { snapshots, link, chunks } = *self;
        let mut model = snapshots.connection.with(snapshots.id, "finish a snapshot")?;
        if model.flavour() != Flavour::S3 && model.link_at(link.position) != Some(link) {
            return Err(exchanged("finish a snapshot"));
        }
        let bytes: usize = chunks.iter().map(Vec::len).sum();
        model.largest_snapshot = model.largest_snapshot.max(bytes as u64);
        model.snapshots.insert(link.position, Snapshot { link, chunks: Arc::new(chunks) });
        Ok(())
    }
}

struct Reading {
    snapshot: Snapshot,
    next: usize,
}

impl SnapshotReader for Reading {
    fn link(&self) -> Link {
        self.snapshot.link
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        self.next += 1;
        Ok(self.snapshot.chunks.get(self.next - 1).cloned())
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_engine::suite;

    use super::*;
    use crate::rng::Rng;

    /// A new engine; every call connects another node.
    fn place(flavour: Flavour) -> impl Fn() -> Arc<dyn Shared> {
        let model = Model::new(flavour, 0, false, Rng::new(1));
        let model = Arc::new(Mutex::new(model));
        let nodes = std::cell::Cell::new(0);
        move || {
            nodes.set(nodes.get() + 1);
            let who = Who { node: nodes.get(), life: 1 };
            let connection = Connection::new(Arc::clone(&model), who, Duration::from_millis(20));
            Arc::new(connection)
        }
    }

    #[test]
    fn the_model_of_every_engine_keeps_the_contracts() {
        for flavour in [Flavour::Redis, Flavour::Sql, Flavour::S3] {
            let mut journal = || place(flavour)().journal().unwrap();
            suite::journal(&mut journal);
            suite::snapshots(&mut journal);
            if flavour != Flavour::S3 {
                suite::a_snapshot_that_stands_on_no_batch_is_refused(&mut journal);
            }
            suite::shared(&mut || Box::new(place(flavour)));
            suite::register(&mut |handles| {
                let connect = place(flavour);
                (0..handles).map(|_| connect().register()).collect()
            });
        }
    }

    #[test]
    fn the_models_answer_the_script_as_their_servers_do() {
        assert_eq!(suite::transcript(&place(Flavour::Redis)), suite::REDIS_ANSWERS);
        assert_eq!(suite::transcript(&place(Flavour::Sql)), suite::SQL_ANSWERS);
        assert_eq!(suite::transcript(&place(Flavour::S3)), suite::S3_ANSWERS);
    }
}
