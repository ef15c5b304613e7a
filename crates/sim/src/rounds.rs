//! The server of a world goes on: it starts, decides, writes, and what it has answered is taken.

use std::task::{Context, Poll, Waker};

use orchestrix_core::{Position, Timestamp};
use orchestrix_engine::Read;
use orchestrix_engine::disk::sim::Faults;
use orchestrix_node::Error;

use crate::check::Violation;
use crate::coverage::Covered;
use crate::history::{Answer, Call};
use crate::server::Process;
use crate::world::{Happening, MS, SECOND, World};

impl World {
    pub(crate) fn start(&mut self) -> Result<(), Violation> {
        if self.server.is_some() {
            return Ok(());
        }
        self.starts += 1;
        match Process::start(&self.disk, &self.plan, &self.clock, self.starts) {
            Ok((process, recovered)) => {
                self.see(recovered.journal.cut.is_some(), Covered::TornTailCut);
                self.see(recovered.snapshot.is_some(), Covered::SnapshotUsed);
                self.see(!recovered.damaged_snapshots.is_empty(), Covered::SnapshotPassedOver);
                self.mirror.compare(&process, &recovered)?;
                self.mirror.follow(&process)?;
                self.history.shards.durable(self.mirror.log.len(), self.now);
                let dropped = matches!(process.stepped.read(Position(0)), Ok(Read::Truncated(_)));
                self.see(dropped, Covered::SegmentsDropped);
                self.compared = false;
                self.server = Some(process);
                self.decide_after(1);
            }
            Err(failure) if self.faulty => {
                // A disk that is full or fails may keep it from starting, damage may not.
                let text = failure.to_string();
                if text.contains("damaged") || text.contains("cannot be replayed") {
                    return Err(Violation::new("W1", format!("a start is refused: {text}")));
                }
                self.disk.set_faults(Faults::default());
                self.push(self.now + SECOND, Happening::Start);
            }
            Err(failure) => return Err(Violation::new("W1", format!("a start is refused: {failure}"))),
        }
        Ok(())
    }

    pub(crate) fn decide(&mut self) -> Result<(), Violation> {
        if self.now < self.frozen_until {
            self.decide_after(self.frozen_until - self.now);
            return Ok(());
        }
        let Some(server) = &mut self.server else { return Ok(()) };
        let decided = server.stepped.decide();
        self.now += self.clock.take_paused_us();
        self.clock.set(self.now);
        if decided.is_err() {
            return self.die();
        }
        self.look()?;
        let Some(server) = &mut self.server else { return Ok(()) };
        let (writing, idle) = (server.stepped.is_writing(), server.stepped.idle_for());
        let idle_us = u64::try_from(idle.as_micros()).unwrap_or(SECOND).max(50);
        if writing {
            let slow = self.rng.chance(self.plan.slow_disk) && self.faulty;
            let takes = if slow { self.rng.range(5 * MS, SECOND) } else { self.rng.range(50, 2_000) };
            self.push(self.now + takes, Happening::Written);
        }
        // Snapshots are written beside the loop, now and then.
        let takes = self.rng.range(100, 20_000);
        if self.rng.chance(200_000) {
            self.push(self.now + takes, Happening::SnapshotWritten);
        }
        self.decide_after(idle_us);
        Ok(())
    }

    pub(crate) fn write(&mut self) -> Result<(), Violation> {
        if self.now < self.frozen_until {
            self.push(self.frozen_until, Happening::Written);
            return Ok(());
        }
        let Some(server) = &mut self.server else { return Ok(()) };
        let written = server.stepped.write();
        self.now += self.clock.take_paused_us();
        self.clock.set(self.now);
        if written.is_err() {
            return self.die();
        }
        self.look()?;
        let takes = self.rng.range(1, 50);
        self.decide_after(takes);
        Ok(())
    }

    /// Reads what has become durable, and takes the answers that were given.
    pub(crate) fn look(&mut self) -> Result<(), Violation> {
        let Some(server) = &mut self.server else { return Ok(()) };
        let known = self.mirror.log.len();
        self.mirror.follow(server)?;
        self.history.shards.durable(self.mirror.log.len(), self.now);
        if let Some(listing) = &mut self.listing {
            let new = self.mirror.log[known..].iter();
            listing.extend(
                new.map(|entry| format!("{:>12}   durable {}: {:?}", self.now, entry.position, entry.event)),
            );
        }
        if !self.compared || self.rng.chance(2_000) {
            self.mirror.compare_state(server)?;
            self.compared |= server.stepped.state().position() == self.mirror.durable();
        }
        let (polls, most) = (server.node.stats().polls.get(), self.plan.polls_max as u64);
        if polls > most {
            return Err(Violation::new("R1", format!("{polls} calls wait, and {most} may")));
        }
        let at = server.stepped.now();
        let mut context = Context::from_waker(Waker::noop());
        let mut answered = Vec::new();
        for (id, pending) in &mut self.pending {
            if let Poll::Ready(answer) = pending.future.as_mut().poll(&mut context) {
                answered.push((*id, pending.op, answer));
            }
        }
        for (id, op, answer) in answered {
            self.pending.remove(&id);
            if matches!(answer, Err(Error::OutcomeUnknown)) {
                let what = format!("op {op} has an unknown outcome, and the server is well");
                return Err(Violation::new("R7", what));
            }
            self.answered(op, answer, at);
        }
        Ok(())
    }

    pub(crate) fn answered(&mut self, op: usize, answer: Result<Answer, Error>, at: Timestamp) {
        self.note(&answer);
        let call = Call {
            op,
            question: self.ops[op].question.clone(),
            durable_before: self.ops[op].durable_before,
            durable_after: self.mirror.acknowledged(),
            at,
            asked_us: self.ops[op].sent,
            answered_us: self.now,
            answer,
        };
        self.trace.add(format_args!("{call:?}"));
        if let Some(listing) = &mut self.listing {
            let (question, answer) = (&call.question, &call.answer);
            listing.push(format!("{:>12}   answer to op {op}: {question:?} -> {answer:?}", self.now));
        }
        let about_shards = call.question.is_about_shards();
        self.history.calls.push(call);
        let number = self.history.calls.len() - 1;
        if about_shards {
            let copies = self.copies();
            copies.into_iter().for_each(|delay| self.push(self.now + delay, Happening::Answered(op, number)));
        } else if let Some(delay) = self.delay() {
            self.push(self.now + delay, Happening::Answered(op, number));
        }
    }

    /// The answers to these are dropped.
    pub(crate) fn unanswered(&mut self, ops: impl IntoIterator<Item = usize>) {
        let asked = ops.into_iter().map(|op| (self.ops[op].question.clone(), self.ops[op].sent));
        self.history.unanswered.extend(asked);
    }

    fn note(&mut self, answer: &Result<Answer, Error>) {
        match answer {
            Err(Error::StorageFull) => self.coverage.add(Covered::FullDiskRefused),
            Err(Error::Overloaded) => self.coverage.add(Covered::Overloaded),
            Err(Error::Refused(_) | Error::Stopping | Error::Unavailable | Error::OutcomeUnknown) | Ok(_) => {
            }
        }
    }
}
