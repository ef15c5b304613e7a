//! One engine for all nodes of a world, as its servers behave: what they store, what they refuse, what they forget.
//!
//! The world brings requests here when they arrive, which may be long after they were sent, and takes the answers
//! back, or loses them. Everything else that nodes ask (reading, snapshots, truncation) is answered at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use orchestrix_core::Position;
use orchestrix_engine::memory::MemoryLogs;
use orchestrix_engine::{Appended, Batch, Cell, Claim, JournalId, Link, LogPlace, Read, Set, Version};
use orchestrix_node::Mark;

use crate::rng::Rng;

/// What the engine's clock says first: late enough to be set back often.
const CLOCK_US: u64 = 1 << 50;

/// Which server the engine stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Scripts. May lose what it acknowledged last, when a replica takes over or it is wiped.
    Redis,
    /// Rows. Has a clock that must be past, too, before a cell is taken from another owner.
    Sql,
    /// Objects. A batch may arrive after all around it was deleted.
    S3,
}

/// A life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Who {
    pub(crate) node: usize,
    pub(crate) life: u32,
}

/// A cell as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) cell: Cell,
    /// The version that this writing replaced.
    replaced: Option<Version>,
    pub(crate) by: Who,
    /// On the engine's clock, in microseconds.
    updated_at: u64,
    expires_at: u64,
}

/// Whether the same may have been tried before, by a handle that knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Try {
    First,
    PerhapsAgain,
}

/// A stored write, for the checker.
#[derive(Clone, Debug)]
pub(crate) struct Landing {
    pub(crate) by: Who,
    pub(crate) was: Option<(Who, Claim)>,
    pub(crate) claim: Claim,
}

#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) link: Link,
    pub(crate) chunks: Arc<Vec<Vec<u8>>>,
}

/// What a replica has: a past of the engine.
#[derive(Clone, Debug)]
struct Past {
    batches: usize,
    cells: BTreeMap<String, Stored>,
    snapshots: BTreeMap<Position, Snapshot>,
    floor: Position,
}

impl Past {
    fn new() -> Self {
        Self { batches: 0, cells: BTreeMap::new(), snapshots: BTreeMap::new(), floor: Position(0) }
    }
}

/// The engine.
#[derive(Debug)]
pub(crate) struct Model {
    flavour: Flavour,
    id: JournalId,
    /// All that was ever appended; what is at or below the floor is only remembered here, for the world.
    pub(crate) batches: Vec<Batch>,
    links: Vec<Link>,
    floor: Position,
    pub(crate) snapshots: BTreeMap<Position, Snapshot>,
    /// Bytes of the largest one that there ever was.
    pub(crate) largest_snapshot: u64,
    cells: BTreeMap<String, Stored>,
    writings: u64,
    /// The engine's own clock, in microseconds.
    clock_us: u64,
    /// By how much that clock was set back so far.
    set_back_us: u64,
    /// Nodes that cannot reach it at this moment.
    pub(crate) cut_off: Vec<bool>,
    /// So many of a million calls that are answered at once are not answered at all.
    pub(crate) flaky: u32,
    pub(crate) rng: Rng,
    /// It does not answer.
    pub(crate) down: bool,
    /// It refuses every request, and does nothing.
    pub(crate) refuses: bool,
    /// Appends by handles themselves, which the world has not looked at yet.
    pub(crate) direct: Vec<(Who, Batch)>,
    /// Kept only where the engine may go back to it.
    pasts: Option<Vec<Past>>,
    /// Changes with every loss.
    pub(crate) losses: u32,
    pub(crate) output: Output,
}

/// The output of tasks, and what goes wrong on the way to it.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) logs: MemoryLogs,
    /// A generator of its own, so that worlds are the same without output.
    pub(crate) rng: Rng,
    /// Of a million appends: so many are lost, have no answer, or arrive long after.
    pub(crate) faults: [u32; 3],
    /// Appends under way that arrive when the world says so.
    pub(crate) late: Vec<(LogPlace, Vec<u8>)>,
}

