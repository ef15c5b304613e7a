//! Runs the decision loop: takes questions, asks the loop, hands its groups to the writer, takes snapshots.
//!
//! While the writer syncs one group, the next one grows; when the writer is free it gets all that has come. A loop that
//! waits for questions offers it what it has, so that the writer goes on by itself.
//! [`Runner::run`] is the thread of a node and waits; [`Runner::step`] is one round of it and never waits for
//! another thread, so that a simulation can do the same step by step.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use orchestrix_core::{Name, Position, Timestamp, is_planted};
use orchestrix_engine::{Clock, Snapshots};
use tokio::sync::watch;

use crate::clock::TermClock;
use crate::commit_group::CommitGroup;
use crate::decision_loop::DecisionLoop;
use crate::inbox::{Inbox, Inputs};
use crate::node::Waiter;
use crate::open::Failure;
use crate::pending_group::PendingGroup;
use crate::progress::Progress;
use crate::request::{Ask, Error, Recipient};
use crate::snapshotter::{SnapshotJob, SnapshotPlan, Snapshotting};
use crate::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use crate::sync::{AtomicBool, Mutex};
use crate::tasks::Abandoned;
use crate::writer::{self, Ack, Work, Writer};

/// Questions taken between two looks at the clock and the writer.
const INPUTS_PER_STEP: usize = 1_024;
/// The longest wait for a question; bounds how late a step of the clock is noticed.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// Answers and events of a small group. It is decided in some 30 microseconds, and a sync takes at least twice as long.
const INLINE_MAX: usize = 32;

/// After this long without an event the journal notes down how far it is durable.
const REST: Duration = Duration::from_millis(50);

/// What reaches the loop.
#[derive(Debug)]
pub(crate) enum Input {
    /// With the queues that the caller is limited to, if so.
    Ask(Ask, Option<Arc<[Name]>>, Waiter),
    /// Leases of an answer that was sent and not delivered.
    GiveBack(Abandoned),
    /// Every node that is present reads this format.
    Raise(u8),
    /// The writer or the snapshotter has news.
    Wake,
    Stop,
}

/// Which groups the loop writes itself. Handing one to another thread and back costs as much as half a sync; writing it here
/// costs what could be decided meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inline {
    Never,
    /// Those that one caller waits for.
    OneCaller,
    /// Those too that are decided in much less time than they are written.
    Small,
}

impl Inline {
    fn takes<R>(self, group: &CommitGroup<R>) -> bool {
        let (callers, events) = (group.replies.len(), group.count as usize);
        match self {
            Self::Never => false,
            Self::OneCaller => callers <= 1,
            Self::Small => callers <= 1 || callers.max(events) <= INLINE_MAX,
        }
    }
}

/// Whether the node runs, and why it does not.
#[derive(Debug)]
pub(crate) struct Running {
    ended: watch::Sender<Option<Result<(), Failure>>>,
    stopping: AtomicBool,
    /// The loop holds a group back until the writer is free.
    pub(crate) wants_ack: AtomicBool,
}

impl Running {
    pub(crate) fn new() -> Self {
        Self {
            ended: watch::Sender::new(None),
            stopping: AtomicBool::new(false),
            wants_ack: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The first reason counts.
    pub(crate) fn end(&self, result: Result<(), Failure>) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(result);
            first
        });
    }

    pub(crate) async fn stopped(&self) -> Result<(), Failure> {
        let mut ended = self.ended.subscribe();
        // The sender is in `self`, so the wait ends only with a result.
        let result = ended.wait_for(Option::is_some).await.map(|ended| ended.clone());
        result.ok().flatten().unwrap_or(Ok(()))
    }
}

