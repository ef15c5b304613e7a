//! Power fails after every single operation of a disk: nothing stored is lost, nothing deleted comes back.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{FILE_BYTES, append, offsets, open};
use orchestrix_core::TaskId;
use orchestrix_engine::disk::sim::{Faults, SimDisk};
use orchestrix_engine::file::FileLogs;
use orchestrix_engine::{Error, Logs};

/// What a workload was told before the power failed: per task the offsets, and whether it was deleted.
#[derive(Default)]
struct Acknowledged {
    stored: BTreeMap<u64, Vec<u64>>,
    under_way: Option<(u64, u64)>,
    deleted: Vec<u64>,
    being_deleted: Vec<u64>,
}

fn workload(disk: &SimDisk, acknowledged: &mut Acknowledged) -> Result<(), Error> {
    for round in 0..3 {
        let logs = FileLogs::open_with(Arc::new(disk.clone()), FILE_BYTES)?;
        for number in 0..16 {
            let (task, offset) = (round * 4 + number % 4 + 1, number / 4);
            acknowledged.under_way = Some((task, offset));
            append(&logs, task, offset)?;
            acknowledged.under_way = None;
            acknowledged.stored.entry(task).or_default().push(offset);
        }
        acknowledged.being_deleted = vec![round * 4 + 1, round * 4 + 2, round * 4 + 3];
        logs.delete(&acknowledged.being_deleted.iter().copied().map(TaskId).collect::<Vec<_>>())?;
        acknowledged.deleted.append(&mut acknowledged.being_deleted);
    }
    Ok(())
}

fn check(acknowledged: &Acknowledged, disk: &SimDisk) {
    let logs = open(disk);
    for (task, stored) in &acknowledged.stored {
        let found = offsets(&logs, *task);
        if acknowledged.deleted.contains(task) {
            assert!(found.is_empty(), "task {task} was deleted");
        } else if acknowledged.being_deleted.contains(task) {
            assert!(found.is_empty() || found == *stored, "task {task} is there or gone, not {found:?}");
        } else {
            let under_way = acknowledged.under_way.filter(|(of, _)| of == task).map(|(_, offset)| offset);
            let more: Vec<_> = stored.iter().copied().chain(under_way).collect();
            assert!(found == *stored || found == more, "task {task}: {found:?}, expected {stored:?}");
        }
    }
    append(&logs, 999, 7).unwrap();
    drop(logs);
    assert_eq!(offsets(&open(&disk.crash(&mut || false)), 999), [7]);
}

#[test]
fn a_power_failure_loses_no_stored_and_revives_no_deleted_log() {
    let disk = SimDisk::new(3);
    workload(&disk, &mut Acknowledged::default()).unwrap();
    let operations = disk.counts().operations;
    assert!(operations > 150, "{operations}");
    for last in 0..operations {
        let disk = SimDisk::with_sectors(3, 16);
        disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
        let mut acknowledged = Acknowledged::default();
        workload(&disk, &mut acknowledged).unwrap_err();
        for seed in 0..6_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ last;
            let after = disk.crash(&mut || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match seed {
                    0 => false,
                    1 => true,
                    _ => state >> 60 & 1 == 1,
                }
            });
            check(&acknowledged, &after);
        }
    }
}

/// The process dies, the disk does not: what it wrote is seen by the next process, though not durable.
#[test]
fn state_seen_at_start_survives_a_crash() {
    let disk = SimDisk::new(3);
    workload(&disk, &mut Acknowledged::default()).unwrap();
    for last in 0..disk.counts().operations {
        for more in [1, 2, 3, 5, 8, 100] {
            let disk = SimDisk::with_sectors(3, 16);
            disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
            let mut acknowledged = Acknowledged::default();
            workload(&disk, &mut acknowledged).unwrap_err();
            disk.set_faults(Faults { power_off_after: Some(last + more), ..Faults::default() });
            // A file that could not be made durable was left out, and may come back.
            if let Ok(logs) = FileLogs::open_with(Arc::new(disk.clone()), FILE_BYTES)
                && logs.recovery().damaged == 0
            {
                if let Some((task, offset)) = acknowledged.under_way
                    && offsets(&logs, task).contains(&offset)
                {
                    acknowledged.stored.entry(task).or_default().push(offset);
                    acknowledged.under_way = None;
                }
                let gone = |task: &u64| offsets(&logs, *task).is_empty();
                if !acknowledged.being_deleted.is_empty() && acknowledged.being_deleted.iter().all(gone) {
                    acknowledged.deleted.append(&mut acknowledged.being_deleted);
                }
                if append(&logs, 998, 0).is_ok() {
                    acknowledged.stored.insert(998, vec![0]);
                } else {
                    acknowledged.under_way = None;
                }
            }
            for seed in 0..4_u32 {
                let mut asked = seed;
                check(
                    &acknowledged,
                    &disk.crash(&mut || {
                        asked = asked.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        seed == 1 || (seed > 1 && asked >> 30 & 1 == 1)
                    }),
                );
            }
        }
    }
}