impl Model {
    pub(crate) fn new(flavour: Flavour, nodes: usize, forgets: bool, rng: Rng) -> Self {
        Self {
            flavour,
            id: JournalId([1; 16]),
            batches: Vec::new(),
            links: Vec::new(),
            floor: Position(0),
            snapshots: BTreeMap::new(),
            largest_snapshot: 0,
            cells: BTreeMap::new(),
            writings: 0,
            clock_us: CLOCK_US,
            set_back_us: 0,
            cut_off: vec![false; nodes],
            flaky: 0,
            rng,
            down: false,
            refuses: false,
            direct: Vec::new(),
            pasts: forgets.then(Vec::new),
            losses: 0,
            output: Output {
                logs: MemoryLogs::default(),
                rng: Rng::new(0x0075_7075),
                faults: [0; 3],
                late: Vec::new(),
            },
        }
    }

    /// It is so late in the world.
    pub(crate) fn tick(&mut self, now: u64) {
        self.clock_us = (CLOCK_US + now).saturating_sub(self.set_back_us);
    }

    /// Sets the engine's clock back.
    pub(crate) fn set_back(&mut self, by_us: u64) {
        self.set_back_us += by_us;
    }

    pub(crate) fn id(&self) -> JournalId {
        self.id
    }

    pub(crate) fn end(&self) -> Link {
        self.links.last().copied().unwrap_or_default()
    }

    pub(crate) fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The link of the batch that ends at a position, if one does.
    pub(crate) fn link_at(&self, position: Position) -> Option<Link> {
        if position == Position(0) {
            return Some(Link::default());
        }
        let index = self.links.binary_search_by_key(&position, |link| link.position).ok()?;
        Some(self.links[index])
    }

    pub(crate) fn floor(&self) -> Position {
        self.floor
    }

    /// Whether this is the journal that was seen before, as far as that can still be known.
    pub(crate) fn has(&self, mark: &Mark) -> bool {
        let Mark { journal, link, .. } = mark;
        *journal == self.id && (link.position < self.floor || self.link_at(link.position) == Some(*link))
    }

    /// Whether a node can be served.
    pub(crate) fn reaches(&self, node: usize) -> bool {
        !self.down && !self.cut_off.get(node).copied().unwrap_or(false)
    }

    /// Appends, if and only if the batch follows the end. A batch that is the end already is done.
    pub(crate) fn append(&mut self, batch: &Batch) -> Appended {
        let (link, end) = (batch.link(self.id), self.end());
        if link == end {
            return Appended::Done(link);
        }
        if batch.previous != end {
            // Objects: nothing keeps a late one from being stored below the floor, where it is never read. That it was
            // stored counts for nothing: the floor is read afterwards.
            return Appended::Conflict(end);
        }
        self.batches.push(batch.clone());
        self.links.push(link);
        self.remember();
        Appended::Done(link)
    }

    pub(crate) fn read(&self, after: Position, limit_bytes: usize) -> Read {
        if after < self.floor {
            return Read::Truncated(self.floor);
        }
        let start = self.links.partition_point(|link| link.position <= after);
        let mut bytes = 0;
        let fitting = self.batches[start..].iter().take_while(|batch| {
            let first = bytes == 0;
            bytes += batch.records.len().max(1);
            first || bytes <= limit_bytes
        });
        let mut found: Vec<Batch> = fitting.cloned().collect();
        // Objects are named by where they begin: one that is looked for from inside is searched, and comes alone.
        let inside = found.first().is_some_and(|batch| batch.previous.position < after);
        if inside && self.flavour == Flavour::S3 {
            found.truncate(1);
        }
        if found.is_empty() { Read::End } else { Read::Batches(found) }
    }

    /// Raises the floor to the older of the two newest snapshots.
    pub(crate) fn truncate(&mut self) -> Position {
        if let Some(older) = self.snapshots.keys().rev().nth(1) {
            let index = self.links.partition_point(|link| link.position <= *older);
            let floor = index.checked_sub(1).map_or(Position(0), |last| self.links[last].position);
            self.floor = self.floor.max(floor);
        }
        self.floor
    }

    /// Bytes of the largest snapshot so far, and of the journal after the newest. A node that leads knows the size of the
    /// one that it loaded, which may be larger than that of the newest.
    pub(crate) fn since_snapshot(&self) -> (u64, u64) {
        let bytes = self.largest_snapshot;
        let after = self.snapshots.last_key_value().map_or(Position(0), |(position, _)| *position);
        let start = self.links.partition_point(|link| link.position <= after);
        let since: usize = self.batches[start..].iter().map(|batch| batch.records.len()).sum();
        (bytes, since as u64)
    }

