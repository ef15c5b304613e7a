//! The journal in files, ready to be appended to.
//!
//! **Invariant:** `end` is durable. Any failure while it moves stops this handle for ever, because
//! the content of the disk is then unknown.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use orchestrix_core::{Position, is_planted};

use super::layout::{self, MARK_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::opening::{Opening, Recovery};
use super::segment::{Segment, Step, Walk};
use super::segment_pool::SegmentPool;
use super::snapshot::SnapshotStore;
use super::{Options, floor};
use crate::disk::{Disk, DiskFile};
use crate::fault::{damaged, invalid, io_error, stopped};
use crate::{Appended, BATCH_BYTES_MAX, Batch, Error, Journal, JournalId, Link, Read, Snapshots, Space};

const WRITE: &str = "write journal segment";
const READ: &str = "read journal segment";

/// A journal in the files of one folder. One process at a time has it.
#[derive(Debug)]
pub struct FileJournal {
    disk: Arc<dyn Disk>,
    id: JournalId,
    floor: Position,
    segments: Vec<Segment>,
    writing: Writing,
    /// The frame being written; kept, so that an append allocates nothing.
    buffer: Vec<u8>,
    stopped: bool,
    pool: Arc<SegmentPool>,
    preparer: Option<JoinHandle<()>>,
    recovery: Recovery,
    /// Holds the lock of the folder; last, so that it is let go last.
    snapshots: SnapshotStore,
}

/// Where the next frame goes.
#[derive(Debug)]
pub(super) struct Writing {
    file: Arc<dyn DiskFile>,
    seed: u32,
    size: u64,
    offset: u64,
    end: Link,
    /// Up to where the file itself says that it is durable.
    marked: Position,
}

impl Writing {
    pub(super) fn new(file: Arc<dyn DiskFile>, header: SegmentHeader, walk: &Walk) -> Self {
        let (size, seed) = (header.size, header.seed());
        Self { file, seed, size, offset: walk.offset, end: walk.end, marked: walk.durable }
    }

    /// Whether a frame fits, and a mark after it.
    fn fits(&self, frame: usize) -> bool {
        self.offset + frame as u64 + MARK_BYTES as u64 <= self.size
    }

    fn write(&mut self, frame: &[u8]) -> std::io::Result<()> {
        self.file.write_at(frame, self.offset)?;
        if !is_planted("sync-skipped") {
            let synced = self.file.sync_data();
            if is_planted("sync-retried") { self.file.sync_data()? } else { synced? }
        }
        self.offset += frame.len() as u64;
        Ok(())
    }
}

impl FileJournal {
    /// Locks the folder and looks at what is there; a folder without a journal gets a new one.
    ///
    /// # Errors
    /// `InUse`, `UnknownFormat`, `Damaged`, `Full`, and other I/O errors.
    pub fn start(disk: Arc<dyn Disk>, options: Options) -> Result<Opening, Error> {
        Opening::start(disk, options)
    }

    /// Opens a journal without handing out what is in it; all of it is checked.
    ///
    /// # Errors
    /// As for [`FileJournal::start`] and [`Opening::replay`].
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        Self::start(disk, options)?.replay_unseen()
    }

    /// What opening it found and did.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    pub(super) fn new(
        disk: Arc<dyn Disk>,
        id: JournalId,
        floor: Position,
        segments: Vec<Segment>,
        writing: Writing,
        pool: Arc<SegmentPool>,
        snapshots: SnapshotStore,
    ) -> Self {
        pool.set_current(writing.size);
        snapshots.durable.store(writing.end.position.0, Ordering::Release);
        Self {
            disk,
            id,
            floor,
            segments,
            writing,
            buffer: Vec::new(),
            stopped: false,
            pool,
            preparer: None,
            recovery: Recovery::default(),
            snapshots,
        }
    }

    /// All that was read is durable: says so in the file, and begins to prepare segments.
    pub(super) fn recovered(&mut self, recovery: Recovery) -> Result<(), Error> {
        self.recovery = recovery;
        self.mark()?;
        floor::prepare(&*self.disk);
        self.preparer = self.pool.start();
        Ok(())
    }

    fn mark(&mut self) -> Result<(), Error> {
        let writing = &mut self.writing;
        // Appends leave room for a mark. A segment that was not made here may have none; the next one says as much.
        if writing.marked == writing.end.position || writing.offset + MARK_BYTES as u64 > writing.size {
            return Ok(());
        }
        let frame = layout::encode_mark(writing.end, writing.seed);
        match writing.write(&frame) {
            Ok(()) => writing.marked = writing.end.position,
            Err(error) => return Err(self.stop(error)),
        }
        Ok(())
    }

    /// Ends the use of this handle.
    fn stop(&mut self, error: std::io::Error) -> Error {
        self.stopped = true;
        let mut error = io_error(&*self.disk, WRITE, self.name(), error);
        error.retryable = false;
        error
    }

    fn name(&self) -> &str {
        self.segments.last().map_or("", |segment| &segment.name)
    }

    /// Goes on in a new segment with room for this frame.
    fn change_segment(&mut self, frame: usize) -> Result<(), Error> {
        let follows = self.writing.end;
        let changed = next_segment(&*self.disk, &self.pool, self.id, follows, frame);
        let (segment, file) = match changed {
            Ok(changed) => changed,
            Err(error) => {
                self.stopped = !error.retryable;
                return Err(error);
            }
        };
        let header = segment.header;
        self.writing = Writing {
            file,
            seed: header.seed(),
            size: header.size,
            offset: SEGMENT_HEADER_BYTES as u64,
            end: follows,
            marked: follows.position,
        };
        // A batch that does not fit an empty segment: the new file took the place of the old one.
        self.segments.pop_if(|last| last.name == segment.name);
        self.segments.push(segment);
        self.pool.wake();
        Ok(())
    }

    /// Collects batches of one segment; says whether that is all that was asked for.
    fn read_segment(
        &self,
        index: usize,
        after: Position,
        limit_bytes: usize,
        found: &mut Vec<Batch>,
    ) -> Result<Enough, Error> {
        let mut bytes: usize = found.iter().map(|batch| batch.records.len()).sum();
        let segment = &self.segments[index];
        let mut walk = segment.walk_near(&self.disk, after)?;
        while walk.end.position < self.writing.end.position {
            let offset = walk.offset;
            match walk.step()? {
                // A start from a snapshot did not look at what is below it.
                Step::Batch { link, .. } if link.position > self.writing.end.position => {
                    let end = self.writing.end.position;
                    let what = format!("the batch ends at {}, but the journal at {end}", link.position);
                    return Err(damaged(&*self.disk, READ, &segment.name, offset, what));
                }
                Step::Batch { batch, link, .. } if link.position > after => {
                    bytes += batch.records.len();
                    if bytes > limit_bytes && !found.is_empty() {
                        return Ok(Enough::Yes);
                    }
                    found.push(batch.to_batch());
                }
                Step::Batch { .. } | Step::Mark => {}
                Step::Tail(why) => {
                    let next = self.segments.get(index + 1);
                    if next.is_some_and(|next| next.header.follows == walk.end) {
                        return Ok(Enough::No);
                    }
                    return Err(damaged(&*self.disk, READ, &segment.name, offset, why));
                }
            }
        }
        Ok(Enough::Yes)
    }

    /// How many segments hold nothing above `position`; the last one always counts as needed.
    fn segments_up_to(&self, position: Position) -> usize {
        let next = self.segments.iter().skip(1);
        next.take_while(|next| next.header.follows.position <= position).count()
    }
}

