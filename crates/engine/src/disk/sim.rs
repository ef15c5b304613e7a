//! A disk in memory that can lose power, and whose owner chooses the faults.
//!
//! Every file has the bytes that programs see and the bytes that are durable. They differ in *pending
//! sectors*, which a sync makes durable and of which a crash keeps any subset. Names are durable separately:
//! a crash keeps any subset of the changes to the folder since the last [`Disk::sync_dir`].
//!
//! **Invariant:** the same calls with the same seed and faults give the same answers and the same bytes.

mod outcomes;
mod world;

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use self::outcomes::Covered;
use self::world::{Change, Kind, World, to_usize};
use super::{Disk, DiskFile, DiskLock, Lock};

/// What a real disk writes whole or not at all, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// What shall go wrong. Operations are counted from 1, and only those that change something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// After so many operations the power is off: every later one fails and does nothing.
    pub power_off_after: Option<u64>,
    /// The operation with this number fails and does nothing.
    pub fail: Option<(u64, Lasting)>,
    /// The sync of bytes with this number fails.
    pub fail_sync: Option<(u64, SyncFailure)>,
    /// The sync of names with this number fails; what it should have made durable stays pending.
    pub fail_sync_dir: Option<u64>,
    /// The write with this number stops after so many bytes and fails.
    pub short_write: Option<(u64, usize)>,
    /// All files together may not be longer than this, in bytes.
    pub capacity: Option<u64>,
}

/// For how long an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    Once,
    /// All later operations of the same kind fail too.
    ForEver,
}

/// What a failed sync does with the bytes it should have made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncFailure {
    /// They stay pending.
    Keep,
    /// They count as clean and will never become durable; programs go on to see them.
    Forget,
}

/// How many operations there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All that change something, writes and syncs included.
    pub operations: u64,
    pub writes: u64,
    /// Syncs of bytes, not of names.
    pub syncs: u64,
    /// Syncs of names.
    pub dir_syncs: u64,
    /// Of those, syncs and writes that failed because they were to, and writes for which there was no room.
    pub failed_syncs: u64,
    pub short_writes: u64,
    pub full_writes: u64,
}

/// The disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
}

