//! What a node does with the leases that it owns: it reads what their workers say, stores the lines of output, and reports the rest
//! to the leader, many at a time.
//!
//! **Invariant:** an entry of a channel is deleted only after what it says was answered: it is durable, or was refused. Lines are
//! stored before a report says that their task has ended.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::limits::{BATCH_ITEMS_MAX, OWNED_LEASES_MAX};
use orchestrix_core::wire::bus::{
    Assigned, CancelCause, Handoff, HandoffAck, HandoffReason, JobCancel, read, write,
};
use orchestrix_core::{Claim, LeaseId, Name, OwnerToken, Position, Refusal, TaskId, is_planted};
use orchestrix_engine::bus::{
    Bus, Content, ENTRIES_MAX, Ended, Entry, EntryId, Message, Queue, Taken, Topic,
};
use orchestrix_engine::{Error, LogThrottle};

use super::complaints::Complaints;
use super::dispatcher::{Next, send_cancels, send_handoffs};
use super::drain::{Drain, Seen, Step};
use super::job::{Job, Spoken};
use super::opening::Opening;
use super::sweep::Sweep;
use super::{BusAnswer, BusOptions, OwnedLease, OwnerAsk, Report, ReportItem, Reported};
use crate::request;
use crate::stats::Stats;

/// The shortest time between two sweeps. A sweep takes a twentieth of the time at most.
const PAUSE: Duration = Duration::from_millis(10);
const SWEEP_SHARE: u32 = 20;
/// A report is sent so often at least: its answer says what the node owns.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// A message that another node took so long ago is taken over: that node is gone, or its claim was lost.
const IDLE: Duration = Duration::from_secs(5);
/// What is reported at a time, in bytes of results and errors, plus at most one.
const REPORT_BYTES_MAX: usize = 4 << 20;
/// A node that owns so many more than the others takes no more.
const ABOVE_MEAN: u64 = 10;

/// The same while this node drains: every answer may say that another has taken over.
const REPORT_WHILE_DRAINING: Duration = Duration::from_millis(20);

/// Who this process is.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) node: Name,
    pub(crate) incarnation: String,
    pub(crate) address: String,
}

pub(crate) struct Owner {
    bus: Arc<dyn Bus>,
    opening: Arc<Opening>,
    identity: Identity,
    token: Option<OwnerToken>,
    jobs: BTreeMap<LeaseId, Job>,
    /// Taken from a queue, and not answered yet.
    claims: BTreeMap<LeaseId, Claimed>,
    /// Answered, and not settled yet.
    to_settle: Vec<(Queue, EntryId)>,
    to_close: Vec<Ended>,
    to_cancel: Vec<JobCancel>,
    to_hand_off: Vec<Handoff>,
    acks: Vec<Message>,
    drain: Option<Drain>,
    /// All that this node owns was listed since it drains.
    is_listed: bool,
    /// This process leads: others take leases, if there are any.
    leads: bool,
    stats: Arc<Stats>,
    /// What is on its way to the leader.
    sent: Option<Sent>,
    sweep: Sweep,
    /// The list of what is owned goes on after this lease.
    after: Option<LeaseId>,
    mean: u64,
    reported: Duration,
    reclaimed: Duration,
    swept: Duration,
    complaints: Complaints,
    throttle: Arc<LogThrottle>,
}

/// A message that a lease needs an owner.
#[derive(Clone, Debug)]
struct Claimed {
    task: TaskId,
    queue: Queue,
    entry: EntryId,
    /// Who owned it, if it was handed off.
    previous: Option<(OwnerToken, Name)>,
}

/// A report whose answer is not here yet.
#[derive(Debug)]
struct Sent {
    own: Vec<Claim>,
    items: Vec<(LeaseId, Spoken)>,
    after: Option<LeaseId>,
}

