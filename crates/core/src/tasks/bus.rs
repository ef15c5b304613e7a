//! Leases of the bus: a task is offered, and the worker that starts it has the lease. What is not said here is as for other leases.
//!
//! **Invariant:** an offer has no worker and no execution limit, lasts [`OFFER_MS`], and counts as no attempt when it ends.

use super::decide::{event, extension};
use super::event::{
    BusResumed, Extension, LeaseExtended, LeaseOffered, LeaseReleased, LeasesStarted, Next, Start,
    TaskExpired,
};
use super::fold::lease_end;
use super::{HeldLease, LiveLease, Offer, TaskCommand, TaskState, Tasks, Via};
use crate::entity::Moment;
use crate::limits::OFFER_MS;
use crate::{Decision, LeaseId, Name, Refusal, TaskId, Timestamp};

/// What an event has changed for the owners of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BusChange {
    Offered(LeaseId),
    Ended(LeaseId),
}

impl TaskCommand {
    /// Whether there must be a bus for it.
    #[inline]
    pub(super) fn is_of_bus(&self) -> bool {
        matches!(
            self,
            Self::Offer(_) | Self::Start(_) | Self::Extend(_) | Self::Note { .. } | Self::ResumeBus { .. }
        )
    }
}

impl Tasks {
    /// Offers the first task in line; if that has outlived its ttl, it is expired instead.
    pub(super) fn offer(&self, offer: &Offer, now: Timestamp) -> Decision {
        let Some(task) = self.first_in_line(&offer.queues) else { return Decision::Nothing };
        if task.ttl_at().is_some_and(|ttl_at| ttl_at <= now) {
            return event(TaskExpired { task: task.id });
        }
        event(LeaseOffered {
            task: task.id,
            attempt: task.charged + 1,
            length_ms: offer.lease_ms,
            expires_at: lease_end(now, OFFER_MS),
        })
    }

    pub(super) fn start(&self, leases: &[HeldLease], now: Timestamp) -> Decision {
        let offered = leases.iter().filter_map(|held| {
            let lease = self.of_bus(held.lease).filter(|lease| lease.is_offer() && lease.is_live(now))?;
            let (worker, expires_at) = (self.shared_worker(&held.worker), lease_end(now, lease.length_ms));
            Some(Start { lease: lease.id, worker, expires_at })
        });
        let mut started: Vec<Start> = offered.collect();
        started.sort_by_key(|start| start.lease);
        started.dedup_by_key(|start| start.lease);
        if started.is_empty() { Decision::Nothing } else { event(LeasesStarted { started }) }
    }

    pub(super) fn extend(&self, leases: &[HeldLease], now: Timestamp) -> Decision {
        let live = leases.iter().filter_map(|held| {
            let lease = self.of_bus(held.lease)?;
            (lease.worker.as_ref() == Some(&held.worker) && lease.is_live(now)).then(|| extension(lease, now))
        });
        let mut extended: Vec<Extension> = live.collect();
        extended.sort_by_key(|extension| extension.lease);
        extended.dedup();
        if extended.is_empty() {
            return Decision::Nothing;
        }
        event(LeaseExtended { extended, progress: None, note: None })
    }

    pub(super) fn note(
        &self,
        task: TaskId,
        lease: LeaseId,
        worker: &Name,
        said: (Option<u8>, Option<&String>),
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        let held = self.running(task, lease, Some(worker), now)?;
        if !held.is_of_bus() {
            return Err(Refusal::StaleLease { task, lease, why: "it is not of the bus" });
        }
        let extended = vec![Extension { lease, expires_at: held.expires_at }];
        Ok(event(LeaseExtended { extended, progress: said.0, note: said.1.cloned() }))
    }

    pub(super) fn resume_bus(&self, silent_since: Timestamp, now: Timestamp) -> Decision {
        if self.bus_ends.len() == 0 {
            return Decision::Nothing;
        }
        event(BusResumed { silent_since: silent_since.min(now) })
    }

