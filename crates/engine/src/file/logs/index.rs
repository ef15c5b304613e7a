//! The index: the place of every live chunk, and the live bytes of every file.
//!
//! **Invariant:** the chunks of a task are listed in the order in which they were first stored.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use orchestrix_core::{LeaseId, TaskId};

use super::record::{self, Header};
use crate::disk::DiskFile;
use crate::file::layout::Flaw;

/// Where one chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) lease: LeaseId,
    pub(super) offset: u64,
    pub(super) file: u32,
    pub(super) at: u64,
    pub(super) len: u32,
}

impl Place {
    fn bytes(&self) -> u64 {
        record::frame_bytes(self.len as usize) as u64
    }
}

/// A place between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stored {
    pub(super) file: u32,
    pub(super) at: u64,
}

/// What is known of a file.
#[derive(Clone, Debug)]
pub(super) struct LogFile {
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) seed: u32,
    /// Where the next record goes.
    pub(super) size: u64,
    /// Bytes of chunks that are alive.
    pub(super) live: u64,
    /// Where its tombstones are, and how long their bodies are.
    pub(super) tombstones: Vec<(u64, u32)>,
    /// Something in it cannot be read: it stays as it is.
    pub(super) damaged: bool,
}

impl LogFile {
    /// The record at a place, with a body of so many bytes. What the disk does not give is damaged.
    pub(super) fn record(&self, at: u64, len: u32) -> Result<(Header, Vec<u8>), Flaw> {
        let mut bytes = vec![0; record::frame_bytes(len as usize)];
        let failed = |error| Flaw::Damaged(format!("it cannot be read: {error}"));
        if self.file.read_at(&mut bytes, at).map_err(failed)? < bytes.len() {
            return Err(Flaw::Damaged("the file ends inside a record".to_owned()));
        }
        let header = record::decode(&bytes, self.seed)?;
        let body = header.body(&bytes, self.seed)?.to_vec();
        Ok((header, body))
    }

    pub(super) fn tombstone_bytes(&self) -> u64 {
        self.tombstones.iter().map(|(_, len)| record::frame_bytes(*len as usize) as u64).sum()
    }
}

#[derive(Debug, Default)]
struct TaskLog {
    places: Vec<Place>,
    /// The highest offset of each lease: what is above is new without looking.
    highest: BTreeMap<LeaseId, u64>,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    tasks: HashMap<TaskId, TaskLog>,
    files: BTreeMap<u32, LogFile>,
    /// The highest number that any file ever had.
    highest: u32,
    /// The oldest file that the disk did not give this time. The next start may find it.
    missing: Option<u32>,
}

impl Index {
    pub(super) fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.tasks.keys().copied()
    }

    pub(super) fn place(&self, task: TaskId, lease: LeaseId, offset: u64) -> Option<Place> {
        let log = self.tasks.get(&task)?;
        log.highest.get(&lease).filter(|highest| **highest >= offset)?;
        log.places.iter().find(|place| place.lease == lease && place.offset == offset).copied()
    }

    pub(super) fn chunks(&self, task: TaskId) -> &[Place] {
        self.tasks.get(&task).map_or(&[], |log| &log.places)
    }

    pub(super) fn add(&mut self, task: TaskId, place: Place) {
        let log = self.tasks.entry(task).or_default();
        let highest = log.highest.entry(place.lease).or_default();
        *highest = place.offset.max(*highest);
        log.places.push(place);
        self.file_mut(place.file).live += place.bytes();
    }

    /// Puts another record in place of one that cannot be read.
    pub(super) fn replace(&mut self, task: TaskId, flawed: Place, place: Place) {
        let log = self.tasks.get_mut(&task).expect("a flawed record has its place in a task");
        let found = log.places.iter_mut().find(|place| **place == flawed);
        *found.expect("a flawed record has its place in a task") = place;
        self.file_mut(flawed.file).live -= flawed.bytes();
        self.file_mut(place.file).live += place.bytes();
    }

    /// Forgets tasks. The tombstone that says so is in the last file.
    pub(super) fn bury(&mut self, tasks: &[TaskId], at: u64, len: u32) {
        for task in tasks {
            let Some(log) = self.tasks.remove(task) else { continue };
            for place in log.places {
                self.file_mut(place.file).live -= place.bytes();
            }
        }
        if let Some(file) = self.last_mut() {
            file.tombstones.push((at, len));
        }
    }

    /// Where the chunks in a file are that are alive, and how long their bodies are.
    pub(super) fn live_in(&self, file: u32) -> Vec<(u64, u32)> {
        let all = self.tasks.values().flat_map(|log| &log.places);
        all.filter(|place| place.file == file).map(|place| (place.at, place.len)).collect()
    }

    pub(super) fn set_size(&mut self, number: u32, size: u64) {
        self.file_mut(number).size = size;
    }

    pub(super) fn set_damaged(&mut self, number: u32) {
        self.file_mut(number).damaged = true;
    }

    /// A file was written anew: its chunks moved as `moved` says, from where to where.
    pub(super) fn replace_file(&mut self, mut new: LogFile, moved: &HashMap<u64, u64>) {
        new.live = 0;
        let number = new.number;
        for place in self.tasks.values_mut().flat_map(|log| &mut log.places) {
            if place.file == number {
                place.at = *moved.get(&place.at).expect("every live chunk was copied");
                new.live += place.bytes();
            }
        }
        self.files.insert(number, new);
    }

    /// A number is taken, even if the file that has it cannot be read.
    pub(super) fn take_number(&mut self, number: u32) {
        self.highest = self.highest.max(number);
    }

    /// A file cannot be read this time.
    pub(super) fn miss_file(&mut self, number: u32) {
        self.missing = Some(self.missing.map_or(number, |oldest| oldest.min(number)));
    }

    /// Whether there is no file before this one, not even one that cannot be read this time.
    pub(super) fn is_oldest(&self, number: u32) -> bool {
        self.files.keys().next() == Some(&number) && self.missing.is_none_or(|missing| number < missing)
    }

    pub(super) fn add_file(&mut self, file: LogFile) {
        self.take_number(file.number);
        self.files.insert(file.number, file);
    }

    pub(super) fn remove_file(&mut self, number: u32) {
        self.files.remove(&number);
    }

    pub(super) fn file(&self, number: u32) -> &LogFile {
        self.files.get(&number).expect("a place names a file that is there")
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &LogFile> {
        self.files.values()
    }

    pub(super) fn last(&self) -> Option<&LogFile> {
        self.files.values().next_back()
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut LogFile> {
        self.files.values_mut().next_back()
    }

    /// The file that the next record goes to. It is never one with a newer one behind it, even if that cannot
    /// be read, nor one whose end is not known.
    pub(super) fn growing(&self) -> Option<&LogFile> {
        self.last().filter(|file| file.number == self.highest && !file.damaged)
    }

    pub(super) fn next_number(&self) -> Option<u32> {
        self.highest.checked_add(1)
    }

    /// The end of all records.
    pub(super) fn written(&self) -> Stored {
        self.last().map_or(Stored::default(), |file| Stored { file: file.number, at: file.size })
    }

    fn file_mut(&mut self, number: u32) -> &mut LogFile {
        self.files.get_mut(&number).expect("a place names a file that is there")
    }
}