/// The loop and all that it talks to.
pub(crate) struct Runner {
    pub(crate) decisions: DecisionLoop<Waiter>,
    pub(crate) term_clock: TermClock,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) inputs: Inputs,
    pub(crate) wake: Inbox,
    /// Shared with its thread; taken here only while that has nothing to do.
    pub(crate) writer: Arc<Mutex<Writer>>,
    pub(crate) works: SyncSender<Work>,
    pub(crate) offer: Arc<PendingGroup>,
    pub(crate) acks: Receiver<Ack>,
    pub(crate) running: Arc<Running>,
    pub(crate) progress: Arc<Progress>,
    /// Not here while a snapshot is written.
    pub(crate) snapshots: Option<Box<dyn Snapshots>>,
    pub(crate) snapshot: SnapshotPlan,
    /// Gets the writing of a snapshot done, beside the loop.
    pub(crate) start_snapshot: Box<dyn FnMut(SnapshotJob) + Send>,
    /// Which groups the loop writes itself, instead of handing them to the writer's thread.
    pub(crate) inline: Inline,
    /// Whether groups are offered to the writer while it is busy. Where an append takes long that saves time; where it
    /// does not, groups would only become smaller, and more of them cost more.
    pub(crate) offers: bool,
    /// Works that the writer's thread has, or may take, and has not acknowledged yet.
    pub(crate) at_writer: u32,
    /// When events were last written, unless the journal has noted down since that they are durable.
    pub(crate) unmarked: Option<Duration>,
    /// Between two batches: what an engine wants whose every write is costly.
    pub(crate) linger: Duration,
    /// No batch is written before then, on the boot clock.
    pub(crate) next_batch: Duration,
}

