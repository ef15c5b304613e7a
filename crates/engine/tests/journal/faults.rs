//! Disks that fail, fill up, or belong to somebody else.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::{History, Node, SMALL, fill, names};
use orchestrix_engine::disk::sim::{Faults, Lasting, SimDisk, SyncFailure};
use orchestrix_engine::disk::{Disk, RealDisk};
use orchestrix_engine::file::{FileJournal, Options, Prepare};
use orchestrix_engine::{Batch, Cause, Error, Journal, Space};

/// Appends until something fails; answers how many were acknowledged.
fn append_until_error(node: &mut Node, history: &mut History, most: usize) -> Result<usize, (usize, Error)> {
    for number in 0..most {
        let batch = history.next(&node.journal, 1, 50 + number * 13 % 100);
        if let Err(error) = node.append(&batch) {
            return Err((number, error));
        }
    }
    Ok(most)
}

fn assert_stopped(journal: &mut FileJournal, batch: &Batch) {
    for _ in 0..2 {
        let error = journal.append(batch).unwrap_err();
        assert!(matches!(error.source, Cause::Stopped), "{error}");
    }
    assert!(matches!(journal.rest().unwrap_err().source, Cause::Stopped));
}

#[test]
fn a_spare_with_the_last_of_all_numbers_is_left_alone() {
    let disk = SimDisk::new(1);
    disk.put("18446744073709551615.spare", vec![0; 1024]);
    let mut node = Node::start(Arc::new(disk), SMALL).unwrap();
    fill(&mut node, &mut History::new(), 20);
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let mut failures = 0;
    for failure in [SyncFailure::Keep, SyncFailure::Forget] {
        for nth in 1..60 {
            let disk = SimDisk::new(21);
            let mut history = History::new();
            let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
            let before = disk.counts().syncs;
            disk.set_faults(Faults { fail_sync: Some((before + nth, failure)), ..Faults::default() });
            let acknowledged = match append_until_error(&mut node, &mut history, 40) {
                Ok(all) => all,
                Err((acknowledged, _)) => {
                    failures += 1;
                    assert_stopped(&mut node.journal, history.batches.last().unwrap());
                    acknowledged
                }
            };
            drop(node);
            for keep in [false, true] {
                let node = Node::start(Arc::new(disk.crash(&mut || keep)), SMALL).unwrap();
                let reached = history.reached(&node.state);
                assert!((acknowledged..=acknowledged + 1).contains(&reached), "sync {nth} {failure:?}");
            }
        }
    }
    assert!(failures > 60, "{failures}");
}

/// Appends until the fault, starts again on the same disk, as a process does that was not alone with the power,
/// appends more, and loses the power.
fn restart_after(faults: impl Fn(&SimDisk) -> Faults, seed: u64) -> Restarted {
    let disk = SimDisk::new(seed);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    disk.set_faults(faults(&disk));
    let Err((acknowledged, _)) = append_until_error(&mut node, &mut history, 40) else {
        return Restarted::NoFault;
    };
    drop(node);
    disk.set_faults(Faults::default());
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    let reached = history.reached(&node.state);
    assert!((acknowledged..=acknowledged + 1).contains(&reached));
    history.batches.truncate(reached);
    history.states.truncate(reached + 1);
    fill(&mut node, &mut history, 8);
    drop(node);
    for keep in [false, true] {
        let node = Node::start(Arc::new(disk.crash(&mut || keep)), SMALL).unwrap();
        assert_eq!(history.reached(&node.state), reached + 8, "all that was acknowledged after the restart");
    }
    Restarted::Recovered
}

#[derive(PartialEq, Eq)]
enum Restarted {
    NoFault,
    Recovered,
}

#[test]
fn a_restart_after_a_failed_sync_distrusts_the_cache() {
    let mut failures = 0;
    for failure in [SyncFailure::Keep, SyncFailure::Forget] {
        for nth in 1..60 {
            let faults = |disk: &SimDisk| Faults {
                fail_sync: Some((disk.counts().syncs + nth, failure)),
                ..Faults::default()
            };
            failures += usize::from(restart_after(faults, 21) == Restarted::Recovered);
        }
    }
    assert!(failures > 60, "{failures}");
}

#[test]
fn a_restart_after_a_failed_folder_sync_syncs_its_names() {
    let mut failures = 0;
    for nth in 1..20 {
        let faults = |disk: &SimDisk| Faults {
            fail_sync_dir: Some(disk.counts().dir_syncs + nth),
            ..Faults::default()
        };
        failures += usize::from(restart_after(faults, 22) == Restarted::Recovered);
    }
    assert!(failures > 3, "{failures}");
}

