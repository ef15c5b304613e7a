//! Snapshots: one file each, complete or not there.
//!
//! A snapshot is written beside its name, synced, read back, and only then renamed. So a name promises a
//! whole snapshot, and a reader checks every byte of it all the same.
//!
//! **Invariant:** a snapshot counts for truncation only after this process saw all of it to be whole.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake3::Hasher;
use orchestrix_core::{Position, is_planted};

use super::layout::{FORMAT, Flaw, check_sum, id_at, u32_at, u64_at};
use super::names;
use crate::disk::{Disk, DiskFile, DiskLock};
use crate::fault::{damaged, flawed, invalid, io_error};
use crate::{
    ChainHash, Error, JournalId, Link, SNAPSHOT_CHUNK_MAX, SnapshotReader, SnapshotWriter, Snapshots,
};

const MAGIC: [u8; 8] = *b"orxsnp\r\n";
const HEADER_BYTES: usize = 64;
/// Before each chunk: its length and its checksum.
const CHUNK_HEADER_BYTES: usize = 8;
/// The length that only the trailer has.
const TRAILER: u32 = u32::MAX;
const TRAILER_BYTES: usize = 56;
const READ: &str = "read snapshot";
const WRITE: &str = "write snapshot";

/// The snapshots beside a journal. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct SnapshotStore {
    disk: Arc<dyn Disk>,
    id: JournalId,
    /// Up to where the journal is durable; nothing above it may be in a snapshot.
    pub(super) durable: Arc<AtomicU64>,
    known: Arc<Mutex<Known>>,
    /// The folder stays locked as long as a writer of it exists.
    _lock: Option<Arc<dyn DiskLock>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Snapshots that were seen to be whole.
    sound: BTreeSet<Position>,
    /// Names of files that are being written now.
    unfinished: BTreeSet<String>,
}

impl SnapshotStore {
    pub(super) fn new(disk: Arc<dyn Disk>, id: JournalId, lock: Option<Arc<dyn DiskLock>>) -> Self {
        Self { disk, id, durable: Arc::default(), known: Arc::default(), _lock: lock }
    }

    /// The older of the two newest snapshots that are whole; `None` while there are not two.
    pub(super) fn older_of_two_sound(&self) -> Result<Option<Position>, Error> {
        if is_planted("segments-dropped-early") {
            return Ok(self.known().sound.last().copied());
        }
        let mut sound = 0;
        for at in self.list()? {
            sound += u32::from(self.is_sound(at));
            if sound == 2 {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The newest snapshot whose header is whole.
    pub(super) fn newest_whole_header(&self) -> Result<Option<Position>, Error> {
        Ok(self.list()?.into_iter().find(|at| self.reader(*at, &names::snapshot(*at)).is_ok()))
    }

    /// Reads a snapshot to its end, unless that was done before.
    pub(super) fn check(&self, at: Position) -> Result<(), Error> {
        if self.known().sound.contains(&at) {
            return Ok(());
        }
        let mut reader = self.reader(at, &names::snapshot(at))?;
        while reader.next()?.is_some() {}
        Ok(())
    }

    fn is_sound(&self, at: Position) -> bool {
        match self.check(at) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "a snapshot cannot be used");
                false
            }
        }
    }