impl Owner {
    pub(crate) fn new(
        opening: Arc<Opening>,
        identity: Identity,
        sweep: Sweep,
        stats: Arc<Stats>,
        complaints: Complaints,
    ) -> Self {
        Self {
            bus: Arc::clone(opening.bus()),
            opening,
            identity,
            token: None,
            jobs: BTreeMap::new(),
            claims: BTreeMap::new(),
            to_settle: Vec::new(),
            to_close: Vec::new(),
            to_cancel: Vec::new(),
            to_hand_off: Vec::new(),
            acks: Vec::new(),
            drain: None,
            is_listed: false,
            leads: false,
            stats,
            sent: None,
            sweep,
            after: None,
            mean: u64::MAX,
            reported: Duration::ZERO,
            reclaimed: Duration::ZERO,
            swept: Duration::ZERO,
            complaints,
            throttle: Arc::new(LogThrottle::new(
                "cannot read the bus: trying again",
                "the bus can be read again",
            )),
        }
    }

    /// Says whether the bus answers.
    pub(crate) fn throttle(&self) -> Arc<LogThrottle> {
        Arc::clone(&self.throttle)
    }

    /// Gives away what it owns, then ends.
    pub(crate) fn drain(&mut self, options: &BusOptions, now: Duration) {
        if self.drain.is_none() {
            tracing::info!(owned = self.jobs.len(), "this node drains: others get the leases that it owns");
            self.drain = Some(Drain::begin(options, now));
            self.stats.bus.drains.set(1);
            // What was not answered yet is for others, who find it after a while.
            self.claims.clear();
        }
    }

    pub(crate) fn next(&mut self, leads: bool, now: Duration) -> Next<OwnerAsk> {
        self.leads = leads;
        let Some(node) = self.token else {
            if self.drain.is_some() {
                return Next::Done;
            }
            let Identity { node, incarnation, address } = self.identity.clone();
            return Next::Ask(OwnerAsk::Join { node, incarnation, address });
        };
        if let Some(next) = self.drain_on(node, now) {
            return next;
        }
        let report_every = if self.drain.is_some() { REPORT_WHILE_DRAINING } else { REPORT_EVERY };
        match self.read_bus(now) {
            Ok(()) => self.throttle.succeeded(now, "read"),
            Err(error) => {
                self.throttle.failed(now, "read", &error.to_string());
                if now.saturating_sub(self.reported) < report_every {
                    return Next::Wait(report_every.min(50 * PAUSE));
                }
            }
        }
        let (own, items) = (self.claims_to_make(), self.items_to_report());
        if own.is_empty() && items.is_empty() && now.saturating_sub(self.reported) < report_every {
            return Next::Wait(PAUSE.max(SWEEP_SHARE * self.swept));
        }
        self.reported = now;
        let after = self.after;
        let report = Report {
            node,
            own: own.clone(),
            items: items.iter().map(|(lease, spoken)| item(&self.jobs, *lease, spoken)).collect(),
            after,
        };
        self.stats.bus.reports.add(1);
        self.stats.bus.report_items.add(items.len() as u64);
        self.sent = Some(Sent { own, items, after });
        Next::Ask(OwnerAsk::Report(report))
    }

    /// The next step of a drain, if there is one beside what an owner does anyway.
    fn drain_on(&mut self, node: OwnerToken, now: Duration) -> Option<Next<OwnerAsk>> {
        let (owned, has_others, is_known) = (self.jobs.len(), self.mean != u64::MAX, self.is_listed);
        let drain = self.drain.as_mut()?;
        match drain.step(Seen { owned, has_others, is_known }, now) {
            Step::Announce => Some(Next::Ask(OwnerAsk::Drain { node })),
            Step::Publish => {
                tracing::info!(leases = owned, time = drain.times(), "asking for other owners");
                let handoff = |(lease, job): (&LeaseId, &Job)| Handoff {
                    job_id: job.task,
                    history_id: *lease,
                    node_id: self.identity.node.clone(),
                    owner: Position(node.0),
                    reason: HandoffReason::Shutdown,
                };
                self.to_hand_off = self.jobs.iter().map(handoff).collect();
                None
            }
            Step::Wait => None,
            Step::Release => {
                let leases: Vec<LeaseId> = self.jobs.keys().take(OWNED_LEASES_MAX).copied().collect();
                tracing::warn!(leases = leases.len(), "nobody took these leases: the leader finds owners");
                Some(Next::Ask(OwnerAsk::Release { node, leases }))
            }
            Step::Leave => Some(Next::Ask(OwnerAsk::Leave { node })),
            Step::End => Some(Next::Done),
        }
    }

