//! What is known of the output of a task without reading all of it: how many lines there are, and where some
//! are missing.
//!
//! **Invariant:** counting all chunks gives what counting them one by one, as they came, gave before.

use std::collections::BTreeMap;
use std::ops::Range;

use orchestrix_core::{LeaseId, TaskId, Timestamp, is_planted};
use orchestrix_engine::file::TASK_CHUNKS_MAX;
use orchestrix_engine::{Cause, Error, LogChunk, Logs};

use super::{Chunk, MessageId};

/// Chunks with lines of a task. An engine takes more: the rest is for the marks about dropped lines, one for
/// each doubling of a number.
pub(super) const LINE_CHUNKS_MAX: usize = TASK_CHUNKS_MAX - u64::BITS as usize;
/// Bytes of chunks read at once, plus at most one chunk.
const PAGE_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    /// Lines after each chunk, those about holes included.
    lines: Vec<u64>,
    /// Chunks that begin with a line about a hole: they cannot be read, or what came before them is missing.
    holes: BTreeMap<usize, Origin>,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    /// The last number of dropped lines that was stored.
    pub(super) reported: u64,
    /// Lines sent so far by each lease, dropped ones included.
    sent: BTreeMap<LeaseId, u64>,
    /// The last message of the bus, by leases, whose lines are stored.
    messages: BTreeMap<LeaseId, MessageId>,
    /// Of the last chunk that could be read.
    origin: Option<Origin>,
    /// The last chunk cannot be read: its lease sent more than is counted.
    ends_in_hole: bool,
    /// The last chunks may be missing without a trace.
    may_lack_end: bool,
}

/// Where lines come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) attempt: u32,
    pub(super) at: Timestamp,
}

/// A chunk that can be read.
#[derive(Debug)]
pub(super) struct Stored {
    lease: LeaseId,
    offset: u64,
    pub(super) chunk: Chunk,
}

impl Counted {
    pub(super) fn total(&self) -> u64 {
        self.lines.last().copied().unwrap_or(0)
    }

    pub(super) fn chunks(&self) -> usize {
        self.lines.len()
    }

    /// The chunk with the line of this number.
    pub(super) fn chunk_of(&self, line: u64) -> usize {
        self.lines.partition_point(|lines| *lines <= line)
    }

    /// The numbers of the lines of a chunk.
    pub(super) fn numbers(&self, chunk: usize) -> Range<u64> {
        let first = chunk.checked_sub(1).map_or(0, |before| self.lines[before]);
        first..self.lines[chunk]
    }

    /// Whether a chunk begins with a line about a hole.
    pub(super) fn begins_with_hole(&self, chunk: usize) -> bool {
        self.holes.contains_key(&chunk)
    }

    /// What comes close to the origin of a chunk that cannot be read.
    pub(super) fn near(&self, chunk: usize) -> Origin {
        let near = self.holes.get(&chunk).copied().or(self.origin);
        near.expect("a chunk could be read when it was counted, or is a hole")
    }

    pub(super) fn sent(&self, lease: LeaseId) -> u64 {
        self.sent.get(&lease).copied().unwrap_or(0)
    }

    /// Whether the lines of a message of the bus are stored.
    pub(super) fn has_message(&self, lease: LeaseId, message: MessageId) -> bool {
        self.messages.get(&lease).is_some_and(|last| *last >= message)
    }

    /// The offset of lines that come without one. A chunk that cannot be read keeps its place: it must go on
    /// to be told.
    pub(super) fn next_offset(&self, lease: LeaseId) -> u64 {
        self.sent(lease).saturating_add(u64::from(self.ends_in_hole))
    }

    /// Nothing but marks is stored any more.
    pub(super) fn is_full(&self) -> bool {
        self.dropped > 0 || self.lines.len() >= LINE_CHUNKS_MAX
    }

    /// Whether lines with this offset can be next. Past the cap most of what was sent left no trace, so a
    /// later count does not know of it; a hole there does no harm, since the lines are dropped anyway. And
    /// what is damaged must not keep out what follows it.
    pub(super) fn may_follow(&self, lease: LeaseId, offset: u64) -> bool {
        offset == self.sent(lease) || self.is_full() || self.ends_in_hole || self.may_lack_end
    }

