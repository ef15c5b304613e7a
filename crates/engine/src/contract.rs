//! The contracts of an engine: journal, snapshots and logs.
//!
//! Every call blocks until it has a result; the node gives each engine a thread of its own. A lost race is a result
//! ([`Appended::Conflict`]), and so is an unknown outcome ([`Appended::Unknown`]); an [`Error`] means that the engine
//! cannot go on.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use orchestrix_core::{LeaseId, Position, TaskId, Term};

/// The largest chunk of a snapshot, in bytes. Bounds memory on both sides and the pause between two chunks.
pub const SNAPSHOT_CHUNK_MAX: usize = 4 << 20;

/// Tasks per page when all tasks are listed.
const LISTED_TASKS: usize = 1_000;

/// Identifies one journal: 16 random bytes, drawn when it was created.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JournalId(pub [u8; 16]);

/// The first 16 bytes of the BLAKE3 hash of a batch, which covers the hash of the batch before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ChainHash(pub [u8; 16]);

/// The end of a journal, or of a part of it: the position and hash that the next batch must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Link {
    /// The position of the last event; 0 when there is none.
    pub position: Position,
    pub hash: ChainHash,
}

/// Events that are written together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub previous: Link,
    pub term: Term,
    /// The number of events in `records`; the first is at `previous.position + 1`.
    pub count: u32,
    /// The encoded events. The engine does not look inside.
    pub records: Vec<u8>,
}

impl Batch {
    /// The position of the last event of this batch.
    #[must_use]
    pub fn last(&self) -> Position {
        Position(self.previous.position.0 + u64::from(self.count))
    }
}

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The batch is durable, and the journal ends here now.
    Done(Link),
    /// `previous` is not the end of the journal; nothing was written. Carries the actual end.
    Conflict(Link),
    /// The batch may or may not be durable. Only the identical batch may be sent next.
    Unknown,
}

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The batches that follow, in order, at least one. The first may begin at or before the position asked for.
    Batches(Vec<Batch>),
    /// There is nothing after the position asked for.
    End,
    /// The events asked for were dropped: load a snapshot at or after this position.
    Truncated(Position),
}

/// How much free space there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The next append fits, at any size.
    Plenty,
    Short(Room),
}

/// What fits while space is short, in bytes of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Room for new work. Zero while the reserve is in use: the reserve is for events that end or free work.
    pub new_work: u64,
    /// Room in all, the reserve included, if written in batches that fit.
    pub in_all: u64,
    /// The longest batch that fits without more space from the disk.
    pub batch: u64,
}

impl Space {
    /// Whether only events that end or free work should be appended.
    #[must_use]
    pub fn is_reserve(self) -> bool {
        matches!(self, Self::Short(Room { new_work: 0, .. }))
    }
}

/// The ordered events of a domain, and snapshots of their state.
pub trait Journal: Send {
    fn id(&self) -> JournalId;

    /// The last durable batch that this handle knows of.
    fn end(&self) -> Link;

    /// Reads the current end of the journal; another node may have written.
    ///
    /// # Errors
    /// When the engine cannot answer.
    fn refresh(&mut self) -> Result<Link, Error> {
        Ok(self.end())
    }

    /// Returns when there may be something after `after`, at the latest after `at_most`.
    ///
    /// # Errors
    /// When the engine cannot answer.
    fn wait(&self, after: Position, at_most: Duration) -> Result<(), Error> {
        let _ = after;
        std::thread::sleep(at_most.min(Duration::from_millis(10)));
        Ok(())
    }

    /// Appends durably, if and only if `batch.previous` is the end.
    ///
    /// # Errors
    /// After an error nothing more may be appended; the process has to restart.
    fn append(&mut self, batch: &Batch) -> Result<Appended, Error>;

    /// How long to wait for more events before a batch is appended. More than zero where a batch takes long or is charged
    /// for.
    fn linger(&self) -> Duration {
        Duration::ZERO
    }

    /// Reads batches with events after `after`, as many as fit `limit_bytes`, but at least one.
    ///
    /// # Errors
    /// `Damaged`, and when the engine cannot answer.
    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error>;

    /// Called when nothing was appended for a while (≤ 100 ms) and before a clean stop: the engine may record up to where
    /// it is durable.
    ///
    /// # Errors
    /// As for [`Journal::append`].
    fn rest(&mut self) -> Result<(), Error>;

    fn space(&self) -> Space;

    /// A handle for another thread that writes and reads snapshots while appends go on.
    fn snapshots(&self) -> Box<dyn Snapshots>;

    /// Drops batches that end at or before the older of the two newest snapshots; returns the new floor: nothing at or
    /// below it can be read any more. Where deleting takes long it may go on after the return.
    ///
    /// # Errors
    /// When the engine cannot delete.
    fn truncate(&mut self) -> Result<Position, Error>;
}

/// The snapshots beside a journal.
pub trait Snapshots: Send {
    /// Positions of the complete snapshots, newest first.
    ///
    /// # Errors
    /// When the engine cannot list.
    fn list(&self) -> Result<Vec<Position>, Error>;

    /// Begins a snapshot of the state at `at`. Nothing of it is visible before [`SnapshotWriter::finish`].
    ///
    /// # Errors
    /// When the engine cannot write.
    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error>;

    /// Opens a snapshot. Every chunk is checked before it is handed out.
    ///
    /// # Errors
    /// When it is not there or damaged.
    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error>;

    /// Removes all but the two newest complete snapshots, and unfinished ones.
    ///
    /// # Errors
    /// When the engine cannot delete.
    fn prune(&self) -> Result<(), Error>;
}

