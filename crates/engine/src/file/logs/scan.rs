//! Finds the chunks when the logs are opened, and begins new files.
//!
//! In the newest file every record is checked whole, since its end may be torn. In older files, which were
//! durable before the next one began, only headers are read; bodies are checked when they are read, and
//! when a record comes a second time: a flawed one must not hide the one that was sent in its place.
//!
//! **Invariant:** output is not truth: what is damaged or cannot be read is left out and reported, and never
//! keeps a node from starting. A file in an unknown format does.

use std::io;
use std::sync::Arc;

use super::index::{Index, LogFile, Place};
use super::record::{self, FILE_HEADER_BYTES, Header, Kind, RECORD_HEADER_BYTES};
use crate::Error;
use crate::disk::{Disk, DiskFile};
use crate::fault::{flawed, io_error};
use crate::file::layout::{ALIGN, Flaw};
use crate::file::names;

const DOING: &str = "read task logs";
/// How much is read at once while headers are looked for.
const WINDOW_BYTES: usize = 64 << 10;
/// What a disk reads whole or not at all.
const BLOCK_BYTES: u64 = 4 << 10;
/// A disk that fails takes its time with every read. Bounds how long one file can keep a start waiting.
const READ_FAILURES_MAX: usize = 16;

/// What opening the logs found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRecovery {
    pub files: u64,
    pub chunks: u64,
    /// Bytes at the end of the newest file that were cut off, as no record in them was whole.
    pub cut_bytes: u64,
    /// Places at which records could not be read.
    pub damaged: u64,
}

pub(super) fn scan(disk: &Arc<dyn Disk>) -> Result<(Index, LogRecovery), Error> {
    let (mut index, mut recovery) = (Index::default(), LogRecovery::default());
    let mut found = Vec::new();
    // A process that died may have left names that are visible but not durable.
    disk.sync_dir().map_err(|error| io_error(&**disk, "sync", "the data folder", error))?;
    for name in disk.list().map_err(|error| io_error(&**disk, "list", "task logs", error))? {
        if names::is_unfinished_log(&name) {
            if let Err(error) = disk.remove(&name) {
                tracing::warn!(file = name, %error, "what is left of a task log cannot be removed");
            }
        } else if let Some(number) = names::log_number(&name) {
            found.push((number, name));
        }
    }
    let last = found.len();
    for (at, (number, name)) in found.into_iter().enumerate() {
        let newest = at + 1 == last;
        index.take_number(number);
        let (file, size) = match open_file(&**disk, number, &name, newest) {
            Ok(Ok(opened)) => opened,
            Ok(Err(newer @ Flaw::Newer(_))) => return Err(flawed(&**disk, DOING, &name, 0, newer)),
            Ok(Err(Flaw::Damaged(what))) => {
                tracing::warn!(file = name, "a file of task logs cannot be read: {what}");
                recovery.damaged += 1;
                continue;
            }
            Err(error) => {
                tracing::warn!(file = name, %error, "a file of task logs is left out");
                recovery.damaged += 1;
                index.miss_file(number);
                continue;
            }
        };
        let seed = file.seed;
        index.add_file(file);
        let mut scan = Scan { disk: &**disk, name: &name, number, seed, size, newest };
        scan.records(&mut index, &mut recovery)?;
    }
    recovery.files = index.files().count() as u64;
    Ok((index, recovery))
}

/// Makes a new, empty file that will survive a crash.
pub(super) fn begin_file(disk: &dyn Disk, number: u32) -> Result<LogFile, Error> {
    let name = names::log(number);
    let beside = names::unfinished(&name);
    let file = new_file(disk, number, &beside)?;
    let failed = |error| io_error(disk, "begin task log", &name, error);
    file.file.sync_data().map_err(failed)?;
    disk.rename(&beside, &name).map_err(failed)?;
    disk.sync_dir().map_err(failed)?;
    Ok(LogFile { name, ..file })
}

/// A file under a name of its own, with its header; nothing of it is durable yet.
pub(super) fn new_file(disk: &dyn Disk, number: u32, name: &str) -> Result<LogFile, Error> {
    let failed = |error| io_error(disk, "begin task log", name, error);
    let mut id = [0; 8];
    disk.random(&mut id).map_err(failed)?;
    let file = disk.create(name).map_err(failed)?;
    file.write_at(&record::encode_file_header(id), 0).map_err(failed)?;
    Ok(LogFile {
        number,
        name: name.to_owned(),
        file,
        seed: record::seed(&id),
        size: FILE_HEADER_BYTES as u64,
        live: 0,
        tombstones: Vec::new(),
        damaged: false,
    })
}

