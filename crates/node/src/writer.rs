//! Makes turns durable, in order, and then sends what may be sent.
//!
//! Under load this happens on a thread of its own, while the loop decides the next turn. When only one caller
//! waits, the loop does it itself: handing a turn to another thread and back costs as much as half a sync.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrix_core::{LeaseId, TaskId, Term, is_planted};
use orchestrix_engine::{Appended, Batch, Cause, Clock, Journal, Link, Space};

use crate::decision_loop::Turn;
use crate::events::EventFeed;
use crate::logs::TaskLogs;
use crate::mandate::Mandate;
use crate::node::Caller;
use crate::open::Failure;
use crate::request::{Answer, Error, Recipient};
use crate::runner::{Input, Running};
use crate::stats::Stats;

/// How often a turn is tried again while the disk is full.
const FULL_RETRY: Duration = Duration::from_millis(100);
/// Every so many tries it is looked whether there are segments to drop.
const TRUNCATE_EVERY: u64 = 10;

/// What the loop gives to the writer.
pub(crate) enum Work {
    Turn {
        turn: Turn<Caller>,
        term: Term,
    },
    /// Nothing happened for a while: note down how far the journal is durable.
    Rest,
    /// There is a new snapshot: drop what is not needed any more.
    Truncate,
}

/// What the loop hears when a turn is durable.
#[derive(Debug)]
pub(crate) struct Ack {
    pub(crate) end: Link,
    pub(crate) space: Space,
    /// Leases in answers that nobody took.
    pub(crate) abandoned: Vec<(TaskId, LeaseId)>,
}

/// What is known of a turn that is given up, and so of the calls in it.
#[derive(Clone, Copy, Debug)]
enum Unanswered {
    NotAccepted,
    /// Some try of it may be in the journal.
    PerhapsAccepted,
}

pub(crate) struct Writer {
    pub(crate) journal: Box<dyn Journal>,
    /// The last batch that the state follows. Not asked of the journal: if that has another end, somebody else
    /// has written, and nothing decided here may follow it.
    pub(crate) end: Link,
    pub(crate) events: Arc<EventFeed>,
    pub(crate) logs: Arc<TaskLogs>,
    pub(crate) running: Arc<Running>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) mandate: Mandate,
    pub(crate) unsettled: Arc<Unsettled>,
}

/// An append that nobody has heard the outcome of, when its node has to stop. Whoever reads the journal later sees what
/// became of it.
#[derive(Debug, Default)]
pub(crate) struct Unsettled(Mutex<Option<(Link, Link)>>);

impl Unsettled {
    fn set(&self, ends: Option<(Link, Link)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ends;
    }

    /// Takes in that the journal goes on from one end to another. Answers whether that settles it against our batch.
    pub(crate) fn is_refused(&self, from: Link, to: Link) -> bool {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.take_if(|(previous, _)| *previous == from).is_some_and(|(_, ours)| ours != to)
    }
}

/// Works until the loop hangs up, then notes down that all is durable.
pub(crate) fn run(
    writer: &Mutex<Writer>,
    works: &Receiver<Work>,
    acks: &Sender<Ack>,
    wake: &SyncSender<Input>,
) -> Result<(), Failure> {
    for work in works {
        let mut writer = lock(writer);
        let ack = writer.work(work)?;
        let urgent = !ack.abandoned.is_empty();
        // The loop is gone only when the node stops; then nobody needs to know.
        let _ = acks.send(ack);
        if urgent || writer.running.wants_ack.swap(false, Ordering::SeqCst) {
            let _ = wake.try_send(Input::Wake);
        }
    }
    Ok(lock(writer).journal.rest()?)
}

