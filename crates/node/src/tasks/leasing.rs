//! Leases in the loop: grants, waiting calls and renewals.

use std::mem;

use orchestrix_core::limits::LEASE_PAYLOAD_BYTES_MAX;
use orchestrix_core::wire::{Extended, LeaseQueues, Leased, Leases, WorkerExtended};
use orchestrix_core::{
    Command, Decision, Event, Lease, LeaseId, Name, Position, Refusal, Task, TaskCommand, TaskEvent, TaskId,
    Timestamp, is_planted,
};

use super::admission::{Admission, Waiting};
use super::polls::PollId;
use super::{TaskDecisions, named};
use crate::decider::Decider;
use crate::request::{Answer, Error, Recipient};

/// Milliseconds between two looks for waiting calls whose callers left.
const SWEEP_MS: u64 = 100;

/// Leases that were handed out again, before those that ended are looked for.
pub(crate) const HANDED_AGAIN_MIN: usize = 64;

/// Leases in an answer that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// Where they were handed out: [`Answer::Leases`] says it.
    pub at: Position,
    pub leases: Vec<(TaskId, LeaseId)>,
}

impl Abandoned {
    /// The leases of an answer, if it has any.
    pub(crate) fn of(leases: &Leases, at: Position) -> Option<Self> {
        let pairs: Vec<_> = leases.leases.iter().map(|leased| (leased.task_id, leased.lease_id)).collect();
        (!pairs.is_empty()).then_some(Self { at, leases: pairs })
    }
}

/// A lease that was handed out once more, to a repeat of the call that got it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedAgain {
    /// Where it was handed out last. Every hand-out is an event, so no two are at one position.
    at: Position,
    /// Answers before that one that had it, too, and were taken or may be.
    earlier: u32,
    /// The last answer was not taken. Followers say so in any order, so one before it may still be heard of.
    is_last_abandoned: bool,
}

impl<R: Recipient> TaskDecisions<R> {
    pub(crate) fn heartbeat(
        &mut self,
        decider: &mut Decider<R>,
        command: &Command,
        now: Timestamp,
    ) -> Result<Answer, Error> {
        let Command::Task(TaskCommand::Heartbeat { task, .. }) = command else {
            return Err(Error::Refused(Refusal::Internal));
        };
        match decider.state.decide(command, now) {
            Ok(Decision::Event(event)) => self.commit(decider, event, now),
            Ok(Decision::Already(_) | Decision::Nothing) => return Err(Error::Refused(Refusal::Internal)),
            Err(refusal) => return Err(decider.refuse(refusal)),
        };
        let lease = decider.state.task(*task).and_then(|task| task.lease.as_deref());
        let lease = lease.expect("a lease that was just extended is there");
        if let Some(worker) = &lease.worker {
            self.registry.saw(worker, None, now);
        }
        Ok(Answer::Extended(Extended {
            lease_ms: lease.promised_ms(now),
            cancel_requested: lease.cancel_at.is_some(),
            timeout_ms: lease.promised_timeout_ms(now),
        }))
    }