    /// How many lines right before this offset never arrived, if its worker has skipped so many; otherwise others are
    /// missing. A chunk before this one that cannot be read may have them, and tells of it.
    pub(super) fn gap(&self, lease: LeaseId, offset: u64, skipped: u64) -> u64 {
        let ahead = offset.saturating_sub(self.sent(lease));
        let explained = ahead <= skipped || self.is_full();
        if explained && !self.ends_in_hole { ahead.min(skipped) } else { 0 }
    }

    /// Counts lines that arrived, also those that are dropped.
    pub(super) fn arrived(&mut self, lease: LeaseId, offset: u64, chunk: &Chunk) {
        self.dropped = self.dropped.max(chunk.dropped);
        // The offset comes from the worker.
        self.sent.insert(lease, offset.saturating_add(chunk.sent));
        if let Some(message) = chunk.message.filter(|_| !is_planted("log-cursor-forgotten")) {
            self.messages.insert(lease, message);
        }
        self.may_lack_end = false;
    }

    /// Counts a chunk that is stored behind the others.
    pub(super) fn stored(&mut self, lease: LeaseId, offset: u64, chunk: &Chunk) {
        let origin = Origin { attempt: chunk.attempt, at: chunk.at };
        if self.origin.is_none() {
            self.holes.values_mut().for_each(|hole| *hole = origin);
        }
        // A chunk before this one that cannot be read tells of what is missing.
        let hole = offset > self.sent(lease) && !self.is_full() && !self.ends_in_hole;
        if hole {
            self.holes.insert(self.lines.len(), origin);
        }
        self.lines.push(self.total() + u64::from(hole) + chunk.lines.len() as u64);
        self.bytes += chunk.lines.iter().map(|line| line.text.len() as u64).sum::<u64>();
        self.arrived(lease, offset, chunk);
        self.reported = self.dropped;
        self.origin = Some(origin);
        self.ends_in_hole = false;
    }

    /// Counts a chunk that cannot be read, as one line.
    fn unreadable(&mut self, now: Timestamp) {
        let near = self.origin.unwrap_or(Origin { attempt: 1, at: now });
        self.holes.insert(self.lines.len(), near);
        self.lines.push(self.total() + 1);
        self.ends_in_hole = true;
    }
}

pub(super) fn count(engine: &dyn Logs, task: TaskId, now: Timestamp) -> Result<Counted, Error> {
    let mut counted = count_on(Counted::default(), engine, task, now)?;
    counted.may_lack_end = !engine.is_whole();
    Ok(counted)
}

/// Counts what others have stored since.
pub(super) fn count_on(
    mut counted: Counted,
    engine: &dyn Logs,
    task: TaskId,
    now: Timestamp,
) -> Result<Counted, Error> {
    loop {
        let chunks = read(engine, task, counted.chunks())?;
        if chunks.is_empty() {
            return Ok(counted);
        }
        for stored in chunks {
            match stored {
                Some(Stored { lease, offset, chunk }) => counted.stored(lease, offset, &chunk),
                None => counted.unreadable(now),
            }
        }
    }
}

/// Some chunks from the `skip`-th on, none if there are no more; `None` in place of one that cannot be read.
pub(super) fn read(engine: &dyn Logs, task: TaskId, skip: usize) -> Result<Vec<Option<Stored>>, Error> {
    match engine.read(task, skip, PAGE_BYTES) {
        Ok(chunks) => Ok(chunks.iter().map(|stored| decode(task, stored)).collect()),
        Err(error @ Error { source: Cause::Damaged { .. }, .. }) => {
            tracing::warn!(%task, %error, "a part of the output is damaged");
            Ok(vec![None])
        }
        Err(error) => Err(error),
    }
}

fn decode(task: TaskId, stored: &LogChunk) -> Option<Stored> {
    let LogChunk { lease, offset, ref bytes } = *stored;
    match minicbor::decode(bytes) {
        Ok(chunk) => Some(Stored { lease, offset, chunk }),
        Err(error) => {
            tracing::warn!(%task, %lease, offset, %error, "a part of the output is not readable");
            None
        }
    }
}
