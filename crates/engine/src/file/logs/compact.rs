//! Frees the space of deleted logs.
//!
//! A file is written anew beside itself and takes its own place, so the order of records never changes, and
//! a crash leaves the old file or the new one.
//!
//! **Invariant:** a tombstone stays as long as an older file could hold what it deletes.

use std::collections::HashMap;
use std::io;
use std::sync::PoisonError;

use super::FileLogs;
use super::index::LogFile;
use super::record::{FILE_HEADER_BYTES, Kind, Record};
use super::scan::new_file;
use crate::fault::{flawed, io_error};
use crate::file::layout::Flaw;
use crate::file::names;
use crate::{Cause, Error};

const DOING: &str = "write task log anew";

/// A file is written anew when less than one in so many bytes of it is needed.
const NEEDED_SHARE: u64 = 3;

/// What to do with a file.
enum Job {
    Remove(LogFile),
    Rewrite {
        old: LogFile,
        /// Where the records are that are needed, in order, and how long their bodies are.
        needed: Vec<(u64, u32)>,
    },
}

impl FileLogs {
    /// Removes and writes anew until every file but the newest is worth its room.
    pub(super) fn compact(&self) -> Result<(), Error> {
        let _one_at_a_time = self.compacting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(job) = self.next_job() {
            match job {
                Job::Remove(old) => self.remove(&old)?,
                Job::Rewrite { old, needed } => self.rewrite(&old, &needed)?,
            }
        }
        Ok(())
    }

    /// Removals come first: on a full disk they make the room that the others need.
    fn next_job(&self) -> Option<Job> {
        let state = self.state();
        let newest = state.index.last()?.number;
        let older = state.index.files().take_while(|file| file.number != newest);
        let mut rewrite = None;
        for file in older.filter(|file| !file.damaged) {
            // What the tombstones of the oldest file delete was in that file.
            let tombstones = if state.index.is_oldest(file.number) { 0 } else { file.tombstone_bytes() };
            let needed = file.live + tombstones;
            if needed == 0 {
                return Some(Job::Remove(file.clone()));
            }
            if rewrite.is_none() && needed * NEEDED_SHARE < file.size - FILE_HEADER_BYTES as u64 {
                rewrite = Some((file, tombstones > 0));
            }
        }
        rewrite.map(|(file, with_tombstones)| {
            let mut needed = state.index.live_in(file.number);
            if with_tombstones {
                needed.extend(&file.tombstones);
            }
            needed.sort_unstable();
            Job::Rewrite { old: file.clone(), needed }
        })
    }

    fn remove(&self, old: &LogFile) -> Result<(), Error> {
        let failed = |error| io_error(&*self.disk, "remove task log", &old.name, error);
        match self.disk.remove(&old.name) {
            // It was removed before, but the sync failed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(failed)?,
        }
        self.disk.sync_dir().map_err(failed)?;
        self.state().index.remove_file(old.number);
        Ok(())
    }

    /// Copies what is needed, then puts the copy in place of the file. Appends and reads go on meanwhile:
    /// nothing is written to a file that is not the newest, and who reads it has it open.
    fn rewrite(&self, old: &LogFile, needed: &[(u64, u32)]) -> Result<(), Error> {
        let beside = names::unfinished(&old.name);
        let replaced = self.replace(old, &beside, needed);
        if replaced.is_err() {
            // What cannot be removed now is removed at the next start.
            let _ = self.disk.remove(&beside);
        }
        match replaced {
            Ok((new, moved)) => self.state().index.replace_file(new, &moved),
            Err(Error { source: source @ Cause::Damaged { .. }, .. }) => {
                tracing::warn!("a file of task logs is kept as it is: {source}");
                self.state().index.set_damaged(old.number);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Answers the new file, and where its records were and are.
    fn replace(
        &self,
        old: &LogFile,
        beside: &str,
        needed: &[(u64, u32)],
    ) -> Result<(LogFile, HashMap<u64, u64>), Error> {
        let mut new = new_file(&*self.disk, old.number, beside)?;
        let moved = self.copy(old, &mut new, needed)?;
        let failed = |error| io_error(&*self.disk, DOING, &old.name, error);
        new.file.sync_data().map_err(failed)?;
        self.disk.rename(beside, &old.name).map_err(failed)?;
        self.disk.sync_dir().map_err(failed)?;
        new.name.clone_from(&old.name);
        Ok((new, moved))
    }

    /// Copies records in order; answers where each was, and where it is.
    fn copy(
        &self,
        old: &LogFile,
        new: &mut LogFile,
        needed: &[(u64, u32)],
    ) -> Result<HashMap<u64, u64>, Error> {
        let mut moved = HashMap::with_capacity(needed.len());
        let mut frame = Vec::new();
        for &(at, len) in needed {
            let failed = |error| io_error(&*self.disk, DOING, &new.name, error);
            let flaw = |flaw: Flaw| flawed(&*self.disk, DOING, &old.name, at, flaw);
            let (header, body) = old.record(at, len).map_err(flaw)?;
            let record = match header.kind {
                Kind::Chunk { task, lease, offset } => Record::Chunk { task, lease, offset, bytes: &body },
                Kind::Tombstone => Record::Tombstone { body: &body },
            };
            record.encode(new.seed, &mut frame);
            new.file.write_at(&frame, new.size).map_err(failed)?;
            moved.insert(at, new.size);
            match header.kind {
                Kind::Chunk { .. } => {}
                Kind::Tombstone => new.tombstones.push((new.size, len)),
            }
            new.size += frame.len() as u64;
        }
        Ok(moved)
    }
}
