//! A leader: it decides, its batches go to the engine, and its answers are collected.

use std::task::{Context, Poll, Waker};

use orchestrix_core::{Event, Position, TermEvent, Timestamp};
use orchestrix_engine::{Appended, Batch, ChainHash, JournalId};
use orchestrix_node::{Error, Sent};

use crate::check::Violation;
use crate::cluster::coverage::ClusterCovered;
use crate::cluster::engine::Who;
use crate::cluster::handles::lock;
use crate::cluster::happening::{Doing, Happening};
use crate::cluster::record::Fact;
use crate::cluster::requests::What;
use crate::cluster::world::ClusterWorld;
use crate::world::{MS, SECOND};

/// Bytes of journal that are written in some moments.
const SNAPSHOT_SLACK: u64 = 4 << 10;
/// One look in so many compares whole states.
const COMPARED: u32 = 20_000;

impl ClusterWorld {
    pub(crate) fn decide_after(&mut self, who: Who, us: u64) {
        let at = self.now + us;
        let Some(leads) = &mut self.process(who).leads else { return };
        if leads.decide_at.is_none_or(|planned| at < planned) {
            leads.decide_at = Some(at);
            self.push(at, Happening::At(who, Doing::Decide));
        }
    }

    pub(crate) fn decide(&mut self, who: Who) -> Result<(), Violation> {
        let now = self.now;
        let Some(leads) = &mut self.process(who).leads else { return Ok(()) };
        // One that was put off is not this one.
        if leads.decide_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        leads.decide_at = None;
        if let Err(failure) = leads.stepped.decide() {
            return self.ended(who, &failure);
        }
        let (writing, idle) = (leads.stepped.is_writing(), leads.stepped.idle_for());
        let free = leads.sent.is_none() && leads.send_at.is_none();
        let idle_us = u64::try_from(idle.as_micros()).unwrap_or(SECOND).max(50);
        self.take_answers(who)?;
        if writing && free {
            self.send_after(who, 1);
        }
        // Snapshots are written beside the loop, now and then.
        if self.rng.chance(300_000) {
            let takes = self.rng.range(100, 20 * MS);
            self.after(takes, who, Doing::WriteSnapshot);
        }
        self.decide_after(who, idle_us);
        Ok(())
    }

    fn send_after(&mut self, who: Who, us: u64) {
        let at = self.now + us;
        if let Some(leads) = &mut self.process(who).leads {
            leads.send_at = Some(at);
            self.push(at, Happening::At(who, Doing::Send));
        }
    }

    pub(crate) fn write_snapshot(&mut self, who: Who) {
        if let Some(leads) = &mut self.process(who).leads {
            leads.stepped.write_snapshot();
            self.decide_after(who, 1);
        }
    }

