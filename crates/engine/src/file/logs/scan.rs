//! Finding the chunks again when the logs are opened, and beginning new files.
//!
//! In the newest file every record is checked whole, since its end may be torn. In older files, which were
//! durable before the next one began, only headers are read; bodies are checked when somebody reads them.
//!
//! **Invariant:** output is not truth: what is damaged is left out and reported, and never keeps a node
//! from starting. A file in an unknown format does.

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

/// What opening the logs found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRecovery {
    pub files: u64,
    pub chunks: u64,
    /// Bytes at the end of the newest file that were cut off, as no record in them was whole.
    pub cut_bytes: u64,
    /// Places at which records could not be read and were left out.
    pub damaged: u64,
}

pub(super) fn scan(disk: &Arc<dyn Disk>) -> Result<(Index, LogRecovery), Error> {
    let (mut index, mut recovery) = (Index::default(), LogRecovery::default());
    let mut found = Vec::new();
    // A process that died may have left names that everybody sees and that a crash would take back.
    disk.sync_dir().map_err(|error| io_error(&**disk, "sync", "the data folder", error))?;
    for name in disk.list().map_err(|error| io_error(&**disk, "list", "task logs", error))? {
        if names::is_unfinished_log(&name) {
            disk.remove(&name).map_err(|error| io_error(&**disk, "remove", &name, error))?;
        } else if let Some(number) = names::log_number(&name) {
            found.push((number, name));
        }
    }
    let last = found.len();
    for (at, (number, name)) in found.into_iter().enumerate() {
        let newest = at + 1 == last;
        index.take_number(number);
        let Some((file, size)) = open_file(&**disk, number, &name, &mut recovery)? else { continue };
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

fn open_file(
    disk: &dyn Disk,
    number: u32,
    name: &str,
    recovery: &mut LogRecovery,
) -> Result<Option<(LogFile, u64)>, Error> {
    let failed = |error| io_error(disk, DOING, name, error);
    let file = disk.open(name).map_err(failed)?;
    let mut header = [0; FILE_HEADER_BYTES];
    file.read_at(&mut header, 0).map_err(failed)?;
    let seed = match record::decode_file_header(&header) {
        Ok(seed) => seed,
        Err(newer @ Flaw::Newer(_)) => return Err(flawed(disk, DOING, name, 0, newer)),
        Err(Flaw::Damaged(what)) => {
            tracing::warn!(file = name, "a file of task logs cannot be read: {what}");
            recovery.damaged += 1;
            return Ok(None);
        }
    };
    let len = file.len().map_err(failed)?;
    let size = FILE_HEADER_BYTES as u64;
    let name = name.to_owned();
    let found = LogFile { number, name, file, seed, size, live: 0, tombstones: Vec::new(), damaged: false };
    Ok(Some((found, len)))
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
        let mut window = Window { file: &*file, bytes: Vec::new(), start: 0 };
        let mut at = FILE_HEADER_BYTES as u64;
        while at < self.size {
            match self.record(&mut window, at)? {
                Found::Whole(header, tasks) => {
                    let end = at + header.frame_bytes() as u64;
                    self.note(index, recovery, at, header, &tasks);
                    at = end;
                }
                Found::Flawed(header) => {
                    let end = at + header.frame_bytes() as u64;
                    self.report(recovery, at);
                    at = end.min(self.size);
                }
                Found::Nothing => match self.next_record(&mut window, at)? {
                    Some(next) => {
                        self.report(recovery, at);
                        at = next;
                    }
                    None if self.newest => break,
                    None => {
                        self.report(recovery, at);
                        break;
                    }
                },
            }
            if let Some(last) = index.last_mut() {
                last.size = at;
            }
        }
        self.cut(&*file, at, recovery)
    }

    fn report(&self, recovery: &mut LogRecovery, at: u64) {
        tracing::warn!(file = self.name, offset = at, "task log records cannot be read and are left out");
        recovery.damaged += 1;
    }

    fn record(&self, window: &mut Window<'_>, at: u64) -> Result<Found, Error> {
        let failed = |error| io_error(self.disk, DOING, self.name, error);
        let start = window.at(at, RECORD_HEADER_BYTES).map_err(failed)?;
        let header = match record::decode(start, self.seed) {
            Ok(header) => header,
            Err(newer @ Flaw::Newer(_)) => return Err(flawed(self.disk, DOING, self.name, at, newer)),
            Err(Flaw::Damaged(_)) => return Ok(Found::Nothing),
        };
        let len = header.frame_bytes();
        if at + len as u64 > self.size {
            return Ok(Found::Nothing);
        }
        match header.kind {
            Kind::Chunk { .. } if !self.newest => return Ok(Found::Whole(header, Vec::new())),
            Kind::Chunk { .. } | Kind::Tombstone => {}
        }
        let bytes = window.at(at, len).map_err(failed)?;
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
                if !index.has(task, lease, offset) {
                    index.add(task, Place { lease, offset, file: self.number, at, len });
                    recovery.chunks += 1;
                }
            }
            Kind::Tombstone => index.bury(dead, at, len),
        }
    }

    /// The next place after `at` at which a record begins.
    fn next_record(&self, window: &mut Window<'_>, at: u64) -> Result<Option<u64>, Error> {
        let mut next = at + ALIGN as u64;
        while next + RECORD_HEADER_BYTES as u64 <= self.size {
            match self.record(window, next)? {
                Found::Whole(..) | Found::Flawed(_) => return Ok(Some(next)),
                Found::Nothing => next += ALIGN as u64,
            }
        }
        Ok(None)
    }

    /// Cuts off what is behind the last record of the newest file: the next one goes there.
    fn cut(&self, file: &dyn DiskFile, at: u64, recovery: &mut LogRecovery) -> Result<(), Error> {
        let failed = |error| io_error(self.disk, "cut task log", self.name, error);
        if self.newest {
            if at < self.size {
                recovery.cut_bytes = self.size - at;
                tracing::warn!(file = self.name, offset = at, "a torn end of the task logs was cut off");
                file.set_len(at).map_err(failed)?;
            }
            // Its last records may be known only to the cache of the operating system.
            file.sync_data().map_err(failed)?;
        }
        Ok(())
    }
}

enum Found {
    /// A record, and the tasks that it deletes.
    Whole(Header, Vec<orchestrix_core::TaskId>),
    /// A header whose body is not what was written.
    Flawed(Header),
    Nothing,
}

/// The part of a file that is in memory.
struct Window<'a> {
    file: &'a dyn DiskFile,
    bytes: Vec<u8>,
    start: u64,
}

impl Window<'_> {
    /// At least `want` bytes from `at` on, unless the file ends before.
    fn at(&mut self, at: u64, want: usize) -> std::io::Result<&[u8]> {
        let end = self.start + self.bytes.len() as u64;
        if at < self.start || at + want as u64 > end {
            self.bytes.resize(want.max(WINDOW_BYTES), 0);
            let read = self.file.read_at(&mut self.bytes, at)?;
            self.bytes.truncate(read);
            self.start = at;
        }
        let from = usize::try_from(at - self.start).expect("the window holds the offset");
        Ok(self.bytes.get(from..).unwrap_or_default())
    }
}
