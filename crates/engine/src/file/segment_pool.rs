//! Prepared segments: files full of zeros, durable, that only need a header and a name.
//!
//! One is for the next segment, the others are the reserve. Room on the disk is therefore missed long
//! before it is needed, and what is in the pool can be used without asking the disk for room. While room is short, new
//! work gets only what fits beside the reserve, and groups that are longer than a spare are written in parts.
//!
//! **Invariant:** a spare under its final name is whole, zero behind the segment header, and durable.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use orchestrix_core::is_planted;

use super::layout::{self, ALIGN, MARK_BYTES, SEGMENT_HEADER_BYTES};
use super::{Options, Prepare, names};
use crate::disk::{Disk, DiskFile};
use crate::fault::{io_error, is_full};
use crate::{BATCH_BYTES_MAX, Cause, Error, Room, Space};

/// Bounds how much is preallocated for a small journal, and how often a large one changes segments.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 1 << 20;
pub(crate) const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// A segment takes at most this share of the free room.
const FREE_SHARE: u64 = 16;

/// The reserve: so many spares, of at most so many bytes each; together at most a quarter of what is free.
const RESERVE_SPARES_MAX: u64 = 4;
const RESERVE_SPARE_BYTES_MAX: u64 = 8 << 20;
const RESERVE_SHARE: u64 = 4;

/// With so much free space, every next append fits, and all spares too.
const PLENTY_BYTES: u64 = 2 * BATCH_BYTES_MAX as u64;
/// New work may take this share of what is free; the rest is for what is prepared meanwhile.
const NEW_WORK_SHARE: u64 = 2;

/// How long to wait before trying again.
const RETRY: Duration = Duration::from_secs(1);

static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// The spares of a journal.
#[derive(Debug)]
pub(crate) struct SegmentPool {
    disk: Arc<dyn Disk>,
    options: Options,
    reserve: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// A prepared segment.
#[derive(Debug)]
pub(crate) struct SpareSegment {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) file: Arc<dyn DiskFile>,
}

#[derive(Debug, Default)]
struct State {
    spares: Vec<SpareSegment>,
    /// Spares that an earlier process left; they are looked through before they count.
    leftovers: Vec<String>,
    /// The size of the segment in use: the next one is up to twice as long.
    current: u64,
    next_number: u64,
    last: LastTry,
    /// Some thread is preparing a spare now.
    preparing: bool,
    closed: bool,
}

/// What is known since a spare was last tried to be prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastTry {
    #[default]
    Went,
    /// There was no room: what is in the pool is for what ends or frees work.
    NoRoom,
    /// Something else failed, which says nothing about room. The pool is used up as if the error would pass; the caller
    /// needs a segment when there is none left hears what fails.
    Failed,
}

enum Progress {
    Went,
    Whole,
    Stuck,
}

impl SegmentPool {
    /// Nothing is prepared yet; `leftovers` are the names of spares that are there.
    pub(crate) fn new(disk: Arc<dyn Disk>, options: Options, leftovers: Vec<String>) -> Self {
        let next_number =
            leftovers.iter().filter_map(|name| names::spare_number(name)).max().unwrap_or(0) + 1;
        let free = disk.free_bytes().unwrap_or(0);
        let piece = options.segment_bytes.unwrap_or(SEGMENT_BYTES_MIN);
        let fits = (free / RESERVE_SHARE / piece).clamp(1, RESERVE_SPARES_MAX).max(leftovers.len() as u64);
        let reserve = usize::try_from(fits.min(RESERVE_SPARES_MAX)).expect("the reserve is small");
        let state = Mutex::new(State { leftovers, next_number, ..State::default() });
        Self { disk, options, reserve, state, changed: Condvar::new() }
    }

