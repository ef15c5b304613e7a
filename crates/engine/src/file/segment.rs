//! One segment of the journal, read frame by frame.
//!
//! **Invariant:** a batch is handed out only if its checksums hold and it follows the batch before it.
//! Frames that are whole but do not fit are damage; bytes that are no frame end the walk, and the caller
//! decides by [`Walk::tail`] what they mean.

use std::io;
use std::sync::Arc;

use orchestrix_core::{Position, is_planted};

use super::layout::{self, ALIGN, BATCH_HEADER_BYTES, Flaw, FrameHeader, MARK_BYTES, SegmentHeader};
use super::names;
use crate::disk::{Disk, DiskFile};
use crate::fault::{damaged, flawed, io_error};
use crate::{BatchRef, Error, Link};

/// How much is read at once.
const WINDOW_BYTES: usize = 1 << 20;
/// One place is remembered for so many bytes of frames: a read looks at most so far for its start.
const PLACE_BYTES: u64 = 64 << 10;
const PAGE_BYTES: usize = 4096;
static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
const DOING: &str = "read journal segment";

/// What is known of a segment without reading it.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) header: SegmentHeader,
    /// Where some of its batches are: the position of their first event, and the offset of their frame.
    places: Vec<(Position, u64)>,
}

impl Segment {
    pub(crate) fn new(header: SegmentHeader) -> Self {
        Self { name: names::segment(header.first()), header, places: Vec::new() }
    }

    /// Reads the header of a segment, and checks it against the name and the length of the file.
    pub(crate) fn open(disk: &dyn Disk, name: &str) -> Result<Self, Error> {
        let file = disk.open(name).map_err(|error| io_error(disk, "open journal segment", name, error))?;
        let failed = |error| io_error(disk, DOING, name, error);
        let mut bytes = [0; layout::SEGMENT_HEADER_BYTES];
        let read = file.read_at(&mut bytes, 0).map_err(failed)?;
        if read < bytes.len() {
            return Err(damaged(disk, DOING, name, read as u64, "the file ends inside its header"));
        }
        let header = SegmentHeader::decode(&bytes).map_err(|flaw| flawed(disk, DOING, name, 0, flaw))?;
        let segment = Self::new(header);
        if segment.name != name {
            let what = format!("the file is {}", segment.name);
            return Err(damaged(disk, DOING, name, 48, what));
        }
        let len = file.len().map_err(failed)?;
        if len != header.size {
            // It was made this long before it was used, so this is no torn write.
            let what = format!("the file has {len} bytes, expected {}", header.size);
            return Err(damaged(disk, DOING, name, len.min(header.size), what));
        }
        Ok(segment)
    }

    /// Remembers where a batch is, if the last place remembered is far.
    pub(crate) fn remember(&mut self, first: Position, offset: u64) {
        let far = self.places.last().is_none_or(|(_, last)| offset >= last + PLACE_BYTES);
        if far {
            self.places.push((first, offset));
        }
    }

    /// Walks from the first frame.
    pub(crate) fn walk(&self, disk: &Arc<dyn Disk>) -> Result<Walk, Error> {
        let file = disk.open(&self.name).map_err(|error| io_error(&**disk, DOING, &self.name, error))?;
        Ok(Walk {
            disk: Arc::clone(disk),
            name: self.name.clone(),
            header: self.header,
            seed: self.header.seed(),
            window: Window { file, size: self.header.size, bytes: Vec::new(), start: 0 },
            last: layout::SEGMENT_HEADER_BYTES as u64,
            offset: layout::SEGMENT_HEADER_BYTES as u64,
            end: self.header.follows,
            durable: self.header.follows.position,
        })
    }

    /// Walks from a frame that is at or before the one with the event after `after`, and near it.
    pub(crate) fn walk_near(&self, disk: &Arc<dyn Disk>, after: Position) -> Result<Walk, Error> {
        let mut walk = self.walk(disk)?;
        let nearer = self.places.partition_point(|(first, _)| first.0 <= after.0 + 1);
        if let Some((_, offset)) = nearer.checked_sub(1).map(|index| self.places[index]) {
            walk.jump(offset)?;
        }
        Ok(walk)
    }
}

