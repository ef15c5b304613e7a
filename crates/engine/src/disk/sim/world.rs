//! What a simulated disk holds: files, names, and which part of both is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use super::{Counts, Faults, Lasting};

#[derive(Default)]
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) sector: usize,
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    /// What happened to the names since they were last made durable.
    pub(super) changes: Vec<Change>,
    pub(super) locks: BTreeSet<String>,
    /// Places in files that cannot be read.
    pub(super) unreadable: BTreeMap<u64, Range<u64>>,
    pub(super) faults: Faults,
    /// The kind of operation that fails from now on.
    pub(super) failing: Option<Kind>,
    pub(super) counts: Counts,
    pub(super) longest_read: usize,
}

/// The operations that change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Create,
    Rename,
    Remove,
    SyncDir,
    Write,
    SetLen,
    Sync,
}

pub(super) enum Change {
    Created { name: String, inode: u64 },
    Renamed { from: String, to: String, inode: u64 },
    Removed { name: String },
}

#[derive(Clone, Default)]
pub(super) struct Inode {
    pub(super) seen: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Numbers of the sectors in which `seen` may be ahead of `durable`.
    pub(super) pending: BTreeSet<usize>,
}

impl World {
    pub(super) fn find(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn inode(&mut self, inode: u64) -> &mut Inode {
        self.inodes.get_mut(&inode).expect("a handle names a file that was created")
    }

    pub(super) fn add(&mut self, name: &str) -> u64 {
        let inode = self.inodes.len() as u64;
        self.inodes.insert(inode, Inode::default());
        self.names.insert(name.to_owned(), inode);
        self.changes.push(Change::Created { name: name.to_owned(), inode });
        inode
    }

    pub(super) fn put(&mut self, name: &str, bytes: Vec<u8>) {
        let inode = self.inodes.len() as u64;
        self.inodes.insert(inode, Inode { durable: bytes.clone(), seen: bytes, pending: BTreeSet::new() });
        self.names.insert(name.to_owned(), inode);
        self.durable_names.insert(name.to_owned(), inode);
    }

    pub(super) fn operation(&mut self, kind: Kind) -> io::Result<()> {
        if self.faults.power_off_after.is_some_and(|last| self.counts.operations >= last) {
            return Err(io::Error::other("the power is off"));
        }
        self.counts.operations += 1;
        let fails = self.faults.fail.filter(|(nth, _)| *nth == self.counts.operations);
        if let Some((_, Lasting::ForEver)) = fails {
            self.failing = Some(kind);
        }
        if fails.is_some() || self.failing == Some(kind) {
            return Err(io::Error::other(format!("{kind:?} failed")));
        }
        Ok(())
    }

    pub(super) fn used(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[inode].seen.len() as u64).sum()
    }

    pub(super) fn is_unreadable(&self, inode: u64, offset: u64, len: usize) -> bool {
        let touched = |places: &Range<u64>| offset < places.end && places.start < offset + len as u64;
        self.unreadable.get(&inode).is_some_and(touched)
    }

    /// How many of `len` bytes fit. Bytes that a file already has can always be written again.
    pub(super) fn room_for(&self, inode: u64, offset: u64, len: usize) -> usize {
        let Some(capacity) = self.faults.capacity else { return len };
        let length = self.inodes[&inode].seen.len() as u64;
        let limit = length + capacity.saturating_sub(self.used());
        len.min(to_usize(limit.saturating_sub(offset)))
    }

    pub(super) fn crash(&self, keep: &mut dyn FnMut() -> bool) -> Self {
        let mut names = self.durable_names.clone();
        for change in &self.changes {
            if keep() {
                change.apply(&mut names);
            }
        }
        let mut after = Self { seed: self.seed ^ 1, sector: self.sector, ..Self::default() };
        for (name, inode) in names {
            after.put(&name, self.inodes[&inode].after_crash(self.sector, keep));
        }
        after
    }

    /// The next number of a splitmix64 sequence.
    pub(super) fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Change {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Created { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            Self::Renamed { from, to, inode } => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
            Self::Removed { name } => {
                names.remove(name);
            }
        }
    }
}

impl Inode {
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64, sector: usize) {
        if bytes.is_empty() {
            return;
        }
        let from = to_usize(offset);
        let to = from + bytes.len();
        if self.seen.len() < to {
            self.resize(to, sector);
        }
        self.seen[from..to].copy_from_slice(bytes);
        self.pending.extend(from / sector..=(to - 1) / sector);
    }

    pub(super) fn resize(&mut self, len: usize, sector: usize) {
        let (low, high) = (len.min(self.seen.len()), len.max(self.seen.len()));
        self.seen.resize(len, 0);
        if high > low {
            self.pending.extend(low / sector..=(high - 1) / sector);
        }
    }

    pub(super) fn sync(&mut self, sector: usize) {
        self.durable.resize(self.seen.len(), 0);
        for at in std::mem::take(&mut self.pending) {
            let range = sector_range(at, sector, self.seen.len());
            self.durable[range.clone()].copy_from_slice(&self.seen[range]);
        }
    }

    pub(super) fn after_crash(&self, sector: usize, keep: &mut dyn FnMut() -> bool) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        if self.seen.len() < bytes.len() && keep() {
            bytes.truncate(self.seen.len());
        }
        for &at in &self.pending {
            if keep() {
                let range = sector_range(at, sector, self.seen.len());
                if bytes.len() < range.end {
                    bytes.resize(range.end, 0);
                }
                bytes[range.clone()].copy_from_slice(&self.seen[range]);
            }
        }
        bytes
    }
}

fn sector_range(at: usize, sector: usize, len: usize) -> std::ops::Range<usize> {
    (at * sector).min(len)..((at + 1) * sector).min(len)
}

pub(super) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("a simulated file fits memory")
}
