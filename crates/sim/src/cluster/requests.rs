//! Requests from nodes to the engine, with their delays and losses.

use orchestrix_engine::{Appended, Batch, Cell, Claim, Link, Set, Version};
use orchestrix_node::Clock;

use crate::check::Violation;
use crate::cluster::coverage::ClusterCovered;
use crate::cluster::engine::{Flavour, Try, Who};
use crate::cluster::handles::{lock, refused, unreachable};
use crate::cluster::happening::{Doing, Happening};
use crate::cluster::node::LEADER_KEY;
use crate::cluster::record::{Fact, LeaderCell};
use crate::cluster::world::ClusterWorld;
use crate::world::MS;

/// What a node asks.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Append { batch: Batch, epoch: u64 },
    Read,
    Set { seen: Option<Version>, claim: Claim },
}

/// The reply of the engine.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Appended(Appended),
    Cell(Option<Cell>),
    Set(Set),
    /// No, and nothing was done.
    Refused,
}

/// A request, until its answer was heard and it cannot arrive any more.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) who: Who,
    what: What,
    /// It will arrive, or may.
    pub(crate) under_way: bool,
    reply: Option<Reply>,
    fate: Fate,
    heard: bool,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It certainly never left.
    Unsent,
    /// The answer comes.
    Answered,
    /// Its answer is lost.
    Unheard,
}

impl Request {
    pub(crate) fn is_append(&self) -> bool {
        matches!(self.what, What::Append { .. })
    }
}

impl ClusterWorld {
    /// Sends a request on its way. Answers under which number.
    pub(crate) fn request(&mut self, who: Who, what: What) -> u64 {
        self.next_request += 1;
        let id = self.next_request;
        let ttl = u64::try_from(self.machines[who.node].plan.ttl.as_micros()).unwrap_or(u64::MAX);
        let timeout = ttl / 3;
        if let What::Set { claim, .. } = &what {
            self.asks_for_leader_lease(who, claim);
        }
        let mute = self.now < self.machines[who.node].mute_until && !matches!(what, What::Append { .. });
        let (arrives, answered, fate) =
            if mute && self.faulty { (None, timeout, Fate::Unheard) } else { self.fate(who, ttl, timeout) };
        let under_way = arrives.is_some();
        let request = Request { who, what, under_way, reply: None, fate, heard: false };
        self.requests.insert(id, request);
        if let Some(after) = arrives {
            self.push(self.now + after, Happening::Arrive(id));
        }
        self.after(answered, who, Doing::Hear(id));
        if self.faulty && self.rng.chance(self.plan.freezes_within) {
            self.freeze(who);
        }
        if self.faulty && self.rng.chance(self.plan.crashes_within) {
            self.push(self.now, Happening::Crash(who));
        }
        id
    }

    /// When it arrives, when its sender hears something, and what that is.
    fn fate(&mut self, who: Who, ttl: u64, timeout: u64) -> (Option<u64>, u64, Fate) {
        let quick = |world: &mut Self| world.rng.range(100, 2 * MS);
        let (there, back) = (quick(self), quick(self));
        let reached = lock(&self.model).reaches(who.node);
        if !self.faulty {
            return (Some(there), there + back, Fate::Answered);
        }
        let slow_spell = self.now < self.machines[who.node].slow_until;
        let plan = &self.plan;
        let (unsent, lost, unheard, delayed, slow) =
            (plan.unsent, plan.request_lost, plan.reply_lost, plan.delayed, plan.slow);
        if !reached && self.rng.chance(500_000) || reached && self.rng.chance(unsent) {
            self.coverage.add(ClusterCovered::RequestUnsent);
            return (None, there, Fate::Unsent);
        }
        if !reached || self.rng.chance(lost) {
            self.coverage.add(ClusterCovered::RequestLost);
            return (None, timeout, Fate::Unheard);
        }
        if self.rng.chance(unheard) {
            self.coverage.add(ClusterCovered::ReplyLost);
            return (Some(there), timeout, Fate::Unheard);
        }
        if self.rng.chance(delayed) {
            self.coverage.add(ClusterCovered::RequestDelayed);
            let late = self.rng.range(timeout, 3 * ttl);
            return (Some(late), timeout, Fate::Unheard);
        }
        if slow_spell || self.rng.chance(slow) {
            let takes = self.rng.range(there + back, timeout.max(there + back + 1));
            // The longest way may be there, or back.
            let there = self.rng.range(there, takes);
            return (Some(there), takes, Fate::Answered);
        }
        (Some(there), there + back, Fate::Answered)
    }

    /// Notes down when an attempt was first made: all entitlement counts from there.
    fn asks_for_leader_lease(&mut self, who: Who, claim: &Claim) {
        let now = self.machines[who.node].clock.boot();
        let first = !self.first_asked.contains_key(&claim.value);
        if first {
            let leads = self.process(who).trust.token();
            self.first_asked.insert(claim.value.clone(), (now, leads));
            self.note(Fact::Asked);
        }
    }

    /// A request arrives at the engine.
    pub(crate) fn arrive(&mut self, id: u64) -> Result<(), Violation> {
        let Some(request) = self.requests.get_mut(&id) else { return Ok(()) };
        request.under_way = false;
        let (who, what) = (request.who, request.what.clone());
        let late = request.heard;
        if !lock(&self.model).reaches(who.node) && !late {
            // The connection broke before it got there.
            self.settle(id);
            return Ok(());
        }
        let refuses = lock(&self.model).refuses;
        let reply = match what {
            _ if refuses => Reply::Refused,
            What::Read => {
                let cell = lock(&self.model).cell(LEADER_KEY).map(|stored| stored.cell.clone());
                Reply::Cell(cell)
            }
            What::Set { seen, claim } => Reply::Set(self.set(who, seen.as_ref(), &claim)),
            What::Append { batch, epoch } => Reply::Appended(self.append(who, epoch, &batch, late)?),
        };
        if let Some(request) = self.requests.get_mut(&id) {
            request.reply = Some(reply);
        }
        self.settle(id);
        Ok(())
    }