/// A walk over the frames of a segment.
#[derive(Debug)]
pub(crate) struct Walk {
    disk: Arc<dyn Disk>,
    name: String,
    header: SegmentHeader,
    seed: u32,
    window: Window,
    /// Where the last frame begins.
    pub(crate) last: u64,
    /// Where the next frame begins.
    pub(crate) offset: u64,
    /// The last batch that was handed out.
    pub(crate) end: Link,
    /// How far the frames up to here say that the journal was durable.
    pub(crate) durable: Position,
}

/// What a walk came to.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Batch {
        offset: u64,
        batch: BatchRef<'a>,
        link: Link,
    },
    Mark,
    /// No whole frame begins here; why.
    Tail(String),
}

/// What is behind the last whole frame of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    /// From the end of the last whole frame to the last byte that is not zero.
    pub(crate) bytes: u64,
    /// How many frames seem to begin there.
    pub(crate) frames: u32,
    /// How far one of these says that the journal was durable, and where it is.
    pub(crate) durable: Option<(Position, u64)>,
}

impl Walk {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Goes over one frame.
    pub(crate) fn step(&mut self) -> Result<Step<'_>, Error> {
        let (offset, room) = (self.offset, self.header.size - self.offset);
        let (disk, name) = (&*self.disk, self.name.as_str());
        let failed = |error| io_error(disk, DOING, name, error);
        let wrong = |what: String| damaged(disk, DOING, name, offset, what);
        let start = self.window.at(offset, BATCH_HEADER_BYTES).map_err(failed)?;
        let header = match layout::decode_frame(start, self.seed) {
            Ok(FrameHeader::Batch(header)) => header,
            Ok(FrameHeader::Mark(link)) => {
                if !is_same(link, self.end) {
                    return Err(wrong(format!("the mark is of {link:?}, expected {:?}", self.end)));
                }
                self.last = offset;
                self.offset += MARK_BYTES as u64;
                self.durable = link.position;
                return Ok(Step::Mark);
            }
            Err(Flaw::Damaged(what)) => return Ok(Step::Tail(what)),
            Err(newer @ Flaw::Newer(_)) => return Err(flawed(disk, DOING, name, offset, newer)),
        };
        let frame_bytes = header.frame_bytes();
        if frame_bytes as u64 > room {
            return Ok(Step::Tail(format!("the frame has {frame_bytes} bytes, {room} are left")));
        }
        let frame = self.window.at(offset, frame_bytes).map_err(failed)?;
        let batch = match header.batch(&frame[..frame_bytes]) {
            Ok(batch) => batch,
            Err(Flaw::Damaged(_)) if is_planted("bad-record-skipped") => {
                self.offset += frame_bytes as u64;
                let last = header.previous.position.0 + u64::from(header.count);
                self.end = Link { position: Position(last), ..header.previous };
                return Ok(Step::Mark);
            }
            Err(Flaw::Damaged(what)) => return Ok(Step::Tail(what)),
            Err(newer @ Flaw::Newer(_)) => return Err(flawed(disk, DOING, name, offset, newer)),
        };
        if !is_same(header.previous, self.end) && !is_planted("bad-record-skipped") {
            return Err(wrong(format!("the batch follows {:?}, expected {:?}", header.previous, self.end)));
        }
        if header.durable > self.end.position {
            let what =
                format!("durable up to {}, but only {} comes before", header.durable, self.end.position);
            return Err(wrong(what));
        }
        let link = batch.link(self.header.journal);
        self.last = offset;
        self.offset += frame_bytes as u64;
        self.end = link;
        self.durable = self.durable.max(header.durable);
        Ok(Step::Batch { offset, batch, link })
    }

    /// Looks through all that is behind the last whole frame.
    pub(crate) fn tail(&mut self) -> Result<Tail, Error> {
        let mut tail = Tail::default();
        let mut at = self.offset;
        while at < self.header.size {
            let page = PAGE_BYTES.min(usize::try_from(self.header.size - at).unwrap_or(PAGE_BYTES));
            let failed = |error| io_error(&*self.disk, DOING, &self.name, error);
            // A frame header may reach into the next page.
            let bytes = self.window.at(at, page + BATCH_HEADER_BYTES).map_err(failed)?;
            let page = page.min(bytes.len());
            if page == 0 {
                break;
            }
            if bytes[..page] != ZEROS[..page] {
                look_through(bytes, page, at, self.seed, &mut tail)
                    .map_err(|(offset, flaw)| flawed(&*self.disk, DOING, &self.name, offset, flaw))?;
                let last = bytes[..page].iter().rposition(|byte| *byte != 0).unwrap_or(0);
                tail.bytes = at + last as u64 + 1 - self.offset;
            }
            at += page as u64;
        }
        Ok(tail)
    }

    fn jump(&mut self, offset: u64) -> Result<(), Error> {
        let failed = |error| io_error(&*self.disk, DOING, &self.name, error);
        let start = self.window.at(offset, BATCH_HEADER_BYTES).map_err(failed)?;
        match layout::decode_frame(start, self.seed) {
            Ok(FrameHeader::Batch(header)) => {
                (self.last, self.offset) = (offset, offset);
                (self.end, self.durable) = (header.previous, header.durable);
                Ok(())
            }
            Ok(FrameHeader::Mark(_)) => {
                Err(damaged(&*self.disk, DOING, &self.name, offset, "expected a batch, found a mark"))
            }
            Err(flaw) => Err(flawed(&*self.disk, DOING, &self.name, offset, flaw)),
        }
    }
}

