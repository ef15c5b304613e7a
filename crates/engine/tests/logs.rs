//! Task logs in files: across restarts, crashes, deletions, full and failing disks.

#[cfg(test)]
mod logs {
    use std::collections::BTreeMap;
    use std::io;
    use std::path::PathBuf;
    use std::sync::{Arc, Condvar, Mutex};

    use orchestrix_core::{LeaseId, TaskId};
    use orchestrix_engine::disk::sim::{Faults, SimDisk, SyncFailure};
    use orchestrix_engine::disk::{Disk, DiskFile, Lock};
    use orchestrix_engine::file::{FileLogs, TASK_CHUNKS_MAX};
    use orchestrix_engine::memory::MemoryLogs;
    use orchestrix_engine::{Cause, Error, LogChunk, Logged, Logs};

    const FILE_BYTES: u64 = 600;
    const ALL: usize = 1 << 30;

    fn open(disk: &SimDisk) -> FileLogs {
        FileLogs::open_with(Arc::new(disk.clone()), FILE_BYTES).unwrap()
    }

    fn text(task: u64, offset: u64) -> Vec<u8> {
        format!("line {offset} of task {task}").into_bytes()
    }

    fn append(logs: &FileLogs, task: u64, offset: u64) -> Result<Logged, Error> {
        logs.append(TaskId(task), LeaseId(task + 1), offset, &text(task, offset))
    }

    fn offsets(logs: &FileLogs, task: u64) -> Vec<u64> {
        let chunks = logs.read(TaskId(task), 0, ALL).unwrap();
        for LogChunk { lease, offset, bytes } in &chunks {
            assert_eq!((*lease, bytes), (LeaseId(task + 1), &text(task, *offset)));
        }
        chunks.iter().map(|chunk| chunk.offset).collect()
    }

