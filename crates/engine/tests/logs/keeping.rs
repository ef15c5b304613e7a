//! What is stored stays, what is deleted goes, and the room it took comes back.

use std::sync::Arc;

use crate::common::{append, files, offsets, open};
use orchestrix_core::{LeaseId, TaskId};
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::{FileLogs, TASK_CHUNKS_MAX};
use orchestrix_engine::memory::MemoryLogs;
use orchestrix_engine::{Cause, LogPlace, Logged, Logs};

#[test]
fn chunks_are_there_after_a_restart() {
    let disk = SimDisk::new(1);
    let logs = open(&disk);
    for offset in 0..30 {
        append(&logs, 1 + offset % 3, offset / 3).unwrap();
    }
    drop(logs);
    let logs = open(&disk.crash(&mut || false));
    assert!(logs.recovery().files > 3);
    for task in 1..=3 {
        assert_eq!(offsets(&logs, task), (0..10).collect::<Vec<_>>());
    }
    assert_eq!(append(&logs, 1, 4).unwrap(), Logged::Existed);
}

#[test]
fn dead_files_are_removed_and_mostly_dead_ones_written_anew() {
    let disk = SimDisk::new(2);
    let logs = open(&disk);
    for offset in 0..10 {
        for task in 1..=10 {
            append(&logs, task, offset).unwrap();
        }
    }
    let before = files(&disk);
    let size =
        |disk: &SimDisk| -> usize { files(disk).iter().map(|name| disk.bytes(name).unwrap().len()).sum() };
    let full = size(&disk);
    logs.delete(&(2..=10).map(TaskId).collect::<Vec<_>>()).unwrap();
    assert!(size(&disk) * 4 < full, "{} of {full} bytes are left", size(&disk));
    logs.delete(&[TaskId(1)]).unwrap();
    assert!(files(&disk).len() <= 2 && before.len() > 8, "{:?}", files(&disk));
    append(&logs, 1, 0).unwrap();
    drop(logs);
    let logs = open(&disk);
    assert_eq!(offsets(&logs, 1), [0]);
    for task in 2..=10 {
        assert!(offsets(&logs, task).is_empty());
    }
}

#[test]
fn a_tombstone_outlives_the_file_it_stands_in() {
    let disk = SimDisk::new(9);
    let logs = open(&disk);
    append(&logs, 1, 0).unwrap();
    for offset in 0..6 {
        append(&logs, 2, offset).unwrap();
    }
    assert_eq!(files(&disk).len(), 1, "task 1 shares a file with more than it");
    for offset in 0..6 {
        append(&logs, 3, offset).unwrap();
    }
    // This tombstone is in a file of which nothing else will be needed.
    logs.delete(&[TaskId(1)]).unwrap();
    for offset in 0..12 {
        append(&logs, 4, offset).unwrap();
    }
    logs.delete(&[TaskId(3), TaskId(4)]).unwrap();
    drop(logs);
    for _ in 0..2 {
        let logs = open(&disk);
        assert!(offsets(&logs, 1).is_empty());
        assert_eq!(offsets(&logs, 2), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn a_task_has_so_many_chunks_and_no_more_in_files_as_in_memory() {
    let files = FileLogs::open(Arc::new(SimDisk::new(10))).unwrap();
    for logs in [&files as &dyn Logs, &MemoryLogs::default()] {
        let append = |task, number| logs.append(LogPlace::nth(TaskId(task), LeaseId(5), number), b".");
        for offset in 0..TASK_CHUNKS_MAX {
            assert_eq!(append(1, offset).unwrap(), Logged::Stored);
        }
        let error = append(1, TASK_CHUNKS_MAX).unwrap_err().to_string();
        assert!(error.contains("task 1 has reached the limit of 65536 chunks"), "{error}");
        assert_eq!(append(1, 7).unwrap(), Logged::Existed);
        assert_eq!(append(2, 0).unwrap(), Logged::Stored, "another task has room");
    }
}

#[test]
fn a_second_handle_is_refused() {
    let disk = SimDisk::new(7);
    let _logs = open(&disk);
    let error = FileLogs::open(Arc::new(disk)).unwrap_err();
    assert!(matches!(error.source, Cause::InUse { .. }), "{error}");
}