impl Runner {
    /// Decides until the stop, then answers waiting calls.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        let ended = self.decide_until_stopped();
        self.let_go();
        ended
    }

    fn decide_until_stopped(&mut self) -> Result<(), Failure> {
        loop {
            let input = self.wait()?;
            if self.step(input)?.is_break() {
                break;
            }
        }
        while self.finish()?.is_continue() {
            let ack = self.next_ack()?;
            let now = self.term_clock.now();
            self.acknowledged(ack, now);
        }
        Ok(())
    }

    /// Gives back what was lent, and refuses what came too late.
    pub(crate) fn let_go(&mut self) {
        self.running.begin_stop();
        // A handle of snapshots locks the folder; the next node may start as soon as this one has stopped.
        self.snapshots = None;
        if let Some(under_way) = self.snapshot.under_way.take() {
            under_way.give_up();
        }
        while let Some(input) = self.inputs.take() {
            if let Input::Ask(_, _, to) = input {
                // A caller who left does not need to hear it.
                let _ = to.send(Err(Error::Stopping));
            }
        }
    }

    /// Whether the writer's thread has nothing to do.
    fn is_writer_free(&self) -> bool {
        self.at_writer == 0
    }

    /// One step: new asks, due work, acks of the writer. Breaks at a stop.
    pub(crate) fn step(&mut self, first: Option<Input>) -> Result<ControlFlow<()>, Failure> {
        let (start, busy) = (self.clock.boot(), self.clock.busy());
        let mut now = self.term_clock.now();
        if self.take(first, &mut now).is_break() {
            // Everyone who waits is sent home; what is left to write is for `finish`.
            self.running.begin_stop();
            if !is_planted("stop-forgets-callers") {
                self.decisions.dismiss(now);
            }
            return Ok(ControlFlow::Break(()));
        }
        // The writer notes down what is durable before it answers, and its ack comes later: an answered caller has its lease.
        self.decisions.is_durable(Position(self.decisions.stats().durable.get()));
        self.decisions.tick(now);
        self.hear(now)?;
        self.hand_over(now)?;
        self.rest_if_idle()?;
        self.continue_snapshot()?;
        let end = self.clock.boot();
        self.progress.beat(end);
        let took = micros(end, start);
        self.decisions.stats().step.observe_us(took);
        self.decisions.stats().turn_max_us.raise(took);
        self.decisions.stats().turn_busy_max_us.raise(micros(self.clock.busy(), busy));
        Ok(ControlFlow::Continue(()))
    }

    /// Lets the writer finish after a stop. Breaks when all is written; before that it is called again when the
    /// writer has done something. Leases of untaken last answers are given back in a separate group.
    pub(crate) fn finish(&mut self) -> Result<ControlFlow<()>, Failure> {
        let now = self.term_clock.now();
        self.hear(now)?;
        // No caller waits for a stop.
        self.linger = Duration::ZERO;
        self.next_batch = Duration::ZERO;
        while self.is_writer_free() && self.decisions.has_group() {
            self.hand_over(now)?;
        }
        let done = self.is_writer_free() && !self.decisions.has_group();
        Ok(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// How long nothing will happen without new asks and without acks of the writer.
    pub(crate) fn idle_for(&mut self) -> Duration {
        let now = self.term_clock.now();
        let longest = if self.unmarked.is_some() { REST } else { WAIT_MAX };
        let due = self.decisions.next_due().map_or(longest, |due| Duration::from_millis(due.since(now)));
        due.min(longest)
    }

    /// How long the next batch still grows before it is written. A group that is full is not kept.
    fn lingers(&self) -> Duration {
        if self.linger.is_zero() || self.decisions.is_full() {
            return Duration::ZERO;
        }
        self.next_batch.saturating_sub(self.clock.boot())
    }

    /// Waits for a question, or until something is due.
    fn wait(&mut self) -> Result<Option<Input>, Failure> {
        while self.decisions.is_full() && !self.is_writer_free() {
            // The group must not grow any more: new questions stay in line.
            let offered = self.offer();
            let ack = self.next_ack()?;
            self.take_back(offered);
            let now = self.term_clock.now();
            self.acknowledged(ack, now);
        }
        let lingers = self.lingers();
        if self.decisions.has_group() && self.is_writer_free() && !lingers.is_zero() {
            return Ok(self.inputs.wait(lingers));
        }
        if self.decisions.has_group() && self.is_writer_free() {
            return Ok(Some(Input::Wake));
        }
        let mut offered = None;
        if self.decisions.has_group() {
            offered = self.offer();
            if offered.is_none() {
                self.running.wants_ack.store(true, Ordering::SeqCst);
            }
            // The writer may have finished before it could see the offer, or the wish.
            if let Some(ack) = self.ack_if_any()? {
                self.take_back(offered);
                let now = self.term_clock.now();
                self.acknowledged(ack, now);
                return Ok(Some(Input::Wake));
            }
        }
        let longest = if self.snapshot.under_way.as_ref().is_some_and(Snapshotting::is_handing_out) {
            Duration::from_micros(100)
        } else {
            self.idle_for()
        };
        let input = self.inputs.wait(longest);
        self.take_back(offered);
        Ok(input)
    }

    /// Whether the next group with events is one that a snapshot ends with.
    pub(crate) fn is_snapshot_due(&self) -> bool {
        self.snapshot.is_due() && self.snapshots.is_some()
    }

    /// Takes asks. Every promised time counts from a moment after the ask was taken: this thread, or the whole
    /// machine, may have stood still since the round began.
    fn take(&mut self, mut first: Option<Input>, now: &mut Timestamp) -> ControlFlow<()> {
        for _ in 0..INPUTS_PER_STEP {
            // What is taken out of the line is answered: nothing is received that is not looked at.
            if first.is_none() && self.decisions.is_full() {
                break;
            }
            match first.take().or_else(|| self.inputs.take()) {
                Some(Input::Ask(..))
                    if is_planted("question-forgotten") && self.decisions.state().position().0 % 50 == 7 => {}
                Some(Input::Ask(ask, own, mut to)) => {
                    to.taken();
                    if ask.promises_time() {
                        *now = self.term_clock.now();
                    }
                    self.decisions.ask(ask, own.as_deref(), to, *now);
                }
                Some(Input::GiveBack(abandoned)) => self.decisions.give_back(&abandoned, *now),
                Some(Input::Raise(format)) => self.decisions.raise_format(format, *now),
                Some(Input::Wake) => {}
                Some(Input::Stop) => return ControlFlow::Break(()),
                None => break,
            }
        }
        ControlFlow::Continue(())
    }

    /// Hears from the writer what has become durable.
    fn hear(&mut self, now: Timestamp) -> Result<(), Failure> {
        while let Some(ack) = self.ack_if_any()? {
            self.acknowledged(ack, now);
        }
        Ok(())
    }

    /// What the writer has done, if it has done something.
    fn ack_if_any(&mut self) -> Result<Option<Ack>, Failure> {
        match self.acks.try_recv() {
            Ok(ack) => {
                self.at_writer -= 1;
                Ok(Some(ack))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(writer_is_gone()),
        }
    }

    /// Waits until the writer has done something.
    fn next_ack(&mut self) -> Result<Ack, Failure> {
        let ack = self.acks.recv().map_err(|_| writer_is_gone())?;
        self.at_writer -= 1;
        Ok(ack)
    }

    fn acknowledged(&mut self, ack: Ack, now: Timestamp) {
        self.decisions.set_space(ack.space);
        self.decisions.is_durable(ack.end.position);
        self.decisions.abandon(&ack.abandoned, ack.end.position, now);
        let begun = self.snapshot.begun.take_if(|(at, _)| *at == ack.end.position);
        if let Some((_, header)) = begun
            && let Some(snapshots) = self.snapshots.take()
        {
            let (under_way, job) = Snapshotting::begin(snapshots, ack.end, header, self.wake.clone());
            self.snapshot.under_way = Some(under_way);
            (self.start_snapshot)(job);
        }
    }

    /// Gives the group to the writer, if both are ready.
    fn hand_over(&mut self, now: Timestamp) -> Result<(), Failure> {
        if !self.is_writer_free() || !self.decisions.has_group() || !self.lingers().is_zero() {
            return Ok(());
        }
        if !self.linger.is_zero() {
            self.next_batch = self.clock.boot() + self.linger;
        }
        let group = self.decisions.take_group();
        self.snapshot.wrote(group.records.len() as u64);
        let (count, term) = (group.count, self.decisions.state().term());
        if count > 0 {
            self.unmarked = Some(self.clock.boot());
        }
        if count > 0 && self.is_snapshot_due() {
            let (position, start) = (self.decisions.state().position(), self.clock.busy());
            let header = self.decisions.state_mut().begin_capture();
            self.snapshot.begin(position, header);
            self.paused_since(start);
        }
        let inline = self.inline.takes(&group);
        let work = Work::Write { group, term };
        if inline {
            let ack = writer::lock(&self.writer).work(work)?;
            self.acknowledged(ack, now);
            Ok(())
        } else {
            self.send(work)
        }
    }

    /// After a pause, with or without questions that change nothing, the journal notes down how far it is
    /// durable.
    fn rest_if_idle(&mut self) -> Result<(), Failure> {
        let now = self.clock.boot();
        let long_ago = self.unmarked.is_some_and(|wrote| now.saturating_sub(wrote) >= REST);
        if !long_ago || !self.is_writer_free() {
            return Ok(());
        }
        self.unmarked = None;
        self.send(Work::Rest)
    }

    fn send(&mut self, work: Work) -> Result<(), Failure> {
        self.at_writer += 1;
        self.works.send(work).map_err(|_| writer_is_gone())
    }

    fn continue_snapshot(&mut self) -> Result<(), Failure> {
        let Some(under_way) = &mut self.snapshot.under_way else { return Ok(()) };
        let start = self.clock.busy();
        under_way.step(self.decisions.state_mut());
        self.paused_since(start);
        let Some(under_way) = &mut self.snapshot.under_way else { return Ok(()) };
        let Some((snapshots, result)) = under_way.result() else {
            if is_planted("segments-dropped-early") && self.is_writer_free() {
                return self.send(Work::Truncate);
            }
            return Ok(());
        };
        let (link, bytes) = (under_way.link, under_way.bytes);
        self.snapshots = snapshots;
        self.snapshot.under_way = None;
        self.decisions.state_mut().end_capture();
        match result {
            Ok(()) => {
                tracing::info!(position = %link.position, bytes, "took a snapshot");
                self.snapshot.finished(bytes);
                self.decisions.stats().snapshots.add(1);
                self.decisions.stats().snapshot_position.set(link.position.0);
                self.send(Work::Truncate)
            }
            Err(error) => {
                tracing::warn!(%error, "a snapshot failed; the journal is kept and another is tried later");
                self.snapshot.failed();
                self.decisions.stats().snapshot_failures.add(1);
                Ok(())
            }
        }
    }

    /// The snapshot kept the loop from deciding until now.
    fn paused_since(&self, start: Duration) {
        self.decisions.stats().snapshot_pause_max_us.raise(micros(self.clock.busy(), start));
    }
}

/// The writer's thread has ended, and tells why itself.
pub(crate) const WRITER_IS_GONE: &str = "the journal has stopped";

fn writer_is_gone() -> Failure {
    Failure::new(WRITER_IS_GONE.to_owned())
}

fn micros(end: Duration, start: Duration) -> u64 {
    u64::try_from(end.saturating_sub(start).as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group with so many answers and events.
    fn group(callers: usize, events: u32) -> CommitGroup<()> {
        let mut group = CommitGroup::default();
        group.count = events;
        group.replies.extend((0..callers).map(|_| ((), Err(Error::Stopping))));
        group
    }

    #[test]
    fn small_groups_are_written_inline_up_to_a_limit() {
        let max = u32::try_from(INLINE_MAX).expect("it is small");
        let takes = |callers, events| Inline::Small.takes(&group(callers, events));
        assert!(takes(INLINE_MAX, max) && takes(1, 10 * max), "one caller may have many events");
        assert!(!takes(INLINE_MAX + 1, max) && !takes(INLINE_MAX, max + 1));
        assert!(Inline::OneCaller.takes(&group(1, max)) && !Inline::OneCaller.takes(&group(2, 1)));
        assert!(!Inline::Never.takes(&group(0, 1)));
    }
}
