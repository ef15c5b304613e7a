//! Renews the leases of a worker: one request for all of them, every third of a lease.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::limits::BATCH_ITEMS_MAX;
use orchestrix_core::wire::WorkerExtended;
use orchestrix_core::{LeaseId, Name};

use super::complaints::Complaints;
use super::held::{Held, Stop, trusted};
use crate::client::Client;
use crate::error::Error;
use crate::retry::Backoff;

/// The heart of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Heart {
    pub(crate) client: Client,
    pub(crate) worker: Name,
    pub(crate) held: Arc<Held>,
    pub(crate) lease: Duration,
}

impl Heart {
    /// Beats for ever.
    pub(crate) async fn run(&self) {
        let mut backoff = Backoff::endless();
        let mut complaints = Complaints::default();
        let mut wait = self.interval();
        loop {
            tokio::time::sleep(wait).await;
            let leases = self.held.ids();
            wait = match self.beat(leases).await {
                Ok(()) => {
                    backoff.reset();
                    complaints = Complaints::default();
                    self.interval()
                }
                Err(error) => {
                    if complaints.are_due(self.held.now()) {
                        tracing::warn!(worker = %self.worker, %error, "heartbeat failed");
                    }
                    backoff.pause(error.retry_after()).min(self.pause_max())
                }
            };
        }
    }

    /// Extends these leases, and tells their handlers what the coordinator said.
    pub(crate) async fn beat(&self, leases: Vec<LeaseId>) -> Result<(), Error> {
        let mut beaten = Ok(());
        for some in leases.chunks(BATCH_ITEMS_MAX) {
            let sent = self.held.now();
            // An answer that takes longer than the time to the next heartbeat is worth less than a new try.
            let limit = self.interval().max(Duration::from_millis(100));
            match self.client.heartbeat_worker_once(&self.worker, some.to_vec(), limit).await {
                Ok(answer) => self.take(sent, &answer),
                // What is wrong with some of them says nothing about the others.
                Err(error) => beaten = beaten.and(Err(error)),
            }
        }
        beaten
    }

    fn take(&self, sent: Duration, answer: &WorkerExtended) {
        let each = answer.lease_ms_each.iter().copied().chain(std::iter::repeat(answer.lease_ms));
        let limits = answer.timeout_ms_each.iter().copied().chain(std::iter::repeat(None));
        for ((lease, lease_ms), timeout_ms) in answer.extended.iter().zip(each).zip(limits) {
            self.held.extend(*lease, trusted(sent, 0, lease_ms, timeout_ms));
        }
        answer.lost.iter().for_each(|lease| self.held.tell(*lease, Stop::LeaseLost));
        answer.cancel.iter().for_each(|lease| self.held.tell(*lease, Stop::CancelRequested));
    }

    fn interval(&self) -> Duration {
        self.lease / 3
    }

    /// The longest wait after a heartbeat without an answer. A leader that is elected late in the lease has to be
    /// reached by the next one, whatever `Retry-After` the node without a leader sent.
    fn pause_max(&self) -> Duration {
        self.interval() / 5
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::manual::ManualClock;
    use crate::worker::held::trusted_until;

    fn heart(held: &Arc<Held>) -> Heart {
        Heart {
            client: Client::new("http://127.0.0.1:1").unwrap(),
            worker: Name::new("w").unwrap(),
            held: Arc::clone(held),
            lease: Duration::from_secs(30),
        }
    }

    #[test]
    fn a_task_near_its_time_limit_does_not_shorten_the_others() {
        let clock = Arc::new(ManualClock::default());
        let held = Arc::new(Held::new(Arc::<ManualClock>::clone(&clock)));
        let signals: Vec<_> = (1..=2).map(|n| held.add(LeaseId(n), Duration::from_secs(5))).collect();
        let answer = WorkerExtended {
            extended: vec![LeaseId(1), LeaseId(2)],
            lost: Vec::new(),
            cancel: Vec::new(),
            lease_ms: 6_000,
            lease_ms_each: vec![30_000, 6_000],
            timeout_ms_each: vec![None, Some(6_000)],
        };
        heart(&held).take(Duration::ZERO, &answer);
        clock.advance(Duration::from_secs(10));
        held.expire();
        let why: Vec<_> = signals.iter().map(|signal| signal.why()).collect();
        assert_eq!(why, [None, Some(Stop::TimedOut)]);
    }

    #[test]
    fn a_heartbeat_answer_reaches_every_handler_it_names() {
        let held = Arc::new(Held::new(Arc::new(ManualClock::default())));
        let signals: Vec<_> = (1..=3).map(|n| held.add(LeaseId(n), Duration::from_secs(5))).collect();
        heart(&held).take(
            Duration::ZERO,
            &WorkerExtended {
                extended: vec![LeaseId(1), LeaseId(2)],
                lost: vec![LeaseId(3)],
                cancel: vec![LeaseId(2)],
                lease_ms: 30_000,
                lease_ms_each: Vec::new(),
                timeout_ms_each: Vec::new(),
            },
        );
        let why: Vec<_> = signals.iter().map(|signal| signal.why()).collect();
        assert_eq!(why, [None, Some(Stop::CancelRequested), Some(Stop::LeaseLost)]);
        assert_eq!(held.expire(), Some(trusted_until(Duration::ZERO, 0, 30_000)));
    }
}