    /// The writer does its next piece of work; a batch goes on its way to the engine.
    pub(crate) fn send_batch(&mut self, who: Who) -> Result<(), Violation> {
        let now = self.now;
        let Some(leads) = &mut self.process(who).leads else { return Ok(()) };
        if leads.sent.is_some() || leads.send_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        leads.send_at = None;
        let epoch = leads.epoch;
        match leads.stepped.send() {
            Err(failure) => return self.ended(who, &failure),
            Ok(None) => {
                let more = leads.stepped.is_writing();
                self.take_answers(who)?;
                self.decide_after(who, 1);
                if more {
                    self.send_after(who, 1);
                }
            }
            Ok(Some(batch)) => {
                self.note(Fact::Sent { who, epoch, batch: name(&batch) });
                let request = self.request(who, What::Append { batch: batch.clone(), epoch });
                if let Some(leads) = &mut self.process(who).leads {
                    (leads.sent, leads.batch) = (Some(request), Some(batch));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn heard_append(
        &mut self,
        who: Who,
        request: u64,
        answer: Result<Appended, orchestrix_engine::Error>,
    ) -> Result<(), Violation> {
        // The answer to a batch of a term that this node has left.
        let sent = self.process(who).leads.as_ref().is_some_and(|leads| leads.sent == Some(request));
        if !sent {
            return Ok(());
        }
        let unknown = matches!(answer, Ok(Appended::Unknown));
        let certain = matches!(answer, Ok(Appended::Done(_) | Appended::Conflict(_)));
        if unknown {
            self.note(Fact::Unknown { who });
        } else if certain {
            self.note(Fact::Settled { who });
        }
        let Some(leads) = &mut self.process(who).leads else { return Ok(()) };
        leads.sent = None;
        let resolved = leads.unknown;
        leads.unknown = (resolved || unknown) && !certain;
        let believed = leads.batch.take_if(|_| !unknown);
        let heard = leads.stepped.heard(answer);
        let more = leads.stepped.is_writing();
        if resolved && certain {
            self.coverage.add(ClusterCovered::UnknownAppendResolved);
        }
        match heard {
            Err(failure) => return self.ended(who, &failure),
            Ok(Sent::Written) => {
                let (link, id) = {
                    let model = lock(&self.model);
                    let link = believed.as_ref().map(|batch| batch.link(model.id()));
                    (link.filter(|link| model.link_at(link.position) != Some(*link)), model.id())
                };
                if let Some(link) = link.filter(|_| !self.plan.forgets) {
                    let what =
                        format!("{who:?} believes that {link:?} is durable in {id}, and it is not there");
                    return Err(Violation::new("W1", what));
                }
                if let Some(batch) = believed {
                    self.spread(who, batch);
                }
                self.take_answers(who)?;
                let takes = self.rng.range(1, 50);
                self.decide_after(who, takes);
                if more {
                    self.send_after(who, 1);
                }
            }
            Ok(Sent::Again(pause)) => {
                self.send_after(who, u64::try_from(pause.as_micros()).unwrap_or(SECOND));
            }
        }
        Ok(())
    }

    /// Takes the answers that the node of a life has given.
    pub(crate) fn take_answers(&mut self, who: Who) -> Result<(), Violation> {
        let Some(leads) = &mut self.process(who).leads else { return Ok(()) };
        let (epoch, at) = (leads.epoch, leads.stepped.now());
        self.poll_answers(who, epoch, at)?;
        self.poll_output(who, epoch)
    }

    /// The same, when the node has stopped just now.
    pub(crate) fn take_answers_of(&mut self, who: Who, epoch: u64) -> Result<(), Violation> {
        // A refusal because of time was decided at the time of the last event or later.
        let at = self.mirror.state.at();
        self.poll_answers(who, epoch, at)
    }

    fn poll_answers(&mut self, who: Who, epoch: u64, at: Timestamp) -> Result<(), Violation> {
        let mut context = Context::from_waker(Waker::noop());
        let mut answered = Vec::new();
        for (id, pending) in self.pending.iter_mut().filter(|(_, pending)| pending.who == who) {
            if let Poll::Ready(answer) = pending.future.as_mut().poll(&mut context) {
                answered.push((*id, pending.op, answer));
            }
        }
        for (id, op, answer) in answered {
            self.pending.remove(&id);
            match &answer {
                Err(Error::OutcomeUnknown) => {
                    self.unanswered([op]);
                    continue;
                }
                Ok(_) | Err(Error::Refused(_)) => self.note(Fact::Answered { who, epoch }),
                Err(Error::Overloaded | Error::StorageFull | Error::Stopping | Error::Unavailable) => {}
            }
            self.answered(op, answer, at);
        }
        Ok(())
    }

    /// Appends that a handle made by itself, while its node was stopped.
    pub(crate) fn note_direct(&mut self, who: Who, epoch: u64) -> Result<(), Violation> {
        let (direct, id) = {
            let mut model = lock(&self.model);
            (std::mem::take(&mut model.direct), model.id())
        };
        for (by, batch) in direct {
            let link = batch.link(id);
            // A batch that had landed before it was sent again.
            let again = self
                .record
                .facts
                .iter()
                .rev()
                .take(50)
                .any(|(_, fact)| matches!(fact, Fact::Landed { link: landed, .. } if *landed == link));
            if by == who {
                self.note(Fact::Sent { who, epoch, batch: name(&batch) });
                if !again {
                    self.landed(who, epoch, &batch, link)?;
                }
                self.note(Fact::Settled { who });
            }
        }
        Ok(())
    }

    /// Folds what is new in the journal. Answers the epoch of a term that begins in it.
    pub(crate) fn mirror_batches(&mut self) -> Result<Option<u64>, Violation> {
        let new: Vec<_> = lock(&self.model).batches[self.mirrored..].to_vec();
        let known = self.mirror.log.len();
        for batch in &new {
            self.mirror.add(batch)?;
        }
        self.mirrored += new.len();
        self.history.shards.durable(self.mirror.log.len(), self.now);
        let events = self.mirror.log[known..].iter().map(|entry| &entry.event);
        let begins = events.clone().find_map(|event| {
            let Event::Term(TermEvent::TermStarted(begun)) = event else { return None };
            Some(begun.epoch)
        });
        if let Some(listing) = &mut self.listing {
            let now = self.now;
            listing.extend(
                self.mirror.log[known..]
                    .iter()
                    .map(|entry| format!("{now:>12}   durable {}: {:?}", entry.position, entry.event)),
            );
        }
        Ok(begins)
    }

    /// W6: what a follower has read is the fold of the journal; W3: and of this journal.
    pub(crate) fn compare(&mut self, who: Who) -> Result<(), Violation> {
        // Another history under the same positions shows only in the state.
        let whole = self.plan.forgets || self.rng.chance(COMPARED);
        self.knows_what_it_read(who)?;
        self.compare_follower(who, whole)
    }

    fn compare_follower(&mut self, who: Who, whole: bool) -> Result<(), Violation> {
        let durable = self.mirror.durable();
        let expected = whole.then(|| self.mirror.state.fingerprint());
        let Some(follower) = self.process(who).standby.follower() else { return Ok(()) };
        let link = follower.link();
        let state = (expected.is_some() && link.position == durable).then(|| follower.state().fingerprint());
        let there = lock(&self.model).link_at(link.position);
        if there.is_some_and(|there| there != link) {
            // The same position of another history is noticed with the next batch.
            if self.plan.forgets && self.settled.is_none() {
                return Ok(());
            }
            let what = format!("{who:?} follows {link:?}, and the journal has {there:?}");
            return Err(Violation::new("W3", what));
        }
        if state.is_some() && state != expected {
            let what = format!("the state of {who:?} at {durable} is not the fold of the journal");
            return Err(Violation::new("W6", what));
        }
        Ok(())
    }

    /// WL1: the journal after the newest snapshot is no longer than when the next one is due, and as long again for
    /// what is written until that is whole.
    pub(crate) fn snapshot_is_taken(&self) -> Result<(), Violation> {
        let (size, since) = lock(&self.model).since_snapshot();
        let due = self.plan.actors.snapshot_bytes.max(2 * size);
        if self.plan.forgets || since <= 2 * due + SNAPSHOT_SLACK {
            return Ok(());
        }
        let what = format!(
            "{since} bytes of journal follow a snapshot of {size}, and the next one is due after {due}"
        );
        Err(Violation::new("WL1", what))
    }

    /// The end of a world: every node has what the journal has.
    pub(crate) fn compare_all(&mut self) -> Result<(), Violation> {
        for node in 0..self.machines.len() {
            if let Some(who) = self.who(node) {
                self.look(who)?;
                if !self.lives(who) {
                    continue;
                }
                self.compare_follower(who, true)?;
                let durable = self.mirror.durable();
                let behind = |read: &Position| *read != durable;
                let read = self.process(who).standby.follower().map(|follower| follower.link().position);
                if let Some(read) = read.filter(behind) {
                    let what = format!("{who:?} has read to {read}, and the journal ends at {durable}");
                    return Err(Violation::new("W6", what));
                }
            }
        }
        Ok(())
    }
}

/// Names a batch by its bytes, in any journal.
fn name(batch: &Batch) -> ChainHash {
    batch.link(JournalId([0; 16])).hash
}