    /// The chunks of a task that can be read, one by one.
    fn readable(logs: &FileLogs, task: u64) -> Vec<LogChunk> {
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

    fn files(disk: &SimDisk) -> Vec<String> {
        disk.list().unwrap().into_iter().filter(|name| name.ends_with(".chunks")).collect()
    }

    fn bytes_of(disk: &SimDisk) -> u64 {
        disk.list().unwrap().iter().map(|name| disk.bytes(name).unwrap().len() as u64).sum()
    }

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
    fn behind_the_last_number_that_a_file_can_have_nothing_is_stored_and_nobody_stops() {
        let disk = SimDisk::new(1);
        append(&open(&disk), 1, 0).unwrap();
        let name = files(&disk).pop().unwrap();
        disk.put("logs-00000000004294967295.chunks", disk.bytes(&name).unwrap()[..20].to_vec());
        let logs = open(&disk);
        assert!(matches!(append(&logs, 1, 1).unwrap_err().source, Cause::Damaged { .. }));
        assert_eq!(offsets(&logs, 1), [0]);
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
        let size = |disk: &SimDisk| -> usize {
            files(disk).iter().map(|name| disk.bytes(name).unwrap().len()).sum()
        };
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

    /// What a workload was told before the power failed: per task the offsets, and whether it was deleted.
    #[derive(Default)]
    struct Told {
        stored: BTreeMap<u64, Vec<u64>>,
        under_way: Option<(u64, u64)>,
        deleted: Vec<u64>,
        being_deleted: Vec<u64>,
    }

    fn workload(disk: &SimDisk, told: &mut Told) -> Result<(), Error> {
        for round in 0..3 {
            let logs = FileLogs::open_with(Arc::new(disk.clone()), FILE_BYTES)?;
            for number in 0..16 {
                let (task, offset) = (round * 4 + number % 4 + 1, number / 4);
                told.under_way = Some((task, offset));
                append(&logs, task, offset)?;
                told.under_way = None;
                told.stored.entry(task).or_default().push(offset);
            }
            told.being_deleted = vec![round * 4 + 1, round * 4 + 2, round * 4 + 3];
            logs.delete(&told.being_deleted.iter().copied().map(TaskId).collect::<Vec<_>>())?;
            told.deleted.append(&mut told.being_deleted);
        }
        Ok(())
    }

    fn check(told: &Told, disk: &SimDisk) {
        let logs = open(disk);
        for (task, stored) in &told.stored {
            let found = offsets(&logs, *task);
            if told.deleted.contains(task) {
                assert!(found.is_empty(), "task {task} was deleted");
            } else if told.being_deleted.contains(task) {
                assert!(found.is_empty() || found == *stored, "task {task} is there or gone, not {found:?}");
            } else {
                let under_way = told.under_way.filter(|(of, _)| of == task).map(|(_, offset)| offset);
                let more: Vec<_> = stored.iter().copied().chain(under_way).collect();
                assert!(found == *stored || found == more, "task {task}: {found:?}, expected {stored:?}");
            }
        }
        append(&logs, 999, 7).unwrap();
        drop(logs);
        assert_eq!(offsets(&open(&disk.crash(&mut || false)), 999), [7]);
    }

    #[test]
    fn nothing_stored_is_lost_and_nothing_deleted_comes_back_wherever_the_power_fails() {
        let disk = SimDisk::new(3);
        workload(&disk, &mut Told::default()).unwrap();
        let operations = disk.counts().operations;
        assert!(operations > 150, "{operations}");
        for last in 0..operations {
            let disk = SimDisk::with_sectors(3, 16);
            disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
            let mut told = Told::default();
            workload(&disk, &mut told).unwrap_err();
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
                check(&told, &after);
            }
        }
    }

    /// The process dies, the disk does not: what it wrote is seen by the next process, though not durable.
    #[test]
    fn what_a_process_saw_at_its_start_is_there_after_a_crash() {
        let disk = SimDisk::new(3);
        workload(&disk, &mut Told::default()).unwrap();
        for last in 0..disk.counts().operations {
            for more in [1, 2, 3, 5, 8, 100] {
                let disk = SimDisk::with_sectors(3, 16);
                disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
                let mut told = Told::default();
                workload(&disk, &mut told).unwrap_err();
                disk.set_faults(Faults { power_off_after: Some(last + more), ..Faults::default() });
                // A file that could not be made durable was left out, and may come back.
                if let Ok(logs) = FileLogs::open_with(Arc::new(disk.clone()), FILE_BYTES)
                    && logs.recovery().damaged == 0
                {
                    if let Some((task, offset)) = told.under_way
                        && offsets(&logs, task).contains(&offset)
                    {
                        told.stored.entry(task).or_default().push(offset);
                        told.under_way = None;
                    }
                    let gone = |task: &u64| offsets(&logs, *task).is_empty();
                    if !told.being_deleted.is_empty() && told.being_deleted.iter().all(gone) {
                        told.deleted.append(&mut told.being_deleted);
                    }
                    if append(&logs, 998, 0).is_ok() {
                        told.stored.insert(998, vec![0]);
                    } else {
                        told.under_way = None;
                    }
                }
                for seed in 0..4_u32 {
                    let mut asked = seed;
                    check(
                        &told,
                        &disk.crash(&mut || {
                            asked = asked.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                            seed == 1 || (seed > 1 && asked >> 30 & 1 == 1)
                        }),
                    );
                }
            }
        }
    }

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
    fn a_flipped_bit_costs_at_most_its_own_record_and_is_never_read_as_output() {
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
    fn logs_open_on_a_full_disk_and_give_back_room_when_there_is_some() {
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
    fn on_a_full_disk_dead_files_are_removed_before_others_are_written_anew() {
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

    /// Three files of one task; the last one has room.
    fn three_files(seed: u64) -> (SimDisk, Vec<String>) {
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
    fn what_is_behind_a_place_that_cannot_be_read_is_used() {
        let disk = SimDisk::new(13);
        let open = |disk: &SimDisk| FileLogs::open(Arc::new(disk.clone())).unwrap();
        let body = vec![b'x'; 1000];
        let logs = open(&disk);
        for offset in 0..200 {
            logs.append(TaskId(1), LeaseId(2), offset, &body).unwrap();
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
    fn what_was_deleted_does_not_come_back_with_a_file_that_could_not_be_read_for_a_while() {
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
    fn a_file_that_cannot_be_copied_stays_as_it_is_and_the_others_are_written_anew() {
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
    fn a_newest_file_that_cannot_be_made_durable_is_left_out_and_nothing_is_added_to_it() {
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
    fn a_deleted_task_of_which_only_a_torn_chunk_was_left_does_not_come_back() {
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
        assert!(!open(&disk).tasks().contains(&TaskId(1)));
    }

    #[test]
    fn a_task_has_so_many_chunks_and_no_more_in_files_as_in_memory() {
        let files = FileLogs::open(Arc::new(SimDisk::new(10))).unwrap();
        for logs in [&files as &dyn Logs, &MemoryLogs::default()] {
            let append = |task, offset| logs.append(TaskId(task), LeaseId(5), offset, b".");
            for offset in 0..TASK_CHUNKS_MAX as u64 {
                assert_eq!(append(1, offset).unwrap(), Logged::Stored);
            }
            let error = append(1, TASK_CHUNKS_MAX as u64).unwrap_err().to_string();
            assert!(error.contains("task 1 has 65536 chunks, the most there are"), "{error}");
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

    /// A disk whose syncs do their work, and answer when somebody lets them go.
    #[derive(Clone, Debug)]
    struct SlowDisk {
        disk: SimDisk,
        gate: Arc<(Mutex<bool>, Condvar)>,
    }

    #[derive(Debug)]
    struct SlowFile {
        file: Arc<dyn DiskFile>,
        gate: Arc<(Mutex<bool>, Condvar)>,
    }

    impl DiskFile for SlowFile {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }
        fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
            self.file.read_at(bytes, offset)
        }
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.file.write_at(bytes, offset)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.file.set_len(len)
        }
        fn sync_data(&self) -> io::Result<()> {
            let outcome = self.file.sync_data();
            let (open, changed) = &*self.gate;
            drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
            outcome
        }
    }

    impl SlowDisk {
        fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
            Arc::new(SlowFile { file, gate: Arc::clone(&self.gate) })
        }
        fn set_open(&self, open: bool) {
            *self.gate.0.lock().unwrap() = open;
            self.gate.1.notify_all();
        }
    }

    impl Disk for SlowDisk {
        fn path(&self, name: &str) -> PathBuf {
            self.disk.path(name)
        }
        fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
            Ok(self.wrap(self.disk.open(name)?))
        }
        fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
            Ok(self.wrap(self.disk.create(name)?))
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.disk.rename(from, to)
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.disk.remove(name)
        }
        fn list(&self) -> io::Result<Vec<String>> {
            self.disk.list()
        }
        fn sync_dir(&self) -> io::Result<()> {
            self.disk.sync_dir()
        }
        fn free_bytes(&self) -> io::Result<u64> {
            self.disk.free_bytes()
        }
        fn lock(&self, name: &str) -> io::Result<Lock> {
            self.disk.lock(name)
        }
        fn holder(&self, name: &str) -> io::Result<Option<String>> {
            self.disk.holder(name)
        }
        fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
            self.disk.random(bytes)
        }
    }

    #[test]
    fn appends_that_come_during_a_sync_share_the_next_one() {
        let disk = SlowDisk { disk: SimDisk::new(8), gate: Arc::new((Mutex::new(true), Condvar::new())) };
        let logs = FileLogs::open(Arc::new(disk.clone())).unwrap();
        append(&logs, 1, 0).unwrap();
        let before = disk.disk.counts();
        disk.set_open(false);
        std::thread::scope(|scope| {
            for task in 2..=9 {
                let logs = &logs;
                scope.spawn(move || append(logs, task, 0).unwrap());
            }
            while disk.disk.counts().writes < before.writes + 8 {
                std::thread::yield_now();
            }
            disk.set_open(true);
        });
        let syncs = disk.disk.counts().syncs - before.syncs;
        assert!((1..=2).contains(&syncs), "8 appends took {syncs} syncs");
    }

    #[test]
    fn a_chunk_written_during_a_sync_is_durable_though_the_next_one_begins_a_file() {
        let disk = SlowDisk { disk: SimDisk::new(8), gate: Arc::new((Mutex::new(true), Condvar::new())) };
        let logs = FileLogs::open_with(Arc::new(disk.clone()), 230).unwrap();
        append(&logs, 1, 0).unwrap();
        let before = disk.disk.counts();
        disk.set_open(false);
        std::thread::scope(|scope| {
            scope.spawn(|| append(&logs, 2, 0).unwrap());
            while disk.disk.counts().syncs == before.syncs {
                std::thread::yield_now();
            }
            scope.spawn(|| append(&logs, 3, 0).unwrap());
            while disk.disk.counts().writes < before.writes + 2 {
                std::thread::yield_now();
            }
            assert_eq!(files(&disk.disk).len(), 1);
            scope.spawn(|| append(&logs, 4, 0).unwrap());
            std::thread::yield_now();
            disk.set_open(true);
        });
        drop(logs);
        assert_eq!(files(&disk.disk).len(), 2);
        let logs = open(&disk.disk.crash(&mut || false));
        for task in 1..=4 {
            assert_eq!(offsets(&logs, task), [0], "task {task}");
        }
    }

    #[test]
    fn a_repeat_during_a_sync_that_fails_is_not_told_that_its_chunk_is_there() {
        for _ in 0..20 {
            let disk = SlowDisk { disk: SimDisk::new(8), gate: Arc::new((Mutex::new(true), Condvar::new())) };
            let logs = FileLogs::open(Arc::new(disk.clone())).unwrap();
            append(&logs, 1, 0).unwrap();
            let before = disk.disk.counts();
            disk.set_open(false);
            let fail_sync = Some((before.syncs + 1, SyncFailure::Forget));
            disk.disk.set_faults(Faults { fail_sync, ..Faults::default() });
            std::thread::scope(|scope| {
                let first = scope.spawn(|| append(&logs, 1, 1));
                while disk.disk.counts().writes == before.writes {
                    std::thread::yield_now();
                }
                let (started, starts) = std::sync::mpsc::channel();
                let repeat = scope.spawn({
                    let logs = &logs;
                    move || {
                        started.send(()).unwrap();
                        append(logs, 1, 1)
                    }
                });
                starts.recv().unwrap();
                std::thread::yield_now();
                disk.set_open(true);
                first.join().unwrap().unwrap_err();
                repeat.join().unwrap().unwrap_err();
            });
        }
    }
}
