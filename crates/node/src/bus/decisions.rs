//! What the loop decides about the bus: offers, what workers say, and owners.
//!
//! **Invariant:** what is answered to a pull is durable when the answer arrives, because answers wait for their group. So nothing is
//! published that could be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use orchestrix_core::limits::OWNED_LEASES_MAX;
use orchestrix_core::wire::bus::{CancelCause, JobCancel, WorkerHeartbeat};
use orchestrix_core::{
    Command, Decision, Event, HeldLease, LeaseId, Name, Offer, Task, TaskCommand, TaskEvent, TaskId,
    Timestamp, is_planted,
};
use orchestrix_engine::bus::{Ended, OFFERS_MAX};

use super::changes::is_asked_to_stop;
use super::credit::Credit;
use super::nodes::NodeDecisions;
use super::{BusAnswer, BusOptions, DispatchAsk, OfferedTask, Pulled};
use crate::decider::Decider;
use crate::request::{Answer, Error, Recipient};
use crate::tasks::TaskDecisions;

/// A bus of which nothing was heard for so long is silent: none of its leases ends.
const SILENT_MS: u64 = 2_000;
/// How long a pull waits for something to do.
const PULL_MS: u64 = 1_000;
/// Payloads in one answer to a pull, plus at most one.
const PULL_BYTES_MAX: usize = 4 << 20;
/// Leases that ended, of which the tasks are still known.
const ENDED_KEPT: usize = 65_536;

/// The bus in the decision loop.
#[derive(Debug)]
pub(crate) struct BusDecisions<R> {
    lease_ms: u64,
    credit: Credit,
    pub(super) nodes: NodeDecisions,
    /// Somebody publishes what is offered.
    publishes: bool,
    heard: Timestamp,
    pull: Option<Pull<R>>,
    /// Not closed yet.
    ended: Vec<Ended>,
    /// Not sent yet.
    cancels: Vec<JobCancel>,
    /// Tasks of leases that ended a while ago: workers name leases only.
    tasks_of: BTreeMap<LeaseId, TaskId>,
    /// Leases that the last heartbeat of their worker did not name.
    unnamed: BTreeMap<Name, BTreeSet<LeaseId>>,
}

/// Who waits for something to do on the bus.
#[derive(Debug)]
struct Pull<R> {
    to: R,
    after: LeaseId,
    until: Timestamp,
}

impl<R: Recipient> BusDecisions<R> {
    pub(crate) fn new(options: &BusOptions) -> Self {
        Self {
            lease_ms: u64::try_from(options.lease.as_millis()).unwrap_or(u64::MAX),
            credit: Credit::default(),
            nodes: NodeDecisions::new(options),
            publishes: false,
            heard: Timestamp(0),
            pull: None,
            ended: Vec::new(),
            cancels: Vec::new(),
            tasks_of: BTreeMap::new(),
            unnamed: BTreeMap::new(),
        }
    }

    /// Offers of the term before are there still.
    pub(crate) fn begin_term(&mut self, decider: &Decider<R>, now: Timestamp) {
        self.heard = now;
        self.nodes.begin_term(&decider.state, now);
        for task in decider.state.offers(None) {
            if let Some(lease) = task.lease.as_deref() {
                self.credit.is_offered(lease.id, &task.queue);
            }
        }
    }

    /// Says whether the bus is silent. Comes before all that ends by time.
    pub(crate) fn look(&self, decider: &mut Decider<R>, now: Timestamp) {
        if let Some(changes) = &mut decider.bus {
            changes.is_silent = now.since(self.heard) > SILENT_MS && !is_planted("silent-bus-expires");
        }
    }

