//! Counters of tasks: every event and every repeat.

use orchestrix_core::limits::KEYS_FORGOTTEN_MAX;
use orchestrix_core::{
    AttemptEnd, Command, ExpiryReason, Next, Task, TaskCommand, TaskEvent, Timestamp, is_planted,
};

use super::TaskDecisions;
use super::rates::Rate;
use crate::decider::Decider;
use crate::request::Recipient;

impl<R: Recipient> TaskDecisions<R> {
    pub(crate) fn count_repeat(&self, decider: &Decider<R>, command: &Command) {
        let Command::Task(command) = command else { return };
        match command {
            TaskCommand::Submit { .. } if is_planted("repeat-counted") => decider.stats.submitted.add(1),
            TaskCommand::Submit { .. } => decider.stats.submit_repeats.add(1),
            TaskCommand::Complete { .. } | TaskCommand::Fail { .. } | TaskCommand::Release { .. } => {
                decider.stats.repeated_reports.add(1);
            }
            TaskCommand::Lease(_)
            | TaskCommand::Offer(_)
            | TaskCommand::Start(_)
            | TaskCommand::Extend(_)
            | TaskCommand::Note { .. }
            | TaskCommand::ResumeBus { .. }
            | TaskCommand::Heartbeat { .. }
            | TaskCommand::HeartbeatAll { .. }
            | TaskCommand::Abandon { .. }
            | TaskCommand::Cancel { .. }
            | TaskCommand::Retry { .. }
            | TaskCommand::Expire { .. }
            | TaskCommand::Purge(_) => {}
        }
    }

    /// Counts an event before it is applied.
    pub(super) fn count(&mut self, decider: &Decider<R>, event: &TaskEvent, at: Timestamp) {
        let stats = &decider.stats;
        let mut dead = |next: Next| {
            self.ended += usize::from(!matches!(next, Next::Waiting { .. }));
            stats.dead_letters.add(u64::from(next == Next::Failed));
            stats.cancelled.add(u64::from(next == Next::Cancelled));
        };
        match event {
            TaskEvent::TaskCreated(event) => {
                stats.submitted.add(1);
                self.rates.count(&event.queue, Rate::Submitted, at);
            }
            TaskEvent::LeaseGranted(event) => {
                stats.leased.add(1);
                let task = decider.state.task(event.task).expect("a task that is leased is there");
                stats.duplicate_executions.add(u64::from(may_run_twice(task)));
            }
            // Leased once it is started; a report that starts it does that, too.
            TaskEvent::LeaseOffered(_) | TaskEvent::BusResumed(_) => {}
            TaskEvent::LeasesStarted(event) => {
                stats.leased.add(event.started.len() as u64);
                let tasks = event.started.iter().filter_map(|start| decider.state.leased(start.lease));
                stats.duplicate_executions.add(tasks.filter(|task| may_run_twice(task)).count() as u64);
            }
            TaskEvent::LeaseExtended(event) => stats.extended.add(event.extended.len() as u64),
            TaskEvent::LeaseReleased(event) => {
                stats.leased.add(u64::from(event.worker.is_some()));
                stats.released.add(u64::from(event.undelivered != Some(true)));
                dead(event.next);
            }
            TaskEvent::LeaseExpired(event) => {
                match event.reason {
                    ExpiryReason::Silent => stats.expired_silent.add(1),
                    ExpiryReason::Timeout => stats.expired_timeout.add(1),
                }
                dead(event.next);
            }
            TaskEvent::TaskCompleted(event) => {
                stats.leased.add(u64::from(event.worker.is_some()));
                stats.completed.add(1);
                self.ended += 1;
                let task = decider.state.task(event.task).expect("a task that is completed is there");
                self.rates.count(&task.queue, Rate::Completed, at);
            }
            TaskEvent::TaskFailed(event) => {
                stats.leased.add(u64::from(event.worker.is_some()));
                stats.failed.add(1);
                dead(event.next);
                let task = decider.state.task(event.task).expect("a task that failed is there");
                self.rates.count(&task.queue, Rate::Failed, at);
            }
            TaskEvent::TaskCancelled(_) => {
                stats.cancelled.add(1);
                self.ended += 1;
            }
            TaskEvent::CancelRequested(_) => {}
            TaskEvent::TaskExpired(_) => {
                stats.ttl_expired.add(1);
                self.ended += 1;
            }
            TaskEvent::TaskRetried(_) => stats.retried.add(1),
            TaskEvent::TaskPurged(event) => {
                stats.purged.add(event.tasks.len() as u64);
                let added = event.tasks.iter().filter(|purge| purge.key_until.is_some()).count();
                let keys = (decider.state.remembered_keys() + added) as u64;
                let most = KEYS_FORGOTTEN_MAX as u64;
                let too_many = event.keys_kept.map_or(0, |kept| keys.saturating_sub(kept).min(most));
                stats.keys_forgotten_early.add(too_many);
            }
        }
    }
}

/// The last lease ended by time, so its worker may still be at it.
fn may_run_twice(task: &Task) -> bool {
    let last = task.attempts().last().map(|attempt| attempt.end);
    matches!(last, Some(AttemptEnd::Silent | AttemptEnd::Timeout))
}