    /// Extends the leases of a worker. Those of tasks outside the queues that the caller is limited to are
    /// lost for this caller.
    pub(crate) fn heartbeat_all(
        &mut self,
        decider: &mut Decider<R>,
        worker: Name,
        leases: Vec<LeaseId>,
        within: Option<&[Name]>,
        now: Timestamp,
    ) -> Answer {
        self.registry.saw(&worker, None, now);
        let may = |id: &LeaseId| {
            within.is_none_or(|queues| {
                decider.state.leased(*id).is_some_and(|task| queues.contains(&task.queue))
            })
        };
        let (leases, outside): (Vec<_>, Vec<_>) = leases.into_iter().partition(may);
        let command = Command::Task(TaskCommand::HeartbeatAll { worker, leases });
        let extended: Vec<LeaseId> = match decider.state.decide(&command, now) {
            Ok(Decision::Event(Event::Task(TaskEvent::LeaseExtended(event)))) => {
                let ids = event.extended.iter().map(|extension| extension.lease).collect();
                self.commit(decider, Event::Task(TaskEvent::LeaseExtended(event)), now);
                ids
            }
            Ok(Decision::Event(_) | Decision::Already(_) | Decision::Nothing) | Err(_) => Vec::new(),
        };
        let Command::Task(TaskCommand::HeartbeatAll { leases, .. }) = command else {
            unreachable!("it was just made")
        };
        let held = |id: &LeaseId| decider.state.leased(*id).and_then(|task| task.lease.as_deref());
        let cancel = extended.iter().filter(|id| held(id).is_some_and(|lease| lease.cancel_at.is_some()));
        let cancel = cancel.copied().collect();
        let told = |id| held(id).map_or(0, |lease| lease.promised_ms(now));
        let lease_ms_each: Vec<u64> = extended.iter().map(told).collect();
        let lease_ms = lease_ms_each.iter().copied().min().unwrap_or(0);
        let lease_ms_each =
            if is_planted("shortest-for-all") { vec![lease_ms; lease_ms_each.len()] } else { lease_ms_each };
        let limit = |id| held(id).and_then(|lease| lease.promised_timeout_ms(now));
        let mut timeout_ms_each: Vec<Option<u64>> = extended.iter().map(limit).collect();
        if timeout_ms_each.iter().all(Option::is_none) {
            timeout_ms_each.clear();
        }
        let mut lost: Vec<LeaseId> =
            leases.into_iter().filter(|id| extended.binary_search(id).is_err()).chain(outside).collect();
        lost.sort();
        lost.dedup();
        decider.stats.stale_reports.add(lost.len() as u64);
        Answer::WorkerExtended(Box::new(WorkerExtended {
            extended,
            lost,
            cancel,
            lease_ms,
            lease_ms_each,
            timeout_ms_each,
        }))
    }

    /// Decides a lease call, or lets it wait in the line that there is at the beginning of a term.
    pub(crate) fn admit(&mut self, decider: &mut Decider<R>, request: LeaseQueues, to: R, now: Timestamp) {
        let Some(admission) = self.admission.as_mut().filter(|admission| !admission.is_over(now)) else {
            self.admission = None;
            return self.lease(decider, request, to, now, now);
        };
        if admission.admits(now) {
            self.lease(decider, request, to, now, now);
        } else if request.wait_ms == 0 {
            self.send_home(decider, to, now, now);
        } else if self.is_crowded(decider, now) {
            decider.stats.overloaded.add(1);
            decider.reply(to, Err(Error::Overloaded));
        } else if let Some(admission) = &mut self.admission {
            admission.line_up(Waiting { request, to, since: now });
        }
    }

    /// Decides those of the line that may be decided now, and sends home who has waited long enough.
    pub(crate) fn let_in(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        let over = self.admission.as_mut().map(|admission| admission.take_over(now));
        for Waiting { to, since, .. } in over.into_iter().flatten() {
            self.send_home(decider, to, since, now);
        }
        while !decider.is_full()
            && let Some(Waiting { request, to, since }) =
                self.admission.as_mut().and_then(|admission| admission.next(now))
        {
            self.lease(decider, request, to, since, now);
        }
    }

    /// Answers a lease call that waited in vain.
    pub(crate) fn send_home(&mut self, decider: &mut Decider<R>, to: R, since: Timestamp, now: Timestamp) {
        let leases = Leases { leases: Vec::new(), waited_ms: waited_ms(since, now) };
        self.reply_leases(decider, to, leases);
    }

    fn reply_leases(&mut self, decider: &mut Decider<R>, to: R, leases: Leases) {
        let at = decider.state.position();
        decider.reply(to, Ok(Answer::Leases { leases, at }));
    }

    /// Lease calls that wait for a task or for their turn.
    pub(crate) fn waiting_calls(&self) -> usize {
        self.polls.len() + self.admission.as_ref().map_or(0, Admission::len)
    }