enum Enough {
    Yes,
    No,
}

impl Journal for FileJournal {
    fn id(&self) -> JournalId {
        self.id
    }

    fn end(&self) -> Link {
        self.writing.end
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        if self.stopped {
            return Err(stopped("append to the journal"));
        }
        if batch.count == 0 || batch.records.len() > BATCH_BYTES_MAX {
            let why = format!("{} events in {} bytes is not a valid batch", batch.count, batch.records.len());
            return Err(invalid("append to the journal", why));
        }
        let link = batch.link(self.id);
        let end = self.writing.end;
        if link == end {
            return Ok(Appended::Done(end));
        }
        if batch.previous != end && !is_planted("order-ignored") {
            return Ok(Appended::Conflict(end));
        }
        let frame = layout::frame_bytes(batch.records.len());
        if !self.writing.fits(frame) {
            self.change_segment(frame)?;
        }
        layout::encode_batch(batch.as_ref(), end.position, self.writing.seed, &mut self.buffer);
        let offset = self.writing.offset;
        if let Err(error) = self.writing.write(&self.buffer) {
            return Err(self.stop(error));
        }
        if let Some(segment) = self.segments.last_mut() {
            segment.remember(end.position.next(), offset);
        }
        self.writing.marked = end.position;
        self.writing.end = link;
        self.snapshots.durable.store(link.position.0, Ordering::Release);
        Ok(Appended::Done(link))
    }

    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error> {
        if after < self.floor {
            return Ok(Read::Truncated(self.floor));
        }
        if after >= self.writing.end.position {
            return Ok(Read::End);
        }
        let begins = |segment: &Segment| segment.header.follows.position <= after;
        let start = self.segments.partition_point(begins).saturating_sub(1);
        let mut found = Vec::new();
        for index in start..self.segments.len() {
            match self.read_segment(index, after, limit_bytes, &mut found)? {
                Enough::Yes => break,
                Enough::No => {}
            }
        }
        Ok(Read::Batches(found))
    }