/// Opens a file and reads its header; answers how long it is, too.
fn open_file(
    disk: &dyn Disk,
    number: u32,
    name: &str,
    newest: bool,
) -> io::Result<Result<(LogFile, u64), Flaw>> {
    let file = disk.open(name)?;
    if newest {
        // Its last records may be known only to the cache of the operating system.
        file.sync_data()?;
    }
    let mut header = [0; FILE_HEADER_BYTES];
    file.read_at(&mut header, 0)?;
    let len = file.len()?;
    let size = FILE_HEADER_BYTES as u64;
    let name = name.to_owned();
    let found =
        |seed| LogFile { number, name, file, seed, size, live: 0, tombstones: Vec::new(), damaged: false };
    Ok(record::decode_file_header(&header).map(|seed| (found(seed), len)))
}

/// One file being looked through.
struct Scan<'a> {
    disk: &'a dyn Disk,
    name: &'a str,
    number: u32,
    seed: u32,
    size: u64,
    newest: bool,
}

impl Scan<'_> {
    fn records(&mut self, index: &mut Index, recovery: &mut LogRecovery) -> Result<(), Error> {
        let file = Arc::clone(&index.file(self.number).file);
        let mut window = Window::new(&*file);
        let mut at = FILE_HEADER_BYTES as u64;
        // Where the last whole record ends, and what is flawed behind it.
        let (mut end, mut behind) = (at, Vec::new());
        while at < self.size {
            match self.record(&mut window, at)? {
                Found::Whole(header, tasks) => {
                    self.keep(index, recovery, &mut behind);
                    self.note(index, recovery, at, header, &tasks);
                    at += header.frame_bytes() as u64;
                    end = at;
                }
                Found::Flawed(header) => {
                    behind.push((at, Some(header)));
                    at += header.frame_bytes() as u64;
                }
                Found::Nothing { look } => {
                    behind.push((at, None));
                    at = self.next_record(&mut window, look)?.unwrap_or(self.size);
                }
            }
        }
        // If a file cannot be read as a whole, its end and its content are unknown.
        let readable = window.failures == 0;
        if !(self.newest && readable) {
            self.keep(index, recovery, &mut behind);
            end = self.size;
        }
        index.set_size(self.number, end);
        if !(readable && self.cut(&*file, end, recovery)) {
            index.set_damaged(self.number);
        }
        Ok(())
    }

    /// Reports what is flawed and is not cut off. A record of which the header is whole has its place all the
    /// same: its task can be deleted, and it is known what is missing.
    fn keep(&self, index: &mut Index, recovery: &mut LogRecovery, flawed: &mut Vec<(u64, Option<Header>)>) {
        for (at, header) in flawed.drain(..) {
            self.report(recovery, at);
            match header {
                Some(header @ Header { kind: Kind::Chunk { .. }, .. }) => {
                    self.note(index, recovery, at, header, &[]);
                }
                Some(Header { kind: Kind::Tombstone, .. }) | None => {}
            }
        }
    }

    fn report(&self, recovery: &mut LogRecovery, at: u64) {
        tracing::warn!(file = self.name, offset = at, "task log records cannot be read");
        recovery.damaged += 1;
    }

    fn record(&self, window: &mut Window<'_>, at: u64) -> Result<Found, Error> {
        let Some(start) = window.at(at, RECORD_HEADER_BYTES) else {
            return Ok(Found::Nothing { look: (at + 1).next_multiple_of(BLOCK_BYTES) });
        };
        let nothing = Found::Nothing { look: at + ALIGN as u64 };
        let header = match record::decode(start, self.seed) {
            Ok(header) => header,
            Err(newer @ Flaw::Newer(_)) => return Err(flawed(self.disk, DOING, self.name, at, newer)),
            Err(Flaw::Damaged(_)) => return Ok(nothing),
        };
        let len = header.frame_bytes();
        if at + len as u64 > self.size {
            return Ok(nothing);
        }
        match header.kind {
            Kind::Chunk { .. } if !self.newest => return Ok(Found::Whole(header, Vec::new())),
            Kind::Chunk { .. } | Kind::Tombstone => {}
        }
        let Some(bytes) = window.at(at, len) else { return Ok(Found::Flawed(header)) };
        Ok(match (header.body(bytes, self.seed), header.kind) {
            (Ok(body), Kind::Tombstone) => Found::Whole(header, record::tombstone_tasks(body)),
            (Ok(_), Kind::Chunk { .. }) => Found::Whole(header, Vec::new()),
            (Err(_), _) => Found::Flawed(header),
        })
    }

    fn note(
        &self,
        index: &mut Index,
        recovery: &mut LogRecovery,
        at: u64,
        header: Header,
        dead: &[orchestrix_core::TaskId],
    ) {
        let len = u32::try_from(header.len).expect("a body is at most CHUNK_BYTES_MAX long");
        match header.kind {
            Kind::Chunk { task, lease, offset } => {
                let place = Place { lease, offset, file: self.number, at, len };
                match index.place(task, lease, offset) {
                    None => {
                        index.add(task, place);
                        recovery.chunks += 1;
                    }
                    // It was sent again, since what was stored of it first is not whole; or there was a race.
                    Some(first) if index.file(first.file).record(first.at, first.len).is_err() => {
                        index.replace(task, first, place);
                    }
                    Some(_) => {}
                }
            }
            Kind::Tombstone => index.bury(dead, at, len),
        }
    }

    /// The next place from `at` on at which a record begins.
    fn next_record(&self, window: &mut Window<'_>, mut at: u64) -> Result<Option<u64>, Error> {
        while at + RECORD_HEADER_BYTES as u64 <= self.size {
            match self.record(window, at)? {
                Found::Whole(..) | Found::Flawed(_) => return Ok(Some(at)),
                Found::Nothing { look } => at = look,
            }
        }
        Ok(None)
    }

    /// Cuts off what is behind the last whole record of the newest file, since the next one goes there.
    /// Answers whether it may.
    fn cut(&self, file: &dyn DiskFile, at: u64, recovery: &mut LogRecovery) -> bool {
        if !self.newest || at == self.size {
            return true;
        }
        recovery.cut_bytes = self.size - at;
        match file.set_len(at).and_then(|()| file.sync_data()) {
            Ok(()) => {
                tracing::warn!(file = self.name, offset = at, "a torn end of the task logs was cut off");
                true
            }
            Err(error) => {
                tracing::warn!(file = self.name, offset = at, %error, "a torn end of the task logs stays");
                false
            }
        }
    }
}

