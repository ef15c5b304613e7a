//! Damaged and torn chunks cost only themselves, and what is sent again takes their place.

use crate::common::{ALL, append, files, offsets, open, readable, text, three_files};
use orchestrix_core::TaskId;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::FileLogs;
use orchestrix_engine::{Cause, Logged, Logs};

#[test]
fn a_flipped_bit_costs_one_record_and_is_never_output() {
    let disk = SimDisk::new(6);
    let logs = open(&disk);
    for offset in 0..18 {
        append(&logs, 1, offset).unwrap();
    }
    drop(logs);
    assert!(files(&disk).len() >= 2);
    for name in files(&disk) {
        for bit in 32 * 8..disk.bytes(&name).unwrap().len() * 8 {
            let copy = disk.copy();
            copy.rot(&name, bit / 8, 1 << (bit % 8));
            let logs = open(&copy);
            let chunks = readable(&logs, 1);
            assert_eq!(chunks.len(), 17, "{name} bit {bit}");
            assert!(chunks.iter().all(|chunk| chunk.bytes == text(1, chunk.offset)));
            let all = logs.read(TaskId(1), 0, ALL);
            assert!(!logs.is_whole() || !all.is_ok_and(|chunks| chunks.len() >= 17), "{name} bit {bit}");
        }
    }
}

#[test]
fn a_read_ends_before_a_damaged_chunk_and_goes_on_behind_it() {
    let (disk, names) = three_files(22);
    disk.rot(&names[1], 32 + 48, 1);
    let logs = open(&disk);
    let read = |skip| logs.read(TaskId(1), skip, ALL);
    assert_eq!(read(0).unwrap().len(), 8);
    assert!(matches!(read(8).unwrap_err().source, Cause::Damaged { offset: 32, .. }));
    assert_eq!(read(9).unwrap().len(), 11);
    // Nothing but a read notices it.
    assert!(logs.is_whole());
}

#[test]
fn logs_that_lack_something_say_so() {
    let (disk, names) = three_files(23);
    assert!(open(&disk.copy()).is_whole());
    for (name, at) in [(&names[0], 0), (&names[0], 32), (&names[2], 32), (&names[2], 32 + 3 * 64)] {
        let copy = disk.copy();
        copy.rot(name, at, 1);
        assert!(!open(&copy).is_whole(), "{name} at {at}");
    }
}

/// A disk on which the body of a chunk of task 1 was torn, in front of a chunk that is whole.
fn torn(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let logs = open(&disk);
    append(&logs, 1, 0).unwrap();
    append(&logs, 1, 1).unwrap();
    append(&logs, 2, 0).unwrap();
    drop(logs);
    disk.rot(&files(&disk)[0], 32 + 64 + 48, 1);
    disk
}

fn fill_a_file(logs: &FileLogs, task: u64) {
    for offset in 0..9 {
        append(logs, task, offset).unwrap();
    }
}

#[test]
fn a_torn_chunk_never_hides_the_good_one_that_was_sent_again() {
    /// What happens, one after the other, before the chunk is sent again or after it.
    const STEPS: u32 = 5;
    for (when, what) in (0..=STEPS).flat_map(|when| (0..1 << STEPS).map(move |what| (when, what))) {
        let disk = torn(17);
        let mut logs = Some(open(&disk));
        let mut sent = false;
        for step in 0..=STEPS {
            if step == when {
                append(logs.as_ref().unwrap(), 1, 1).unwrap();
                sent = true;
            }
            if sent {
                assert_eq!(offsets(logs.as_ref().unwrap(), 1), [0, 1], "{when} {what:b} {step}");
            }
            match what >> step & 1 {
                0 => fill_a_file(logs.as_ref().unwrap(), 10 + u64::from(step)),
                _ => {
                    drop(logs.take());
                    logs = Some(open(&disk));
                }
            }
        }
        let logs = logs.unwrap();
        assert_eq!(append(&logs, 1, 1).unwrap(), Logged::Existed);
        assert_eq!(append(&logs, 1, 2).unwrap(), Logged::Stored);
        assert_eq!(offsets(&logs, 1), [0, 1, 2]);
        logs.delete(&[TaskId(1)]).unwrap();
        drop(logs);
        assert!(offsets(&open(&disk), 1).is_empty());
    }
}

#[test]
fn a_chunk_that_rotted_is_mended_when_it_is_sent_again() {
    let (disk, names) = three_files(18);
    let logs = open(&disk);
    disk.rot(&names[0], 32 + 2 * 64 + 48, 1);
    assert_eq!(append(&logs, 1, 2).unwrap(), Logged::Existed);
    assert_eq!(offsets(&logs, 1), (0..20).collect::<Vec<_>>());
    drop(logs);
    let logs = open(&disk.crash(&mut || false));
    assert_eq!(offsets(&logs, 1), (0..20).collect::<Vec<_>>());
}

#[test]
fn of_several_copies_of_a_chunk_the_first_whole_one_counts() {
    let (disk, _) = three_files(19);
    let wanted = text(1, 0);
    for round in 0..3 {
        let logs = open(&disk);
        assert_eq!(offsets(&logs, 1), (0..20).collect::<Vec<_>>(), "round {round}");
        for name in files(&disk) {
            let bytes = disk.bytes(&name).unwrap();
            let copy = bytes.windows(wanted.len()).position(|bytes| bytes == wanted);
            copy.into_iter().for_each(|at| disk.rot(&name, at, 1));
        }
        append(&logs, 1, 0).unwrap();
        fill_a_file(&logs, 10 + round);
    }
    let logs = open(&disk);
    assert_eq!(offsets(&logs, 1), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_torn_chunk_at_the_end_is_cut_off() {
    let disk = torn(20);
    disk.rot(&files(&disk)[0], 32 + 2 * 64 + 48, 1);
    let logs = open(&disk);
    assert_eq!((logs.recovery().damaged, logs.recovery().cut_bytes), (0, 128));
    assert_eq!(offsets(&logs, 1), [0]);
    assert_eq!(append(&logs, 1, 1).unwrap(), Logged::Stored);
}

#[test]
fn a_deleted_task_with_a_torn_chunk_does_not_come_back() {
    let disk = SimDisk::new(21);
    let logs = open(&disk);
    append(&logs, 1, 0).unwrap();
    append(&logs, 2, 0).unwrap();
    drop(logs);
    disk.rot(&files(&disk)[0], 32 + 48, 1);
    let logs = open(&disk);
    logs.delete(&[TaskId(1)]).unwrap();
    fill_a_file(&logs, 3);
    drop(logs);
    assert!(!open(&disk).tasks().unwrap().contains(&TaskId(1)));
}

#[test]
fn the_last_file_number_ends_storing_but_not_the_node() {
    let disk = SimDisk::new(1);
    append(&open(&disk), 1, 0).unwrap();
    let name = files(&disk).pop().unwrap();
    disk.put("logs-00000000004294967295.chunks", disk.bytes(&name).unwrap()[..20].to_vec());
    let logs = open(&disk);
    assert!(matches!(append(&logs, 1, 1).unwrap_err().source, Cause::Damaged { .. }));
    assert_eq!(offsets(&logs, 1), [0]);
}
