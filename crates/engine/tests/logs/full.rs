//! Disks without room.

use crate::common::{append, bytes_of, offsets, open};
use orchestrix_core::TaskId;
use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::{Faults, SimDisk};
use orchestrix_engine::{Cause, Logged, Logs};

#[test]
fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let disk = SimDisk::new(5);
    let logs = open(&disk);
    disk.set_faults(Faults { capacity: Some(1500), ..Faults::default() });
    let mut stored = 0;
    let error = loop {
        match append(&logs, 1, stored) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error.source, Cause::Full { .. }) && error.retryable, "{error}");
    assert!(stored > 5);
    assert_eq!(offsets(&logs, 1).len(), usize::try_from(stored).unwrap());
    disk.set_faults(Faults::default());
    assert_eq!(append(&logs, 1, stored).unwrap(), Logged::Stored);
    drop(logs);
    assert_eq!(offsets(&open(&disk), 1), (0..=stored).collect::<Vec<_>>());
}

#[test]
fn logs_open_on_a_full_disk_and_restore_the_reserve_later() {
    let disk = SimDisk::new(11);
    let logs = open(&disk);
    for offset in 0..20 {
        for task in 1..=4 {
            append(&logs, task, offset).unwrap();
        }
    }
    // Room for a tombstone, and not for a file that is written anew.
    let capacity = Some(bytes_of(&disk) + 110);
    disk.set_faults(Faults { capacity, ..Faults::default() });
    let error = logs.delete(&[TaskId(2), TaskId(3), TaskId(4)]).unwrap_err();
    assert!(matches!(error.source, Cause::Full { .. }), "{error}");
    drop(logs);

    let logs = open(&disk);
    assert_eq!(offsets(&logs, 1), (0..20).collect::<Vec<_>>());
    assert!(disk.list().unwrap().iter().all(|name| !name.ends_with(".tmp")), "{:?}", disk.list());
    let full = bytes_of(&disk);
    disk.set_faults(Faults::default());
    logs.delete(&[]).unwrap();
    assert!(bytes_of(&disk) * 2 < full, "{} of {full} bytes are left", bytes_of(&disk));
    drop(logs);
    assert_eq!(offsets(&open(&disk), 1), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_full_disk_removes_dead_files_before_it_copies() {
    let disk = SimDisk::new(11);
    let logs = open(&disk);
    append(&logs, 1, 0).unwrap();
    for offset in 0..30 {
        append(&logs, 2, offset).unwrap();
    }
    let capacity = Some(bytes_of(&disk) + 110);
    disk.set_faults(Faults { capacity, ..Faults::default() });
    logs.delete(&[TaskId(2)]).unwrap();
    assert!(bytes_of(&disk) < 300, "{} bytes are left", bytes_of(&disk));
    assert_eq!(offsets(&logs, 1), [0]);
}
