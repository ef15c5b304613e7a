//! Snapshots while the loop runs: it hands out pieces between its steps, and a thread writes them, many in a chunk.

use std::ops::ControlFlow;

use orchestrix_core::{Position, State};
use orchestrix_engine::{Cause, Error, Link, SNAPSHOT_CHUNK_MAX, SnapshotWriter, Snapshots};

use crate::inbox::Inbox;
use crate::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

/// Tasks of one step. Bounds the pause of the loop: about a tenth of a millisecond.
const STEP_TASKS: usize = 200;
/// Bytes of one step, plus at most one task.
const STEP_BYTES: usize = 256 << 10;
const _: () = assert!(STEP_BYTES + (1 << 20) < SNAPSHOT_CHUNK_MAX, "a chunk may end with the largest task");
/// Bytes of a chunk that pieces share. Each chunk is a request and a sync for most engines, so there should be few; and
/// an append to the same server waits behind one.
const CHUNK_BYTES: usize = 1 << 20;
/// Pieces that wait for the disk. Bounds memory.
const PIECES_WAITING: usize = 16;

/// When the next snapshot is due, and the one under way.
pub(crate) struct SnapshotPlan {
    /// Bytes of journal after which one is taken.
    every_bytes: u64,
    last: LastSnapshot,
    /// Bytes of journal, of those since the last one, that the one under way covers.
    covered_bytes: u64,
    /// After one that failed: no other is begun before there is so much journal since the last one.
    retry_bytes: u64,
    /// A capture that waits for the group it ends with to be durable: its position and first chunk.
    pub(crate) begun: Option<(Position, Vec<u8>)>,
    pub(crate) under_way: Option<Snapshotting>,
}

/// The last complete snapshot, of any node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastSnapshot {
    /// Bytes of journal since it, or since the beginning.
    pub(crate) since_bytes: u64,
    /// Bytes of it, if they are known.
    pub(crate) bytes: u64,
}

impl SnapshotPlan {
    pub(crate) fn new(every_bytes: u64, last: LastSnapshot) -> Self {
        Self { every_bytes, last, covered_bytes: 0, retry_bytes: 0, begun: None, under_way: None }
    }

    /// Never before twice as much was written as the last one took: no more than half as much is written for snapshots
    /// as for the journal.
    fn threshold(&self) -> u64 {
        self.every_bytes.max(2 * self.last.bytes)
    }

    pub(crate) fn is_due(&self) -> bool {
        let idle = self.begun.is_none() && self.under_way.is_none();
        idle && self.last.since_bytes >= self.threshold().max(self.retry_bytes)
    }

    /// So much was added to the journal.
    pub(crate) fn wrote(&mut self, bytes: u64) {
        self.last.since_bytes += bytes;
    }

    /// A capture of everything up to a position has begun.
    pub(crate) fn begin(&mut self, at: Position, header: Vec<u8>) {
        self.covered_bytes = self.last.since_bytes;
        self.begun = Some((at, header));
    }

    /// The one under way is whole.
    pub(crate) fn finished(&mut self, bytes: u64) {
        self.last = LastSnapshot { since_bytes: self.last.since_bytes - self.covered_bytes, bytes };
        self.retry_bytes = 0;
    }

    /// The one under way is given up. What it should have covered still counts; the next try waits for a little more.
    pub(crate) fn failed(&mut self) {
        self.retry_bytes = self.last.since_bytes + self.threshold() / 4;
    }
}

/// What the loop hands to the thread.
#[derive(Debug)]
enum Piece {
    /// A chunk by itself.
    Header(Vec<u8>),
    /// Services or tasks, whole ones.
    Items(Vec<u8>),
    /// The snapshot is whole. Without this it is given up: a node that stops must not leave half a state.
    End,
}

/// The handle for the next snapshot; gone if the thread broke.
type Lent = Option<Box<dyn Snapshots>>;

/// The handle that was lent, and how it went.
type Done = (Box<dyn Snapshots>, Result<(), Error>);

/// A snapshot under way.
pub(crate) struct Snapshotting {
    /// `None` when everything was handed out.
    pieces: Option<SyncSender<Piece>>,
    done: Receiver<Done>,
    /// A piece that the thread had no room for yet.
    held: Option<Piece>,
    pub(crate) link: Link,
    pub(crate) bytes: u64,
}

/// The writing of a snapshot, for a thread of its own.
pub(crate) struct SnapshotJob {
    snapshots: Box<dyn Snapshots>,
    link: Link,
    pieces: Receiver<Piece>,
    finished: SyncSender<Done>,
    wake: Inbox,
    writer: Option<Box<dyn SnapshotWriter>>,
    /// The next chunk, as far as it was handed out.
    chunk: Vec<u8>,
}