    /// The end of an offer that nobody has started.
    pub(super) fn offer_over(task: TaskId, lease: LeaseId, now: Timestamp) -> Decision {
        event(LeaseReleased {
            task,
            lease,
            charged: false,
            next: Next::Waiting { not_before: now },
            undelivered: Some(true),
            worker: None,
        })
    }

    fn of_bus(&self, lease: LeaseId) -> Option<&LiveLease> {
        self.leased(lease)?.lease.as_deref().filter(|lease| lease.is_of_bus())
    }

    pub(super) fn lease_offered(&mut self, event: &LeaseOffered, here: Moment) {
        let lease = LiveLease {
            id: LeaseId(here.position.0),
            worker: None,
            attempt: event.attempt,
            granted_at: here.at,
            length_ms: event.length_ms,
            expires_at: event.expires_at,
            timeout_at: None,
            cancel_at: None,
            prolonged: false,
            request_id: None,
            progress: None,
            note: None,
            cancel_by: None,
            via: Some(Via::Bus),
        };
        self.change(event.task, here.at, |task| {
            assert_eq!(task.state, TaskState::Waiting, "only a waiting task is offered");
            assert!(task.not_before <= here.at, "a task is not offered before its time");
            assert!(task.charged < task.max_attempts, "a task whose attempts are used up is not offered");
            task.state = TaskState::Leased;
            task.lease = Some(Box::new(lease));
        });
    }

    pub(super) fn leases_started(&mut self, event: &LeasesStarted, at: Timestamp) {
        for start in &event.started {
            let (_, id) = *self.leases.get(start.lease).expect("only a live lease is started");
            let worker = self.shared_worker(&start.worker);
            assert!(start.expires_at > at, "a lease that is started lasts for a while");
            self.change(id, at, |task| {
                let timeout_at = task.timeout_ms().map(|timeout_ms| at.plus(timeout_ms));
                let lease = task.lease.as_mut().expect("a leased task has a lease");
                assert!(lease.is_offer() && lease.is_of_bus(), "a lease is started once");
                assert!(lease.is_live(at), "an offer that is over is not started");
                (lease.worker, lease.expires_at, lease.timeout_at) =
                    (Some(worker), start.expires_at, timeout_at);
                lease.prolonged = false;
            });
        }
    }

    pub(super) fn bus_resumed(&mut self, event: &BusResumed, at: Timestamp) {
        assert!(event.silent_since <= at, "a silence begins before it ends");
        let of_bus = self.bus_ends.after(None).map(|(_, task)| *task);
        for id in of_bus.collect::<Vec<_>>() {
            self.prolong(id, event.silent_since, at);
        }
    }

    /// Leases of the bus in their order.
    pub(crate) fn leases_of_bus(&self) -> impl Iterator<Item = LeaseId> {
        let mut leases: Vec<LeaseId> = self.bus_held.values().flatten().copied().collect();
        leases.extend(self.offers.after(None));
        leases.sort();
        leases.into_iter()
    }

    /// A lease of the bus is about to leave the indexes.
    pub(super) fn unindex_bus(&mut self, id: LeaseId, worker: Option<&Name>) {
        self.bus_change = Some(BusChange::Ended(id));
        let Some(worker) = worker else {
            self.offers.remove(id);
            return;
        };
        let held = self.bus_held.get_mut(worker).expect("the worker of a lease of the bus is known");
        let at = held.binary_search(&id).expect("the worker of a lease of the bus has it");
        held.remove(at);
        if held.is_empty() {
            self.bus_held.remove(worker);
        } else if held.capacity() > 4 * held.len() {
            held.shrink_to(2 * held.len());
        }
    }

    pub(super) fn index_bus(&mut self, id: LeaseId, worker: Option<&Name>) {
        // A lease that only changes is taken out and put in again.
        let is_back = self.bus_change.take() == Some(BusChange::Ended(id));
        self.bus_change = (!is_back).then_some(BusChange::Offered(id));
        let Some(worker) = worker else { return self.offers.insert(id) };
        let held = self.bus_held.entry(worker.clone()).or_default();
        if let Err(at) = held.binary_search(&id) {
            held.insert(at, id);
        }
    }
}