#[test]
fn a_write_cut_at_any_byte_loses_nothing() {
    for written in 0..140 {
        let disk = SimDisk::with_sectors(22, 16);
        let mut history = History::new();
        let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
        fill(&mut node, &mut history, 3);
        let nth = disk.counts().writes + 1;
        disk.set_faults(Faults { short_write: Some((nth, written)), ..Faults::default() });
        let (acknowledged, _) = append_until_error(&mut node, &mut history, 1).unwrap_err();
        assert_eq!(acknowledged, 0);
        assert_stopped(&mut node.journal, history.batches.last().unwrap());
        drop(node);
        let node = Node::start(Arc::new(disk.crash(&mut || true)), SMALL).unwrap();
        let reached = history.reached(&node.state);
        assert!(reached == 3 || (reached == 4 && written >= 120), "{written}: {reached}");
    }
}

#[test]
fn a_full_disk_uses_the_reserve_then_refuses_then_recovers() {
    let disk = SimDisk::new(23);
    disk.set_faults(Faults { capacity: Some(12 << 10), ..Faults::default() });
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    assert!(!node.journal.space().is_reserve());
    let mut in_reserve = 0;
    let error = loop {
        let batch = history.next(&node.journal, 1, 100);
        match node.append(&batch) {
            Ok(_) => in_reserve += usize::from(node.journal.space().is_reserve()),
            Err(error) => break error,
        }
    };
    assert!(matches!(error.source, Cause::Full { .. }) && error.retryable, "{error}");
    assert!(in_reserve >= 15, "{in_reserve} batches from the reserve");
    let refused = history.batches.pop().unwrap();
    history.states.pop();
    assert!(node.append(&refused).is_err(), "still full");
    assert!(node.journal.space().is_reserve());

    disk.set_faults(Faults { capacity: Some(64 << 10), ..Faults::default() });
    let batch = history.next(&node.journal, 1, 100);
    assert_eq!(batch, refused);
    node.append(&batch).expect("the same handle goes on");
    node.journal.rest().unwrap();
    assert!(!node.journal.space().is_reserve());
    fill(&mut node, &mut history, 10);
    let state = node.state;
    drop(node);
    assert_eq!(Node::start(Arc::new(disk), SMALL).unwrap().state, state);
}

#[test]
fn the_longest_batch_that_fits_is_known_to_the_byte() {
    for more in [0, 1] {
        let disk = SimDisk::new(37);
        let mut history = History::new();
        let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
        fill(&mut node, &mut history, 5);
        disk.set_faults(Faults { capacity: Some(disk.used()), ..Faults::default() });
        let Space::Short(room) = node.journal.space() else { panic!("there is plenty of room") };
        let longest = usize::try_from(room.batch).unwrap();
        assert!(longest > 500 && longest < 1024, "{longest} of 1,024 bytes");
        let batch = history.next(&node.journal, 1, longest + more);
        let appended = node.append(&batch);
        assert_eq!(appended.is_ok(), more == 0, "{longest} + {more}");
        if let Err(error) = appended {
            assert!(matches!(error.source, Cause::Full { .. }) && error.retryable, "{error}");
            let shorter = Batch { records: vec![1; longest], ..batch };
            node.append(&shorter).expect("a part of it fits");
        }
    }
}

#[test]
fn a_batch_too_long_for_every_spare_is_no_full_disk_for_ever() {
    let disk = SimDisk::new(38);
    let options = Options { prepare: Prepare::Thread, ..SMALL };
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), options).unwrap();
    fill(&mut node, &mut history, 1);
    while names(&disk, ".spare").len() < 5 {
        std::thread::yield_now();
    }
    disk.set_faults(Faults { capacity: Some(disk.used()), ..Faults::default() });
    let long = history.next(&node.journal, 1, 5_000);
    assert!(matches!(node.append(&long).unwrap_err().source, Cause::Full { .. }));
    disk.set_faults(Faults::default());
    assert_eq!(node.journal.space(), Space::Plenty, "nothing is missing, and there is room");
    node.append(&long).unwrap();
}

/// A journal that is about to begin its second segment, and the number of the operation that then creates a spare.
fn before_a_spare_is_created(disk: &SimDisk) -> (Node, History, u64) {
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    while disk.list().unwrap().iter().filter(|name| name.ends_with(".journal")).count() < 2 {
        fill(&mut node, &mut history, 1);
    }
    // The next segment takes as many batches as the first.
    let more = history.batches.len() - 2;
    fill(&mut node, &mut history, more);
    // It is given its header, synced and renamed, and the folder is synced.
    let created = disk.counts().operations + 5;
    (node, history, created)
}