    pub(crate) fn ask(
        &mut self,
        decider: &mut Decider<R>,
        tasks: &mut TaskDecisions<R>,
        ask: DispatchAsk,
        to: R,
        now: Timestamp,
    ) {
        match ask {
            DispatchAsk::Claimed { cursor } => {
                self.claimed(decider, tasks, cursor, now);
                decider.reply(to, Ok(Answer::Bus(Box::new(BusAnswer::Done))));
            }
            DispatchAsk::Nodes(ages) => {
                self.nodes.were_heard(&decider.state, &ages, now);
                decider.reply(to, Ok(Answer::Bus(Box::new(BusAnswer::Done))));
            }
            DispatchAsk::Leftovers(leases) => {
                let is_over = |(task, lease): &(TaskId, LeaseId)| {
                    decider.state.leased(*lease).is_none_or(|leased| leased.id != *task)
                };
                let over = leases.into_iter().filter(is_over);
                let ended: Vec<Ended> =
                    over.map(|(task, lease)| Ended { task, lease, offered_in: None }).collect();
                decider.stats.bus.leftovers.add(ended.len() as u64);
                reply_pulled(decider, to, Pulled { ended, ..Pulled::default() });
            }
            DispatchAsk::Pull { after } => {
                let earlier = self.pull.replace(Pull { to, after, until: now.plus(PULL_MS) });
                if let Some(earlier) = earlier {
                    reply_pulled(decider, earlier.to, Pulled::default());
                }
            }
            DispatchAsk::Heartbeats(heartbeats) => {
                self.resume(decider, tasks, now);
                let cancels = self.hear(decider, tasks, &heartbeats, now);
                decider.reply(to, Ok(Answer::Bus(Box::new(BusAnswer::Heard(cancels)))));
            }
        }
    }

    /// Offers what can be offered, and tells who publishes.
    pub(crate) fn tick(&mut self, decider: &mut Decider<R>, tasks: &mut TaskDecisions<R>, now: Timestamp) {
        self.collect(decider);
        self.offer(decider, tasks, now);
        self.nodes.tick(decider, now);
        observe(decider, now);
        self.answer_pull(decider, now);
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.pull.as_ref().map(|pull| pull.until).into_iter().chain(self.nodes.next_due()).min()
    }

    pub(crate) fn dismiss(&mut self, decider: &mut Decider<R>) {
        if let Some(pull) = self.pull.take() {
            decider.reply(pull.to, Err(Error::Stopping));
        }
    }

    /// Takes note of leases that ended.
    fn collect(&mut self, decider: &mut Decider<R>) {
        let Some(changes) = &mut decider.bus else { return };
        self.cancels.extend(changes.take_cancels());
        for ended in changes.take_ended() {
            match &ended.worker {
                Some(worker) => self.credit.has_room(worker),
                None => self.credit.is_settled(ended.lease, &ended.queue),
            }
            if self.tasks_of.len() >= ENDED_KEPT {
                self.tasks_of.pop_first();
            }
            self.tasks_of.insert(ended.lease, ended.task);
            self.ended.push(ended.to_close());
        }
    }

    /// Offers that the bus does not have are made anew: nobody knows whether they were published in part.
    fn claimed(
        &mut self,
        decider: &mut Decider<R>,
        tasks: &mut TaskDecisions<R>,
        cursor: LeaseId,
        now: Timestamp,
    ) {
        let pair = |task: &Task| Some((task.id, task.lease.as_deref()?.id));
        let above: Vec<_> = decider.state.offers(Some(cursor)).filter_map(pair).collect();
        for (task, lease) in above {
            let command = Command::Task(TaskCommand::Abandon { task, lease });
            if let Ok(Decision::Event(event)) = decider.state.decide(&command, now) {
                tasks.commit(decider, event, now);
            }
        }
        self.publishes = true;
    }

    /// The bus answers. If it was silent before, its leases last longer by that.
    fn resume(&mut self, decider: &mut Decider<R>, tasks: &mut TaskDecisions<R>, now: Timestamp) {
        let silent_since = mem::replace(&mut self.heard, now);
        if now.since(silent_since) > SILENT_MS {
            let command = Command::Task(TaskCommand::ResumeBus { silent_since });
            if let Ok(Decision::Event(event)) = decider.state.decide(&command, now) {
                tasks.commit(decider, event, now);
            }
        }
        self.look(decider, now);
    }

