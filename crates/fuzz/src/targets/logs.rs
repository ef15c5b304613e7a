//! Folders with the output of tasks: opened, read, gone on with, and opened again.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use orchestrix_core::{LeaseId, TaskId};
use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::FileLogs;
use orchestrix_engine::{Cause, Error, LogPlace, Logged, Logs};

use crate::edit::{Folder, Trust};
use crate::source::Source;

const FILE_BYTES: u64 = 600;

/// Three files of output, a deleted task among it, and everything that was ever stored.
pub(crate) struct Base {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    stored: BTreeMap<(u64, u64, u64), Vec<u8>>,
}

pub(crate) fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let disk = SimDisk::new(3);
        let logs =
            FileLogs::open_with(Arc::new(disk.clone()), FILE_BYTES).expect("an empty disk has no logs");
        let mut stored = BTreeMap::new();
        for number in 0..16_u64 {
            let (task, lease) = (TaskId(1 + number % 4), LeaseId(10 + number % 4 + number / 8 * 4));
            let bytes =
                vec![b'a' + u8::try_from(number).unwrap_or(0); 10 + usize::try_from(number).unwrap_or(0) * 5];
            let before = usize::try_from(number / 4).unwrap_or(0);
            let logged = logs.append(LogPlace { task, number: before, lease, offset: number }, &bytes);
            assert!(matches!(logged, Ok(Logged::Stored)), "a disk without faults takes a chunk");
            stored.insert((task.0, lease.0, number), bytes);
        }
        logs.delete(&[TaskId(2)]).expect("a disk without faults deletes");
        drop(logs);
        let names = disk.list().expect("a disk without faults lists");
        Base { files: Folder::of(&disk, names).files, stored }
    })
}

/// The folder, changed as the input says.
pub(super) fn folder(input: &[u8]) {
    let mut folder = Folder { files: base().files.clone() };
    let trust = folder.edit(&mut Source::new(input));
    let shared: Arc<dyn Disk> = Arc::new(folder.disk());
    let Some(logs) = open(&shared) else { return };
    let before = read_all(&logs);
    if trust == Trust::Checksums {
        for (place, bytes) in &before {
            assert_eq!(base().stored.get(place), Some(bytes), "{place:?} was never stored like that");
        }
    }
    let (task, lease) = (TaskId(99), LeaseId(u64::MAX));
    match logs.append(LogPlace::first(task, lease), b"goes on") {
        Ok(Logged::Stored | Logged::Existed) => {}
        // The input may have made chunks of this task.
        Ok(Logged::Conflict) => return,
        Err(error) => return check_named(&error),
    }
    drop(logs);
    let logs = open(&shared).expect("what was opened and written to can be opened again");
    let mut after = read_all(&logs);
    assert_eq!(after.remove(&(task.0, lease.0, 0)).as_deref(), Some(&b"goes on"[..]));
    let mut before = before;
    before.remove(&(task.0, lease.0, 0));
    assert_eq!(after, before, "nothing else came or went");
    if let Err(error) = logs.delete(&listed(&logs)) {
        return check_named(&error);
    }
    assert!(listed(&logs).is_empty());
    drop(logs);
    let logs = open(&shared).expect("what was deleted from can be opened again");
    assert_eq!(read_all(&logs), BTreeMap::new(), "what is deleted stays so");
}

fn open(disk: &Arc<dyn Disk>) -> Option<FileLogs> {
    match FileLogs::open_with(Arc::clone(disk), FILE_BYTES) {
        Ok(logs) => Some(logs),
        Err(error) => {
            check_named(&error);
            None
        }
    }
}

fn listed(logs: &FileLogs) -> Vec<TaskId> {
    logs.tasks().expect("files that are open list their tasks")
}

/// All chunks that can be read, by task, lease and offset.
fn read_all(logs: &FileLogs) -> BTreeMap<(u64, u64, u64), Vec<u8>> {
    let mut found = BTreeMap::new();
    for task in listed(logs) {
        let mut skip = 0;
        loop {
            match logs.read(task, skip, 100) {
                Ok(chunks) if chunks.is_empty() => break,
                Ok(chunks) => {
                    skip += chunks.len();
                    for chunk in chunks {
                        let doubled = found.insert((task.0, chunk.lease.0, chunk.offset), chunk.bytes);
                        assert!(doubled.is_none(), "a chunk is listed once");
                    }
                }
                Err(error) => {
                    check_named(&error);
                    skip += 1;
                }
            }
        }
    }
    found
}

fn check_named(error: &Error) {
    match &error.source {
        Cause::Damaged { path, .. } | Cause::UnknownFormat { path, .. } => {
            assert!(path.file_name().is_some(), "{error} names no file");
        }
        Cause::Io(_) | Cause::InUse { .. } | Cause::Full { .. } | Cause::Remote { .. } | Cause::Stopped => {
            panic!("a disk without faults is no reason: {error}")
        }
    }
}
