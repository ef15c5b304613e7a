//! Loads the newest usable snapshot, while the leader takes others and prunes them.

use orchestrix_core::{Position, SnapshotLoader, State};
use orchestrix_engine::{Link, Snapshots};

use crate::open::Failure;

/// Whether the journal has, or had, a batch that ends so.
pub(crate) type IsOurs<'a> = &'a mut dyn FnMut(Link) -> Result<bool, orchestrix_engine::Error>;

/// A snapshot that was loaded; none is the state before the first event.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) state: State,
    /// Where the journal goes on after it.
    pub(crate) link: Link,
    /// How large it is.
    pub(crate) bytes: u64,
}

impl Default for Loaded {
    fn default() -> Self {
        Self { state: State::new(), link: Link::default(), bytes: 0 }
    }
}

/// Lists of snapshots that are gone through before the node tries again later: the leader may prune them while one is
/// loaded.
const LISTS_MAX: usize = 5;

/// The newest snapshot that is whole and of this history; another is passed over and the journal read from further
/// back.
pub(crate) fn newest_snapshot(
    snapshots: &dyn Snapshots,
    floor: Position,
    reads: u8,
    is_ours: IsOurs<'_>,
    damaged: &mut Vec<String>,
) -> Result<Option<Loaded>, Failure> {
    for _ in 0..LISTS_MAX {
        damaged.clear();
        match newest_listed(snapshots, floor, reads, is_ours, damaged)? {
            Tried::Loaded(loaded) => return Ok(Some(*loaded)),
            Tried::Pruned => {}
            Tried::Damaged(last) if floor > Position(0) => return Err(last),
            Tried::Damaged(_) | Tried::Nothing => return Ok(None),
        }
    }
    Err(Failure::new("every snapshot was pruned while it was loaded".to_owned()).retry())
}

/// What came of loading.
enum Tried {
    Loaded(Box<Loaded>),
    /// It was there when snapshots were listed, and is not any more.
    Pruned,
    Damaged(Failure),
    /// There is none.
    Nothing,
}

fn newest_listed(
    snapshots: &dyn Snapshots,
    floor: Position,
    reads: u8,
    is_ours: IsOurs<'_>,
    damaged: &mut Vec<String>,
) -> Result<Tried, Failure> {
    let mut last = Tried::Nothing;
    for position in snapshots.list()?.into_iter().filter(|position| *position >= floor) {
        match try_snapshot(snapshots, position, reads, is_ours)? {
            Tried::Damaged(error) => {
                tracing::warn!(%position, %error, "a snapshot is damaged; going further back");
                damaged.push(error.to_string());
                last = Tried::Damaged(error);
            }
            other @ (Tried::Loaded(_) | Tried::Pruned | Tried::Nothing) => return Ok(other),
        }
    }
    Ok(last)
}

/// Loads a snapshot. One that cannot be loaded may have been pruned meanwhile, or replaced by another of the same
/// position: it is damaged only if it is still there and cannot be loaded a second time.
fn try_snapshot(
    snapshots: &dyn Snapshots,
    position: Position,
    reads: u8,
    is_ours: IsOurs<'_>,
) -> Result<Tried, Failure> {
    let mut tried = Tried::Nothing;
    for _ in 0..2 {
        tried = match load_snapshot(snapshots, position, reads, is_ours) {
            Ok(loaded) => return Ok(Tried::Loaded(Box::new(loaded))),
            // Whether it is damaged is not known.
            Err(error) if error.may_pass() => return Err(error),
            Err(error) => Tried::Damaged(error),
        };
        if !snapshots.list()?.contains(&position) {
            return Ok(Tried::Pruned);
        }
    }
    Ok(tried)
}

