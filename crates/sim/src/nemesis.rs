//! Faults of the coordinator: kills, losses of power, stops, freezes, a disk that fails or fills up.

use std::task::{Context, Poll, Waker};

use orchestrix_core::{Position, Timestamp};
use orchestrix_engine::disk::sim::{Faults, SyncFailure};
use orchestrix_node::Error;

use crate::check::Violation;
use crate::coverage::Covered;
use crate::server::{Process, counted};
use crate::world::{Happening, MS, SECOND, World};

impl World {
    pub(crate) fn nemesis(&mut self) -> Result<(), Violation> {
        let plan = self.plan.clone();
        let counts = self.disk.counts();
        if self.rng.chance(plan.jumps) {
            let by = [1_000, 60_000, 86_400_000, 315_360_000_000][self.rng.index(4)];
            self.clock.jump(if self.rng.chance(500_000) { by } else { -by });
            self.coverage.add(Covered::ClockJump);
        }
        if self.rng.chance(plan.freezes) && self.server.is_some() {
            self.frozen_until = self.now + self.rng.range(100 * MS, 3 * plan.lease_ms * MS);
            self.coverage.add(Covered::ServerFrozen);
        }
        if self.rng.chance(plan.sync_failures) {
            let kind = if self.rng.chance(500_000) { SyncFailure::Keep } else { SyncFailure::Forget };
            let nth = counts.syncs + self.rng.range(1, 20);
            self.set_faults(Faults { fail_sync: Some((nth, kind)), ..Faults::default() });
            // What a failed sync leaves behind shows when the power goes.
            if self.rng.chance(500_000) {
                let after = self.rng.skewed(100 * MS, 60 * SECOND);
                self.push(self.now + after, Happening::PowerLoss);
            }
        } else if self.rng.chance(plan.short_writes) {
            let (nth, bytes) = (counts.writes + self.rng.range(1, 20), self.rng.range(0, 300));
            let bytes = usize::try_from(bytes).unwrap_or(0);
            self.set_faults(Faults { short_write: Some((nth, bytes)), ..Faults::default() });
        } else if self.rng.chance(plan.full_disks) {
            let capacity = Some(self.disk.used() + self.rng.range(0, 8 << 10));
            self.set_faults(Faults { capacity, ..Faults::default() });
        }
        if self.server.is_none() {
            return Ok(());
        }
        if self.rng.chance(plan.power_losses) {
            if self.rng.chance(500_000) {
                // It happens in the middle of the next operation.
                let last = counts.operations + self.rng.range(1, 40);
                self.set_faults(Faults { power_off_after: Some(last), ..Faults::default() });
            } else {
                self.lose_power()?;
            }
        } else if self.rng.chance(plan.kills) {
            self.coverage.add(Covered::Kill);
            self.die()?;
        } else if self.rng.chance(plan.stops) {
            self.stop()?;
        }
        Ok(())
    }

    /// The process is gone, and of what was not synced any part may be gone too.
    pub(crate) fn lose_power(&mut self) -> Result<(), Violation> {
        self.coverage.add(Covered::PowerLoss);
        if self.server.is_some() {
            self.die()?;
        }
        self.cut_power();
        Ok(())
    }

    fn cut_power(&mut self) {
        self.see_faults();
        let mut rng = self.rng.fork();
        let kept = u32::try_from(rng.range(0, 1_000_000)).unwrap_or(0);
        self.disk = self.disk.crash(&mut || rng.chance(kept));
        self.faults_seen = self.disk.counts();
        self.clock.use_disk(self.disk.clone());
    }

    pub(crate) fn stop(&mut self) -> Result<(), Violation> {
        let Some(Process { node, mut stepped, after }) = self.server.take() else { return Ok(()) };
        let at = stepped.now();
        let clean = stepped.stop().is_ok();
        self.mirror.promised(Position(node.stats().durable.get()));
        if clean {
            self.coverage.add(Covered::CleanStop);
            self.history.counted.push(counted(&node, after));
        }
        let unanswered = self.take_last_answers(at);
        // R5: everyone who was waiting has been answered or refused.
        if clean && !unanswered.is_empty() {
            return Err(Violation::new("R5", "a clean stop left a caller without an answer".to_owned()));
        }
        self.unanswered(unanswered);
        self.pending.clear();
        drop(node);
        self.die()
    }

    fn set_faults(&mut self, faults: Faults) {
        self.see_faults();
        self.disk.set_faults(faults);
    }

    /// Counts what the disk has really done wrong since the last look.
    pub(crate) fn see_faults(&mut self) {
        let (now, before) = (self.disk.counts(), self.faults_seen);
        self.see(now.failed_syncs > before.failed_syncs, Covered::SyncFailed);
        self.see(now.short_writes > before.short_writes, Covered::WriteCutShort);
        self.see(now.full_writes > before.full_writes, Covered::DiskFilled);
        self.faults_seen = now;
    }

    /// The process ends without a word; its last writes to the operating system may still be written.
    pub(crate) fn die(&mut self) -> Result<(), Violation> {
        let at = self.server.as_mut().map(|server| server.stepped.now());
        let unanswered = at.map_or_else(Vec::new, |at| self.take_last_answers(at));
        self.unanswered(unanswered);
        self.pending.clear();
        self.note_snapshots();
        self.server = None;
        self.decide_at = None;
        self.frozen_until = 0;
        if self.disk.is_off() {
            self.coverage.add(Covered::PowerLossWithin);
            self.cut_power();
        }
        self.set_faults(Faults::default());
        let takes = self.rng.range(10 * MS, 5 * SECOND);
        self.push(self.now + takes, Happening::Start);
        Ok(())
    }

    /// Messages that were sent before the process ended are in flight. Returns the ones that were not
    /// answered.
    fn take_last_answers(&mut self, at: Timestamp) -> Vec<usize> {
        let mut context = Context::from_waker(Waker::noop());
        let (mut answered, mut unanswered) = (Vec::new(), Vec::new());
        for pending in self.pending.values_mut() {
            match pending.future.as_mut().poll(&mut context) {
                Poll::Ready(Err(Error::OutcomeUnknown)) | Poll::Pending => unanswered.push(pending.op),
                Poll::Ready(answer) => answered.push((pending.op, answer)),
            }
        }
        for (op, answer) in answered {
            self.answered(op, answer, at);
        }
        unanswered
    }

    pub(crate) fn note_snapshots(&mut self) {
        let taken = self.server.as_ref().map_or(0, |server| server.node.stats().snapshots.get());
        (0..taken).for_each(|_| self.coverage.add(Covered::SnapshotTaken));
    }
}
