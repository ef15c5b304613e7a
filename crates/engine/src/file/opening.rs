//! Recovery: finds and checks the files of a journal, and its end.
//!
//! **Invariant:** bytes are cut off only behind the last place that is known to have been durable. Everything
//! else that is not as it was written refuses to start, naming file and offset.

use std::path::PathBuf;
use std::sync::Arc;

use orchestrix_core::{Position, is_planted};

use super::journal::{self, FileJournal, Writing};
use super::segment::{Segment, Step, Tail, Walk, is_same};
use super::segment_pool::{SegmentPool, write_zeros};
use super::snapshot::SnapshotStore;
use super::{Options, floor, names};
use crate::disk::{Disk, DiskFile, DiskLock, Lock};
use crate::fault::{damaged, io_error};
use crate::{BatchRef, Cause, Error, JournalId, Link, Snapshots};

const DOING: &str = "recover journal segment";

/// What opening a journal found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Segments, batches and events that were read and checked; what a snapshot made needless is not.
    pub segments: u64,
    pub batches: u64,
    pub events: u64,
    /// Bytes of records that were read and checked.
    pub bytes: u64,
    pub cut: Option<Cut>,
}

/// A torn end that was cut off: the rest of writes that nothing says were durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub path: PathBuf,
    pub offset: u64,
    pub bytes: u64,
    /// How many frames seem to have begun there.
    pub frames: u32,
    /// What was wrong with the first of them.
    pub what: String,
}

/// A journal whose files are known and locked, but not yet read.
#[derive(Debug)]
pub struct Opening {
    disk: Arc<dyn Disk>,
    id: JournalId,
    floor: Position,
    segments: Vec<Segment>,
    pool: Arc<SegmentPool>,
    snapshots: SnapshotStore,
}

impl Opening {
    pub(super) fn start(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        let lock = take_lock(&*disk)?;
        // A process that died may have left names that are visible but not durable.
        disk.sync_dir().map_err(|error| io_error(&*disk, "sync", "the data folder", error))?;
        let found = Found::list(&*disk)?;
        let pool = Arc::new(SegmentPool::new(Arc::clone(&disk), options, found.spares.clone()));
        let (id, floor, segments) =
            if found.segments.is_empty() { create(&*disk, &pool, &found)? } else { examine(&*disk, &found)? };
        let snapshots = SnapshotStore::new(Arc::clone(&disk), id, Some(lock));
        Ok(Self { disk, id, floor, segments, pool, snapshots })
    }

    #[must_use]
    pub fn id(&self) -> JournalId {
        self.id
    }

    /// Nothing at or below it can be read: a snapshot at or after it is needed.
    #[must_use]
    pub fn floor(&self) -> Position {
        self.floor
    }

    #[must_use]
    pub fn snapshots(&self) -> Box<dyn Snapshots> {
        Box::new(self.snapshots.clone())
    }

