//! Makes groups durable, in order, and then sends what may be sent.
//!
//! Large groups are written on a thread of its own, while the loop decides the next one, and the writer takes that as
//! soon as it is done with the one before. Where only one caller waits, and for small groups on a disk, the loop does it
//! itself: handing a group to another thread and back costs as much as half a sync.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use orchestrix_core::{TaskId, Term, is_planted};
use orchestrix_engine::{Appended, Batch, Cause, Clock, Journal, Link, Room, Space};

use crate::commit_group::{CommitGroup, split_records};
use crate::event_queues::EventQueues;
use crate::events::EventFeed;
use crate::inbox::Inbox;
use crate::logs::TaskLogs;
use crate::node::Waiter;
use crate::open::Failure;
use crate::pending_group::PendingGroup;
use crate::progress::Progress;
use crate::request::{Answer, Error, Recipient, Seen};
use crate::runner::Running;
use crate::stats::Stats;
use crate::sync::mpsc::{Receiver, Sender};
use crate::sync::{Mutex, MutexGuard};
use crate::tasks::Abandoned;
use crate::write_guard::WriteGuard;

/// Between two tries of a group, while the disk is full or the engine does not answer.
pub(crate) const RETRY: Duration = Duration::from_millis(100);
/// Every so many tries it is looked whether there are segments to drop.
const TRUNCATE_EVERY: u64 = 10;

/// What the loop gives to the writer.
pub(crate) enum Work {
    Write {
        group: CommitGroup<Waiter>,
        term: Term,
    },
    /// Nothing happened for a while: note down how far the journal is durable.
    Rest,
    /// There is a new snapshot: drop what is not needed any more.
    Truncate,
}

/// What the loop hears when a group is durable.
#[derive(Debug)]
pub(crate) struct Ack {
    pub(crate) end: Link,
    pub(crate) space: Space,
    /// Leases in answers that were not taken.
    pub(crate) abandoned: Vec<Abandoned>,
}

/// What is known of a group that is given up, and so of the calls in it.
#[derive(Clone, Copy, Debug)]
enum Unanswered {
    NotAccepted,
    /// Some try of it may be in the journal.
    PerhapsAccepted,
}

/// Answers, and to whom.
type Replies = Vec<(Waiter, Result<Answer, Error>)>;

/// A group on its way into the journal.
pub(crate) struct Writing {
    batch: Batch,
    /// What follows the batch, where there was no room for all in one: records, and how many they are.
    rest: Option<(Vec<u8>, u32)>,
    /// Of the tasks that events name: those of the batch and of the rest.
    queues: Arc<EventQueues>,
    replies: Replies,
    purged: Vec<TaskId>,
    started: Duration,
    tried: u64,
    unanswered: Unanswered,
    last: Heard,
}

/// What the last try of a group came to, while it is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// There is no room. This try has written nothing.
    NoRoom,
    Other,
}

/// What became of a piece of work at first.
pub(crate) enum Begun {
    Done(Ack),
    Writing(Writing),
}

/// What became of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    Written,
    /// Another part of it is to be sent now.
    Part,
    Again,
}

pub(crate) struct Writer {
    pub(crate) journal: Box<dyn Journal>,
    /// The last batch that the state follows. Not asked of the journal: if that has another end, another node
    /// has written, and nothing decided here may follow it.
    pub(crate) end: Link,
    pub(crate) events: Arc<EventFeed>,
    pub(crate) logs: Arc<TaskLogs>,
    pub(crate) running: Arc<Running>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) guard: WriteGuard,
    pub(crate) unsettled: Arc<Unsettled>,
}

/// An append with an unknown outcome, when its node has to stop. A later reader of the journal sees what
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
    offer: &PendingGroup,
    acks: &Sender<Ack>,
    wake: &Inbox,
) -> Result<(), Failure> {
    for work in works {
        let mut writer = lock(writer);
        let mut next = Some(work);
        while let Some(work) = next {
            let ack = writer.work(work)?;
            let urgent = !ack.abandoned.is_empty();
            // The loop is gone only when the node stops; then no ack is needed.
            let _ = acks.send(ack);
            // After the ack: a loop that made its offer too late for us finds that.
            next = offer.next(works);
            if urgent || writer.running.wants_ack.swap(false, Ordering::SeqCst) {
                wake.wake();
            }
        }
    }
    Ok(lock(writer).journal.rest()?)
}