    fn lease(
        &mut self,
        decider: &mut Decider<R>,
        request: LeaseQueues,
        to: R,
        since: Timestamp,
        now: Timestamp,
    ) {
        self.registry.saw(&request.worker, request.capacity, now);
        for queue in &request.queues {
            self.registry.asked(queue, now);
        }
        if to.is_gone() {
            return;
        }
        let mut leases = self.granted_before(decider, &request, now);
        if leases.is_empty() {
            leases = self.grant(decider, &request, now);
        }
        if !leases.is_empty() || request.wait_ms == 0 {
            self.reply_leases(decider, to, Leases { leases, waited_ms: waited_ms(since, now) });
        } else if self.is_crowded(decider, now) {
            decider.stats.overloaded.add(1);
            decider.reply(to, Err(Error::Overloaded));
        } else {
            let (id, replaced) = self.polls.park(request, to, since);
            if self.is_at_capacity(decider, id) {
                self.polls.block(id);
            }
            if let Some(replaced) = replaced {
                self.send_home(decider, replaced.to, replaced.since, now);
            }
        }
    }

    /// Whether as many calls wait as may, even when those of callers who left are taken out.
    fn is_crowded(&mut self, decider: &mut Decider<R>, now: Timestamp) -> bool {
        if self.waiting_calls() < decider.options.polls_max || is_planted("polls-unlimited") {
            return false;
        }
        if now >= self.next_sweep {
            self.next_sweep = now.plus(SWEEP_MS);
            self.polls.sweep(Recipient::is_gone);
            if let Some(admission) = &mut self.admission {
                admission.sweep(Recipient::is_gone);
            }
        }
        self.waiting_calls() >= decider.options.polls_max
    }

    /// Whether the worker of a waiting call has as many tasks as it wants.
    fn is_at_capacity(&self, decider: &Decider<R>, id: PollId) -> bool {
        let request = self.polls.get(id).map(|poll| &poll.request);
        request.is_some_and(|request| !decider.state.has_room(&request.worker, request.capacity))
    }

    /// The live leases of earlier calls of the same name, prolonged, because the worker counts from now; no more of
    /// them than this call asks for, since those before may have asked other queues.
    fn granted_before(
        &mut self,
        decider: &mut Decider<R>,
        request: &LeaseQueues,
        now: Timestamp,
    ) -> Vec<Leased> {
        let Some(request_id) = &request.request_id else { return Vec::new() };
        let mut granted = decider.state.granted_to(&request.worker, request_id).to_vec();
        granted.sort();
        // A repeat with the same id gets no tasks of queues that it does not name now.
        let asked = |task: &Task| request.queues.contains(&task.queue) || is_planted("repeat-of-any-queue");
        let (mut leases, mut bytes) = (Vec::new(), 0);
        for id in granted {
            if leases.len() >= request.max || bytes >= LEASE_PAYLOAD_BYTES_MAX {
                break;
            }
            let task = decider.state.leased(id).filter(|task| asked(task));
            if let Some(task) = task.filter(|task| task.lease.as_deref().is_some_and(|it| it.is_live(now))) {
                bytes += task.payload.as_str().len();
                leases.push(id);
            }
        }
        if leases.is_empty() {
            return Vec::new();
        }
        let Answer::WorkerExtended(heard) =
            self.heartbeat_all(decider, request.worker.clone(), leases, None, now)
        else {
            return Vec::new();
        };
        let extended = heard.extended;
        let at = decider.state.position();
        for id in &extended {
            let earlier = self
                .handed_again
                .get(id)
                .map_or(1, |before| before.earlier + u32::from(!before.is_last_abandoned));
            self.handed_again.insert(*id, HandedAgain { at, earlier, is_last_abandoned: false });
        }
        extended.iter().filter_map(|id| decider.state.leased(*id)?.handed_out(now)).collect()
    }

