//! Disks that fail to write, to read or to sync.

use std::sync::Arc;

use crate::common::{append, files, offsets, open, readable, three_files};
use orchestrix_core::{LeaseId, TaskId};
use orchestrix_engine::disk::sim::{Faults, SimDisk, SyncFailure};
use orchestrix_engine::file::FileLogs;
use orchestrix_engine::{Cause, LogPlace, Logs};

#[test]
fn after_a_failed_sync_nothing_is_stored_any_more() {
    for failure in [SyncFailure::Keep, SyncFailure::Forget] {
        let disk = SimDisk::new(4);
        let logs = open(&disk);
        append(&logs, 1, 0).unwrap();
        let nth = disk.counts().syncs + 1;
        disk.set_faults(Faults { fail_sync: Some((nth, failure)), ..Faults::default() });
        append(&logs, 1, 1).unwrap_err();
        for offset in [1, 2] {
            let error = append(&logs, 1, offset).unwrap_err();
            assert!(matches!(error.source, Cause::Stopped), "{error}");
        }
        drop(logs);
        assert_eq!(offsets(&open(&disk.crash(&mut || false)), 1), [0]);
    }
}

#[test]
fn a_removal_of_which_the_folder_may_not_know_is_tried_again() {
    let disk = SimDisk::new(11);
    let logs = open(&disk);
    for number in 0..30 {
        append(&logs, 1 + number % 3, number / 3).unwrap();
    }
    append(&logs, 4, 0).unwrap();
    let fail_sync_dir = Some(disk.counts().dir_syncs + 1);
    disk.set_faults(Faults { fail_sync_dir, ..Faults::default() });
    logs.delete(&[TaskId(1), TaskId(2), TaskId(3)]).unwrap_err();
    logs.delete(&[]).unwrap();
    assert_eq!(files(&disk).len(), 1);
    assert_eq!(offsets(&logs, 4), [0]);
}

#[test]
fn a_file_that_cannot_be_read_costs_only_what_is_in_it() {
    let (healthy, names) = three_files(12);
    let stored = [0..8, 8..16, 16..20];
    // In the header, in the first record, in another one.
    for worn in [0, 32, 300] {
        for (unreadable, name) in names.iter().enumerate() {
            let disk = healthy.copy();
            disk.fail_reads(name, worn..worn + 1);
            let logs = open(&disk);
            assert_eq!(logs.recovery().damaged, 1, "{name} at {worn}");
            let others = stored.iter().enumerate().filter(|(file, _)| *file != unreadable);
            let mut expected: Vec<_> = others.flat_map(|(_, offsets)| offsets.clone()).collect();
            assert_eq!(offsets(&logs, 1), expected, "{name} at {worn}");
            append(&logs, 1, 20).unwrap();
            append(&logs, 2, 0).unwrap();
            expected.push(20);
            assert_eq!(offsets(&logs, 1), expected, "{name} at {worn}");
            drop(logs);

            // It could be read after all.
            let logs = open(&disk.crash(&mut || false));
            assert_eq!(logs.recovery().damaged + logs.recovery().cut_bytes, 0);
            assert_eq!(offsets(&logs, 1), (0..=20).collect::<Vec<_>>(), "{name} at {worn}");
            assert_eq!(offsets(&logs, 2), [0]);
        }
    }
}

#[test]
fn records_after_an_unreadable_sector_are_used() {
    let disk = SimDisk::new(13);
    let open = |disk: &SimDisk| FileLogs::open(Arc::new(disk.clone())).unwrap();
    let body = vec![b'x'; 1000];
    let logs = open(&disk);
    for offset in 0..200 {
        logs.append(LogPlace::nth(TaskId(1), LeaseId(2), offset), &body).unwrap();
    }
    drop(logs);
    let name = files(&disk).remove(0);
    for worn in [100_000, 150_000, 65_536 + 32] {
        let copy = disk.copy();
        copy.fail_reads(&name, worn..worn + 1);
        let found = readable(&open(&copy), 1).len();
        assert!((194..200).contains(&found), "{found} of 200 are left with a worn place at {worn}");
    }
    // A file that is worn all over must not keep a start waiting.
    disk.fail_reads(&name, 10_000..u64::MAX);
    assert_eq!(readable(&open(&disk), 1).len(), 8);
}

#[test]
fn a_file_unreadable_for_a_while_revives_nothing_deleted() {
    let disk = SimDisk::new(14);
    let logs = open(&disk);
    for offset in 0..8 {
        append(&logs, 1 + offset % 2, offset / 2).unwrap();
    }
    for offset in 0..8 {
        append(&logs, 3, offset).unwrap();
    }
    // The tombstone stands in the third file, of which nothing else is needed later.
    logs.delete(&[TaskId(1)]).unwrap();
    for offset in 8..16 {
        append(&logs, 3, offset).unwrap();
    }
    append(&logs, 4, 0).unwrap();
    drop(logs);
    let oldest = files(&disk).remove(0);

    let worn = disk.copy();
    worn.fail_reads(&oldest, 0..1);
    let logs = open(&worn);
    assert!(offsets(&logs, 1).is_empty() && offsets(&logs, 2).is_empty());
    logs.delete(&[TaskId(3)]).unwrap();
    drop(logs);

    let logs = open(&worn.copy());
    assert!(offsets(&logs, 1).is_empty() && offsets(&logs, 3).is_empty());
    assert_eq!(offsets(&logs, 2), [0, 1, 2, 3]);
}

#[test]
fn a_file_that_cannot_be_copied_stays_as_it_is() {
    let disk = SimDisk::new(15);
    let logs = open(&disk);
    for offset in 0..20 {
        for task in 1..=4 {
            append(&logs, task, offset).unwrap();
        }
    }
    let names = files(&disk);
    let size = |name: &str| disk.bytes(name).unwrap().len();
    let before = size(&names[1]);
    disk.fail_reads(&names[1], 300..301);
    logs.delete(&[TaskId(2), TaskId(3), TaskId(4)]).unwrap();
    assert_eq!(size(&names[1]), before);
    assert!(size(&names[0]) < before && size(&names[2]) < before);
    drop(logs);
    let logs = open(&disk.copy());
    assert_eq!(offsets(&logs, 1), (0..20).collect::<Vec<_>>());
    assert!(offsets(&logs, 2).is_empty());
}

#[test]
fn a_newest_file_that_cannot_be_synced_is_left_out() {
    let (disk, names) = three_files(16);
    let fail_sync = Some((disk.counts().syncs + 1, SyncFailure::Keep));
    disk.set_faults(Faults { fail_sync, ..Faults::default() });
    let logs = open(&disk);
    assert_eq!(logs.recovery().damaged, 1);
    assert_eq!(offsets(&logs, 1), (0..16).collect::<Vec<_>>());
    let before = disk.bytes(&names[2]);
    append(&logs, 2, 0).unwrap();
    assert_eq!(disk.bytes(&names[2]), before);
    drop(logs);
    let logs = open(&disk);
    assert_eq!(offsets(&logs, 1), (0..20).collect::<Vec<_>>());
    assert_eq!(offsets(&logs, 2), [0]);
}