    /// Starts and extends what workers name, and tells what they should stop.
    fn hear(
        &mut self,
        decider: &mut Decider<R>,
        tasks: &mut TaskDecisions<R>,
        heartbeats: &[WorkerHeartbeat],
        now: Timestamp,
    ) -> Vec<JobCancel> {
        let (mut starts, mut extends, mut cancels) = (Vec::new(), Vec::new(), Vec::new());
        for heartbeat in heartbeats {
            let worker = &heartbeat.worker_id;
            let mut beside = 0;
            for lease in &heartbeat.jobs {
                let task = decider.state.leased(*lease);
                let live = task.and_then(|task| task.lease.as_deref()).filter(|lease| lease.is_of_bus());
                let holds = live.and_then(|live| live.worker.as_ref());
                match (live, holds) {
                    (Some(_), None) => starts.push(HeldLease { lease: *lease, worker: worker.clone() }),
                    (Some(_), Some(holder)) if holder == worker => {
                        extends.push(HeldLease { lease: *lease, worker: worker.clone() });
                        if let Some(task) = task.filter(|task| is_asked_to_stop(task)) {
                            cancels.push(cancel(task.id, *lease, worker, CancelCause::Requested));
                        }
                    }
                    (Some(_), Some(_)) | (None, _) => {
                        beside += 1;
                        let task = task.map(|task| task.id).or_else(|| self.tasks_of.get(lease).copied());
                        if let Some(task) = task {
                            cancels.push(cancel(task, *lease, worker, CancelCause::Stale));
                        }
                    }
                }
            }
            self.credit.hear(heartbeat, beside, now);
        }
        self.start(decider, tasks, starts, now);
        for extends in extends.chunks(OWNED_LEASES_MAX) {
            let command = Command::Task(TaskCommand::Extend(extends.to_vec()));
            if let Ok(Decision::Event(event)) = decider.state.decide(&command, now) {
                tasks.commit(decider, event, now);
            }
        }
        for heartbeat in heartbeats {
            self.release_unnamed(decider, tasks, heartbeat, now);
        }
        cancels
    }

    /// Workers have started offers.
    pub(crate) fn start(
        &mut self,
        decider: &mut Decider<R>,
        tasks: &mut TaskDecisions<R>,
        starts: Vec<HeldLease>,
        now: Timestamp,
    ) {
        for starts in starts.chunks(OWNED_LEASES_MAX) {
            let command = Command::Task(TaskCommand::Start(starts.to_vec()));
            let Ok(Decision::Event(event)) = decider.state.decide(&command, now) else { continue };
            let Event::Task(TaskEvent::LeasesStarted(started)) = &event else { continue };
            decider.stats.bus.started.add(started.started.len() as u64);
            let started: Vec<LeaseId> = started.started.iter().map(|start| start.lease).collect();
            tasks.commit(decider, event, now);
            for lease in started {
                if let Some(task) = decider.state.leased(lease) {
                    self.credit.is_settled(lease, &task.queue);
                }
            }
        }
    }

    /// A lease that two heartbeats in a row do not name is given back: its worker has lost it.
    fn release_unnamed(
        &mut self,
        decider: &mut Decider<R>,
        tasks: &mut TaskDecisions<R>,
        heartbeat: &WorkerHeartbeat,
        now: Timestamp,
    ) {
        let worker = &heartbeat.worker_id;
        let before = self.unnamed.remove(worker).unwrap_or_default();
        let named: BTreeSet<LeaseId> = heartbeat.jobs.iter().copied().collect();
        let held = decider.state.bus_leases_of(worker);
        let unnamed: BTreeSet<LeaseId> =
            held.iter().filter(|lease| !named.contains(lease)).copied().collect();
        let mut once = BTreeSet::new();
        for lease in unnamed {
            if !before.contains(&lease) {
                once.insert(lease);
                continue;
            }
            let Some(task) = decider.state.leased(lease).map(|task| task.id) else { continue };
            let command = Command::Task(TaskCommand::Release { task, lease, worker: Some(worker.clone()) });
            if let Ok(Decision::Event(event)) = decider.state.decide(&command, now) {
                tracing::info!(%worker, %task, %lease, "two heartbeats did not name this lease: it is released");
                tasks.commit(decider, event, now);
            }
        }
        if !once.is_empty() {
            self.unnamed.insert(worker.clone(), once);
        }
    }

