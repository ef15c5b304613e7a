//! The contracts of an engine: journal, snapshots and logs.
//!
//! Every call blocks until it has its answer; the node gives each engine a thread of its own. Losing a
//! race is an answer ([`Appended::Conflict`]), and so is not knowing ([`Appended::Unknown`]); an [`Error`]
//! means that the engine cannot go on.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use orchestrix_core::{LeaseId, Position, TaskId, Term};

/// The largest chunk of a snapshot, in bytes. Bounds memory on both sides and the pause between two chunks.
pub const SNAPSHOT_CHUNK_MAX: usize = 4 << 20;

/// Tasks that are listed at once when all are wanted.
const LISTED_TASKS: usize = 1_000;

/// Names one journal for ever: 16 random bytes, drawn when it was created.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JournalId(pub [u8; 16]);

/// The first 16 bytes of the BLAKE3 hash of a batch, which covers the hash of the batch before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ChainHash(pub [u8; 16]);

/// The end of a journal, or of a part of it: what the next batch must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Link {
    /// The position of the last event; 0 when there is none.
    pub position: Position,
    pub hash: ChainHash,
}

/// Some events that were, or are to be, written together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub previous: Link,
    pub term: Term,
    /// How many events `records` holds; they stand at `previous.position + 1` and on.
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

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is durable, and the journal ends here now.
    Done(Link),
    /// `previous` is not the end of the journal; nothing was written. The end is here.
    Conflict(Link),
    /// It may or may not be durable. Only the identical batch may be sent next.
    Unknown,
}

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The batches that follow, in order, at least one. The first may begin at or before the position asked for.
    Batches(Vec<Batch>),
    /// There is nothing after the position asked for.
    End,
    /// What was asked for is gone: load a snapshot at or after this position.
    Truncated(Position),
}

/// How much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Whatever is appended next fits.
    Plenty,
    Short(Room),
}

/// What fits while room is short, in bytes of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// New work may take so much. Nothing while the reserve is being used: that is for what ends or frees work.
    pub new_work: u64,
    /// So much fits in all, the reserve included, if it comes in batches that fit.
    pub in_all: u64,
    /// The longest batch that fits without more room from the disk.
    pub batch: u64,
}

impl Space {
    /// Whether only what ends or frees work should be appended.
    #[must_use]
    pub fn is_reserve(self) -> bool {
        matches!(self, Self::Short(Room { new_work: 0, .. }))
    }
}

/// The ordered events of a domain, and the snapshots of what they amount to.
pub trait Journal: Send {
    fn id(&self) -> JournalId;

    /// The last durable batch, as far as this handle has heard.
    fn end(&self) -> Link;

    /// Asks where the journal ends now; somebody else may have written.
    ///
    /// # Errors
    /// Whatever keeps the engine from answering.
    fn refresh(&mut self) -> Result<Link, Error> {
        Ok(self.end())
    }

    /// Returns when there may be something after `after`, and at the latest when the time is over.
    ///
    /// # Errors
    /// Whatever keeps the engine from answering.
    fn wait(&self, after: Position, at_most: Duration) -> Result<(), Error> {
        let _ = after;
        std::thread::sleep(at_most.min(Duration::from_millis(10)));
        Ok(())
    }

    /// Appends durably, if and only if `batch.previous` is the end.
    ///
    /// # Errors
    /// After an error nothing may be appended any more; the process has to start again.
    fn append(&mut self, batch: &Batch) -> Result<Appended, Error>;

    /// How long it is worth waiting for more events before a batch is appended. An engine that takes long for a batch,
    /// or is paid by the batch, has a reason to say more than zero.
    fn linger(&self) -> Duration {
        Duration::ZERO
    }

    /// Reads batches with events after `after`, as many as fit `limit_bytes`, but at least one.
    ///
    /// # Errors
    /// Damage, and whatever keeps the engine from answering.
    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error>;

    /// Called when nothing was appended for a while (≤ 100 ms) and before a clean stop: the engine may
    /// note down how far it is durable.
    ///
    /// # Errors
    /// As for [`Journal::append`].
    fn rest(&mut self) -> Result<(), Error>;

    fn space(&self) -> Space;

    /// A handle for another thread that writes and reads snapshots while appends go on.
    fn snapshots(&self) -> Box<dyn Snapshots>;

    /// Drops batches that end at or before the older of the two newest snapshots; answers the new floor:
    /// nothing at or below it can be read any more. Where deleting takes long it may go on after the answer.
    ///
    /// # Errors
    /// Whatever keeps the engine from deleting.
    fn truncate(&mut self) -> Result<Position, Error>;
}

/// The snapshots beside a journal.
pub trait Snapshots: Send {
    /// Positions of the complete snapshots, newest first.
    ///
    /// # Errors
    /// Whatever keeps the engine from listing.
    fn list(&self) -> Result<Vec<Position>, Error>;

    /// Begins a snapshot of the state at `at`. Nothing of it is visible before [`SnapshotWriter::finish`].
    ///
    /// # Errors
    /// Whatever keeps the engine from writing.
    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error>;

