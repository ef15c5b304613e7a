//! A node without threads: its owner says when a step is decided and when the disk has done its work.
//!
//! For simulations: everything that decides, writes and answers is what a node with threads runs, in an order
//! that one seed can repeat.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::{Position, State, Timestamp};
use orchestrix_engine::disk::Disk;
use orchestrix_engine::{Appended, Batch, Clock, Read, file};

use crate::follower::Follower;
use crate::logs::{Calls, OutputCall};
use crate::node::Node;
use crate::open::{Failure, Parts, Recovered, Stored, Surroundings, assemble, open_journal};
use crate::options::Options;
use crate::runner::{Inline, Input, Runner};
use crate::snapshotter::SnapshotJob;
use crate::sync::Mutex;
use crate::sync::mpsc::{Receiver, Sender, channel};
use crate::write_guard::WriteGuard;
use crate::writer::{self, Ack, Begun, RETRY, Tried, Work, Writer, Writing};

/// A node that does one step at a time, on request. Its callers use the [`Node`] beside it.
pub struct Stepped {
    runner: Runner,
    writer: Arc<Mutex<Writer>>,
    handed: Receiver<Work>,
    acks: Sender<Ack>,
    /// Pending calls to the engine about output, if a simulation makes them.
    output_calls: Option<Receiver<OutputCall>>,
    jobs: Receiver<SnapshotJob>,
    job: Option<SnapshotJob>,
    given: Option<Work>,
    /// A group that was sent to the journal, or is to be sent again.
    writing: Option<Writing>,
}

/// What became of a batch that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Written,
    /// It is to be sent again after so long.
    Again(Duration),
}

impl std::fmt::Debug for Stepped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stepped").finish_non_exhaustive()
    }
}