/// The loop takes the writer only while its thread has nothing to do, so no thread waits here for long.
pub(crate) fn lock(writer: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer {
    /// Does a piece of work, however often the journal has to be asked.
    pub(crate) fn work(&mut self, work: Work) -> Result<Ack, Failure> {
        let mut writing = match self.begin(work)? {
            Begun::Done(ack) => return Ok(ack),
            Begun::Writing(writing) => writing,
        };
        loop {
            match self.try_once(&mut writing) {
                Ok(Tried::Written) => return self.finish(writing),
                Ok(Tried::Part) => {}
                Ok(Tried::Again) => self.clock.pause(RETRY),
                Err(failure) => {
                    refuse(writing);
                    return Err(failure);
                }
            }
        }
    }

    fn try_once(&mut self, writing: &mut Writing) -> Result<Tried, Failure> {
        let batch = self.to_append(writing)?;
        let answer = self.progress.asking(|| self.journal.append(batch));
        self.heard(writing, answer)
    }

    /// Does what needs no append; a group with events has to go into the journal first.
    pub(crate) fn begin(&mut self, work: Work) -> Result<Begun, Failure> {
        let abandoned = match work {
            Work::Write { mut group, term } => {
                if is_planted("ack-before-sync") {
                    let _ = group.replies.drain(..).flat_map(|(to, answer)| send(to, answer)).count();
                }
                if group.count > 0 {
                    return Ok(Begun::Writing(self.writing(group, term)));
                }
                self.answer(group.replies, group.purged)?
            }
            Work::Rest => {
                self.progress.asking(|| self.journal.rest())?;
                Vec::new()
            }
            Work::Truncate => {
                self.truncate();
                Vec::new()
            }
        };
        Ok(Begun::Done(self.ack(abandoned)))
    }

    fn writing(&self, group: CommitGroup<Waiter>, term: Term) -> Writing {
        let CommitGroup { first, records, count, queues, replies, purged, .. } = group;
        assert_eq!(first, self.end.position.next(), "groups are written in the order of their decisions");
        let batch = Batch { previous: self.end, term, count, records };
        let (started, unanswered) = (self.clock.boot(), Unanswered::NotAccepted);
        self.progress.batch_begins(started);
        let queues = Arc::new(queues);
        Writing {
            batch,
            rest: None,
            queues,
            replies,
            purged,
            started,
            tried: 0,
            unanswered,
            last: Heard::Other,
        }
    }

    /// The batch to append now; only under a valid leader lease. It is the same again at every try: only the
    /// identical batch may follow an unknown outcome.
    pub(crate) fn to_append<'a>(&self, writing: &'a Writing) -> Result<&'a Batch, Failure> {
        if !is_planted("append-untrusted") {
            self.check_write_guard()?;
        }
        Ok(&writing.batch)
    }

    /// Takes in what came of a try.
    pub(crate) fn heard(
        &mut self,
        writing: &mut Writing,
        answer: Result<Appended, orchestrix_engine::Error>,
    ) -> Result<Tried, Failure> {
        writing.tried += 1;
        writing.last = Heard::Other;
        match answer {
            Ok(Appended::Done(end)) => {
                let took = self.clock.boot().saturating_sub(writing.started);
                self.stats.sync.observe_us(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                self.stats.batches.add(1);
                self.stats.batch_bytes.add(writing.batch.records.len() as u64);
                self.stats.durable.set(end.position.0);
                self.unsettled.set(None);
                self.end = end;
                if self.go_on(writing) {
                    self.progress.batch_begins(self.clock.boot());
                    return Ok(Tried::Part);
                }
                self.progress.batch_is_durable();
                return Ok(Tried::Written);
            }
            Ok(Appended::Conflict(end)) => {
                self.stats.stale_appends.add(1);
                self.unsettled.set(None);
                return Err(Failure::new(format!(
                    "append conflict: another node wrote to the journal first, which ends at {}",
                    end.position
                )));
            }
            Ok(Appended::Unknown) => {
                writing.unanswered = Unanswered::PerhapsAccepted;
                let batch = &writing.batch;
                self.unsettled.set(Some((batch.previous, batch.link(self.journal.id()))));
                if is_planted("unknown-append-changed") {
                    writing.batch.term = Term(writing.batch.term.0 + 1);
                }
            }
            Err(error) if error.retryable && matches!(error.source, Cause::Full { .. }) => {
                if self.shorten(writing) {
                    return Ok(Tried::Part);
                }
                writing.last = Heard::NoRoom;
                if self.progress.no_room(self.full(&error)) {
                    tracing::warn!("{}: waiting for room", self.full(&error));
                }
                if writing.tried.is_multiple_of(TRUNCATE_EVERY) {
                    // A snapshot that was finished meanwhile may let something go.
                    self.truncate();
                }
            }
            Err(error) if error.retryable => {
                self.progress.batch_fails(error.to_string());
                if writing.tried == 1 {
                    tracing::warn!(%error, "the journal cannot be reached: trying again");
                }
            }
            Err(error) => return Err(error.into()),
        }
        self.give_up_if_stopping(writing.unanswered)?;
        Ok(Tried::Again)
    }

    /// What is full. Only a disk has a reserve.
    fn full(&self, error: &orchestrix_engine::Error) -> String {
        match self.journal.space() {
            Space::Short(_) => "the disk is full, even the reserve is used up".to_owned(),
            Space::Plenty => format!("the engine is full and refuses writes: {}", error.source),
        }
    }

    /// Where there is no room for the batch as it is, what fits is sent first. Answers whether that is less. Nothing
    /// of it was written, and no caller is answered before all of it is: a reader sees two groups.
    fn shorten(&self, writing: &mut Writing) -> bool {
        let Space::Short(Room { batch: fits, .. }) = self.journal.space() else { return false };
        let batch = &mut writing.batch;
        let (records, count) = split_records(&mut batch.records, fits);
        if count == 0 {
            return false;
        }
        batch.count -= count;
        let (later, more) = writing.rest.take().unwrap_or_default();
        writing.rest = Some(([records, later].concat(), count + more));
        true
    }

    /// A part is durable; answers whether there is another.
    fn go_on(&mut self, writing: &mut Writing) -> bool {
        let Some((records, count)) = writing.rest.take() else { return false };
        writing.unanswered = Unanswered::PerhapsAccepted;
        writing.tried = 0;
        let next = Batch { previous: self.end, term: writing.batch.term, count, records };
        self.guard.prove(self.end);
        self.events.publish(mem::replace(&mut writing.batch, next), Arc::clone(&writing.queues));
        true
    }

    /// The group is durable: now its answers may be sent.
    pub(crate) fn finish(&mut self, writing: Writing) -> Result<Ack, Failure> {
        let Writing { batch, queues, replies, purged, .. } = writing;
        self.guard.prove(self.end);
        self.events.publish(batch, queues);
        let abandoned = self.answer(replies, purged)?;
        Ok(self.ack(abandoned))
    }

    /// Answers. Gives back the leases of untaken answers.
    fn answer(&mut self, replies: Replies, purged: Vec<TaskId>) -> Result<Vec<Abandoned>, Failure> {
        // The append may have taken long: another leader may have decided otherwise.
        if !is_planted("answer-untrusted") {
            self.check_write_guard()?;
        }
        let abandoned = replies.into_iter().flat_map(|(to, answer)| send(to, answer)).collect();
        self.logs.forget(purged);
        Ok(abandoned)
    }

    fn ack(&self, abandoned: Vec<Abandoned>) -> Ack {
        Ack { end: self.end, space: self.journal.space(), abandoned }
    }

    fn check_write_guard(&self) -> Result<(), Failure> {
        if self.guard.holds() {
            return Ok(());
        }
        Err(Failure::new("this node is no longer the leader".to_owned()))
    }

    fn give_up_if_stopping(&self, unanswered: Unanswered) -> Result<(), Failure> {
        if !self.running.is_stopping() {
            return Ok(());
        }
        let told = match unanswered {
            Unanswered::NotAccepted => {
                "stopped while nothing could be written; what was not answered was not accepted"
            }
            Unanswered::PerhapsAccepted => {
                "stopped before it was certain what is in the journal; what was not answered may have been accepted"
            }
        };
        Err(Failure::new(told.to_owned()))
    }

    fn truncate(&mut self) {
        match self.progress.asking(|| self.journal.truncate()) {
            Ok(floor) => tracing::debug!(%floor, "deleted journal batches that two snapshots cover"),
            Err(error) => {
                tracing::warn!(%error, "cannot drop old segments; they stay until the next snapshot")
            }
        }
    }
}

/// Answers the calls that changed something in a group that is given up, if it is certain that nothing of it was written,
/// for want of room.
fn refuse(writing: Writing) {
    let (Heard::NoRoom, Unanswered::NotAccepted) = (writing.last, writing.unanswered) else { return };
    for (to, answer) in writing.replies {
        // Any other may be about what was accepted before.
        if let Ok(Answer::Outcome { seen: Seen::First, .. }) = answer {
            let _ = to.send(Err(Error::StorageFull));
        }
    }
}

/// Sends an answer. Gives back the leases in it if it was not taken.
fn send(to: Waiter, answer: Result<Answer, Error>) -> Option<Abandoned> {
    match to.send(answer) {
        Err(Ok(Answer::Leases { leases, at })) => Abandoned::of(&leases, at),
        Ok(()) | Err(_) => None,
    }
}