impl SimDisk {
    /// Whether the power went while something was being done.
    #[must_use]
    pub fn is_off(&self) -> bool {
        let world = self.world();
        world.faults.power_off_after.is_some_and(|last| world.counts.operations >= last)
    }

    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_sectors(seed, SECTOR_BYTES)
    }

    /// A disk that tears its writes into smaller, or larger, pieces than [`SECTOR_BYTES`].
    #[must_use]
    pub fn with_sectors(seed: u64, sector: usize) -> Self {
        assert!(sector > 0, "a sector has at least one byte");
        Self { world: Arc::new(Mutex::new(World { seed, sector, ..World::default() })) }
    }

    pub fn set_faults(&self, faults: Faults) {
        let mut world = self.world();
        (world.faults, world.failing) = (faults, None);
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        self.world().counts
    }

    /// The most bytes that one read asked for.
    #[must_use]
    pub fn longest_read(&self) -> usize {
        self.world().longest_read
    }

    /// Bytes of all files that have names.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.world().used()
    }

    /// Pulls the plug. `keep` is asked for every pending change, in a fixed order, whether it became durable
    /// all the same. The disk after it has no faults and no locks; this one is left as it is.
    #[must_use]
    pub fn crash(&self, keep: &mut dyn FnMut() -> bool) -> Self {
        Self { world: Arc::new(Mutex::new(self.world().crash(keep))) }
    }

    /// An independent disk with all that programs see on this one, durable, without faults and locks.
    #[must_use]
    pub fn copy(&self) -> Self {
        let world = self.world();
        let mut copy = World { seed: world.seed, sector: world.sector, ..World::default() };
        for (name, inode) in &world.names {
            copy.put(name, world.inodes[inode].seen.clone());
        }
        Self { world: Arc::new(Mutex::new(copy)) }
    }

    /// How many changes [`SimDisk::crash`] would ask about if all were kept. It may ask about fewer or others
    /// if not, since which files there are depends on the names that were kept.
    #[must_use]
    pub fn pending(&self) -> usize {
        let mut pending = 0;
        drop(self.crash(&mut || {
            pending += 1;
            true
        }));
        pending
    }

    /// The bytes that programs see in a file.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.world();
        world.names.get(name).map(|inode| world.inodes[inode].seen.clone())
    }

    /// Puts a durable file there, past all faults.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        self.world().put(name, bytes);
    }

    /// Changes one byte where programs and crashes see it, as rot does.
    pub fn rot(&self, name: &str, offset: usize, flip: u8) {
        let mut world = self.world();
        let inode = world.names[name];
        let found = world.inodes.get_mut(&inode).expect("a name has a file");
        found.seen[offset] ^= flip;
        found.durable[offset] ^= flip;
    }

    /// Lets every read that touches these bytes of a file fail, as a worn place does.
    pub fn fail_reads(&self, name: &str, places: Range<u64>) {
        let mut world = self.world();
        let inode = world.names[name];
        world.unreadable.insert(inode, places);
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, inode: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), inode })
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Disk for SimDisk {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.world().find(name)?;
        Ok(self.handle(inode))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world();
        world.operation(Kind::Create)?;
        let inode = match world.find(name) {
            Ok(inode) => {
                world.inode(inode).seen.clear();
                inode
            }
            Err(_) => world.add(name),
        };
        drop(world);
        Ok(self.handle(inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        world.operation(Kind::Rename)?;
        let inode = world.find(from)?;
        world.names.remove(from);
        world.names.insert(to.to_owned(), inode);
        world.changes.push(Change::Renamed { from: from.to_owned(), to: to.to_owned(), inode });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world();
        world.operation(Kind::Remove)?;
        world.find(name)?;
        world.names.remove(name);
        world.changes.push(Change::Removed { name: name.to_owned() });
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.world().names.keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut world = self.world();
        world.operation(Kind::SyncDir)?;
        world.counts.dir_syncs += 1;
        if world.faults.fail_sync_dir == Some(world.counts.dir_syncs) {
            return Err(io::Error::other("the sync of the folder failed"));
        }
        world.changes.clear();
        world.durable_names = world.names.clone();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let world = self.world();
        Ok(world.faults.capacity.map_or(1 << 40, |capacity| capacity.saturating_sub(world.used())))
    }

    fn lock(&self, name: &str) -> io::Result<Lock> {
        if self.world().locks.insert(name.to_owned()) {
            return Ok(Lock::Held(Box::new(SimLock { disk: self.clone(), name: name.to_owned() })));
        }
        Ok(Lock::Busy { holder: "another simulated process".to_owned() })
    }

    fn holder(&self, name: &str) -> io::Result<Option<String>> {
        Ok(self.world().locks.get(name).map(|_| "another simulated process".to_owned()))
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut world = self.world();
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&world.draw().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: u64,
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.world().inode(self.inode).seen.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut world = self.disk.world();
        world.longest_read = world.longest_read.max(bytes.len());
        if world.is_unreadable(self.inode, offset, bytes.len()) {
            return Err(io::Error::other("the read failed"));
        }
        let seen = &world.inode(self.inode).seen;
        let from = to_usize(offset).min(seen.len());
        let read = bytes.len().min(seen.len() - from);
        bytes[..read].copy_from_slice(&seen[from..from + read]);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.operation(Kind::Write)?;
        world.counts.writes += 1;
        let room = world.room_for(self.inode, offset, bytes.len());
        let stop = world.faults.short_write.filter(|(nth, _)| *nth == world.counts.writes);
        let sector = world.sector;
        if let Some((_, written)) = stop {
            world.inode(self.inode).write(&bytes[..written.min(bytes.len())], offset, sector);
            world.counts.short_writes += 1;
            return Err(io::Error::other("the write stopped short"));
        }
        world.inode(self.inode).write(&bytes[..room], offset, sector);
        if room < bytes.len() {
            world.counts.full_writes += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.operation(Kind::SetLen)?;
        let sector = world.sector;
        world.inode(self.inode).resize(to_usize(len), sector);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        world.operation(Kind::Sync)?;
        world.counts.syncs += 1;
        let failure = world.faults.fail_sync.filter(|(nth, _)| *nth == world.counts.syncs);
        world.counts.failed_syncs += u64::from(failure.is_some());
        let sector = world.sector;
        let inode = world.inode(self.inode);
        match failure {
            None => {
                inode.sync(sector);
                Ok(())
            }
            Some((_, SyncFailure::Keep)) => Err(io::Error::other("the sync failed")),
            Some((_, SyncFailure::Forget)) => {
                inode.pending.clear();
                Err(io::Error::other("the sync failed"))
            }
        }
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    name: String,
}

impl DiskLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.world().locks.remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_keeps_what_was_synced_and_what_it_likes_of_the_rest() {
        let disk = SimDisk::with_sectors(7, 4);
        let file = disk.create("x").unwrap();
        file.write_at(b"aaaabbbb", 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir().unwrap();
        file.write_at(b"AAAABBBB", 0).unwrap();
        assert_eq!(disk.pending(), 2);
        let mut answers = [false, true].into_iter();
        let after = disk.crash(&mut || answers.next().unwrap());
        assert_eq!(after.bytes("x").unwrap(), b"aaaaBBBB");
    }

    #[test]
    fn a_name_is_lost_unless_the_folder_was_synced() {
        let disk = SimDisk::new(7);
        disk.create("x").unwrap().sync_data().unwrap();
        assert_eq!(disk.crash(&mut || false).list().unwrap(), Vec::<String>::new());
        disk.sync_dir().unwrap();
        disk.rename("x", "y").unwrap();
        assert_eq!(disk.crash(&mut || false).list().unwrap(), ["x"]);
        assert_eq!(disk.crash(&mut || true).list().unwrap(), ["y"]);
    }

    #[test]
    fn a_failed_sync_leaves_bytes_that_only_the_cache_has() {
        let disk = SimDisk::new(7);
        let file = disk.create("x").unwrap();
        disk.sync_dir().unwrap();
        file.write_at(b"lost", 0).unwrap();
        disk.set_faults(Faults { fail_sync: Some((1, SyncFailure::Forget)), ..Faults::default() });
        assert!(file.sync_data().is_err());
        assert!(file.sync_data().is_ok());
        assert_eq!(disk.bytes("x").unwrap(), b"lost");
        assert_ne!(disk.crash(&mut || true).bytes("x").unwrap(), b"lost");
    }

    #[test]
    fn only_reads_that_touch_a_worn_place_fail() {
        let disk = SimDisk::new(7);
        disk.put("x", b"12345678".to_vec());
        disk.fail_reads("x", 3..5);
        let file = disk.open("x").unwrap();
        let read = |offset, bytes| file.read_at(&mut vec![0; bytes], offset).is_ok();
        assert!(read(0, 3) && read(5, 9));
        assert!(!read(0, 4) && !read(4, 1) && !read(0, 8));
        assert_eq!(disk.copy().open("x").unwrap().read_at(&mut [0; 8], 0).unwrap(), 8);
    }

    #[test]
    fn a_full_disk_writes_what_fits_and_says_so() {
        let disk = SimDisk::new(7);
        disk.set_faults(Faults { capacity: Some(6), ..Faults::default() });
        let file = disk.create("x").unwrap();
        let error = file.write_at(b"12345678", 0).unwrap_err();
        assert!(crate::disk::is_full(&error));
        assert_eq!(disk.bytes("x").unwrap(), b"123456");
        file.write_at(b"abc", 0).unwrap();
        assert_eq!(disk.free_bytes().unwrap(), 0);
    }
}