fn load_snapshot(
    snapshots: &dyn Snapshots,
    position: Position,
    reads: u8,
    is_ours: IsOurs<'_>,
) -> Result<Loaded, Failure> {
    let mut reader = snapshots.open(position)?;
    if !is_ours(reader.link())? {
        return Err(Failure::new(format!("the snapshot at {position} is of another history")));
    }
    let (mut loader, mut bytes) = (SnapshotLoader::up_to(reads), 0);
    let unreadable = |error| Failure::new(format!("the snapshot at {position} cannot be loaded: {error}"));
    while let Some(chunk) = reader.next()? {
        loader.load(&chunk).map_err(unreadable)?;
        bytes += chunk.len() as u64;
    }
    Ok(Loaded { state: loader.finish().map_err(unreadable)?, link: reader.link(), bytes })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Mutex, PoisonError};

    use orchestrix_core::{TermStarted, Timestamp};
    use orchestrix_engine::memory::MemoryJournal;
    use orchestrix_engine::{Cause, Error, Journal as _, JournalId, SnapshotReader, SnapshotWriter};

    use super::*;

    /// What happens when a snapshot is opened.
    #[derive(Clone, Copy, Debug)]
    enum Trouble {
        /// It is pruned before that.
        PrunedBefore,
        /// It is pruned when it was opened and not read.
        PrunedWithin,
        /// Its chunks are not there, though it is.
        Chunkless,
        /// The engine does not answer.
        Silence,
    }

    /// Snapshots of a leader that goes on.
    struct Busy {
        inner: Box<dyn Snapshots>,
        troubles: Mutex<VecDeque<Trouble>>,
    }

    struct Chunkless(Box<dyn SnapshotReader>);

    impl SnapshotReader for Chunkless {
        fn link(&self) -> Link {
            self.0.link()
        }
        fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
            let source = Cause::Damaged { path: "chunk".into(), offset: 0, what: "it is gone".to_owned() };
            Err(Error { operation: "read snapshot".to_owned(), retryable: false, source })
        }
    }

    impl Snapshots for Busy {
        fn list(&self) -> Result<Vec<Position>, Error> {
            self.inner.list()
        }
        fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error> {
            self.inner.create(at)
        }
        fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error> {
            let trouble = self.troubles.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match trouble {
                None => self.inner.open(at),
                Some(Trouble::PrunedBefore) => {
                    self.take_two();
                    self.inner.open(at)
                }
                Some(Trouble::PrunedWithin) => {
                    let reader = self.inner.open(at)?;
                    self.take_two();
                    Ok(Box::new(Chunkless(reader)))
                }
                Some(Trouble::Chunkless) => Ok(Box::new(Chunkless(self.inner.open(at)?))),
                Some(Trouble::Silence) => {
                    let source = Cause::Remote { place: "it".into(), what: "no answer".to_owned() };
                    Err(Error { operation: "open snapshot".to_owned(), retryable: true, source })
                }
            }
        }
        fn prune(&self) -> Result<(), Error> {
            self.inner.prune()
        }
    }

    impl Busy {
        /// With two snapshots, and this trouble when they are opened.
        fn with(troubles: impl IntoIterator<Item = Trouble>) -> Self {
            let inner = MemoryJournal::new(JournalId([7; 16])).snapshots();
            let busy = Self { inner, troubles: Mutex::default() };
            busy.take_two();
            busy.troubles.lock().unwrap().extend(troubles);
            busy
        }

        /// Takes two more; the others are pruned.
        fn take_two(&self) {
            let newest = self.list().unwrap().first().map_or(0, |position| position.0);
            for position in [newest + 1, newest + 2] {
                let mut state = State::new();
                for epoch in 1..=position {
                    let term = TermStarted { epoch, node: "n".to_owned(), actor: None, shard_lease_ms: None };
                    state.apply(Timestamp(1), term.into());
                }
                let mut writer =
                    self.create(Link { position: Position(position), ..Link::default() }).unwrap();
                writer.chunk(&state.begin_capture()).unwrap();
                writer.finish().unwrap();
            }
            self.prune().unwrap();
        }

        /// The position that was loaded, and how many snapshots were passed over.
        fn load(&self) -> Result<(Option<Position>, usize), Failure> {
            let mut damaged = Vec::new();
            let loaded =
                newest_snapshot(self, Position(1), orchestrix_core::FORMAT, &mut |_| Ok(true), &mut damaged)?;
            Ok((loaded.map(|loaded| loaded.link.position), damaged.len()))
        }
    }

    #[test]
    fn a_snapshot_that_is_pruned_while_it_is_loaded_is_no_damage() {
        for trouble in [Trouble::PrunedBefore, Trouble::PrunedWithin] {
            assert_eq!(Busy::with([trouble]).load().unwrap(), (Some(Position(4)), 0), "{trouble:?}");
            let often = [trouble; LISTS_MAX - 1];
            assert_eq!(Busy::with(often).load().unwrap(), (Some(Position(10)), 0), "{trouble:?}");
        }
    }

    #[test]
    fn snapshots_that_are_always_pruned_are_tried_later() {
        let failure = Busy::with([Trouble::PrunedWithin; LISTS_MAX]).load().unwrap_err();
        assert!(failure.is_retryable(), "{failure}");
    }

    #[test]
    fn a_snapshot_that_cannot_be_reached_is_no_damage() {
        let failure = Busy::with([Trouble::Silence; 2]).load().unwrap_err();
        assert!(failure.may_pass() && failure.to_string().contains("no answer"), "{failure}");
    }

    #[test]
    fn a_snapshot_replaced_while_loading_is_loaded_again() {
        assert_eq!(Busy::with([Trouble::Chunkless]).load().unwrap(), (Some(Position(2)), 0));
    }

    #[test]
    fn a_damaged_snapshot_is_skipped_unless_it_is_the_last() {
        assert_eq!(Busy::with([Trouble::Chunkless; 2]).load().unwrap(), (Some(Position(1)), 1));
        let failure = Busy::with([Trouble::Chunkless; 4]).load().unwrap_err();
        assert!(!failure.is_retryable() && failure.to_string().contains("it is gone"), "{failure}");
    }
}
