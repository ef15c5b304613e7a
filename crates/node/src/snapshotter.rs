//! Snapshots beside the loop: the loop hands out chunks between its turns, a thread writes them.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use orchestrix_core::State;
use orchestrix_engine::{Cause, Error, Link, SNAPSHOT_CHUNK_MAX, SnapshotWriter, Snapshots};

use crate::runner::Input;

/// Tasks of one step. Bounds the pause of the loop: about a tenth of a millisecond.
const STEP_TASKS: usize = 200;
/// Bytes of one step, plus at most one task.
const STEP_BYTES: usize = 256 << 10;
const _: () = assert!(STEP_BYTES + (1 << 20) < SNAPSHOT_CHUNK_MAX, "a chunk may end with the largest task");
/// Pieces that wait for the disk. Bounds memory.
const PIECES_WAITING: usize = 16;

/// What the loop hands to the thread.
#[derive(Debug)]
enum Piece {
    Chunk(Vec<u8>),
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
    wake: SyncSender<Input>,
    writer: Option<Box<dyn SnapshotWriter>>,
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
        let write = || -> Result<bool, Error> {
            let writer = match &mut self.writer {
                Some(writer) => writer,
                none => none.insert(self.snapshots.create(self.link)?),
            };
            match piece? {
                Piece::Chunk(chunk) => writer.chunk(&chunk).map(|()| false),
                Piece::End => {
                    let writer = self.writer.take().expect("it was just made sure");
                    writer.finish()?;
                    self.snapshots.prune().map(|()| true)
                }
            }
        };
        match write() {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    }

    fn end(self, result: Result<(), Error>) {
        let Self { snapshots, finished, wake, writer, pieces, .. } = self;
        drop((writer, pieces));
        // Nobody listens any more only when the node stops.
        let _ = finished.send((snapshots, result));
        let _ = wake.try_send(Input::Wake);
    }
}

impl Snapshotting {
    /// Begins a snapshot of the state at `link`; `header` is its first chunk.
    pub(crate) fn begin(
        snapshots: Box<dyn Snapshots>,
        link: Link,
        header: Vec<u8>,
        wake: SyncSender<Input>,
    ) -> (Self, SnapshotJob) {
        let (pieces, received) = sync_channel(PIECES_WAITING);
        let (finished, done) = sync_channel(1);
        let job = SnapshotJob { snapshots, link, pieces: received, finished, wake, writer: None };
        (Self { pieces: Some(pieces), done, held: Some(Piece::Chunk(header)), link, bytes: 0 }, job)
    }

    /// Hands some more of the state to the thread, if it has room. Answers whether it took it.
    pub(crate) fn step(&mut self, state: &mut State) -> bool {
        let Some(pieces) = &self.pieces else { return false };
        let piece = self.held.take().unwrap_or_else(|| next_piece(state));
        let (bytes, last) = match &piece {
            Piece::Chunk(chunk) => (chunk.len() as u64, false),
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
    let mut chunk = Vec::with_capacity(STEP_BYTES / 4);
    state.step_capture(STEP_TASKS, STEP_BYTES, &mut chunk);
    if chunk.is_empty() { Piece::End } else { Piece::Chunk(chunk) }
}

fn given_up() -> Error {
    Error { operation: "write a snapshot".to_owned(), retryable: true, source: Cause::Stopped }
}
