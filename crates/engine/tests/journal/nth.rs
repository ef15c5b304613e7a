//! Every single operation of a disk fails, once or for ever, and the process is started again: on the disk as it
//! is, and after a loss of power. All that was acknowledged is there, before the failure and after it.

use std::sync::Arc;

use crate::common::{History, Node, SMALL};
use orchestrix_engine::disk::sim::{Faults, Lasting, SimDisk, SyncFailure};
use orchestrix_engine::{Cause, Error, Journal};

/// Starts of a process on a disk that fails.
const STARTS: usize = 3;
const ROUNDS: usize = 4;

/// What a process was told over all of its starts.
struct Told {
    history: History,
    acknowledged: usize,
}

impl Told {
    fn new() -> Self {
        Self { history: History::new(), acknowledged: 0 }
    }

    /// What is there is what was acknowledged, and perhaps the batch that was under way; from here it goes on.
    fn go_on_from(&mut self, node: &Node) {
        let reached = self.history.reached(&node.state);
        let told = self.acknowledged;
        assert!((told..=told + 1).contains(&reached), "{told} acknowledged, {reached} there");
        self.history.batches.truncate(reached);
        self.history.states.truncate(reached + 1);
        self.acknowledged = reached;
    }
}

/// One life of a process. What cannot be appended ends it; a snapshot that cannot be taken does not.
fn live(disk: &SimDisk, told: &mut Told) -> Result<(), Error> {
    let mut node = Node::start(Arc::new(disk.clone()), SMALL)?;
    told.go_on_from(&node);
    for number in 0..8 {
        let bytes = 30 + (told.acknowledged * 37 + number * 17) % 150;
        let batch = told.history.next(&node.journal, 1 + number as u32 % 3, bytes);
        node.append(&batch)?;
        told.acknowledged += 1;
        if number == 5 {
            node.journal.rest()?;
        }
    }
    let _ = node.snapshot();
    let _ = node.journal.truncate();
    let _ = node.journal.snapshots().prune();
    node.journal.rest()
}

/// A failing disk may end a process and keep it from starting, but nothing on it counts as damaged.
fn live_on_a_failing_disk(disk: &SimDisk, told: &mut Told) -> usize {
    let mut failed = 0;
    for _ in 0..ROUNDS {
        for _ in 0..STARTS {
            match live(disk, told) {
                Ok(()) => break,
                Err(error) => {
                    assert!(matches!(error.source, Cause::Io(_)), "{error}");
                    failed += 1;
                }
            }
        }
    }
    failed
}

/// Any part of what is not durable is lost, and the next process finds the rest.
fn lose_power(disk: &SimDisk, told: &Told, what: &str) {
    disk.each_crash(4, 4, |after| {
        let node = Node::start(Arc::new(after), SMALL)
            .unwrap_or_else(|error| panic!("{what}: a failing disk damages nothing: {error}"));
        let reached = told.history.reached(&node.state);
        let told = told.acknowledged;
        assert!((told..=told + 1).contains(&reached), "{what}: {told} acknowledged, {reached} there");
    });
}

/// How often a process failed with these faults.
fn survive(faults: Faults) -> usize {
    let what = format!("{faults:?}");
    let disk = SimDisk::new(41);
    disk.set_faults(faults);
    let mut told = Told::new();
    let failed = live_on_a_failing_disk(&disk, &mut told);
    lose_power(&disk, &told, &what);
    disk.set_faults(Faults::default());
    live(&disk, &mut told).unwrap_or_else(|error| panic!("{what}: a whole disk is enough: {error}"));
    lose_power(&disk, &told, &what);
    failed
}

#[test]
fn no_failing_operation_loses_acknowledged_writes() {
    let disk = SimDisk::new(41);
    assert_eq!(live_on_a_failing_disk(&disk, &mut Told::new()), 0);
    let counts = disk.counts();
    assert!(counts.operations > 150, "{counts:?}");
    let mut failed = [0, 0];
    for nth in 1..=counts.operations {
        for (index, lasting) in [Lasting::Once, Lasting::ForEver].into_iter().enumerate() {
            failed[index] += survive(Faults { fail: Some((nth, lasting)), ..Faults::default() });
        }
    }
    let mut forgotten = 0;
    for nth in 1..=counts.syncs {
        let fail_sync = Some((nth, SyncFailure::Forget));
        forgotten += survive(Faults { fail_sync, ..Faults::default() });
    }
    println!("{counts:?}: {failed:?} processes ended, {forgotten} by syncs that forgot");
    assert!(failed[0] > 50 && failed[1] > failed[0] && forgotten > 30, "{failed:?} {forgotten}");
}