impl SnapshotJob {
    /// Starts a thread that does it.
    pub(crate) fn spawn(mut self) {
        let thread = std::thread::Builder::new().name("orchestrix-snapshot".to_owned());
        let spawned = thread.spawn(move || {
            let result = loop {
                let piece = self.pieces.recv().map_err(|_| given_up());
                if let Some(result) = self.write(piece) {
                    break result;
                }
            };
            self.end(result);
        });
        if let Err(error) = spawned {
            // The handle went with the thread that did not start: there are no snapshots until the next start.
            tracing::error!(%error, "no thread to write a snapshot");
        }
    }

    /// Writes what was handed out so far. Gives itself back unless it has ended.
    pub(crate) fn step(mut self) -> Option<Self> {
        loop {
            let piece = match self.pieces.try_recv() {
                Ok(piece) => Ok(piece),
                Err(TryRecvError::Empty) => return Some(self),
                Err(TryRecvError::Disconnected) => Err(given_up()),
            };
            if let Some(result) = self.write(piece) {
                self.end(result);
                return None;
            }
        }
    }

    /// Writes a piece; answers how it went if that was the last one.
    fn write(&mut self, piece: Result<Piece, Error>) -> Option<Result<(), Error>> {
        match piece.and_then(|piece| self.take(piece)) {
            Ok(ControlFlow::Continue(())) => None,
            Ok(ControlFlow::Break(())) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    }

    fn take(&mut self, piece: Piece) -> Result<ControlFlow<()>, Error> {
        match piece {
            Piece::Header(header) => {
                self.writer.insert(self.snapshots.create(self.link)?).chunk(&header)?;
            }
            Piece::Items(items) => {
                if self.chunk.len() + items.len() > CHUNK_BYTES {
                    self.write_chunk()?;
                }
                self.chunk.extend_from_slice(&items);
            }
            Piece::End => {
                self.write_chunk()?;
                self.writer.take().expect("a header came first").finish()?;
                self.snapshots.prune()?;
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn write_chunk(&mut self) -> Result<(), Error> {
        if !self.chunk.is_empty() {
            self.writer.as_mut().expect("a header came first").chunk(&self.chunk)?;
            self.chunk.clear();
        }
        Ok(())
    }

    fn end(self, result: Result<(), Error>) {
        let Self { snapshots, finished, wake, writer, pieces, .. } = self;
        drop((writer, pieces));
        // The channel is closed only when the node stops.
        let _ = finished.send((snapshots, result));
        wake.wake();
    }
}

impl Snapshotting {
    /// Begins a snapshot of the state at `link`; `header` is its first chunk.
    pub(crate) fn begin(
        snapshots: Box<dyn Snapshots>,
        link: Link,
        header: Vec<u8>,
        wake: Inbox,
    ) -> (Self, SnapshotJob) {
        let (pieces, received) = sync_channel(PIECES_WAITING);
        let (finished, done) = sync_channel(1);
        let job = SnapshotJob {
            snapshots,
            link,
            pieces: received,
            finished,
            wake,
            writer: None,
            chunk: Vec::new(),
        };
        (Self { pieces: Some(pieces), done, held: Some(Piece::Header(header)), link, bytes: 0 }, job)
    }

    /// Hands some more of the state to the thread, if it has room. Answers whether it took it.
    pub(crate) fn step(&mut self, state: &mut State) -> bool {
        let Some(pieces) = &self.pieces else { return false };
        let piece = self.held.take().unwrap_or_else(|| next_piece(state));
        let (bytes, last) = match &piece {
            Piece::Header(bytes) | Piece::Items(bytes) => (bytes.len() as u64, false),
            Piece::End => (0, true),
        };
        match pieces.try_send(piece) {
            Ok(()) => {
                self.bytes += bytes;
                if last {
                    self.pieces = None;
                }
                true
            }
            Err(TrySendError::Full(piece)) => {
                self.held = Some(piece);
                false
            }
            Err(TrySendError::Disconnected(_)) => {
                self.pieces = None;
                false
            }
        }
    }

    /// Ends it without a snapshot, and waits until its thread has let go of everything.
    pub(crate) fn give_up(self) {
        drop(self.pieces);
        // Whether it failed or was just finished does not matter any more.
        let _ = self.done.recv();
    }

    /// Whether there is more to hand out.
    pub(crate) fn is_handing_out(&self) -> bool {
        self.pieces.is_some()
    }

    /// The end of it, if it has come, and the handle for the next one, unless the thread broke.
    pub(crate) fn result(&mut self) -> Option<(Lent, Result<(), Error>)> {
        match self.done.try_recv() {
            Ok((snapshots, result)) => Some((Some(snapshots), result)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some((None, Err(given_up()))),
        }
    }
}

fn next_piece(state: &mut State) -> Piece {
    let mut items = Vec::with_capacity(STEP_BYTES / 4);
    state.step_capture(STEP_TASKS, STEP_BYTES, &mut items);
    if items.is_empty() { Piece::End } else { Piece::Items(items) }
}

fn given_up() -> Error {
    Error { operation: "write a snapshot".to_owned(), retryable: true, source: Cause::Stopped }
}

#[cfg(test)]
mod tests {
    use orchestrix_core::{Json, Name, SnapshotLoader, TaskCreated, Timestamp};
    use orchestrix_engine::memory::MemoryPlace;
    use orchestrix_engine::{JournalId, Shared as _};

    use super::*;
    use crate::inbox::inbox;

    /// A state with so many waiting tasks, each with a payload of so many bytes.
    fn state_with(tasks: usize, payload: usize) -> State {
        let payload = Json::parse(&format!("\"{}\"", "x".repeat(payload - 2))).unwrap();
        let mut state = State::new();
        for _ in 0..tasks {
            let created = TaskCreated {
                queue: Name::new("q").unwrap(),
                payload: payload.clone(),
                priority: 0,
                not_before: Timestamp(0),
                max_attempts: 3,
                key: None,
                timeout_ms: None,
                ttl_at: None,
                backoff: None,
            };
            state.apply(Timestamp(1), created.into());
        }
        state
    }

    /// The chunks that an engine gets to store.
    fn chunks_of(state: &mut State) -> Vec<Vec<u8>> {
        let journal = MemoryPlace::new(JournalId([5; 16])).journal().unwrap();
        let link = Link { position: state.position(), ..Link::default() };
        let (wake, _woken) = inbox(1);
        let header = state.begin_capture();
        let (mut under_way, job) = Snapshotting::begin(journal.snapshots(), link, header, wake);
        let mut job = Some(job);
        while under_way.is_handing_out() {
            under_way.step(state);
            job = job.and_then(SnapshotJob::step);
        }
        let (_, result) = under_way.result().unwrap();
        result.unwrap();
        let mut reader = journal.snapshots().open(link.position).unwrap();
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    #[test]
    fn a_snapshot_is_due_after_enough_journal_bytes() {
        let due = |since_bytes, last_bytes| {
            SnapshotPlan::new(100, LastSnapshot { since_bytes, bytes: last_bytes }).is_due()
        };
        assert!(!due(99, 0) && due(100, 0));
        assert!(!due(99, 50) && due(100, 50));
        assert!(!due(101, 51) && due(102, 51));
        let mut begun = SnapshotPlan::new(100, LastSnapshot { since_bytes: 1_000, bytes: 0 });
        begun.begin(Position(1), Vec::new());
        assert!(!begun.is_due(), "one at a time");
    }

    #[test]
    fn only_a_whole_snapshot_resets_what_was_written() {
        let mut plan = SnapshotPlan::new(100, LastSnapshot { since_bytes: 100, bytes: 0 });
        plan.begin(Position(1), Vec::new());
        plan.begun = None;
        plan.wrote(10);
        plan.failed();
        plan.wrote(24);
        assert!(!plan.is_due(), "a failure is not repeated at once");
        plan.wrote(1);
        assert!(plan.is_due(), "135 bytes since the last one");
        plan.begin(Position(2), Vec::new());
        plan.begun = None;
        plan.wrote(30);
        plan.finished(40);
        plan.wrote(69);
        assert!(!plan.is_due(), "99 bytes since the last one");
        plan.wrote(1);
        assert!(plan.is_due());
    }

    #[test]
    fn small_pieces_share_a_chunk_and_large_ones_do_not() {
        for (tasks, payload) in [(0, 2), (1, 2), (10_000, 200), (3_000, 1_500), (7, 900 << 10)] {
            let mut state = state_with(tasks, payload);
            let (fingerprint, chunks) = (state.fingerprint(), chunks_of(&mut state));
            let mut loader = SnapshotLoader::new();
            chunks.iter().for_each(|chunk| loader.load(chunk).unwrap());
            assert_eq!(loader.finish().unwrap().fingerprint(), fingerprint);
            let sizes: Vec<usize> = chunks.iter().map(Vec::len).collect();
            let bytes: usize = sizes.iter().sum();
            assert!(sizes.iter().all(|size| *size <= CHUNK_BYTES), "{sizes:?}");
            // Two that follow each other are more than one, except for the header.
            assert!(sizes.len() <= 2 + 2 * bytes / CHUNK_BYTES, "{sizes:?}");
        }
    }
}