    /// Forgets a request that nothing more can become of.
    fn settle(&mut self, id: u64) {
        let Some(request) = self.requests.get(&id) else { return };
        if !request.under_way && (request.heard || !self.lives(request.who)) {
            self.requests.remove(&id);
        }
    }

    fn set(&mut self, who: Who, seen: Option<&Version>, claim: &Claim) -> Set {
        let (set, landing) = lock(&self.model).set(who, LEADER_KEY, seen, claim, Try::PerhapsAgain);
        if let (Some(landing), Some((asked, leads))) = (landing, self.first_asked.get(&claim.value).copied())
        {
            let leader_cell =
                |by: Who, claim: &Claim| LeaderCell { by, epoch: claim.epoch, held: claim.held };
            let was = landing.was.as_ref().map(|(by, claim)| leader_cell(*by, claim));
            self.note(Fact::LeaderCellWritten { was, now: leader_cell(landing.by, &landing.claim), leads });
            if claim.held {
                let ttl = std::time::Duration::from_millis(claim.ttl_ms);
                let until = self.machines[who.node].clock.world_at(asked + ttl - ttl / 100);
                self.note(Fact::Entitled { who, epoch: claim.epoch, until });
            }
        }
        set
    }

    fn append(&mut self, who: Who, epoch: u64, batch: &Batch, late: bool) -> Result<Appended, Violation> {
        let before = lock(&self.model).end();
        let appended = lock(&self.model).append(batch);
        match appended {
            Appended::Done(link) if link != before => {
                if late {
                    self.coverage.add(ClusterCovered::DelayedAppendLandedLate);
                }
                self.landed(who, epoch, batch, link)?;
            }
            Appended::Done(_) | Appended::Unknown => {}
            Appended::Conflict(_) => self.coverage.add(ClusterCovered::StaleAppendRefused),
        }
        Ok(appended)
    }

    /// A batch is in the journal.
    pub(crate) fn landed(
        &mut self,
        who: Who,
        epoch: u64,
        batch: &Batch,
        link: Link,
    ) -> Result<(), Violation> {
        let known = self.mirror.log.len();
        let begins = self.mirror_batches()?;
        self.writes_what_it_reads(who, known)?;
        let (previous, term) = (batch.previous, batch.term);
        self.note(Fact::Landed { who, epoch, previous, link, term, begins });
        Ok(())
    }

    /// A node hears what came of a request.
    pub(crate) fn hear(&mut self, who: Who, id: u64) -> Result<(), Violation> {
        let Some(request) = self.requests.get_mut(&id) else { return Ok(()) };
        request.heard = true;
        let reply = request.reply.take().filter(|_| request.fate == Fate::Answered);
        let (what, unsent) = (request.what.clone(), request.fate == Fate::Unsent);
        self.settle(id);
        match what {
            What::Append { .. } => {
                let answer = match reply {
                    Some(Reply::Appended(appended)) => Ok(appended),
                    Some(Reply::Refused) => self.refused_append(who, id),
                    _ if unsent => Err(unreachable("append to the journal")),
                    _ => Ok(Appended::Unknown),
                };
                self.heard_append(who, id, answer)
            }
            What::Read => {
                let now = self.machines[who.node].clock.boot();
                let process = self.process(who);
                process.asking = None;
                match reply {
                    Some(Reply::Cell(cell)) => process.elector.on_read(now, cell),
                    _ => process.elector.on_read_failed(now),
                }
                self.publish(who);
                self.elect(who);
                Ok(())
            }
            What::Set { claim, .. } => {
                self.heard_set(who, reply, unsent, &claim);
                Ok(())
            }
        }
    }

    /// A batch that was refused was not written now; if it was sent before, its outcome is unknown.
    fn refused_append(&mut self, who: Who, id: u64) -> Result<Appended, orchestrix_engine::Error> {
        let remembers = self.plan.flavour == Flavour::Redis;
        let leads = self.process(who).leads.as_ref().filter(|leads| leads.sent == Some(id));
        if remembers && leads.is_some_and(|leads| leads.unknown) {
            Ok(Appended::Unknown)
        } else {
            Err(refused("append to the journal"))
        }
    }

    fn heard_set(&mut self, who: Who, reply: Option<Reply>, unsent: bool, claim: &Claim) {
        let now = self.machines[who.node].clock.boot();
        let remembers = match self.plan.flavour {
            // A handle knows that the same was tried before, and that this says nothing about then.
            Flavour::Redis => true,
            Flavour::Sql | Flavour::S3 => false,
        };
        let process = self.process(who);
        process.asking = None;
        let takes = process.elector.leads(now).is_none() && claim.held;
        let unsure = process.unsure && takes;
        let refused = matches!(reply, Some(Reply::Refused));
        let set = match reply {
            Some(Reply::Set(set)) => Some(set),
            _ if (refused || unsent) && !(remembers && unsure) => None,
            _ => Some(Set::Unknown),
        };
        if takes {
            process.unsure |= set == Some(Set::Unknown);
        }
        let settled = set != Some(Set::Unknown);
        process.elector.on_set(now, set);
        let elected = process.elector.leads(now).is_some();
        self.publish(who);
        if unsure && settled && !elected {
            self.coverage.add(ClusterCovered::AmbiguousAcquireAbandoned);
        }
        if settled && self.lives(who) {
            self.process(who).unsure = false;
        }
        self.elect(who);
    }
}