impl Stepped {
    /// Recovers what is on a disk and makes a node of it. Output of tasks is kept in memory.
    ///
    /// # Errors
    /// As for [`open`](crate::open).
    pub fn open(
        disk: Arc<dyn Disk>,
        files: file::Options,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<(Node, Self, Recovered), Failure> {
        let stored = open_journal(disk, files)?;
        let recovered = stored.recovered.clone();
        let surroundings = Surroundings::new(clock, recovered.position, &options);
        let (node, stepped) =
            Self::start(stored, options, WriteGuard::default(), surroundings, Calls::Threads);
        Ok((node, stepped, recovered))
    }

    /// Begins a term on what a follower has read. It writes nothing by itself: every batch goes through
    /// [`Stepped::send`] and [`Stepped::heard`], and anything may happen between the two.
    #[must_use]
    pub fn lead(follower: Follower, guard: WriteGuard) -> (Node, Self) {
        let (stored, options, surroundings) = follower.into_parts();
        let (calls, handed) = channel();
        let (node, mut stepped) = Self::start(stored, options, guard, surroundings, Calls::Handed(calls));
        stepped.output_calls = Some(handed);
        stepped.never_writes_itself();
        (node, stepped)
    }

    /// From now on every group goes through the writer, also where only one caller waits: while one is written, the next
    /// one grows.
    pub fn never_writes_itself(&mut self) {
        self.runner.inline = Inline::Never;
    }

    fn start(
        stored: Stored,
        options: Options,
        guard: WriteGuard,
        surroundings: Surroundings,
        calls: Calls,
    ) -> (Node, Self) {
        let parts = assemble(stored, options, guard, surroundings, calls);
        let Parts { node, mut runner, writer, handed, acks } = parts;
        let (started, jobs) = channel();
        runner.start_snapshot = Box::new(move |job| {
            // The channel is closed only when the node is gone.
            let _ = started.send(job);
        });
        (
            node,
            Self {
                runner,
                writer,
                handed,
                acks,
                jobs,
                output_calls: None,
                job: None,
                given: None,
                writing: None,
            },
        )
    }

    /// The state that a start would begin with, and how it was found, without starting a node.
    ///
    /// # Errors
    /// As for [`open`](crate::open).
    pub fn recover(disk: Arc<dyn Disk>, files: file::Options) -> Result<(State, Recovered), Failure> {
        let Stored { state, recovered, .. } = open_journal(disk, files)?;
        Ok((state, recovered))
    }

    /// Decides one step: all asks and everything that is due. Breaks when the node must stop.
    ///
    /// # Errors
    /// Why the node cannot go on.
    pub fn decide(&mut self) -> Result<ControlFlow<()>, Failure> {
        self.runner.step(None)
    }

    /// Whether the loop has handed something to the writer that is not done.
    pub fn is_writing(&mut self) -> bool {
        self.given = self.given.take().or_else(|| self.handed.try_recv().ok());
        self.given.is_some() || self.writing.is_some()
    }

    /// Does what the loop has handed to the writer, and answers.
    ///
    /// # Errors
    /// Why the node cannot go on.
    pub fn write(&mut self) -> Result<(), Failure> {
        while let Some(batch) = self.send()? {
            let answer = writer::lock(&self.writer).journal.append(&batch);
            match self.heard(answer)? {
                Sent::Written => break,
                Sent::Again(pause) => self.runner.clock.pause(pause),
            }
        }
        Ok(())
    }

    /// Does what the loop has handed to the writer, up to the point where a batch has to be appended: the caller
    /// sends it to the journal, and tells [`Stepped::heard`] what came of it. Until then it is the same batch.
    ///
    /// # Errors
    /// Why the node cannot go on.
    pub fn send(&mut self) -> Result<Option<Batch>, Failure> {
        let mut writer = writer::lock(&self.writer);
        let given = self.given.take().or_else(|| self.handed.try_recv().ok());
        if self.writing.is_none()
            && let Some(work) = given
        {
            match writer.begin(work)? {
                Begun::Writing(writing) => self.writing = Some(writing),
                Begun::Done(ack) => {
                    // The loop is as alive as this is.
                    let _ = self.acks.send(ack);
                }
            }
        } else {
            self.given = given;
        }
        self.writing.as_ref().map(|writing| writer.to_append(writing).cloned()).transpose()
    }

    /// What came of the batch that was sent.
    ///
    /// # Errors
    /// Why the node cannot go on.
    pub fn heard(&mut self, answer: Result<Appended, orchestrix_engine::Error>) -> Result<Sent, Failure> {
        let Some(mut writing) = self.writing.take() else { return Ok(Sent::Written) };
        let mut writer = writer::lock(&self.writer);
        match writer.heard(&mut writing, answer)? {
            Tried::Written => {
                let ack = writer.finish(writing)?;
                // The loop is as alive as this is.
                let _ = self.acks.send(ack);
                Ok(Sent::Written)
            }
            Tried::Part => {
                self.writing = Some(writing);
                Ok(Sent::Again(Duration::ZERO))
            }
            Tried::Again => {
                self.writing = Some(writing);
                Ok(Sent::Again(RETRY))
            }
        }
    }

    /// The next call about output that waits to be run; the engine hears of it when it is.
    pub fn output_call(&mut self) -> Option<OutputCall> {
        self.output_calls.as_ref()?.try_recv().ok()
    }

    /// Writes the pieces of a snapshot that were handed out.
    pub fn write_snapshot(&mut self) {
        let job = self.job.take().or_else(|| self.jobs.try_recv().ok());
        self.job = job.and_then(SnapshotJob::step);
    }

    /// How long nothing will happen without new asks and without answers of the disk.
    pub fn idle_for(&mut self) -> Duration {
        self.runner.idle_for()
    }

    /// Stops cleanly: every call is answered, everything is written.
    ///
    /// # Errors
    /// Why it could not.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.runner.step(Some(Input::Stop)).map(|_| ())?;
        while self.runner.finish()?.is_continue() {
            self.write()?;
        }
        self.job = None;
        self.jobs.try_iter().for_each(drop);
        self.runner.let_go();
        Ok(writer::lock(&self.writer).journal.rest()?)
    }

    /// The time that decisions are made at.
    pub fn now(&mut self) -> Timestamp {
        self.runner.term_clock.now()
    }

    /// Durable batches after a position.
    ///
    /// # Errors
    /// What the journal says.
    pub fn read(&self, after: Position) -> Result<Read, Failure> {
        Ok(writer::lock(&self.writer).journal.read(after, usize::MAX)?)
    }

    /// What the decisions so far amount to, durable or not.
    #[must_use]
    pub fn state(&self) -> &State {
        self.runner.decisions.state()
    }
}

impl Drop for Stepped {
    /// A simulated kill has no process whose threads end with it.
    fn drop(&mut self) {
        writer::lock(&self.writer).logs.close();
    }
}