    /// What was asked last is done: a step of a drain.
    fn is_done(&mut self, asked: &OwnerAsk) {
        let Some(drain) = &mut self.drain else { return };
        match asked {
            OwnerAsk::Drain { .. } => {
                drain.is_announced();
                (self.is_listed, self.after) = (false, None);
            }
            OwnerAsk::Leave { .. } => {
                self.stats.bus.drained_alone.add(self.jobs.len() as u64);
                drain.has_left();
            }
            OwnerAsk::Release { leases, .. } => {
                self.stats.bus.drained_released.add(leases.len() as u64);
                self.jobs.retain(|lease, _| !leases.contains(lease));
            }
            OwnerAsk::Join { .. } | OwnerAsk::Report(_) => {}
        }
    }

    pub(crate) fn answered(
        &mut self,
        asked: &OwnerAsk,
        answer: Result<BusAnswer, request::Error>,
        now: Duration,
    ) {
        let sent = self.sent.take();
        match (answer, sent) {
            (Ok(BusAnswer::Joined(token)), _) => self.token = Some(token),
            (Ok(BusAnswer::Done), _) => self.is_done(asked),
            (Ok(BusAnswer::Gone), _) => {
                tracing::warn!("this node was taken for dead; it joins again");
                self.token = None;
                self.jobs.clear();
                self.after = None;
            }
            (Ok(BusAnswer::Reported(reported)), Some(sent)) => self.hear(sent, reported, now),
            // It is said again: what was decided is recognised.
            (Ok(_) | Err(_), _) => {
                self.reported = now;
                // Nobody leads, and there is nothing to give away: that this node is gone will be noticed.
                if self.jobs.is_empty()
                    && let Some(drain) = &mut self.drain
                {
                    drain.has_left();
                }
            }
        }
        self.stats.bus.owned.set(self.jobs.len() as u64);
    }

    /// Settles what was answered, takes what needs an owner, and reads what workers say.
    fn read_bus(&mut self, now: Duration) -> Result<(), Error> {
        self.opening.open()?;
        self.finish()?;
        self.take(now)?;
        let swept = self.sweep.run(&*self.bus, &mut self.jobs, &mut self.complaints, now)?;
        self.swept = swept;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        while !self.to_settle.is_empty() {
            let queue = self.to_settle[0].0.clone();
            let some = self.to_settle.iter().take_while(|(of, _)| *of == queue).take(ENTRIES_MAX);
            let entries: Vec<EntryId> = some.map(|(_, entry)| *entry).collect();
            self.bus.settle(&queue, &entries)?;
            self.to_settle.drain(..entries.len());
        }
        while !self.to_close.is_empty() {
            let some = self.to_close.len().min(ENTRIES_MAX);
            self.bus.close(&self.to_close[..some])?;
            self.to_close.drain(..some);
        }
        send_handoffs(&*self.bus, &mut self.to_hand_off)?;
        while !self.acks.is_empty() {
            let some = self.acks.len().min(ENTRIES_MAX);
            self.bus.send(&self.acks[..some])?;
            self.acks.drain(..some);
        }
        let cancels = mem::take(&mut self.to_cancel);
        send_cancels(&*self.bus, &cancels)
    }