/// Whether two links are the same place of the same history.
pub(crate) fn is_same(one: Link, other: Link) -> bool {
    one == other || (is_planted("chain-unchecked") && one.position == other.position)
}

/// Counts the frames that seem to begin in the first `page` of `bytes`, which stand at `at`.
fn look_through(bytes: &[u8], page: usize, at: u64, seed: u32, tail: &mut Tail) -> Result<(), (u64, Flaw)> {
    for from in (0..page).step_by(ALIGN).filter(|from| layout::may_be_frame(&bytes[*from..])) {
        let offset = at + from as u64;
        let durable = match layout::decode_frame(&bytes[from..], seed) {
            Ok(FrameHeader::Batch(header)) => header.durable,
            Ok(FrameHeader::Mark(link)) => link.position,
            Err(Flaw::Damaged(_)) => continue,
            Err(newer @ Flaw::Newer(_)) => return Err((offset, newer)),
        };
        tail.frames += 1;
        if tail.durable.is_none_or(|(most, _)| most < durable) {
            tail.durable = Some((durable, offset));
        }
    }
    Ok(())
}

/// The part of a file that is in memory.
#[derive(Debug)]
struct Window {
    file: Arc<dyn DiskFile>,
    size: u64,
    bytes: Vec<u8>,
    start: u64,
}

impl Window {
    /// At least `want` bytes from `offset` on, unless the file ends before.
    fn at(&mut self, offset: u64, want: usize) -> io::Result<&[u8]> {
        let want = want.min(usize::try_from(self.size - offset).unwrap_or(want));
        let inside = offset >= self.start && offset + want as u64 <= self.start + self.bytes.len() as u64;
        if !inside {
            self.move_to(offset, want)?;
        }
        let from = usize::try_from(offset - self.start).expect("the window holds the offset");
        Ok(&self.bytes[from..])
    }

    fn move_to(&mut self, offset: u64, want: usize) -> io::Result<()> {
        let kept = self.keep_from(offset);
        let left = usize::try_from(self.size - offset).unwrap_or(usize::MAX);
        self.bytes.resize(want.max(WINDOW_BYTES).min(left), 0);
        self.start = offset;
        let read = self.file.read_at(&mut self.bytes[kept..], offset + kept as u64)?;
        self.bytes.truncate(kept + read);
        if self.bytes.len() < want {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        Ok(())
    }

    /// Moves the bytes from `offset` on to the front, and answers how many these are.
    fn keep_from(&mut self, offset: u64) -> usize {
        let end = self.start + self.bytes.len() as u64;
        if offset < self.start || offset >= end {
            return 0;
        }
        let from = usize::try_from(offset - self.start).expect("the window holds the offset");
        self.bytes.copy_within(from.., 0);
        self.bytes.len() - from
    }
}
