//! Nodes of two versions: an old one that reads the journal in format 1 only, and a new one that reads format 2, too. Each
//! process has a version. After a restart the next process of that machine may have another, mostly the new one: a rolling
//! upgrade, which now and then is taken back.
//!
//! The threads of a member are played here: heartbeats with a note, listings of the presence cells, and the question of
//! the leader whether everyone reads the next format. The rules are those that ship.
//!
//! W15 is checked from outside: what a process reads is known to the world, and who is present follows from the cells that
//! have landed, in the time of the world.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use orchestrix_core::{Event, FIRST_FORMAT, FORMAT, Position, TermEvent};
use orchestrix_engine::{Cell, Register, Set, Version};
use orchestrix_leadership::{Candidate, NODES, Peer, Presence, Roster, presence_claim};
use orchestrix_node::{Clock, presence_note, readable};

use crate::check::Violation;
use crate::cluster::coverage::ClusterCovered;
use crate::cluster::engine::Who;
use crate::cluster::handles::{Connection, lock};
use crate::cluster::happening::{Doing, Happening};
use crate::cluster::world::ClusterWorld;
use crate::rng::Rng;
use crate::world::{MS, SECOND};

/// A generator of its own, so that worlds are the same without versions.
const SALT: u64 = 0x7e45_1005;
/// Microseconds that a listing takes at most.
const LISTING_MAX: u64 = 20 * MS;
/// What a refusal to read a newer format says to an operator.
const ADVICE: &str = "use a newer version";

/// Versions of a world before it begins. Rates are per million.
#[derive(Clone, Debug)]
pub(crate) struct VersionsPlan {
    pub(crate) used: bool,
    /// Of machines: the first process is old.
    old: u32,
    /// Of restarts after an old process: the next one is new.
    upgraded: u32,
    /// Of restarts after a new process: the next one is old.
    set_back: u32,
}

impl VersionsPlan {
    /// Half of the worlds have versions, and half as many of those whose engine forgets.
    pub(crate) fn draw(seed: u64, forgets: bool) -> Self {
        let mut rng = Rng::new(seed ^ SALT);
        let used = rng.chance(if forgets { 250_000 } else { 500_000 });
        let mut rate = |low, high| u32::try_from(rng.range(low, high)).unwrap_or(0);
        let (old, upgraded, set_back) = (rate(0, 1_000_000), rate(300_000, 900_000), rate(10_000, 200_000));
        Self { used, old, upgraded, set_back }
    }
}

/// What the world knows of the versions of its nodes.
#[derive(Debug)]
pub(crate) struct Versions {
    rng: Rng,
    /// What each process reads.
    reads: BTreeMap<Who, u8>,
    /// The presence cell of each machine as it landed last.
    beats: BTreeMap<usize, Beat>,
    /// Leaders that have asked when everyone present read the next format.
    agreed: BTreeSet<Who>,
}

/// A heartbeat that has landed.
#[derive(Clone, Debug)]
struct Beat {
    who: Who,
    version: Version,
    /// Microseconds of the world.
    at: u64,
    /// How long it surely counts, whatever clock measures it.
    lasts: u64,
    /// From then on there was never too long a time between two of them.
    since: u64,
}

impl Beat {
    fn counts(&self, now: u64) -> bool {
        now < self.at + self.lasts
    }
}

/// What a process knows of who is present, as its thread for that has it.
pub(crate) struct Members {
    presence: Presence,
    /// The version of its own cell.
    cell: Option<Version>,
    /// A listing that has not arrived, and when the register was read for it.
    listing: Option<(u64, Vec<(String, Cell)>)>,
    /// When the register was read for the last listing that has arrived.
    listed: Option<u64>,
    /// The last listing did not fail.
    is_listed: bool,
    present: Vec<String>,
    peers: Vec<Peer>,
}

/// What a process does about presence and versions, while the format may still be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Duty {
    Beat,
    List,
    /// A listing arrives.
    Listed,
    /// A leader looks whether everyone reads the next format.
    Ask,
}