    /// Offers the tasks that are next in line to workers that have room.
    fn offer(&mut self, decider: &mut Decider<R>, tasks: &mut TaskDecisions<R>, now: Timestamp) {
        let state = &decider.state;
        self.credit.forget_silent(now, |lease| Some(state.leased(lease)?.queue.clone()));
        if !self.publishes || decider.bus.as_ref().is_none_or(|changes| changes.is_silent) {
            return;
        }
        for queue in self.credit.queues() {
            let offer = Offer { queues: vec![queue.clone()], lease_ms: self.lease_ms };
            let command = Command::Task(TaskCommand::Offer(offer));
            while !decider.is_full() && decider.state.has_ready(&queue) {
                let state = &decider.state;
                let room = self.credit.worker_for(&queue, |worker| state.bus_leases_of(worker).len());
                let Some(worker) = room else { break };
                let Ok(Decision::Event(event)) = decider.state.decide(&command, now) else { break };
                let is_offer = matches!(event, Event::Task(TaskEvent::LeaseOffered(_)));
                let position = tasks.commit(decider, event, now);
                if is_offer {
                    decider.stats.bus.offered.add(1);
                    self.credit.count(LeaseId(position.0), &worker);
                }
            }
        }
    }

    fn answer_pull(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        let Some(pull) = &self.pull else { return };
        if pull.to.is_gone() {
            self.pull = None;
            return;
        }
        let mut bytes = 0;
        let offers = decider.state.offers(Some(pull.after)).take(OFFERS_MAX);
        let offers = offers.take_while(|task| {
            let has_room = bytes <= PULL_BYTES_MAX;
            bytes += task.payload.as_str().len();
            has_room
        });
        let offers: Vec<OfferedTask> = offers.filter_map(offered).collect();
        let has_something = !offers.is_empty()
            || !self.ended.is_empty()
            || !self.cancels.is_empty()
            || self.nodes.has_handoffs();
        if (has_something || pull.until <= now)
            && let Some(pull) = self.pull.take()
        {
            let (ended, cancels) = (mem::take(&mut self.ended), mem::take(&mut self.cancels));
            let handoffs = self.nodes.take_handoffs();
            reply_pulled(decider, pull.to, Pulled { offers, ended, cancels, handoffs });
        }
    }
}

/// Shows how much there is, for metrics.
fn observe<R>(decider: &Decider<R>, now: Timestamp) {
    let (state, stats) = (&decider.state, &decider.stats.bus);
    stats.leases.set(state.bus_lease_count() as u64);
    stats.orphans.set(state.orphan_count() as u64);
    stats.lag_ms.set(state.orphaned_since().map_or(0, |since| now.since(since)));
}

fn reply_pulled<R: Recipient>(decider: &mut Decider<R>, to: R, pulled: Pulled) {
    decider.reply(to, Ok(Answer::Bus(Box::new(BusAnswer::Pulled(pulled)))));
}

fn cancel(job_id: TaskId, history_id: LeaseId, worker: &Name, reason: CancelCause) -> JobCancel {
    JobCancel { job_id, history_id, worker_id: worker.clone(), reason }
}

fn offered(task: &Task) -> Option<OfferedTask> {
    let lease = task.lease.as_deref()?;
    Some(OfferedTask {
        task: task.id,
        lease: lease.id,
        queue: task.queue.clone(),
        payload: task.payload.clone(),
        attempt: lease.attempt,
        lease_ms: lease.length_ms,
        previous: task.attempts().last().map(|attempt| attempt.lease),
    })
}
