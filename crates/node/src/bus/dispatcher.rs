//! What the leader publishes: offers after they are durable, cancellations, and the end of channels.
//!
//! It pulls: it says what is published, and hears what follows. So nothing is forgotten when the bus does not answer for a while, and
//! nothing is published twice under one lease.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::wire::bus::{Assigned, Dispatch, Handoff, JobCancel, write};
use orchestrix_core::{LeaseId, Term, is_planted};
use orchestrix_engine::bus::{
    Bus, Checked, Claimed, ENTRIES_MAX, Ended, Message, OFFERS_MAX, Offer, OpenJobs, Publisher, Queue, Stop,
    TOPIC_KEPT, Topic,
};
use orchestrix_engine::{Error, LogThrottle};

use super::opening::Opening;
use super::{BusAnswer, DispatchAsk, OfferedTask, Pulled};
use crate::request;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);
/// Between two looks whether the bus is what it was.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Between two times that old messages are removed from topics.
const TRIM_EVERY: Duration = Duration::from_secs(10);

/// Between two looks for channels that outlived their leases. A new leader looks at once.
const LOOK_EVERY: Duration = Duration::from_secs(300);

/// What a service does next.
#[derive(Debug)]
pub(crate) enum Next<A> {
    Ask(A),
    Wait(Duration),
    /// There is nothing more to do.
    Done,
}

/// Publishes for one leader at a time.
pub(crate) struct Dispatcher {
    bus: Arc<dyn Bus>,
    opening: Arc<Opening>,
    term: Term,
    publisher: Option<Box<dyn Publisher>>,
    /// The loop knows where this publisher begins.
    is_told: bool,
    /// The last offer that is published.
    after: LeaseId,
    /// Where the look for channels goes on that outlived their leases, while there is one.
    looks_from: Option<u64>,
    looked: Duration,
    to_close: Vec<Ended>,
    to_cancel: Vec<JobCancel>,
    to_hand_off: Vec<Handoff>,
    checked: Duration,
    trimmed: Duration,
    throttle: LogThrottle,
}

impl Dispatcher {
    pub(crate) fn new(opening: Arc<Opening>) -> Self {
        Self {
            bus: Arc::clone(opening.bus()),
            opening,
            term: Term(0),
            publisher: None,
            is_told: false,
            after: LeaseId(0),
            looks_from: None,
            looked: Duration::ZERO,
            to_close: Vec::new(),
            to_cancel: Vec::new(),
            to_hand_off: Vec::new(),
            checked: Duration::ZERO,
            trimmed: Duration::ZERO,
            throttle: LogThrottle::new("cannot publish on the bus: trying again", "the bus answers again"),
        }
    }

    /// Goes on in a term of this node; `now` is a clock that never stands still.
    pub(crate) fn next(&mut self, term: Term, now: Duration) -> Next<DispatchAsk> {
        if self.term != term {
            self.term = term;
            self.give_up();
            self.to_close.clear();
            self.to_cancel.clear();
            self.to_hand_off.clear();
        }
        match self.prepare(now) {
            Ok(next) => {
                if !matches!(next, Next::Wait(_)) {
                    self.throttle.succeeded(now, "publish");
                }
                next
            }
            Err(error) => {
                self.give_up();
                self.throttle.failed(now, "publish", &error.to_string());
                Next::Wait(PAUSE)
            }
        }
    }

    fn prepare(&mut self, now: Duration) -> Result<Next<DispatchAsk>, Error> {
        self.opening.open()?;
        if self.publisher.is_none() {
            match self.bus.claim(self.term)? {
                Claimed::Done(publisher) => {
                    self.after = LeaseId(publisher.cursor().major);
                    self.publisher = Some(publisher);
                    self.is_told = false;
                    self.looks_from = Some(0);
                }
                Claimed::Stale { term, .. } => {
                    tracing::info!(%term, "a later leader publishes on the bus");
                    return Ok(Next::Wait(PAUSE));
                }
                Claimed::RolledBack => {
                    self.opening.is_lost();
                    return Ok(Next::Wait(Duration::ZERO));
                }
            }
        }
        if !self.is_told {
            return Ok(Next::Ask(DispatchAsk::Claimed { cursor: self.after }));
        }
        self.close()?;
        self.cancel()?;
        send_handoffs(&*self.bus, &mut self.to_hand_off)?;
        if now.saturating_sub(self.checked) >= CHECK_EVERY {
            self.checked = now;
            if self.bus.check()? == Checked::RolledBack {
                tracing::warn!("the bus has lost its latest messages; what may be lost is offered anew");
                self.opening.is_lost();
                self.give_up();
                return Ok(Next::Wait(Duration::ZERO));
            }
        }
        if now.saturating_sub(self.trimmed) >= TRIM_EVERY {
            self.trimmed = now;
            let topics = [Topic::Cancel, Topic::WorkerHeartbeat, Topic::CoordinatorHeartbeat];
            self.bus.trim(&topics, TOPIC_KEPT)?;
        }
        if now.saturating_sub(self.looked) >= LOOK_EVERY {
            self.looks_from = self.looks_from.or(Some(0));
        }
        while let Some(from) = self.looks_from {
            let OpenJobs { leases, next } = self.bus.jobs(from)?;
            (self.looks_from, self.looked) = (next, now);
            if !leases.is_empty() {
                return Ok(Next::Ask(DispatchAsk::Leftovers(leases)));
            }
        }
        Ok(Next::Ask(DispatchAsk::Pull { after: self.after }))
    }

