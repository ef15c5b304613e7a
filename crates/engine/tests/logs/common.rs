//! Logs on a simulated disk, and short ways to write to them and look at them.

use std::sync::Arc;

use orchestrix_core::{LeaseId, TaskId};
use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::FileLogs;
use orchestrix_engine::{Cause, Error, LogChunk, LogPlace, Logged, Logs};

pub(crate) const FILE_BYTES: u64 = 600;
pub(crate) const ALL: usize = 1 << 30;

pub(crate) fn open(disk: &SimDisk) -> FileLogs {
    FileLogs::open_with(Arc::new(disk.clone()), FILE_BYTES).unwrap()
}

pub(crate) fn text(task: u64, offset: u64) -> Vec<u8> {
    format!("line {offset} of task {task}").into_bytes()
}

pub(crate) fn append(logs: &FileLogs, task: u64, offset: u64) -> Result<Logged, Error> {
    let number = usize::try_from(offset).unwrap();
    let at = LogPlace::nth(TaskId(task), LeaseId(task + 1), number);
    match logs.append(at, &text(task, offset)) {
        // Some are missing, or there were others.
        Ok(Logged::Conflict) => {
            logs.append(LogPlace { number: chunks(logs, task), ..at }, &text(task, offset))
        }
        logged => logged,
    }
}

/// How many chunks of a task there are, whether they can be read or not.
fn chunks(logs: &FileLogs, task: u64) -> usize {
    let there = |skip: &usize| !matches!(logs.read(TaskId(task), *skip, 0), Ok(chunks) if chunks.is_empty());
    (0..).take_while(there).count()
}

pub(crate) fn offsets(logs: &FileLogs, task: u64) -> Vec<u64> {
    let chunks = logs.read(TaskId(task), 0, ALL).unwrap();
    for LogChunk { lease, offset, bytes } in &chunks {
        assert_eq!((*lease, bytes), (LeaseId(task + 1), &text(task, *offset)));
    }
    chunks.iter().map(|chunk| chunk.offset).collect()
}

/// The chunks of a task that can be read, one by one.
pub(crate) fn readable(logs: &FileLogs, task: u64) -> Vec<LogChunk> {
    let mut found = Vec::new();
    for skip in 0.. {
        match logs.read(TaskId(task), skip, 0) {
            Ok(chunks) if chunks.is_empty() => break,
            Ok(chunks) => found.extend(chunks),
            Err(error) => assert!(matches!(error.source, Cause::Damaged { .. }), "{error}"),
        }
    }
    found
}

pub(crate) fn files(disk: &SimDisk) -> Vec<String> {
    disk.list().unwrap().into_iter().filter(|name| name.ends_with(".chunks")).collect()
}

pub(crate) fn bytes_of(disk: &SimDisk) -> u64 {
    disk.list().unwrap().iter().map(|name| disk.bytes(name).unwrap().len() as u64).sum()
}

/// Three files of one task; the last one has room.
pub(crate) fn three_files(seed: u64) -> (SimDisk, Vec<String>) {
    let disk = SimDisk::new(seed);
    let logs = open(&disk);
    for offset in 0..20 {
        append(&logs, 1, offset).unwrap();
    }
    drop(logs);
    let names = files(&disk);
    assert_eq!(names.len(), 3);
    (disk, names)
}