    pub(crate) fn cell(&self, key: &str) -> Option<&Stored> {
        self.cells.get(key)
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = (&String, &Stored)> {
        self.cells.iter()
    }

    /// Writes a cell, if it is as it was seen. Says what landed, if something did.
    pub(crate) fn set(
        &mut self,
        by: Who,
        key: &str,
        seen: Option<&Version>,
        claim: &Claim,
        tried: Try,
    ) -> (Set, Option<Landing>) {
        let there = self.cells.get(key);
        // Rows are named by what is in them; elsewhere a handle names what it tries again.
        let named = self.flavour == Flavour::Sql || tried == Try::PerhapsAgain;
        let same =
            |stored: &&Stored| named && stored.cell.claim == *claim && stored.replaced.as_ref() == seen;
        if let Some(repeated) = there.filter(same) {
            return (Set::Done(repeated.cell.version.clone()), None);
        }
        if there.map(|stored| &stored.cell.version) != seen || !self.may_take(by, there, claim) {
            return (Set::Conflict(there.map(|stored| stored.cell.clone())), None);
        }
        self.writings += 1;
        let version = Version(format!("{}-{}", self.writings, self.losses));
        let landing = Landing {
            by,
            was: there.map(|stored| (stored.by, stored.cell.claim.clone())),
            claim: claim.clone(),
        };
        let cell = Cell { version: version.clone(), claim: claim.clone() };
        let (updated_at, replaced) = (self.clock_us, seen.cloned());
        let expires_at = updated_at + claim.ttl_ms * 1_000;
        self.cells.insert(key.to_owned(), Stored { cell, replaced, by, updated_at, expires_at });
        self.remember();
        (Set::Done(version), Some(landing))
    }

    /// A cell goes, if it still is as it was seen.
    pub(crate) fn remove(&mut self, key: &str, seen: &Version) {
        if self.cells.get(key).is_some_and(|stored| stored.cell.version == *seen) {
            self.cells.remove(key);
            self.remember();
        }
    }

    /// An engine with a clock keeps a cell for its owner until the time is over by that clock, unless it was set back.
    fn may_take(&self, by: Who, there: Option<&Stored>, claim: &Claim) -> bool {
        match self.flavour {
            Flavour::Redis | Flavour::S3 => true,
            Flavour::Sql => there.is_none_or(|stored| {
                !stored.cell.claim.held
                    || stored.cell.claim.owner == claim.owner
                    || stored.by == by
                    || stored.expires_at <= self.clock_us
                    || stored.updated_at > self.clock_us
            }),
        }
    }

    fn remember(&mut self) {
        if let Some(pasts) = &mut self.pasts {
            pasts.push(Past {
                batches: self.batches.len(),
                cells: self.cells.clone(),
                snapshots: self.snapshots.clone(),
                floor: self.floor,
            });
        }
    }

    /// A replica takes over that does not have the last `writings`. Answers how many batches are lost.
    pub(crate) fn fail_over(&mut self, writings: usize) -> usize {
        let before = self.batches.len();
        let Some(pasts) = &mut self.pasts else { return 0 };
        pasts.truncate(pasts.len().saturating_sub(writings));
        let past = pasts.last().cloned().unwrap_or_else(Past::new);
        (self.cells, self.snapshots, self.floor) = (past.cells, past.snapshots, past.floor);
        self.batches.truncate(past.batches);
        self.links.truncate(past.batches);
        self.losses += 1;
        before - past.batches
    }

    /// The cells are gone, the journal is not.
    pub(crate) fn forget_cells(&mut self) {
        self.cells.clear();
        self.losses += 1;
    }

    /// Everything is gone; the next open creates another journal.
    pub(crate) fn wipe(&mut self) -> usize {
        let lost = self.batches.len();
        self.losses += 1;
        let mut id = [1; 16];
        id[0] = u8::try_from(self.losses % 251).unwrap_or(0) + 2;
        self.id = JournalId(id);
        self.batches.clear();
        self.links.clear();
        self.floor = Position(0);
        self.snapshots.clear();
        self.cells.clear();
        self.pasts = Some(Vec::new());
        lost
    }
}