    /// Takes the answer to what was asked.
    pub(crate) fn answered(&mut self, answer: Result<BusAnswer, request::Error>, now: Duration) {
        match answer {
            Ok(BusAnswer::Pulled(pulled)) => self.take(pulled, now),
            Ok(_) => self.is_told = true,
            // Another ask follows, of this leader or of none.
            Err(_) => self.give_up(),
        }
    }

    fn take(&mut self, pulled: Pulled, now: Duration) {
        let Pulled { offers, ended, cancels, handoffs } = pulled;
        self.to_hand_off.extend(handoffs);
        self.to_close.extend(ended);
        self.to_cancel.extend(cancels);
        let offers: Vec<Offer> = offers.iter().map(messages_of).collect();
        for offers in offers.chunks(OFFERS_MAX) {
            let Some(publisher) = &mut self.publisher else { return };
            let published = publisher.publish(offers);
            let stop = match published {
                Ok(progress) => {
                    let done = progress.published;
                    if let Some(last) = offers[..done].last() {
                        self.after = last.lease;
                    }
                    progress.stop
                }
                Err(error) => Some(Stop::Refused(error)),
            };
            let Some(stop) = stop else { continue };
            let why = match stop {
                Stop::Stale { term, generation } => {
                    format!("claim {generation} of {term} came after this one")
                }
                Stop::RolledBack => {
                    self.opening.is_lost();
                    "the bus has lost its latest messages".to_owned()
                }
                Stop::Unknown => "it is not certain what was published".to_owned(),
                Stop::Refused(error) => error.to_string(),
            };
            self.throttle.failed(now, "publish", &why);
            return self.give_up();
        }
    }

    fn close(&mut self) -> Result<(), Error> {
        while !self.to_close.is_empty() {
            let some = self.to_close.len().min(ENTRIES_MAX);
            if !is_planted("channel-kept") {
                self.bus.close(&self.to_close[..some])?;
            }
            self.to_close.drain(..some);
        }
        Ok(())
    }

    fn cancel(&mut self) -> Result<(), Error> {
        let cancels = mem::take(&mut self.to_cancel);
        send_cancels(&*self.bus, &cancels)
    }

    /// Claims again before anything else is published.
    fn give_up(&mut self) {
        self.publisher = None;
        self.is_told = false;
    }
}

/// Tells workers to stop. Whether they hear it is seen later: it is said again with every heartbeat.
pub(crate) fn send_cancels(bus: &dyn Bus, cancels: &[JobCancel]) -> Result<(), Error> {
    let message = |cancel: &JobCancel| Message { channel: Topic::Cancel.into(), data: write(cancel) };
    let messages: Vec<Message> = cancels.iter().map(message).collect();
    messages.chunks(ENTRIES_MAX).try_for_each(|some| bus.send(some).map(drop))
}

/// Says that leases need another owner. What was sent is taken out.
pub(crate) fn send_handoffs(bus: &dyn Bus, handoffs: &mut Vec<Handoff>) -> Result<(), Error> {
    while !handoffs.is_empty() {
        let some = handoffs.len().min(ENTRIES_MAX);
        let message = |handoff: &Handoff| Message { channel: Queue::Handoff.into(), data: write(handoff) };
        let messages: Vec<Message> = handoffs[..some].iter().map(message).collect();
        bus.send(&messages)?;
        handoffs.drain(..some);
    }
    Ok(())
}

fn messages_of(offered: &OfferedTask) -> Offer {
    let OfferedTask { task, lease, queue, payload, attempt, lease_ms, previous } = offered.clone();
    let dispatch =
        Dispatch { job_id: task, history_id: lease, queue: queue.clone(), payload, attempt, lease_ms };
    let assigned = Assigned { job_id: task, history_id: lease };
    Offer { task, lease, queue, dispatch: write(&dispatch), assigned: write(&assigned), previous }
}
