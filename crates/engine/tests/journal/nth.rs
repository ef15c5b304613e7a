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
struct Acknowledged {
    history: History,
    acknowledged: usize,
}

impl Acknowledged {
    fn new() -> Self {
        Self { history: History::new(), acknowledged: 0 }
    }

    /// What is there is what was acknowledged, and perhaps the batch that was under way; from here it goes on.
    fn go_on_from(&mut self, node: &Node) {
        let reached = self.history.reached(&node.state);
        let acked = self.acknowledged;
        assert!((acked..=acked + 1).contains(&reached), "{acked} acknowledged, {reached} there");
        self.history.batches.truncate(reached);
        self.history.states.truncate(reached + 1);
        self.acknowledged = reached;
    }
}

/// One life of a process. What cannot be appended ends it; a snapshot that cannot be taken does not.
fn live(disk: &SimDisk, acked: &mut Acknowledged) -> Result<(), Error> {
    let mut node = Node::start(Arc::new(disk.clone()), SMALL)?;
    acked.go_on_from(&node);
    for number in 0..8 {
        let bytes = 30 + (acked.acknowledged * 37 + number * 17) % 150;
        let batch = acked.history.next(&node.journal, 1 + number as u32 % 3, bytes);
        node.append(&batch)?;
        acked.acknowledged += 1;
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
fn live_on_a_failing_disk(disk: &SimDisk, acked: &mut Acknowledged) -> usize {
    let mut failed = 0;
    for _ in 0..ROUNDS {
        for _ in 0..STARTS {
            match live(disk, acked) {
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
fn lose_power(disk: &SimDisk, acked: &Acknowledged, what: &str) {
    disk.each_crash(4, 4, |after| {
        let node = Node::start(Arc::new(after), SMALL)
            .unwrap_or_else(|error| panic!("{what}: a failing disk damages nothing: {error}"));
        let reached = acked.history.reached(&node.state);
        let acked = acked.acknowledged;
        assert!((acked..=acked + 1).contains(&reached), "{what}: {acked} acknowledged, {reached} there");
    });
}

/// How often a process failed with these faults.
fn survive(faults: Faults) -> usize {
    let what = format!("{faults:?}");
    let disk = SimDisk::new(41);
    disk.set_faults(faults);
    let mut acked = Acknowledged::new();
    let failed = live_on_a_failing_disk(&disk, &mut acked);
    lose_power(&disk, &acked, &what);
    disk.set_faults(Faults::default());
    live(&disk, &mut acked).unwrap_or_else(|error| panic!("{what}: a whole disk is enough: {error}"));
    lose_power(&disk, &acked, &what);
    failed
}

#[test]
fn no_failing_operation_loses_acknowledged_writes() {
    let disk = SimDisk::new(41);
    assert_eq!(live_on_a_failing_disk(&disk, &mut Acknowledged::new()), 0);
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