/// A snapshot being written. If dropped before `finish`, readers see nothing of it.
pub trait SnapshotWriter: Send {
    /// # Errors
    /// When the engine cannot write; the snapshot is then abandoned.
    fn chunk(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Makes the snapshot durable, then visible.
    ///
    /// # Errors
    /// As for [`SnapshotWriter::chunk`]. On a server whose replica may take over without the newest batches (Redis, SQL),
    /// also that the journal has no batch that ends where the snapshot stands: it would have older ones pruned that are
    /// needed.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

/// A snapshot being read.
pub trait SnapshotReader: Send {
    /// The position and hash that the batch after this snapshot follows.
    fn link(&self) -> Link;

    /// The next chunk, or `None` after the last, once the snapshot was found complete.
    ///
    /// # Errors
    /// `Damaged`, and when the engine cannot read.
    fn next(&mut self) -> Result<Option<Vec<u8>>, Error>;
}

/// Where a chunk of log lines is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlace {
    pub task: TaskId,
    /// How many chunks of the task are stored before it, as the caller knows.
    pub number: usize,
    pub lease: LeaseId,
    /// The number of lines of this lease before this chunk.
    pub offset: u64,
}

impl LogPlace {
    /// The place of the first chunk of a task.
    #[must_use]
    pub fn first(task: TaskId, lease: LeaseId) -> Self {
        Self { task, number: 0, lease, offset: 0 }
    }

    /// The `number`-th chunk of a task that has one lease and one line in each.
    #[must_use]
    pub fn nth(task: TaskId, lease: LeaseId, number: usize) -> Self {
        Self { task, number, lease, offset: number as u64 }
    }
}

/// The result of appending a chunk of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logged {
    Stored,
    /// This (task, lease, offset) was stored before and is unchanged. Only if the stored chunk was damaged, the new one
    /// replaced it.
    Existed,
    /// Nothing was stored: the task has another number of chunks than the caller knows of. Another node appended or
    /// deleted some.
    Conflict,
}

/// One stored chunk of log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    pub lease: LeaseId,
    /// The number of lines of this lease before this chunk.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// Where a scan over the tasks with log lines continues; opaque to all but the engine that issued it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bookmark(pub u64);

/// The output of running tasks. Shared between threads; a write is durable before it returns.
pub trait Logs: Send + Sync {
    /// Stores a chunk at (task, lease, offset) unless one is there already, after the chunks that the caller knows of.
    ///
    /// The number is a fence: of two nodes that append to one task only one gets a number, so a late append never moves
    /// the chunks that another node has stored and counted meanwhile.
    ///
    /// # Errors
    /// When the engine cannot write. The chunk may be stored all the same, even later.
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error>;

    /// The chunks of a task in the order of their numbers, from the `skip`-th on, as many as fit `limit_bytes`, but at
    /// least one. Stops before a damaged chunk.
    ///
    /// # Errors
    /// `Damaged` if the first chunk is damaged: the next one can still be read. And when the engine cannot read.
    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error>;

    /// Whether every chunk ever stored is accounted for. If not, chunks may be missing without a trace, because the
    /// index of them is damaged.
    fn is_whole(&self) -> bool {
        true
    }

    /// About `about` of the tasks with log lines, and where to continue. A scan from the default bookmark to the end
    /// returns every task that had lines all the while at least once, also if tasks are added or deleted meanwhile.
    ///
    /// # Errors
    /// When the engine cannot list.
    fn some_tasks(&self, from: Bookmark, about: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error>;

    /// All tasks with log lines, in order: after a crash some of them may be unknown to the state.
    ///
    /// # Errors
    /// As for [`Logs::some_tasks`].
    fn tasks(&self) -> Result<Vec<TaskId>, Error> {
        let (mut tasks, mut from) = (BTreeSet::new(), Some(Bookmark::default()));
        while let Some(bookmark) = from {
            let (some, next) = self.some_tasks(bookmark, LISTED_TASKS)?;
            tasks.extend(some);
            from = next;
        }
        Ok(tasks.into_iter().collect())
    }

    /// Deletes all lines of these tasks.
    ///
    /// # Errors
    /// When the engine cannot delete.
    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error>;
}

/// An engine failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {source}")]
pub struct Error {
    /// The operation that failed, as a phrase: "write journal segment 00000000000000000001.journal".
    pub operation: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    pub source: Cause,
}

/// Why an engine failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Bytes that were durable are not what was written.
    #[error("{} is damaged at byte {offset}: {what}", path.display())]
    Damaged { path: PathBuf, offset: u64, what: String },
    /// Another process uses the data folder.
    #[error("another process is using {} ({holder}); stop it, or choose another data folder", path.display())]
    InUse { path: PathBuf, holder: String },
    /// Written in a newer format than this version reads.
    #[error("{} has format {found}, this version reads up to {known}; use a newer version", path.display())]
    UnknownFormat { path: PathBuf, found: u32, known: u32 },
    /// No space left.
    #[error("no space left in {}", path.display())]
    Full { path: PathBuf },
    /// A remote engine did not answer, or refused. Names the place, never a secret.
    #[error("{place}: {what}")]
    Remote { place: String, what: String },
    /// An earlier failure ended the use of this handle.
    #[error("stopped after an earlier failure")]
    Stopped,
}

impl Error {
    /// Whether a running node waits for the failure to pass. A wrong password, a missing privilege or a read-only server is
    /// a mistake at the start; later, an operator may be repairing it. Damage never passes.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self.source {
            Cause::Remote { .. } => true,
            Cause::Io(_)
            | Cause::Damaged { .. }
            | Cause::InUse { .. }
            | Cause::UnknownFormat { .. }
            | Cause::Full { .. }
            | Cause::Stopped => self.retryable,
        }
    }
}

impl fmt::Debug for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