enum Found {
    /// A record, and the tasks that it deletes.
    Whole(Header, Vec<orchestrix_core::TaskId>),
    /// A header whose body is not what was written.
    Flawed(Header),
    Nothing {
        /// Where the next record may be.
        look: u64,
    },
}

/// The part of a file that is in memory.
struct Window<'a> {
    file: &'a dyn DiskFile,
    bytes: Vec<u8>,
    start: u64,
    failures: usize,
    /// A read of what is before this failed. Block by block, more of it may be found.
    careful_until: u64,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn DiskFile) -> Self {
        Self { file, bytes: Vec::new(), start: 0, failures: 0, careful_until: 0 }
    }

    /// At least `want` bytes from `at` on, unless the file ends before; `None` if the disk fails.
    fn at(&mut self, at: u64, want: usize) -> Option<&[u8]> {
        let end = self.start + self.bytes.len() as u64;
        if at < self.start || at + want as u64 > end {
            self.fill(at, want)?;
        }
        let from = usize::try_from(at - self.start).expect("the window holds the offset");
        Some(self.bytes.get(from..).unwrap_or_default())
    }

    fn fill(&mut self, at: u64, want: usize) -> Option<()> {
        if at >= self.careful_until {
            let len = want.max(WINDOW_BYTES);
            if self.read(at, len).is_some() {
                return Some(());
            }
            self.careful_until = at + len as u64;
        }
        let blocks = (at + want as u64).next_multiple_of(BLOCK_BYTES) - at;
        self.read(at, usize::try_from(blocks).expect("a record fits memory"))
    }

    fn read(&mut self, at: u64, len: usize) -> Option<()> {
        self.bytes.clear();
        if self.failures == READ_FAILURES_MAX {
            return None;
        }
        self.bytes.resize(len, 0);
        let read = self.file.read_at(&mut self.bytes, at);
        if read.is_err() {
            self.failures += 1;
        }
        self.start = at;
        self.bytes.truncate(*read.as_ref().unwrap_or(&0));
        read.is_ok().then_some(())
    }
}