#[test]
fn a_missing_spare_segment_stops_the_journal_when_needed() {
    let disk = SimDisk::new(34);
    let (mut node, mut history, created) = before_a_spare_is_created(&disk);
    let before = history.batches.len();
    disk.set_faults(Faults { fail: Some((created, Lasting::ForEver)), ..Faults::default() });
    let error = loop {
        let batch = history.next(&node.journal, 1, 100);
        match node.append(&batch) {
            Ok(_) => assert_eq!(node.journal.space(), Space::Plenty, "the disk is not full"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error.source, Cause::Io(_)) && !error.retryable, "{error}");
    assert!(error.operation.contains("prepare journal segment"), "{error}");
    let acknowledged = history.batches.len() - 1;
    assert!(acknowledged >= before + 5 * 4, "{acknowledged} from the stock, after {before}");
    assert_stopped(&mut node.journal, history.batches.last().unwrap());
    drop(node);
    for keep in [false, true] {
        let node = Node::start(Arc::new(disk.crash(&mut || keep)), SMALL).unwrap();
        assert_eq!(history.reached(&node.state), acknowledged);
    }
}

#[test]
fn a_spare_that_could_not_be_made_once_is_made_later() {
    let disk = SimDisk::new(35);
    let (mut node, mut history, created) = before_a_spare_is_created(&disk);
    disk.set_faults(Faults { fail: Some((created, Lasting::Once)), ..Faults::default() });
    fill(&mut node, &mut history, 1);
    assert_eq!(names(&disk, ".spare").len(), 4, "the fault was met");
    assert_eq!(node.journal.space(), Space::Plenty);
    assert_eq!(names(&disk, ".spare").len(), 5);
}

#[test]
fn spares_that_cannot_be_finished_do_not_pile_up() {
    let disk = SimDisk::new(36);
    let (mut node, mut history, created) = before_a_spare_is_created(&disk);
    // It is written, synced and renamed, and then its name cannot be made durable.
    disk.set_faults(Faults { fail: Some((created + 4, Lasting::ForEver)), ..Faults::default() });
    fill(&mut node, &mut history, 1);
    for _ in 0..20 {
        assert_eq!(node.journal.space(), Space::Plenty);
    }
    assert_eq!(names(&disk, ".spare").len(), 4);
    assert_eq!(names(&disk, ".tmp"), Vec::<String>::new());
}

#[test]
fn truncation_frees_a_full_disk() {
    let disk = SimDisk::new(24);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    for _ in 0..2 {
        fill(&mut node, &mut history, 45);
        node.snapshot().unwrap();
    }
    let used: usize = disk.list().unwrap().iter().map(|name| disk.bytes(name).unwrap().len()).sum();
    disk.set_faults(Faults { capacity: Some(used as u64), ..Faults::default() });
    while node.append(&history.next(&node.journal, 1, 100)).is_ok() {}
    history.batches.pop();
    history.states.pop();
    assert!(node.journal.space().is_reserve());
    assert!(node.journal.truncate().unwrap().0 > 0);
    assert!(!node.journal.space().is_reserve());
    fill(&mut node, &mut history, 3);
    let state = node.state;
    drop(node);
    assert_eq!(Node::start(Arc::new(disk), SMALL).unwrap().state, state);
}

#[test]
fn a_snapshot_that_does_not_fit_leaves_nothing() {
    let disk = SimDisk::new(25);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    fill(&mut node, &mut history, 2);
    disk.set_faults(Faults { capacity: Some(1), ..Faults::default() });
    let error = node.snapshot().unwrap_err();
    assert!(matches!(error.source, Cause::Full { .. }), "{error}");
    assert!(disk.list().unwrap().iter().all(|name| !name.contains("snap-")));
}

#[test]
fn a_finished_snapshot_survives_a_crash() {
    let disk = SimDisk::new(32);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    fill(&mut node, &mut history, 2);
    node.snapshot().unwrap();
    assert_eq!(names(&disk.crash(&mut || false), ".snapshot").len(), 1);
}

#[test]
fn a_snapshot_of_what_is_not_durable_is_refused() {
    let disk = SimDisk::new(26);
    let node = Node::start(Arc::new(disk), SMALL).unwrap();
    let mut history = History::new();
    let batch = history.next(&node.journal, 1, 10);
    assert!(node.journal.snapshots().create(batch.link(node.journal.id())).is_err());
}

#[test]
fn a_second_handle_is_refused_while_the_first_lives() {
    let disk = SimDisk::new(27);
    let node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    let refused = |disk: &SimDisk| match FileJournal::open(Arc::new(disk.clone()), SMALL) {
        Ok(_) => panic!("two handles"),
        Err(error) => assert!(matches!(error.source, Cause::InUse { .. }), "{error}"),
    };
    refused(&disk);
    let snapshots = node.journal.snapshots();
    drop(node);
    refused(&disk);
    drop(snapshots);
    FileJournal::open(Arc::new(disk), SMALL).unwrap();
}

const CHILD: &str = "ORCHESTRIX_TEST_HOLDS_JOURNAL";

/// The other process of [`a_second_process_is_refused_and_the_first_is_named`]; alone it does nothing.
#[test]
fn holds_a_journal_for_another_test() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let _journal = FileJournal::open(Arc::new(RealDisk::open(folder).unwrap()), SMALL).unwrap();
    println!("\nholding");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_second_process_is_refused_and_the_first_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::holds_a_journal_for_another_test", "--nocapture"])
        .env(CHILD, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("holding")));
    let error = FileJournal::open(Arc::new(RealDisk::open(folder.path()).unwrap()), SMALL).unwrap_err();
    let Cause::InUse { holder, .. } = &error.source else { panic!("the folder is in use, not: {error}") };
    assert!(holder.contains(&child.id().to_string()), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    FileJournal::open(Arc::new(RealDisk::open(folder.path()).unwrap()), SMALL)
        .expect("a killed process holds nothing");
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let disk = SimDisk::new(28);
    drop(Node::start(Arc::new(disk.clone()), SMALL).unwrap());
    let name = names(&disk, ".journal").remove(0);
    let mut bytes = disk.bytes(&name).unwrap();
    bytes[8] = 9;
    let sum = crc32c::crc32c(&bytes[..124]);
    bytes[124..128].copy_from_slice(&sum.to_le_bytes());
    disk.put(&name, bytes);
    let error = FileJournal::open(Arc::new(disk), SMALL).unwrap_err();
    assert!(matches!(error.source, Cause::UnknownFormat { found: 9, known: 1, .. }), "{error}");
}