    fn reader(&self, at: Position, name: &str) -> Result<Reader, Error> {
        let disk = &*self.disk;
        let failed = |error| io_error(disk, READ, name, error);
        let file = disk.open(name).map_err(failed)?;
        let mut header = [0; HEADER_BYTES];
        let read = file.read_at(&mut header, 0).map_err(failed)?;
        if read < HEADER_BYTES {
            return Err(damaged(disk, READ, name, read as u64, "the file ends inside its header"));
        }
        let (id, link) = decode_header(&header).map_err(|flaw| flawed(disk, READ, name, 0, flaw))?;
        if id != self.id || link.position != at {
            let what = format!("it is of {} in journal {id}, expected {at} in {}", link.position, self.id);
            return Err(damaged(disk, READ, name, 16, what));
        }
        let len = file.len().map_err(failed)?;
        let progress = Progress::new(&header);
        Ok(Reader { store: self.clone(), name: name.to_owned(), file, len, link, progress, done: false })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshots for SnapshotStore {
    fn list(&self) -> Result<Vec<Position>, Error> {
        let all = self.disk.list().map_err(|error| io_error(&*self.disk, "list", "snapshots", error))?;
        let mut found: Vec<_> = all.iter().filter_map(|name| names::snapshot_position(name)).collect();
        found.sort_unstable_by(|one, other| other.cmp(one));
        Ok(found)
    }

    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error> {
        let name = names::snapshot(at.position);
        let beside = names::unfinished(&name);
        let failed = |error| io_error(&*self.disk, WRITE, &name, error);
        let durable = self.durable.load(Ordering::Acquire);
        if at.position.0 > durable {
            return Err(invalid(WRITE, format!("{} is not durable, only {durable} is", at.position)));
        }
        if !self.known().unfinished.insert(beside.clone()) {
            return Err(invalid(WRITE, format!("{name} is being written already")));
        }
        let file = self.disk.create(&beside).map_err(|error| {
            self.known().unfinished.remove(&beside);
            failed(error)
        })?;
        if is_planted("segments-dropped-early") {
            self.known().sound.insert(at.position);
        }
        let header = encode_header(self.id, at);
        let progress = Progress::new(&header);
        let writer =
            Writer { store: self.clone(), at: at.position, name, beside, file, progress, kept: false };
        writer.write(&header, 0)?;
        Ok(Box::new(writer))
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error> {
        Ok(Box::new(self.reader(at, &names::snapshot(at))?))
    }

    fn prune(&self) -> Result<(), Error> {
        let oldest_needed = self.older_of_two_sound()?;
        let needless = self.list()?.into_iter().filter(|at| oldest_needed.is_some_and(|oldest| *at < oldest));
        let mut names: Vec<_> = needless.map(names::snapshot).collect();
        let all = self.disk.list().map_err(|error| io_error(&*self.disk, "list", "snapshots", error))?;
        let being_written = self.known().unfinished.clone();
        names.extend(
            all.into_iter()
                .filter(|name| names::is_unfinished_snapshot(name) && !being_written.contains(name)),
        );
        for name in &names {
            self.disk.remove(name).map_err(|error| io_error(&*self.disk, "remove", name, error))?;
        }
        if names.is_empty() {
            return Ok(());
        }
        self.disk.sync_dir().map_err(|error| io_error(&*self.disk, "sync", "the data folder", error))
    }
}

/// How far a snapshot was written or read, and what the next chunk is checked with.
#[derive(Debug)]
struct Progress {
    seed: u32,
    offset: u64,
    chunks: u64,
    bytes: u64,
    hash: Hasher,
}

impl Progress {
    fn new(header: &[u8; HEADER_BYTES]) -> Self {
        let seed = crc32c::crc32c(header);
        Self { seed, offset: HEADER_BYTES as u64, chunks: 0, bytes: 0, hash: Hasher::new() }
    }

    /// The checksum of a chunk at this place: its number and length are under it.
    fn sum(&self, len: u32, bytes: &[u8]) -> u32 {
        let sum = crc32c::crc32c_append(self.seed, &self.chunks.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c_append(sum, &len.to_le_bytes()), bytes)
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.chunks += 1;
        self.bytes += bytes.len() as u64;
        self.offset += (CHUNK_HEADER_BYTES + bytes.len()) as u64;
    }

    fn trailer(&self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[8..16].copy_from_slice(&self.chunks.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..].copy_from_slice(self.hash.finalize().as_bytes());
        let sum = self.sum(TRAILER, &bytes[8..]);
        bytes[..4].copy_from_slice(&TRAILER.to_le_bytes());
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

#[derive(Debug)]
struct Writer {
    store: SnapshotStore,
    at: Position,
    name: String,
    beside: String,
    file: Arc<dyn DiskFile>,
    progress: Progress,
    kept: bool,
}

impl Writer {
    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.file.write_at(bytes, offset).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: std::io::Error) -> Error {
        io_error(&*self.store.disk, WRITE, &self.name, error)
    }

    /// Reads back what was written: a snapshot that a disk garbled must not let segments go.
    fn read_back(&self) -> Result<(), Error> {
        let mut reader = self.store.reader(self.at, &self.beside)?;
        while reader.next()?.is_some() {}
        Ok(())
    }
}

impl SnapshotWriter for Writer {
    fn chunk(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > SNAPSHOT_CHUNK_MAX {
            let why = format!("chunk of {} bytes exceeds the limit of {SNAPSHOT_CHUNK_MAX}", bytes.len());
            return Err(invalid(WRITE, why));
        }
        let len = u32::try_from(bytes.len()).expect("a chunk is at most SNAPSHOT_CHUNK_MAX long");
        let mut header = [0; CHUNK_HEADER_BYTES];
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[4..].copy_from_slice(&self.progress.sum(len, bytes).to_le_bytes());
        self.write(&header, self.progress.offset)?;
        self.write(bytes, self.progress.offset + CHUNK_HEADER_BYTES as u64)?;
        self.progress.pass(bytes);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        self.write(&self.progress.trailer(), self.progress.offset)?;
        if !is_planted("snapshot-unsynced") {
            self.file.sync_data().map_err(|error| self.failed(error))?;
        }
        self.read_back()?;
        let disk = &*self.store.disk;
        disk.rename(&self.beside, &self.name).map_err(|error| self.failed(error))?;
        self.kept = true;
        disk.sync_dir().map_err(|error| self.failed(error))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed now is removed by `prune` or at the next start.
            let _ = self.store.disk.remove(&self.beside);
        }
        self.store.known().unfinished.remove(&self.beside);
    }
}

#[derive(Debug)]
struct Reader {
    store: SnapshotStore,
    name: String,
    file: Arc<dyn DiskFile>,
    len: u64,
    link: Link,
    progress: Progress,
    done: bool,
}

impl Reader {
    fn damaged(&self, what: impl Into<String>) -> Error {
        damaged(&*self.store.disk, READ, &self.name, self.progress.offset, what)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        let failed = |error| io_error(&*self.store.disk, READ, &self.name, error);
        let read = self.file.read_at(bytes, offset).map_err(failed)?;
        if read < bytes.len() {
            return Err(self.damaged(format!("the file ends at {}", offset + read as u64)));
        }
        Ok(())
    }

    /// Whether a chunk may be so long, before there is memory for it.
    fn check_length(&self, len: u32) -> Result<(), Error> {
        if len as usize > SNAPSHOT_CHUNK_MAX {
            return Err(
                self.damaged(format!("chunk of {len} bytes exceeds the limit of {SNAPSHOT_CHUNK_MAX}"))
            );
        }
        let left = self.len.saturating_sub(self.progress.offset + CHUNK_HEADER_BYTES as u64);
        if u64::from(len) > left {
            return Err(
                self.damaged(format!("chunk of {len} bytes, but only {left} bytes are left in the file"))
            );
        }
        Ok(())
    }

    /// The trailer is as expected, and nothing follows it.
    fn check_end(&mut self) -> Result<(), Error> {
        let mut found = [0; TRAILER_BYTES];
        self.read(&mut found, self.progress.offset)?;
        if found != self.progress.trailer() {
            return Err(self.damaged("the trailer does not fit the chunks before it"));
        }
        let end = self.progress.offset + TRAILER_BYTES as u64;
        if self.len != end {
            return Err(self.damaged(format!("the file has {} bytes, expected {end}", self.len)));
        }
        self.done = true;
        self.store.known().sound.insert(self.link.position);
        Ok(())
    }
}

impl SnapshotReader for Reader {
    fn link(&self) -> Link {
        self.link
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.done {
            return Ok(None);
        }
        let mut header = [0; CHUNK_HEADER_BYTES];
        self.read(&mut header, self.progress.offset)?;
        let len = u32_at(&header, 0);
        if len == TRAILER {
            self.check_end()?;
            return Ok(None);
        }
        if !is_planted("length-believed") {
            self.check_length(len)?;
        }
        let mut bytes = vec![0; len as usize];
        self.read(&mut bytes, self.progress.offset + CHUNK_HEADER_BYTES as u64)?;
        let offset = self.progress.offset;
        check_sum("chunk", self.progress.sum(len, &bytes), u32_at(&header, 4))
            .map_err(|flaw| flawed(&*self.store.disk, READ, &self.name, offset, flaw))?;
        self.progress.pass(&bytes);
        Ok(Some(bytes))
    }
}

fn encode_header(id: JournalId, at: Link) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&u32::from(FORMAT).to_le_bytes());
    bytes[16..32].copy_from_slice(&id.0);
    bytes[32..40].copy_from_slice(&at.position.0.to_le_bytes());
    bytes[40..56].copy_from_slice(&at.hash.0);
    let sum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Result<(JournalId, Link), Flaw> {
    if bytes[..8] != MAGIC {
        return Err(Flaw::Damaged("this is not a snapshot".to_owned()));
    }
    check_sum("snapshot header", crc32c::crc32c(&bytes[..60]), u32_at(bytes, 60))?;
    let format = u32_at(bytes, 8);
    if format > u32::from(FORMAT) {
        return Err(Flaw::Newer(format));
    }
    let link = Link { position: Position(u64_at(bytes, 32)), hash: ChainHash(id_at(bytes, 40)) };
    Ok((JournalId(id_at(bytes, 16)), link))
}