    /// Prepares spares from now on, or, without a thread, once now.
    pub(crate) fn start(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        match self.options.prepare {
            Prepare::Inline => {
                self.fill();
                None
            }
            Prepare::Thread => {
                let pool = Arc::clone(self);
                let thread = std::thread::Builder::new().name("journal-prepare".to_owned());
                match thread.spawn(move || pool.run()) {
                    Ok(thread) => Some(thread),
                    Err(error) => {
                        tracing::warn!(%error, "no thread to prepare segments; appends prepare them");
                        None
                    }
                }
            }
        }
    }

    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// How much room there is, when the segment in use has room for so many bytes.
    pub(crate) fn space(&self, in_use: u64) -> Space {
        let last = self.state().last;
        if last != LastTry::Went {
            // Where there is no thread that tries again.
            self.wake_inline();
        }
        let free = self.disk.free_bytes().unwrap_or(0);
        let state = self.state();
        // The thread that prepares the next one may not have begun yet.
        let no_room = || state.last == LastTry::NoRoom || free < self.missing_size(&state);
        let reserve_only = self.missing(&state) > 0 && no_room();
        // What fails for another reason says nothing about room.
        if state.last == LastTry::Failed || (free >= PLENTY_BYTES && !reserve_only) {
            return Space::Plenty;
        }
        let in_use = records_in(in_use);
        let spares = || state.spares.iter().map(|spare| records_in(spare.size - SEGMENT_HEADER_BYTES as u64));
        let batch = spares().fold(in_use, u64::max);
        // The last record of a part may not fit, and leaves room behind.
        let reserve = in_use + spares().sum::<u64>() / 4 * 3;
        if reserve_only {
            return Space::Short(Room { new_work: 0, in_all: reserve, batch });
        }
        let new_work = in_use.max(free / NEW_WORK_SHARE);
        Space::Short(Room { new_work, in_all: reserve + free, batch })
    }

    /// Called when room may have come back, or a spare was used.
    pub(crate) fn wake(&self) {
        match self.options.prepare {
            Prepare::Inline => self.fill(),
            Prepare::Thread => self.changed.notify_all(),
        }
    }

    fn wake_inline(&self) {
        match self.options.prepare {
            Prepare::Inline => self.fill(),
            Prepare::Thread => {}
        }
    }

    /// A spare with room for at least `needed` bytes, header included.
    ///
    /// # Errors
    /// `Full`, which may pass, and other I/O errors.
    pub(crate) fn take(&self, needed: u64) -> Result<SpareSegment, Error> {
        let mut state = self.state();
        while state.preparing && !state.spares.iter().any(|spare| spare.size >= needed) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(spare) = state.take(needed) {
            return Ok(spare);
        }
        let next = self.next_size(state.current);
        let needed = needed.next_multiple_of(ALIGN as u64);
        let number = state.next_number;
        state.next_number += 1;
        drop(state);
        // Where there is no room for a long one, one that is long enough will do.
        let fits = self.disk.free_bytes().is_ok_and(|free| free >= next);
        let size = if fits { next.max(needed) } else { needed };
        let spare = self.make(number, size)?;
        // A segment made to measure for one large batch says nothing about the ones after it.
        self.state().current = size.min(next);
        Ok(spare)
    }

    pub(crate) fn set_current(&self, size: u64) {
        self.state().current = size;
    }