#[test]
fn snapshots_without_a_journal_are_not_a_new_folder() {
    let disk = SimDisk::new(29);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    fill(&mut node, &mut history, 2);
    node.snapshot().unwrap();
    drop(node);
    for name in names(&disk, ".journal") {
        disk.remove(&name).unwrap();
    }
    let error = FileJournal::open(Arc::new(disk), SMALL).unwrap_err();
    assert!(matches!(error.source, Cause::Damaged { .. }), "{error}");
}

#[test]
fn segments_left_by_a_truncation_are_removed_at_start() {
    let disk = SimDisk::new(33);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    for _ in 0..2 {
        fill(&mut node, &mut history, 12);
        node.snapshot().unwrap();
    }
    let before = disk.copy();
    node.journal.truncate().unwrap();
    drop(node);
    let kept = names(&disk, ".journal");
    // The oldest comes back, but not the ones between it and the floor.
    let oldest = names(&before, ".journal").remove(0);
    assert!(!kept.contains(&oldest));
    disk.put(&oldest, before.bytes(&oldest).unwrap());
    assert_eq!(Node::start(Arc::new(disk.clone()), SMALL).unwrap().state, history.states[24]);
    assert_eq!(names(&disk, ".journal"), kept);
}

#[test]
fn clean_spares_are_reused_by_the_next_process() {
    let disk = SimDisk::new(30);
    drop(Node::start(Arc::new(disk.clone()), SMALL).unwrap());
    let spares = names(&disk, ".spare");
    assert_eq!(spares.len(), 5);
    disk.rot(&spares[2], 700, 1);
    drop(Node::start(Arc::new(disk.clone()), SMALL).unwrap());
    let after = names(&disk, ".spare");
    assert_eq!(after.len(), 5);
    assert!(!after.contains(&spares[2]));
    assert!(after.contains(&spares[1]));
}

#[test]
fn segments_grow_with_the_journal_and_shrink_with_the_disk() {
    let sizes = |capacity| {
        let disk = SimDisk::new(31);
        disk.set_faults(Faults { capacity, ..Faults::default() });
        let options = Options { segment_bytes: None, ..SMALL };
        let mut node = Node::start(Arc::new(disk.clone()), options).unwrap();
        let mut history = History::new();
        for _ in 0..4 {
            let batch = history.next(&node.journal, 1, 900_000);
            node.append(&batch).unwrap();
        }
        let names = names(&disk, ".journal");
        names.iter().map(|name| disk.bytes(name).unwrap().len() >> 20).collect::<Vec<_>>()
    };
    assert_eq!(sizes(None), [1, 2, 4]);
    assert_eq!(sizes(Some(16 << 20)), [1, 1, 1, 1]);
}
