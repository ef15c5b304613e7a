//! What the loop counts: every event, every refusal, every repeat.

use orchestrix_core::limits::KEYS_FORGOTTEN_MAX;
use orchestrix_core::{
    AttemptEnd, Command, Event, ExpiryReason, Next, ShardEvent, TaskCommand, TaskEvent, TermEvent, Timestamp,
    is_planted,
};

use crate::decision_loop::DecisionLoop;
use crate::rates::Rate;
use crate::request::Recipient;

impl<R: Recipient> DecisionLoop<R> {
    pub(crate) fn count_repeat(&self, command: &Command) {
        let Command::Task(command) = command else { return };
        match command {
            TaskCommand::Submit { .. } if is_planted("repeat-counted") => self.stats.submitted.add(1),
            TaskCommand::Submit { .. } => self.stats.submit_repeats.add(1),
            TaskCommand::Complete { .. } | TaskCommand::Fail { .. } | TaskCommand::Release { .. } => {
                self.stats.repeated_reports.add(1);
            }
            TaskCommand::Lease(_)
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
    pub(crate) fn count(&mut self, event: &Event, at: Timestamp) {
        match event {
            Event::Term(event) => self.count_term(event),
            Event::Task(event) => self.count_task(event, at),
            Event::Shard(event) => self.count_shard(event, at),
        }
    }

    fn count_term(&self, event: &TermEvent) {
        match event {
            TermEvent::TermStarted(event) => {
                self.stats.term.set(self.state.position().0 + 1);
                self.stats.epoch.set(event.epoch);
            }
            TermEvent::FormatRaised(_) | TermEvent::Tick(_) | TermEvent::PositionsSkipped(_) => {}
        }
    }

    fn count_task(&mut self, event: &TaskEvent, at: Timestamp) {
        let stats = &self.stats;
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
                let task = self.state.task(event.task).expect("a task that is leased is there");
                let last = task.attempts().last().map(|attempt| attempt.end);
                let again = matches!(last, Some(AttemptEnd::Silent | AttemptEnd::Timeout));
                stats.duplicate_executions.add(u64::from(again));
            }
            TaskEvent::LeaseExtended(event) => stats.extended.add(event.extended.len() as u64),
            TaskEvent::LeaseReleased(event) => {
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
                stats.completed.add(1);
                self.ended += 1;
                let task = self.state.task(event.task).expect("a task that is completed is there");
                self.rates.count(&task.queue, Rate::Completed, at);
            }
            TaskEvent::TaskFailed(event) => {
                stats.failed.add(1);
                dead(event.next);
                let task = self.state.task(event.task).expect("a task that failed is there");
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
                let keys = (self.state.remembered_keys() + added) as u64;
                let most = KEYS_FORGOTTEN_MAX as u64;
                let too_many = event.keys_kept.map_or(0, |kept| keys.saturating_sub(kept).min(most));
                stats.keys_forgotten_early.add(too_many);
            }
        }
    }

    fn count_shard(&mut self, event: &ShardEvent, at: Timestamp) {
        let stats = &self.stats;
        match event {
            ShardEvent::ShardsMoved(event) => {
                stats.shards_withdrawn.add(event.withdrawn.len());
                stats.shards_granted.add(event.granted.iter().map(|grant| grant.shards.len()).sum());
                let shards = event.granted.iter().flat_map(|grant| grant.shards.iter());
                for vacant_ms in self.sharding.fill(&event.service, shards, at) {
                    stats.shard_vacant.observe_us(vacant_ms * 1_000);
                }
            }
            ShardEvent::ShardsLetGo(event) => {
                if event.overruled == Some(true) {
                    stats.shards_overruled.add(event.shards.len());
                }
                self.sharding.vacate(&event.service, event.shards.iter(), at);
            }
            ShardEvent::ShardWorkerLeft(event) => {
                let there = self.state.service(&event.service);
                let shards = there.into_iter().flat_map(|known| known.tokens_of(&event.worker));
                self.sharding.vacate(&event.service, shards.map(|(shard, _)| shard), at);
            }
            ShardEvent::ShardWorkerJoined(_)
            | ShardEvent::ShardCountSet(_)
            | ShardEvent::ShardWeightsSet(_) => {}
        }
    }
}