    fn rest(&mut self) -> Result<(), Error> {
        if self.stopped {
            return Err(stopped("rest"));
        }
        self.mark()
    }

    fn space(&self) -> Space {
        self.pool.space(self.writing.size.saturating_sub(self.writing.offset))
    }

    fn snapshots(&self) -> Box<dyn Snapshots> {
        Box::new(self.snapshots.clone())
    }

    fn truncate(&mut self) -> Result<Position, Error> {
        let Some(older) = self.snapshots.older_of_two_sound()? else { return Ok(self.floor) };
        let older = if is_planted("floor-too-high") { self.writing.end.position } else { older };
        let needless = self.segments_up_to(older);
        if needless == 0 {
            return Ok(self.floor);
        }
        let floor = self.segments[needless].header.follows.position;
        floor::write(&*self.disk, self.id, floor)?;
        self.floor = floor;
        for segment in self.segments.drain(..needless) {
            self.disk
                .remove(&segment.name)
                .map_err(|error| io_error(&*self.disk, "remove journal segment", &segment.name, error))?;
        }
        self.disk.sync_dir().map_err(|error| io_error(&*self.disk, "sync", "the data folder", error))?;
        floor::prepare(&*self.disk);
        self.pool.wake();
        Ok(floor)
    }
}

impl Drop for FileJournal {
    fn drop(&mut self) {
        self.pool.close();
        if let Some(preparer) = self.preparer.take() {
            // It has nothing to tell: what it could not prepare, the next start prepares.
            let _ = preparer.join();
        }
    }
}

/// Makes a spare into the segment after `follows`, durably, with room for a frame of this length.
pub(super) fn next_segment(
    disk: &dyn Disk,
    pool: &SegmentPool,
    journal: JournalId,
    follows: Link,
    frame: usize,
) -> Result<(Segment, Arc<dyn DiskFile>), Error> {
    let spare = pool.take((SEGMENT_HEADER_BYTES + frame + MARK_BYTES) as u64)?;
    let failed = |error| {
        let mut error = io_error(disk, "begin journal segment after", &follows.position.to_string(), error);
        error.retryable = false;
        error
    };
    let mut segment = [0; 16];
    if !is_planted("segment-recycled") {
        disk.random(&mut segment).map_err(failed)?;
    }
    let segment = Segment::new(SegmentHeader { journal, segment, size: spare.size, follows });
    spare.file.write_at(&segment.header.encode(), 0).map_err(failed)?;
    spare.file.sync_data().map_err(failed)?;
    disk.rename(&spare.name, &segment.name).map_err(failed)?;
    if !is_planted("folder-sync-skipped") {
        disk.sync_dir().map_err(failed)?;
    }
    Ok((segment, spare.file))
}