/// The loop takes the writer only while its thread has nothing to do, so nobody waits here.
pub(crate) fn lock(writer: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer {
    pub(crate) fn work(&mut self, work: Work) -> Result<Ack, Failure> {
        let abandoned = match work {
            Work::Turn { turn, term } => self.turn(turn, term)?,
            Work::Rest => {
                self.journal.rest()?;
                Vec::new()
            }
            Work::Truncate => {
                self.truncate();
                Vec::new()
            }
        };
        Ok(Ack { end: self.end, space: self.journal.space(), abandoned })
    }

    /// Writes, then answers. Gives back the leases that nobody took.
    fn turn(&mut self, turn: Turn<Caller>, term: Term) -> Result<Vec<(TaskId, LeaseId)>, Failure> {
        let Turn { first, records, count, mut replies, purged } = turn;
        if is_planted("ack-before-sync") {
            let _ = replies.drain(..).flat_map(|(to, answer)| send(to, answer)).count();
        }
        if count > 0 {
            assert_eq!(first, self.end.position.next(), "turns are written in the order of their decisions");
            let batch = Batch { previous: self.end, term, count, records };
            self.append(&batch)?;
            self.mandate.prove(self.end);
            self.events.publish(first, batch.last(), batch.records);
        }
        // The append may have taken long: whoever leads by now may have decided otherwise.
        self.check_mandate()?;
        let abandoned = replies.into_iter().flat_map(|(to, answer)| send(to, answer)).collect();
        self.logs.forget(purged);
        Ok(abandoned)
    }

    fn append(&mut self, batch: &Batch) -> Result<(), Failure> {
        let start = self.clock.boot();
        let mut unanswered = Unanswered::NotAccepted;
        for tried in 1_u64.. {
            self.check_mandate()?;
            match self.journal.append(batch) {
                Ok(Appended::Done(end)) => {
                    let took = self.clock.boot().saturating_sub(start);
                    self.stats.sync.observe_us(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                    self.stats.batches.add(1);
                    self.stats.batch_bytes.add(batch.records.len() as u64);
                    self.stats.durable.set(end.position.0);
                    self.unsettled.set(None);
                    self.end = end;
                    return Ok(());
                }
                Ok(Appended::Conflict(end)) => {
                    self.stats.stale_appends.add(1);
                    self.unsettled.set(None);
                    return Err(Failure::new(format!(
                        "somebody else has written to the journal: it ends at {}",
                        end.position
                    )));
                }
                // Only the identical batch may follow an unknown outcome.
                Ok(Appended::Unknown) => {
                    unanswered = Unanswered::PerhapsAccepted;
                    self.unsettled.set(Some((batch.previous, batch.link(self.journal.id()))));
                    self.wait_or_give_up(unanswered)?;
                }
                Err(error) if error.retryable && matches!(error.source, Cause::Full { .. }) => {
                    if tried == 1 {
                        tracing::warn!("the disk is full, even the reserve is used up: waiting for room");
                    }
                    if tried.is_multiple_of(TRUNCATE_EVERY) {
                        // A snapshot that was finished meanwhile may let something go.
                        self.truncate();
                    }
                    self.wait_or_give_up(unanswered)?;
                }
                Err(error) if error.retryable => {
                    if tried == 1 {
                        tracing::warn!(%error, "the journal cannot be reached: trying again");
                    }
                    self.wait_or_give_up(unanswered)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        unreachable!("it is tried until it is written or given up")
    }

    fn check_mandate(&self) -> Result<(), Failure> {
        if self.mandate.holds() {
            return Ok(());
        }
        Err(Failure::new("this node does not lead any more".to_owned()))
    }

    fn wait_or_give_up(&self, unanswered: Unanswered) -> Result<(), Failure> {
        if self.running.is_stopping() {
            let told = match unanswered {
                Unanswered::NotAccepted => {
                    "stopped while nothing could be written; what was not answered was not accepted"
                }
                Unanswered::PerhapsAccepted => {
                    "stopped before it was certain what is in the journal; what was not answered may have been accepted"
                }
            };
            return Err(Failure::new(told.to_owned()));
        }
        self.clock.pause(FULL_RETRY);
        Ok(())
    }

    fn truncate(&mut self) {
        match self.journal.truncate() {
            Ok(floor) => tracing::debug!(%floor, "dropped what two snapshots cover"),
            Err(error) => {
                tracing::warn!(%error, "cannot drop old segments; they stay until the next snapshot")
            }
        }
    }
}

/// Sends an answer. Gives back the leases in it if nobody took it.
fn send(to: Caller, answer: Result<Answer, Error>) -> Vec<(TaskId, LeaseId)> {
    match to.send(answer) {
        Err(Ok(Answer::Leases(leases))) => {
            leases.leases.iter().map(|leased| (leased.task_id, leased.lease_id)).collect()
        }
        Ok(()) | Err(_) => Vec::new(),
    }
}
