//! Power fails after every single operation of a disk, with many choices of what had become durable. All
//! that was acknowledged is there afterwards, in order, and nothing that never was.

use std::sync::Arc;

use crate::common::{History, Node, SMALL};
use orchestrix_engine::disk::sim::{Covered, Faults, SimDisk};
use orchestrix_engine::file::Cut;
use orchestrix_engine::{Error, Journal};

/// What a workload was told before the power failed.
#[derive(Default)]
struct Acknowledged {
    history: History,
    /// So many batches were acknowledged.
    acknowledged: usize,
}

/// Batches over several segments, one too long for a segment, rests, snapshots, truncation, a restart.
fn workload(disk: &SimDisk, acked: &mut Acknowledged) -> Result<(), Error> {
    long_workload(disk, 6, acked)
}

fn long_workload(disk: &SimDisk, rounds: usize, acked: &mut Acknowledged) -> Result<(), Error> {
    acked.history = History::new();
    for round in 0..rounds {
        let mut node = Node::start(Arc::new(disk.clone()), SMALL)?;
        for number in 0..9_usize {
            let bytes = if round == 2 && number == 4 { 1500 } else { 30 + (round * 31 + number * 17) % 120 };
            let batch = acked.history.next(&node.journal, 1 + number as u32 % 3, bytes);
            node.append(&batch)?;
            acked.acknowledged += 1;
            if number == 5 {
                node.journal.rest()?;
            }
        }
        node.snapshot()?;
        node.journal.truncate()?;
        node.journal.snapshots().prune()?;
        if round % 2 == 0 {
            node.journal.rest()?;
        }
    }
    Ok(())
}

/// What was acknowledged is there, and at most the one batch that was under way besides. Answers what was cut off.
fn check(acked: &Acknowledged, disk: &SimDisk) -> Option<Cut> {
    let mut node = Node::start(Arc::new(disk.clone()), SMALL)
        .unwrap_or_else(|error| panic!("a crash alone never keeps a journal from starting: {error}"));
    let reached = acked.history.reached(&node.state);
    assert!(reached >= acked.acknowledged, "{} acknowledged, {reached} there", acked.acknowledged);
    assert!(reached <= acked.acknowledged + 1);
    assert_eq!(node.bad_snapshots, 0, "a snapshot that has its name is whole");
    let mut history = History { states: vec![node.state], batches: Vec::new() };
    let batch = history.next(&node.journal, 1, 40);
    node.append(&batch).unwrap();
    let (state, cut) = (node.state, node.journal.recovery().cut.clone());
    drop(node);
    let node = Node::start(Arc::new(disk.crash(&mut || false)), SMALL).unwrap();
    assert_eq!(node.state, state, "what is appended after a recovery stays");
    cut
}

/// A reproducible stream of choices.
fn choices(seed: u64) -> impl FnMut() -> bool {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state & 0x100 != 0
    }
}

fn operations() -> u64 {
    let disk = SimDisk::new(5);
    let mut acked = Acknowledged::default();
    workload(&disk, &mut acked).unwrap();
    assert_eq!(acked.acknowledged, 54);
    disk.counts().operations
}

/// Sectors of 512 bytes are what disks have. Smaller ones tear every frame, in more ways than can all be tried.
#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_fails() {
    let operations = operations();
    assert!(operations > 300, "{operations}");
    let (mut crashes, mut torn, mut whole_points) = (0, 0, 0);
    for sector in [512, 64] {
        for last in 0..operations {
            let disk = SimDisk::with_sectors(5, sector);
            disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
            let mut acked = Acknowledged::default();
            workload(&disk, &mut acked).unwrap_err();
            let covered = disk.each_crash(4_096, 256, |after| {
                torn += usize::from(check(&acked, &after).is_some());
                crashes += 1;
            });
            whole_points += usize::from(sector == 512 && covered == Covered::All);
        }
    }
    println!("{operations} operations: {crashes} different disks, {torn} torn ends");
    assert_eq!(
        whole_points as u64, operations,
        "with sectors of 512 bytes, all that could be left was tried"
    );
    assert!(crashes > 2_000 && torn > 500, "{crashes} crashes, {torn} torn ends");
}

#[test]
fn nothing_acknowledged_is_lost_in_a_long_life_either() {
    const ROUNDS: usize = 36;
    let disk = SimDisk::new(6);
    long_workload(&disk, ROUNDS, &mut Acknowledged::default()).unwrap();
    let operations = disk.counts().operations;
    assert!(operations >= 2_000, "{operations}");
    let mut crashes = 0;
    for last in 0..operations {
        let disk = SimDisk::new(6);
        disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
        let mut acked = Acknowledged::default();
        long_workload(&disk, ROUNDS, &mut acked).unwrap_err();
        let covered = disk.each_crash(4_096, 256, |after| {
            check(&acked, &after);
            crashes += 1;
        });
        assert_eq!(covered, Covered::All, "operation {last}");
    }
    println!("{operations} operations: {crashes} different disks");
    assert!(crashes > operations, "{crashes}");
}

#[test]
fn a_crash_during_recovery_loses_nothing_either() {
    let operations = operations();
    let mut seen = 0;
    for last in (0..operations).step_by(3) {
        let disk = SimDisk::with_sectors(5, 64);
        disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
        let mut acked = Acknowledged::default();
        workload(&disk, &mut acked).unwrap_err();
        let after = disk.crash(&mut choices(last));
        for second in 0..12 {
            let again = after.copy();
            again.set_faults(Faults { power_off_after: Some(second), ..Faults::default() });
            if let Ok(node) = Node::start(Arc::new(again.clone()), SMALL) {
                // Preparing spares may fail without keeping a journal from starting.
                drop(node);
            }
            check(&acked, &again.crash(&mut choices(second)));
            seen += 1;
        }
    }
    assert!(seen > 1000, "{seen}");
}

/// The process dies, the disk does not: what it wrote is seen by the next process, though not durable.
#[test]
fn state_seen_at_start_survives_a_crash() {
    let operations = operations();
    let mut unsynced = 0;
    for last in (0..operations).step_by(2) {
        for more in 0..8 {
            let disk = SimDisk::with_sectors(5, 64);
            disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
            let mut acked = Acknowledged::default();
            workload(&disk, &mut acked).unwrap_err();
            unsynced += usize::from(disk.pending() > 0);
            disk.set_faults(Faults { power_off_after: Some(last + more), ..Faults::default() });
            if let Ok(node) = Node::start(Arc::new(disk.clone()), SMALL) {
                acked.acknowledged = acked.history.reached(&node.state);
            }
            disk.each_crash(16, 5, |after| {
                check(&acked, &after);
            });
        }
    }
    assert!(unsynced > 100, "{unsynced}");
}