    /// Reads all batches after `from` once, in order, checks them, and hands them to `visit`. The journal
    /// that comes back ends with the last of them, and all of it is durable.
    ///
    /// # Errors
    /// Damage; a `from` below the floor or not of this journal; and what `visit` says.
    pub fn replay<E: From<Error>>(
        self,
        from: Link,
        visit: impl FnMut(BatchRef<'_>) -> Result<(), E>,
    ) -> Result<FileJournal, E> {
        if from.position < self.floor && !is_planted("floor-unchecked") {
            let what = format!("all up to {} was dropped; a snapshot at or after it is needed", self.floor);
            return Err(damaged(&*self.disk, "replay journal above", names::FLOOR, 0, what).into());
        }
        self.replay_from(from, visit)
    }

    /// Reads and checks all that is there.
    pub(super) fn replay_unseen(self) -> Result<FileJournal, Error> {
        let from = self.segments[0].header.follows;
        self.replay_from(from, |_| Ok(()))
    }

    fn replay_from<E: From<Error>>(
        mut self,
        from: Link,
        mut visit: impl FnMut(BatchRef<'_>) -> Result<(), E>,
    ) -> Result<FileJournal, E> {
        let begins = |segment: &Segment| segment.header.follows.position <= from.position;
        let mut index = self.segments.partition_point(begins).saturating_sub(1);
        let mut recovery = Recovery::default();
        loop {
            let segment = &mut self.segments[index];
            let mut walk = segment.walk(&self.disk)?;
            let why = replay_segment(&self.disk, segment, &mut walk, from, &mut recovery, &mut visit)?;
            index += 1;
            let Some(next) = self.segments.get(index) else {
                return Ok(self.finish(walk, why, from, recovery)?);
            };
            if !is_same(walk.end, next.header.follows) {
                let what = format!("{why}, but {} goes on after {:?}", next.name, next.header.follows);
                return Err(self.damaged(index - 1, walk.offset, what).into());
            }
        }
    }

    /// Decides about what is behind the last whole frame, and makes all before it durable.
    fn finish(
        self,
        mut walk: Walk,
        why: String,
        from: Link,
        mut recovery: Recovery,
    ) -> Result<FileJournal, Error> {
        let tail = walk.tail()?;
        let last = self.segments.len() - 1;
        let evidence = self.more_was_durable(&walk, &tail, from)?;
        if let Some(evidence) = evidence.filter(|_| !is_planted("damage-cut-off")) {
            let what = format!("{why}; expected position {}, as {evidence}", walk.end.position.next());
            return Err(self.damaged(last, walk.offset, what));
        }
        let name = &self.segments[last].name;
        let failed = |error| io_error(&*self.disk, DOING, name, error);
        let file = self.disk.open(name).map_err(failed)?;
        if tail.bytes > 0 {
            let path = self.disk.path(name);
            tracing::warn!(path = %path.display(), offset = walk.offset, bytes = tail.bytes, frames = tail.frames,
                "a torn end of the journal was cut off: {why}");
            write_zeros(&*file, walk.offset, walk.offset + tail.bytes).map_err(failed)?;
            let Tail { bytes, frames, .. } = tail;
            recovery.cut = Some(Cut { path, offset: walk.offset, bytes, frames, what: why });
        }
        // The last frame may be known only to the cache of the operating system. If its sync has failed, that
        // takes it for written, and a sync would do nothing: it is written once more first.
        if !is_planted("last-frame-trusted") {
            rewrite(&*file, walk.last, walk.offset).map_err(failed)?;
        }
        file.sync_data().map_err(failed)?;
        self.disk.sync_dir().map_err(|error| io_error(&*self.disk, "sync", "the data folder", error))?;
        let writing = Writing::new(file, self.segments[last].header, &walk);
        let mut journal = FileJournal::new(
            self.disk,
            self.id,
            self.floor,
            self.segments,
            writing,
            self.pool,
            self.snapshots,
        );
        journal.recovered(recovery)?;
        Ok(journal)
    }

    /// What says that there once was more than the walk found, if anything does.
    fn more_was_durable(&self, walk: &Walk, tail: &Tail, from: Link) -> Result<Option<String>, Error> {
        let end = walk.end.position;
        if let Some((durable, offset)) = tail.durable.filter(|(durable, _)| *durable > end) {
            return Ok(Some(format!("the frame at byte {offset} says that all up to {durable} was durable")));
        }
        if self.floor > end || from.position > end {
            let most = self.floor.max(from.position);
            return Ok(Some(format!("the floor or the snapshot is at {most}")));
        }
        let newest = self.snapshots.newest_whole_header()?;
        Ok(newest.filter(|at| *at > end).map(|at| format!("there is a snapshot of {at}")))
    }

    fn damaged(&self, index: usize, offset: u64, what: String) -> Error {
        damaged(&*self.disk, DOING, &self.segments[index].name, offset, what)
    }
}

/// Hands out the batches of one segment; answers why it ended.
fn replay_segment<E: From<Error>>(
    disk: &Arc<dyn Disk>,
    segment: &mut Segment,
    walk: &mut Walk,
    from: Link,
    recovery: &mut Recovery,
    visit: &mut impl FnMut(BatchRef<'_>) -> Result<(), E>,
) -> Result<String, E> {
    let strange = |segment: &Segment, offset, found: Link| {
        let what = format!("the snapshot follows {from:?}, found {found:?}");
        damaged(&**disk, DOING, &segment.name, offset, what)
    };
    recovery.segments += 1;
    if walk.end.position == from.position && walk.end != from {
        return Err(strange(segment, walk.offset, walk.end).into());
    }
    loop {
        let (offset, batch, link) = match walk.step()? {
            Step::Batch { offset, batch, link } => (offset, batch, link),
            Step::Mark => continue,
            Step::Tail(why) => return Ok(why),
        };
        segment.remember(batch.previous.position.next(), offset);
        recovery.batches += 1;
        recovery.events += u64::from(batch.count);
        recovery.bytes += batch.records.len() as u64;
        let again = is_planted("replayed-twice") && link == from;
        if batch.previous.position >= from.position || again {
            visit(batch)?;
        } else if link.position >= from.position && link != from {
            return Err(strange(segment, offset, link).into());
        }
    }
}

/// Writes a part of a file as it is.
fn rewrite(file: &dyn DiskFile, from: u64, to: u64) -> std::io::Result<()> {
    let mut bytes = vec![0; usize::try_from(to - from).expect("a frame fits into memory")];
    let read = file.read_at(&mut bytes, from)?;
    file.write_at(&bytes[..read], from)
}

/// The files of a data folder, by what they are.
struct Found {
    segments: Vec<String>,
    spares: Vec<String>,
    snapshots: usize,
}

impl Found {
    /// Lists the files, and removes those that a crash left unfinished.
    fn list(disk: &dyn Disk) -> Result<Self, Error> {
        let mut found = Self { segments: Vec::new(), spares: Vec::new(), snapshots: 0 };
        for name in disk.list().map_err(|error| io_error(disk, "list", "the data folder", error))? {
            if names::segment_position(&name).is_some() {
                found.segments.push(name);
            } else if names::spare_number(&name).is_some() {
                found.spares.push(name);
            } else if names::snapshot_position(&name).is_some() {
                found.snapshots += 1;
            } else if names::is_unfinished(&name) {
                disk.remove(&name).map_err(|error| io_error(disk, "remove", &name, error))?;
            }
        }
        Ok(found)
    }
}

/// Takes a folder for this process, until what is answered is dropped.
///
/// # Errors
/// `InUse`, which names the process that has it; and I/O errors.
pub fn take_lock(disk: &dyn Disk) -> Result<Arc<dyn DiskLock>, Error> {
    match disk.lock(names::LOCK).map_err(|error| io_error(disk, "lock", names::LOCK, error))? {
        Lock::Held(lock) => Ok(Arc::from(lock)),
        Lock::Busy { holder } => {
            let source = Cause::InUse { path: disk.path(""), holder };
            Err(Error { operation: "lock the data folder".to_owned(), retryable: false, source })
        }
    }
}

/// The first segment of a new journal.
fn create(
    disk: &dyn Disk,
    pool: &SegmentPool,
    found: &Found,
) -> Result<(JournalId, Position, Vec<Segment>), Error> {
    if found.snapshots > 0 || floor::read(disk)?.is_some() {
        let name = names::segment(Position(1));
        return Err(damaged(disk, "find", &name, 0, "there are snapshots or a floor, but no segment"));
    }
    let mut id = JournalId([0; 16]);
    disk.random(&mut id.0).map_err(|error| io_error(disk, "name", "the journal", error))?;
    let (segment, _) = journal::next_segment(disk, pool, id, Link::default(), 0)?;
    Ok((id, Position(0), vec![segment]))
}

/// Looks at the headers of all segments, and removes segments that are below the floor.
fn examine(disk: &dyn Disk, found: &Found) -> Result<(JournalId, Position, Vec<Segment>), Error> {
    let known = floor::read(disk)?;
    let floor = known.map_or(Position(0), |(_, floor)| floor);
    let Some(start) = names::first_needed(&found.segments, floor) else {
        let missing = names::segment(floor.next());
        let what = format!("the segment with position {} is missing", floor.next());
        return Err(damaged(disk, "find", &missing, 0, what));
    };
    let mut segments = Vec::with_capacity(found.segments.len() - start);
    for name in &found.segments[start..] {
        segments.push(Segment::open(disk, name)?);
    }
    let id = segments[0].header.journal;
    let strangers = segments.iter().find(|segment| segment.header.journal != id);
    if let Some(segment) = strangers {
        let what = format!("it belongs to journal {}, expected {id}", segment.header.journal);
        return Err(damaged(disk, DOING, &segment.name, 16, what));
    }
    if let Some((other, _)) = known.filter(|(other, _)| *other != id) {
        let what = format!("it belongs to journal {other}, expected {id}");
        return Err(damaged(disk, "read", names::FLOOR, 16, what));
    }
    for name in &found.segments[..start] {
        disk.remove(name).map_err(|error| io_error(disk, "remove journal segment", name, error))?;
    }
    Ok((id, floor, segments))
}