    fn take(&mut self, now: Duration) -> Result<(), Error> {
        if self.drain.is_some() {
            return Ok(());
        }
        for queue in [Queue::Assigned, Queue::Handoff] {
            let room = self.room();
            if room > 0 {
                let taken = self.bus.take(&queue, &self.identity.node, room)?;
                self.note(&queue, taken, now);
            }
        }
        if now.saturating_sub(self.reclaimed) >= IDLE {
            self.reclaimed = now;
            for queue in [Queue::Assigned, Queue::Handoff] {
                let room = self.room();
                if room > 0 {
                    let taken = self.bus.reclaim(&queue, &self.identity.node, IDLE, room)?;
                    self.note(&queue, taken, now);
                }
            }
        }
        Ok(())
    }

    /// How many leases it takes now. Others should take what comes if they have less to do, or if this node leads.
    fn room(&self) -> usize {
        let room = OWNED_LEASES_MAX.saturating_sub(self.claims.len());
        if self.mean == u64::MAX {
            return room;
        }
        if self.leads {
            return 0;
        }
        let owned = (self.jobs.len() + self.claims.len()) as u64;
        let below = self.mean.saturating_add(ABOVE_MEAN + 1).saturating_sub(owned);
        room.min(usize::try_from(below).unwrap_or(usize::MAX))
    }

    fn note(&mut self, queue: &Queue, taken: Taken, now: Duration) {
        let Taken::Entries(entries) = taken else { return };
        for Entry { id: entry, content } in entries {
            let wanted = match content {
                Content::Data(data) => wanted(queue, &data),
                Content::Malformed { bytes } => Err(format!("{bytes} bytes that are no message")),
            };
            match wanted {
                Ok((lease, task, previous)) => {
                    if is_planted("settled-before-durable") {
                        self.to_settle.push((queue.clone(), entry));
                    }
                    let claimed = Claimed { task, queue: queue.clone(), entry, previous };
                    if let Some(earlier) = self.claims.insert(lease, claimed) {
                        self.to_settle.push((earlier.queue, earlier.entry));
                    }
                }
                Err(why) => {
                    let channel = if *queue == Queue::Handoff { "job.handoff" } else { "job.assigned" };
                    self.complaints.about(channel, None, &why, now);
                    self.to_settle.push((queue.clone(), entry));
                }
            }
        }
    }

    fn claims_to_make(&self) -> Vec<Claim> {
        let claims = self.claims.iter().take(OWNED_LEASES_MAX);
        claims
            .map(|(lease, claimed)| Claim {
                lease: *lease,
                previous: claimed.previous.as_ref().map(|(owner, _)| *owner),
            })
            .collect()
    }

    /// What workers have said, lease by lease and in order.
    fn items_to_report(&self) -> Vec<(LeaseId, Spoken)> {
        let (mut items, mut bytes) = (Vec::new(), 0);
        for (lease, job) in &self.jobs {
            for spoken in job.to_report() {
                if items.len() == BATCH_ITEMS_MAX || bytes > REPORT_BYTES_MAX {
                    return items;
                }
                bytes += spoken.bytes();
                items.push((*lease, spoken.clone()));
            }
        }
        items
    }

    fn hear(&mut self, sent: Sent, reported: Reported, now: Duration) {
        let Reported { own, items, owned, more, mean } = reported;
        self.mean = mean;
        for (claim, answer) in sent.own.iter().zip(own) {
            let Some(claimed) = self.claims.remove(&claim.lease) else { continue };
            self.to_settle.push((claimed.queue, claimed.entry));
            match answer {
                Ok(attempt) => {
                    if let Some((_, node)) = claimed.previous {
                        self.stats.bus.adopted.add(1);
                        self.acks.push(ack(claimed.task, claim.lease, node, &self.identity.node));
                    }
                    self.jobs.entry(claim.lease).or_insert_with(|| Job::new(claimed.task, attempt));
                }
                Err(refusal) => tracing::debug!(lease = %claim.lease, %refusal, "does not own it"),
            }
        }
        for ((lease, spoken), answer) in sent.items.into_iter().zip(items) {
            self.is_answered(lease, spoken, answer, now);
        }
        self.reconcile(sent.after, &owned, more);
    }