    fn grant(&mut self, decider: &mut Decider<R>, request: &LeaseQueues, now: Timestamp) -> Vec<Leased> {
        let command = Command::Task(TaskCommand::Lease(Lease {
            queues: request.queues.clone(),
            worker: request.worker.clone(),
            lease_ms: request.lease_ms,
            request_id: request.request_id.clone(),
            capacity: request.capacity,
        }));
        let (mut leases, mut bytes) = (Vec::new(), 0);
        while leases.len() < request.max && bytes < LEASE_PAYLOAD_BYTES_MAX {
            let Ok(Decision::Event(event)) = decider.state.decide(&command, now) else { break };
            let task = named(&event).expect("a grant names its task");
            let granted = matches!(event, Event::Task(TaskEvent::LeaseGranted(_)));
            self.commit(decider, event, now);
            if granted {
                let leased = decider.state.task(task).and_then(|task| task.handed_out(now));
                let leased = leased.expect("a task that was just leased is there");
                bytes += leased.payload.as_str().len();
                leases.push(leased);
            } else if decider.is_full() {
                // Many tasks in a row have outlived their ttl: what is behind them is for the next group.
                self.woken.extend(request.queues.iter().cloned());
                break;
            }
        }
        leases
    }

    /// Hands tasks that became ready to the calls that wait for them, in their order.
    pub(crate) fn serve_polls(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        for queue in mem::take(&mut self.woken) {
            let mut last = None;
            while decider.state.has_ready(&queue)
                && let Some(id) = self.polls.first(&queue, last)
            {
                last = Some(id);
                let Some(poll) = self.polls.get(id) else { break };
                if poll.to.is_gone() {
                    self.polls.take(id);
                    continue;
                }
                if self.is_at_capacity(decider, id) {
                    self.polls.block(id);
                    continue;
                }
                let request = poll.request.clone();
                let leases = self.grant(decider, &request, now);
                if let Some(poll) = (!leases.is_empty()).then(|| self.polls.take(id)).flatten() {
                    let leases = Leases { leases, waited_ms: waited_ms(poll.since, now) };
                    self.reply_leases(decider, poll.to, leases);
                }
            }
        }
    }

    /// Gives back leases in answers that were not taken, unless another answer with the same lease was taken or still
    /// may be. Every answer up to `durable` has been taken or is named here or was named before.
    pub(crate) fn abandon(
        &mut self,
        decider: &mut Decider<R>,
        abandoned: &[Abandoned],
        durable: Position,
        now: Timestamp,
    ) {
        for Abandoned { at, leases } in abandoned {
            for &(task, lease) in leases {
                if self.is_held_by_another(lease, *at, durable) {
                    continue;
                }
                let command = Command::Task(TaskCommand::Abandon { task, lease });
                if let Ok(Decision::Event(event)) = decider.state.decide(&command, now) {
                    decider.stats.abandoned.add(1);
                    self.commit(decider, event, now);
                }
            }
        }
        self.sweep_handed_again(decider);
        self.serve_polls(decider, now);
    }

    /// Gives back leases in an answer to another node whose caller had disconnected. That may be known long after
    /// the answer: one of an earlier term is ignored, and so is one of a lease that was handed out again since.
    pub(crate) fn give_back(&mut self, decider: &mut Decider<R>, abandoned: &Abandoned, now: Timestamp) {
        if abandoned.at.0 >= decider.state.term().0 {
            self.abandon(decider, std::slice::from_ref(abandoned), Position(0), now);
        }
    }

    /// Forgets leases that ended, when there are twice as many as after the last time.
    fn sweep_handed_again(&mut self, decider: &mut Decider<R>) {
        if self.handed_again.len() >= self.handed_again_max {
            let state = &decider.state;
            self.handed_again.retain(|id, _| state.leased(*id).is_some());
            self.handed_again_max = HANDED_AGAIN_MIN.max(2 * self.handed_again.len());
        }
    }

    /// Whether another answer may have delivered a lease though the one at `at` was not taken.
    fn is_held_by_another(&mut self, lease: LeaseId, at: Position, durable: Position) -> bool {
        let Some(handed) = self.handed_again.get_mut(&lease) else { return false };
        if is_planted("abandon-by-group") {
            return handed.at > durable;
        }
        if at < handed.at {
            handed.earlier = handed.earlier.saturating_sub(1);
        } else {
            handed.is_last_abandoned = true;
        }
        handed.earlier > 0 || !handed.is_last_abandoned
    }
}

/// How long a call waited, a little less rather than more: the worker counts its lease from there.
pub(crate) fn waited_ms(since: Timestamp, now: Timestamp) -> u64 {
    let waited = now.since(since);
    waited.saturating_sub(waited / 50 + 1)
}