impl Versions {
    pub(crate) fn new(seed: u64) -> Self {
        let rng = Rng::new(seed ^ SALT).fork();
        Self { rng, reads: BTreeMap::new(), beats: BTreeMap::new(), agreed: BTreeSet::new() }
    }

    /// The newest format that a process reads.
    pub(crate) fn reads(&self, who: Who) -> u8 {
        self.reads.get(&who).copied().unwrap_or(FORMAT)
    }
}

/// How a node is called in the world.
pub(crate) fn candidate(who: Who) -> Candidate {
    let Who { node, life } = who;
    Candidate { name: format!("n{node}"), incarnation: format!("{node}-{life}"), address: String::new() }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl ClusterWorld {
    /// Chooses the version of a process that starts. Without faults every upgrade is finished.
    pub(crate) fn choose_version(&mut self, who: Who) -> u8 {
        let plan = self.plan.versions.clone();
        if !plan.used {
            return FORMAT;
        }
        let versions = &mut self.versions;
        let before = who.life.checked_sub(1).map(|life| versions.reads.get(&Who { life, ..who }).copied());
        let is_old = match before.flatten() {
            None => versions.rng.chance(plan.old),
            Some(_) if !self.faulty => false,
            Some(FIRST_FORMAT) => !versions.rng.chance(plan.upgraded),
            Some(_) => versions.rng.chance(plan.set_back),
        };
        let reads = if is_old { FIRST_FORMAT } else { FORMAT };
        versions.reads.insert(who, reads);
        reads
    }

    /// What a process that starts knows of the others, if there are versions in this world.
    pub(crate) fn members(&mut self, who: Who) -> Option<Members> {
        if !self.plan.versions.used {
            return None;
        }
        for duty in [Duty::Beat, Duty::List, Duty::Ask] {
            let takes = self.versions.rng.range(1, 5 * MS);
            self.after(takes, who, Doing::Member(duty));
        }
        let ttl = self.machines[who.node].plan.ttl;
        let roster = Roster {
            heartbeat_interval: ttl / 3,
            worker_timeout: ttl,
            skip_cold_start: true,
            ..Roster::default()
        };
        Some(Members {
            presence: Presence::new(candidate(who).name, roster),
            cell: None,
            listing: None,
            listed: None,
            is_listed: false,
            present: Vec::new(),
            peers: Vec::new(),
        })
    }

    pub(crate) fn does_duty(&mut self, who: Who, duty: Duty) -> Result<(), Violation> {
        let ttl = self.machines[who.node].plan.ttl;
        if self.process(who).stopping {
            return Ok(());
        }
        if self.mirror.state.format() >= FORMAT && !self.plan.forgets {
            // It is raised for good: nobody has to know any more who is present.
            return Ok(());
        }
        match duty {
            Duty::Beat => {
                self.after(micros(ttl / 3), who, Doing::Member(Duty::Beat));
                let note = self.note_of(who);
                self.write_presence(who, &note, Some(ttl));
            }
            Duty::List => {
                self.after(micros(ttl / 9), who, Doing::Member(Duty::List));
                let cells = self.register(who).and_then(|register| register.list(NODES).ok());
                let now = self.now;
                if let Some(members) = &mut self.process(who).members {
                    members.listing = cells.map(|cells| (now, cells));
                }
                let takes = self.versions.rng.range(MS, LISTING_MAX);
                self.after(takes, who, Doing::Member(Duty::Listed));
            }
            Duty::Listed => self.listed(who),
            Duty::Ask => {
                let takes = self.versions.rng.range(20 * MS, SECOND);
                self.after(takes, who, Doing::Member(Duty::Ask));
                return self.asks_to_raise(who);
            }
        }
        Ok(())
    }

    /// The register, unless it does not answer this node.
    fn register(&self, who: Who) -> Option<Connection> {
        let is_mute = self.faulty && self.now < self.machines[who.node].mute_until;
        let connect = || Connection::new(self.model.clone(), who, self.plan.poll_interval);
        (!is_mute).then(connect)
    }

    /// The first heartbeat may leave before there is a note.
    fn note_of(&mut self, who: Who) -> String {
        let is_first = self.process(who).members.as_ref().is_none_or(|members| members.cell.is_none());
        if is_first && self.versions.rng.chance(200_000) {
            return String::new();
        }
        let read = self.process(who).standby.follower().map_or(Position(0), |read| read.link().position);
        presence_note(read.0, self.versions.reads(who))
    }

    /// Writes the presence cell of a node that is there for so long, or leaves.
    fn write_presence(&mut self, who: Who, note: &str, lasts: Option<Duration>) {
        let Some(register) = self.register(who) else { return };
        let me = candidate(who);
        let claim = presence_claim(&me, note, lasts);
        let key = format!("{NODES}{}", me.name);
        for _ in 0..2 {
            let seen = self.process(who).members.as_ref().and_then(|members| members.cell.clone());
            let (cell, landed) = match register.compare_and_set(&key, seen.as_ref(), &claim) {
                Ok(Set::Done(version)) => (Some(version), true),
                Ok(Set::Conflict(there)) => (there.map(|cell| cell.version), false),
                Ok(Set::Unknown) | Err(_) => return,
            };
            if let Some(members) = &mut self.process(who).members {
                members.cell.clone_from(&cell);
            }
            if landed {
                return self.has_landed(who, cell, lasts);
            }
        }
    }

    fn has_landed(&mut self, who: Who, version: Option<Version>, lasts: Option<Duration>) {
        let now = self.now;
        let before = self.versions.beats.remove(&who.node).filter(|beat| beat.who == who && beat.counts(now));
        let Some((version, lasts)) = version.zip(lasts) else { return };
        let since = before.map_or(now, |beat| beat.since);
        let lasts = micros(lasts - lasts / 50).saturating_sub(LISTING_MAX);
        self.versions.beats.insert(who.node, Beat { who, version, at: now, lasts, since });
    }

    /// A node that stops as it should is not present any more.
    pub(crate) fn leaves(&mut self, who: Who) {
        if self.process(who).members.is_some() {
            self.write_presence(who, "", None);
        }
    }

    fn listed(&mut self, who: Who) {
        let now = self.machines[who.node].clock.boot();
        let Some(members) = &mut self.process(who).members else { return };
        let listing = members.listing.take();
        members.is_listed = listing.is_some();
        if let Some((read, cells)) = listing {
            let named = |(key, cell): (String, Cell)| (key.trim_start_matches(NODES).to_owned(), cell);
            members.presence.update(now, cells.into_iter().map(named).collect());
            members.listed = Some(read);
        }
        members.present = members.presence.present(now);
        members.peers = members.presence.peers(now);
    }

    /// A leader raises the format when everyone present reads the next one; W15: not before.
    fn asks_to_raise(&mut self, who: Who) -> Result<(), Violation> {
        let reads = self.versions.reads(who);
        let process = self.process(who);
        let (Some(leads), Some(members)) = (&process.leads, &process.members) else { return Ok(()) };
        let (node, format) = (leads.node.clone(), leads.stepped.state().format());
        if !members.is_listed {
            return Ok(());
        }
        let asked = readable(&members.present, &members.peers);
        let old = self.old_and_present(who);
        if asked.min(reads) > format {
            if let Some(old) = old {
                let what = format!("{who:?} raises the format from {format} to {asked}, and {old}");
                return Err(Violation::new("W15", what));
            }
            self.versions.agreed.insert(who);
        } else if old.is_some() && reads > format {
            self.coverage.add(ClusterCovered::RaiseWaited);
        }
        node.raise_format(asked);
        self.decide_after(who, 1);
        Ok(())
    }

    /// Who is present and reads format 1 only, as far as a leader can know. A node is present when the leader has listed
    /// the register while it was, and its heartbeats have gone on since.
    fn old_and_present(&mut self, leader: Who) -> Option<String> {
        let listed = self.process(leader).members.as_ref().and_then(|members| members.listed);
        let Some(listed) = listed else { return Some("it has never seen who is present".to_owned()) };
        let found = self.versions.beats.values().find(|beat| {
            let name = candidate(beat.who).name;
            let there = lock(&self.model).cell(&format!("{NODES}{name}")).map(|it| it.cell.version.clone());
            let is_old = self.versions.reads(beat.who) < FORMAT && self.lives(beat.who);
            is_old && beat.counts(self.now) && beat.since <= listed && there.as_ref() == Some(&beat.version)
        })?;
        Some(format!("{:?}, which is present since {}, reads only {FIRST_FORMAT}", found.who, found.since))
    }

    /// W15: events that this process has brought into the journal, from this place on.
    pub(crate) fn writes_what_it_reads(&mut self, who: Who, known: usize) -> Result<(), Violation> {
        let is_raise = |event: &Event| matches!(event, Event::Term(TermEvent::FormatRaised(raised)) if raised.format > 1);
        let raises = self.mirror.log[known..].iter().filter(|entry| is_raise(&entry.event)).count();
        let (reads, format) = (self.versions.reads(who), self.mirror.state.format());
        if reads < format {
            let what =
                format!("{who:?} reads format {reads}, and has written to a journal of format {format}");
            return Err(Violation::new("W15", what));
        }
        for _ in 0..raises {
            self.coverage.add(ClusterCovered::FormatRaised);
        }
        if raises > 0 && !self.versions.agreed.contains(&who) {
            return Err(Violation::new("W15", format!("{who:?} has raised the format without asking")));
        }
        Ok(())
    }

    /// W15: what a process has read is of a format that it reads.
    pub(crate) fn knows_what_it_read(&mut self, who: Who) -> Result<(), Violation> {
        let reads = self.versions.reads(who);
        let format = self.process(who).standby.follower().map_or(FIRST_FORMAT, |read| read.state().format());
        if format <= reads {
            return Ok(());
        }
        Err(Violation::new("W15", format!("{who:?} reads format {reads}, and has applied format {format}")))
    }

    /// An old process stops at the first record of the new format, and nowhere else. Answers whether this is that.
    pub(crate) fn stops_as_old(&mut self, node: usize, why: &str) -> Result<bool, Violation> {
        let who = Who { node, life: self.machines[node].life };
        let (reads, format) = (self.versions.reads(who), self.mirror.state.format());
        if reads == FORMAT || !why.contains(ADVICE) {
            return Ok(false);
        }
        // An engine that forgets may have forgotten the raise by now.
        if format <= reads && !self.plan.forgets {
            let what = format!("{who:?} stops in a journal of format {format}: {why}");
            return Err(Violation::new("W15", what));
        }
        self.coverage.add(ClusterCovered::OldVersionStopped);
        if self.machines[node].process.is_some() {
            self.die(node);
        }
        let takes = self.versions.rng.range(10 * MS, 5 * SECOND);
        self.push(self.now + takes, Happening::Start(node));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::cluster::coverage::ClusterCovered as Covered;
    use crate::cluster::{ClusterPlan, run_cluster_plan};

    /// How often the format was raised, and how many old leaders there were, where so many of a million nodes are old.
    fn raised(old: u32) -> (u64, u64) {
        let mut plan = ClusterPlan::calm(1, 60);
        (plan.versions.used, plan.versions.old) = (true, old);
        let ended = run_cluster_plan(plan);
        assert_eq!(ended.violations, []);
        (ended.coverage.count(Covered::FormatRaised), ended.coverage.count(Covered::OldVersionLeads))
    }

    #[test]
    fn new_nodes_raise_the_format_once_and_old_ones_never() {
        assert_eq!(raised(0), (1, 0));
        assert_eq!(raised(1_000_000), (0, 1));
    }

    /// Heartbeats of the one come many times while the other looks once.
    #[test]
    fn an_old_node_is_present_whatever_time_the_leader_has() {
        for seed in 1..=60 {
            let mut plan = ClusterPlan::calm(seed, 30);
            (plan.versions.used, plan.versions.old) = (true, 500_000);
            for (node, millis) in plan.nodes.iter_mut().zip([8_000, 300].into_iter().cycle()) {
                node.ttl = Duration::from_millis(millis);
            }
            assert_eq!(run_cluster_plan(plan).violations, [], "seed {seed}");
        }
    }
}