    /// What a worker said was decided, or refused: the entry has done its work.
    fn is_answered(&mut self, lease: LeaseId, spoken: Spoken, answer: Result<(), Refusal>, now: Duration) {
        let Some(job) = self.jobs.get_mut(&lease) else { return };
        let task = job.task;
        match answer {
            Ok(()) => {
                job.is_reported(spoken.entry);
                if spoken.said.is_last() {
                    self.jobs.remove(&lease);
                    self.to_close.push(Ended { task, lease, offered_in: None });
                }
            }
            // Another node will say it, or has.
            Err(Refusal::NotOwner { .. }) => drop(self.jobs.remove(&lease)),
            Err(refusal @ Refusal::StaleLease { .. }) => {
                job.is_reported(spoken.entry);
                tracing::debug!(%lease, %refusal, "a worker speaks of a lease that it does not have");
                let (job_id, worker_id, reason) = (task, spoken.worker, CancelCause::Stale);
                self.to_cancel.push(JobCancel { job_id, history_id: lease, worker_id, reason });
            }
            Err(refusal) => {
                let why = refusal.to_string();
                self.complaints.about("job.status", Some(&spoken.worker), &why, now);
                // Last words would be repeated for ever: the task fails with the reason.
                job.is_refused(spoken.entry, &why);
            }
        }
    }

    /// The leader says what this node owns, from one lease on.
    fn reconcile(&mut self, after: Option<LeaseId>, owned: &[OwnedLease], more: bool) {
        let last = if more { owned.last().map(|owned| owned.lease) } else { None };
        let in_page =
            |lease: LeaseId| after.is_none_or(|after| lease > after) && last.is_none_or(|last| lease <= last);
        let before = self.jobs.len();
        self.jobs.retain(|lease, _| {
            !in_page(*lease) || owned.binary_search_by_key(lease, |owned| owned.lease).is_ok()
        });
        // Another took them over, or they ended otherwise.
        let gone = (before - self.jobs.len()) as u64;
        match self.drain.as_ref().map(Drain::times) {
            Some(1) => self.stats.bus.drained_at_once.add(gone),
            Some(2..) => self.stats.bus.drained_later.add(gone),
            Some(0) | None => {}
        }
        for owned in owned {
            self.jobs.entry(owned.lease).or_insert_with(|| Job::new(owned.task, owned.attempt));
        }
        self.after = last;
        self.is_listed |= last.is_none();
    }
}

/// What a message asks an owner for: the lease, its task, and who owned it.
type Wanted = (LeaseId, TaskId, Option<(OwnerToken, Name)>);

fn wanted(queue: &Queue, data: &str) -> Result<Wanted, String> {
    if *queue == Queue::Handoff {
        let Handoff { job_id, history_id, node_id, owner, .. } = read(data)?;
        return Ok((history_id, job_id, Some((OwnerToken(owner.0), node_id))));
    }
    let Assigned { job_id, history_id } = read(data)?;
    Ok((history_id, job_id, None))
}

/// Tells the node that owned a lease that it need not wait.
fn ack(job_id: TaskId, history_id: LeaseId, from: Name, new_owner: &Name) -> Message {
    let ack = HandoffAck { job_id, history_id, new_owner: new_owner.clone() };
    Message { channel: Topic::HandoffAck(from).into(), data: write(&ack) }
}

fn item(jobs: &BTreeMap<LeaseId, Job>, lease: LeaseId, spoken: &Spoken) -> ReportItem {
    let task = jobs.get(&lease).map_or(TaskId(0), |job| job.task);
    ReportItem { task, lease, worker: spoken.worker.clone(), said: spoken.said.clone() }
}