    /// Opens a snapshot. Every chunk is checked before it is handed out.
    ///
    /// # Errors
    /// When it is not there or damaged.
    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error>;

    /// Removes all but the two newest complete snapshots, and what was left unfinished.
    ///
    /// # Errors
    /// Whatever keeps the engine from deleting.
    fn prune(&self) -> Result<(), Error>;
}

/// A snapshot being written. Dropped before `finish`, it leaves nothing that a reader would see.
pub trait SnapshotWriter: Send {
    /// # Errors
    /// Whatever keeps the engine from writing; the snapshot is then given up.
    fn chunk(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Makes it durable, then visible.
    ///
    /// # Errors
    /// As for [`SnapshotWriter::chunk`]. On a server whose replica may take over without the newest batches (Redis, SQL),
    /// also that the journal has no batch that ends where the snapshot stands: it would have older ones pruned that are
    /// needed.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

/// A snapshot being read.
pub trait SnapshotReader: Send {
    /// Where the journal goes on after this snapshot.
    fn link(&self) -> Link;

    /// The next chunk, or `None` after the last, when the whole was found complete.
    ///
    /// # Errors
    /// Damage, and whatever keeps the engine from reading.
    fn next(&mut self) -> Result<Option<Vec<u8>>, Error>;
}

/// Where a chunk of log lines goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlace {
    pub task: TaskId,
    /// So many chunks of the task are stored before it, as the caller knows.
    pub number: usize,
    pub lease: LeaseId,
    /// Counts the lines of this lease before this chunk.
    pub offset: u64,
}

impl LogPlace {
    /// Where the first chunk of a task goes.
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

/// What became of a chunk of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logged {
    Stored,
    /// This (task, lease, offset) was there before, and is there as it was. Only if that was damaged, what
    /// came now took its place.
    Existed,
    /// Nothing was stored: the task does not have as many chunks as the caller knows of. Another node has appended, or
    /// deleted them.
    Conflict,
}

/// One stored chunk of log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    pub lease: LeaseId,
    /// Counts the lines of this lease before this chunk.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// Where a walk over the tasks that have lines goes on; only the engine that gave it out knows what it means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bookmark(pub u64);

/// The output of running tasks. Shared between threads; durable before it answers.
pub trait Logs: Send + Sync {
    /// Stores a chunk at (task, lease, offset), unless there is one already, behind the chunks that the caller knows of.
    ///
    /// The number is a fence: of two nodes that append to one task only one gets a number, so a late append never moves
    /// the chunks that another node stored and counted meanwhile.
    ///
    /// # Errors
    /// Whatever keeps the engine from writing. The chunk may be stored all the same, also later.
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error>;

    /// The chunks of a task in the order of their numbers, from the `skip`-th on, as many as fit
    /// `limit_bytes`, but at least one; none from a damaged one on.
    ///
    /// # Errors
    /// `Damaged` if the first of them is: the next one can be asked for all the same. And whatever keeps the
    /// engine from reading.
    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error>;

    /// Whether all that was ever stored has its place. If not, chunks may be missing without a trace: what
    /// names them is damaged.
    fn is_whole(&self) -> bool {
        true
    }

    /// Some of the tasks that have lines, about so many, and where to go on. A walk from the default bookmark to the
    /// end names every task that has lines all the while at least once, whatever else comes and goes.
    ///
    /// # Errors
    /// Whatever keeps the engine from listing.
    fn some_tasks(&self, from: Bookmark, about: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error>;

    /// All tasks that have lines, in order: after a crash some of them may not be known any more.
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

    /// Forgets all lines of these tasks.
    ///
    /// # Errors
    /// Whatever keeps the engine from deleting.
    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error>;
}

/// Why an engine cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {source}")]
pub struct Error {
    /// What was tried, as a phrase: "write journal segment 00000000000000000001.journal".
    pub operation: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    pub source: Cause,
}

/// The kinds of reasons.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Bytes that were durable are not what was written.
    #[error("{} is damaged at byte {offset}: {what}", path.display())]
    Damaged { path: PathBuf, offset: u64, what: String },
    /// Another process has the data folder.
    #[error("another process is using {} ({holder}); stop it, or choose another data folder", path.display())]
    InUse { path: PathBuf, holder: String },
    /// Written by a version that knows a format that this one does not.
    #[error("{} has format {found}, this version reads up to {known}; use a newer version", path.display())]
    UnknownFormat { path: PathBuf, found: u32, known: u32 },
    /// There is no room.
    #[error("no space left in {}", path.display())]
    Full { path: PathBuf },
    /// An engine elsewhere did not answer, or said no. Names the place, never a secret.
    #[error("{place}: {what}")]
    Remote { place: String, what: String },
    /// An earlier failure ended the use of this handle.
    #[error("stopped after an earlier failure")]
    Stopped,
}

impl Error {
    /// Whether a node that runs waits for it to pass. A password that changes, a right that was withdrawn or a server that
    /// only reads is wrong at the start; later it is something that people repair. Damage never passes.
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
