//! Power fails after every single operation of a disk, with many choices of what had become durable. All
//! that was acknowledged is there afterwards, in order, and nothing that never was.

use std::sync::Arc;

use crate::common::{History, Node, SMALL};
use orchestrix_engine::disk::sim::{Faults, SimDisk};
use orchestrix_engine::{Error, Journal};

/// What a workload was told before the power failed.
#[derive(Default)]
struct Told {
    history: History,
    /// So many batches were acknowledged.
    acknowledged: usize,
}

/// Batches over several segments, one too long for a segment, rests, snapshots, truncation, a restart.
fn workload(disk: &SimDisk, told: &mut Told) -> Result<(), Error> {
    told.history = History::new();
    for round in 0..6_usize {
        let mut node = Node::start(Arc::new(disk.clone()), SMALL)?;
        for number in 0..9_usize {
            let bytes = if round == 2 && number == 4 { 1500 } else { 30 + (round * 31 + number * 17) % 120 };
            let batch = told.history.next(&node.journal, 1 + number as u32 % 3, bytes);
            node.append(&batch)?;
            told.acknowledged += 1;
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

/// What was acknowledged is there, and at most the one batch that was under way besides.
fn check(told: &Told, disk: &SimDisk) -> SimDisk {
    let mut node = Node::start(Arc::new(disk.clone()), SMALL)
        .unwrap_or_else(|error| panic!("a crash alone never keeps a journal from starting: {error}"));
    let reached = told.history.reached(&node.state);
    assert!(reached >= told.acknowledged, "{} acknowledged, {reached} there", told.acknowledged);
    assert!(reached <= told.acknowledged + 1);
    assert_eq!(node.bad_snapshots, 0, "a snapshot that has its name is whole");
    let mut history = History { states: vec![node.state], batches: Vec::new() };
    let batch = history.next(&node.journal, 1, 40);
    node.append(&batch).unwrap();
    let state = node.state;
    drop(node);
    let after = disk.crash(&mut || false);
    let node = Node::start(Arc::new(after.clone()), SMALL).unwrap();
    assert_eq!(node.state, state, "what is appended after a recovery stays");
    drop(node);
    after
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

/// Calls `with` for what a crash could leave: all subsets if there are few, else some of them.
fn each_outcome(disk: &SimDisk, sampled: u64, mut with: impl FnMut(SimDisk)) {
    let pending = disk.pending();
    if pending <= 4 {
        for subset in 0..1_u32 << pending {
            let mut bit = 0_u32;
            with(disk.crash(&mut || {
                bit += 1;
                subset.checked_shr(bit - 1).is_some_and(|rest| rest & 1 == 1)
            }));
        }
        return;
    }
    with(disk.crash(&mut || true));
    with(disk.crash(&mut || false));
    for seed in 0..sampled {
        with(disk.crash(&mut choices(seed)));
    }
}

fn operations() -> u64 {
    let disk = SimDisk::new(5);
    let mut told = Told::default();
    workload(&disk, &mut told).unwrap();
    assert_eq!(told.acknowledged, 54);
    disk.counts().operations
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_fails() {
    let operations = operations();
    assert!(operations > 300, "{operations}");
    let mut crashes = 0;
    let mut torn = 0;
    for last in 0..operations {
        let disk = SimDisk::with_sectors(5, 64);
        disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
        let mut told = Told::default();
        workload(&disk, &mut told).unwrap_err();
        each_outcome(&disk, 6, |after| {
            let copy = after.copy();
            torn += usize::from(
                Node::start(Arc::new(copy), SMALL).is_ok_and(|node| node.journal.recovery().cut.is_some()),
            );
            check(&told, &after);
            crashes += 1;
        });
    }
    assert!(crashes > 1000 && torn > 20, "{crashes} crashes, {torn} torn ends");
}

#[test]
fn a_crash_during_recovery_loses_nothing_either() {
    let operations = operations();
    let mut seen = 0;
    for last in (0..operations).step_by(3) {
        let disk = SimDisk::with_sectors(5, 64);
        disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
        let mut told = Told::default();
        workload(&disk, &mut told).unwrap_err();
        let after = disk.crash(&mut choices(last));
        for second in 0..12 {
            let again = after.copy();
            again.set_faults(Faults { power_off_after: Some(second), ..Faults::default() });
            if let Ok(node) = Node::start(Arc::new(again.clone()), SMALL) {
                // Preparing spares may fail without keeping a journal from starting.
                drop(node);
            }
            check(&told, &again.crash(&mut choices(second)));
            seen += 1;
        }
    }
    assert!(seen > 1000, "{seen}");
}

/// The process dies, the disk does not: what it wrote is seen by the next process, though not durable.
#[test]
fn what_a_process_saw_at_its_start_is_there_after_a_crash() {
    let operations = operations();
    let mut unsynced = 0;
    for last in (0..operations).step_by(2) {
        for more in 0..8 {
            let disk = SimDisk::with_sectors(5, 64);
            disk.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
            let mut told = Told::default();
            workload(&disk, &mut told).unwrap_err();
            unsynced += usize::from(disk.pending() > 0);
            disk.set_faults(Faults { power_off_after: Some(last + more), ..Faults::default() });
            if let Ok(node) = Node::start(Arc::new(disk.clone()), SMALL) {
                told.acknowledged = told.history.reached(&node.state);
            }
            each_outcome(&disk, 3, |after| {
                check(&told, &after);
            });
        }
    }
    assert!(unsynced > 100, "{unsynced}");
}