    fn run(&self) {
        let mut progress = Progress::Went;
        loop {
            let state = self.state();
            if state.closed {
                return;
            }
            match progress {
                Progress::Went => drop(state),
                Progress::Stuck => {
                    drop(self.changed.wait_timeout(state, RETRY).unwrap_or_else(PoisonError::into_inner));
                }
                Progress::Whole if self.missing(&state) > 0 => drop(state),
                Progress::Whole => {
                    drop(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
                }
            }
            progress = self.prepare_one();
        }
    }

    fn fill(&self) {
        while let Progress::Went = self.prepare_one() {}
    }

    /// Prepares one spare, if one is missing.
    fn prepare_one(&self) -> Progress {
        let mut state = self.state();
        if state.closed || state.preparing {
            return Progress::Stuck;
        }
        if self.missing(&state) == 0 {
            state.last = LastTry::Went;
            return Progress::Whole;
        }
        state.preparing = true;
        let leftover = state.leftovers.pop();
        let size = self.missing_size(&state);
        let number = state.next_number;
        state.next_number += 1;
        drop(state);
        let outcome = match leftover {
            Some(name) => self.adopt(name),
            None => self.make(number, size).map(Some),
        };
        let mut state = self.state();
        state.preparing = false;
        let progress = match outcome {
            Ok(spare) => {
                state.spares.extend(spare);
                Progress::Went
            }
            Err(error) => {
                let last = if is_full(&error) { LastTry::NoRoom } else { LastTry::Failed };
                if state.last != last {
                    tracing::warn!(%error, "the next journal segment cannot be prepared; it is tried again");
                }
                state.last = last;
                Progress::Stuck
            }
        };
        drop(state);
        self.changed.notify_all();
        progress
    }

    fn missing(&self, state: &State) -> usize {
        (1 + self.reserve).saturating_sub(state.spares.len())
    }

    fn missing_size(&self, state: &State) -> u64 {
        let next = self.next_size(state.current);
        let has_next = state.spares.iter().any(|spare| spare.size >= next);
        if has_next { next.min(RESERVE_SPARE_BYTES_MAX) } else { next }
    }

    /// A segment is up to twice as long as the one before it, so that a small journal stays small.
    fn next_size(&self, current: u64) -> u64 {
        if let Some(size) = self.options.segment_bytes {
            return size;
        }
        let share = self.disk.free_bytes().unwrap_or(0) / FREE_SHARE;
        let allowed = share.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let power = 1 << allowed.ilog2();
        (current * 2).clamp(SEGMENT_BYTES_MIN, power)
    }

    /// Writes zeros ahead of need: a sync of bytes that already have their place on the disk is the
    /// fastest one there is.
    fn make(&self, number: u64, size: u64) -> Result<SpareSegment, Error> {
        let name = names::spare(number);
        let beside = names::unfinished(&name);
        let failed = |error| io_error(&*self.disk, "prepare journal segment", &name, error);
        if self.disk.free_bytes().map_err(failed)? < size {
            let source = Cause::Full { path: self.disk.path(&name) };
            return Err(Error {
                operation: format!("prepare journal segment {name}"),
                retryable: true,
                source,
            });
        }
        let made = self.disk.create(&beside).and_then(|file| {
            write_zeros(&*file, 0, size)?;
            file.sync_data()?;
            self.disk.rename(&beside, &name)?;
            if !is_planted("folder-sync-skipped") {
                self.disk.sync_dir()?;
            }
            Ok(file)
        });
        match made {
            Ok(file) => Ok(SpareSegment { name, size, file }),
            Err(error) => {
                // Under any name: the next try has another number. What cannot be removed now is removed
                // or taken over at the next start.
                let _ = self.disk.remove(&beside);
                let _ = self.disk.remove(&name);
                Err(failed(error))
            }
        }
    }

    /// Takes over a spare that an earlier process left, if it is as it should be.
    fn adopt(&self, name: String) -> Result<Option<SpareSegment>, Error> {
        let failed = |error| io_error(&*self.disk, "look through", &name, error);
        let file = self.disk.open(&name).map_err(failed)?;
        let size = file.len().map_err(failed)?;
        let smallest = self.options.segment_bytes.unwrap_or(SEGMENT_BYTES_MIN);
        let clean = is_planted("segment-recycled")
            || is_zero(&*file, SEGMENT_HEADER_BYTES as u64, size).map_err(failed)?;
        if size >= smallest && clean {
            return Ok(Some(SpareSegment { name, size, file }));
        }
        drop(file);
        self.disk.remove(&name).map_err(failed)?;
        Ok(None)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The longest spare that is long enough: the reserve is used last.
    fn take(&mut self, needed: u64) -> Option<SpareSegment> {
        let fitting = self.spares.iter().enumerate().filter(|(_, spare)| spare.size >= needed);
        let (index, _) = fitting.max_by_key(|(index, spare)| (spare.size, usize::MAX - index))?;
        let spare = self.spares.remove(index);
        self.current = spare.size;
        Some(spare)
    }
}

/// The records of one batch that fit so many bytes of a segment, with a mark after it.
fn records_in(bytes: u64) -> u64 {
    let most = bytes.saturating_sub(MARK_BYTES as u64) / ALIGN as u64 * ALIGN as u64;
    most.saturating_sub(layout::FRAME_EXTRA_BYTES as u64)
}

/// Overwrites a part of a file with zeros.
pub(crate) fn write_zeros(file: &dyn DiskFile, from: u64, to: u64) -> std::io::Result<()> {
    let mut at = from;
    while at < to {
        let len = ZEROS.len().min(usize::try_from(to - at).unwrap_or(ZEROS.len()));
        file.write_at(&ZEROS[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

fn is_zero(file: &dyn DiskFile, from: u64, to: u64) -> std::io::Result<bool> {
    let mut bytes = vec![0; ZEROS.len()];
    let mut at = from;
    while at < to {
        let len = bytes.len().min(usize::try_from(to - at).unwrap_or(bytes.len()));
        let read = file.read_at(&mut bytes[..len], at)?;
        if read < len || bytes[..len] != ZEROS[..len] {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
