//! A node that does not lead: it reads what the leader writes, checks the chain, and stays warm.
//!
//! **Invariant:** a follower applies a batch only if it follows, by position and by hash, the one before it in the
//! same journal; and it neither follows nor leads a journal that is behind or other than what this node has seen.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::{Position, PositionsSkipped, State, encode_record, is_planted};
use orchestrix_engine::file::Recovery;
use orchestrix_engine::{Appended, Batch, Clock, Journal, JournalId, Link, Read, Shared};

use crate::event_queues::EventQueues;
use crate::events::EventFeed;
use crate::growth::Growth;
use crate::high_water::{self, HighWater};
use crate::loading::{Loaded, newest_snapshot};
use crate::open::{Failure, Recovered, Stored, Surroundings, replay};
use crate::options::Options;
use crate::progress::{Rounds, Watched};
use crate::snapshotter::LastSnapshot;
use crate::stats::Stats;

/// Bytes of batches that are read at a time.
const READ_BYTES: usize = 4 << 20;

/// Other nodes may have seen so many positions more than this one before they were lost.
const LOST_MARGIN: u64 = 1 << 20;

/// The state of a journal that another node writes.
pub struct Follower {
    engine: Arc<dyn Shared>,
    journal: Box<dyn Journal>,
    state: State,
    /// The last batch that the state follows.
    link: Link,
    /// What was read since the snapshot that was loaded.
    growth: Growth,
    /// Bytes of that snapshot.
    snapshot_bytes: u64,
    /// Some of it came from the replication feed, and was not read from the engine yet.
    hinted: bool,
    options: Options,
    surroundings: Surroundings,
    high_water: HighWater,
    recovered: Recovered,
    rounds: Arc<Rounds>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("link", &self.link).finish_non_exhaustive()
    }
}

/// What a follower shares with those before and after it in the same process.
#[derive(Clone, Debug)]
pub struct Following {
    pub(crate) surroundings: Surroundings,
    pub(crate) high_water: HighWater,
    /// Of the thread that follows.
    pub(crate) rounds: Arc<Rounds>,
}

impl Following {
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, high_water: HighWater, options: &Options) -> Self {
        let rounds = Arc::new(Rounds::new(Arc::clone(&clock), "the thread that follows the journal"));
        Self { surroundings: Surroundings::new(clock, Position(0), options), high_water, rounds }
    }

    /// A batch of this node has become durable in an epoch.
    pub fn saw(&self, journal: JournalId, end: Link, epoch: u64) {
        self.high_water.saw(journal, end, epoch);
    }

    pub(crate) fn events(&self) -> &Arc<EventFeed> {
        &self.surroundings.events
    }

    pub(crate) fn stats(&self) -> &Arc<Stats> {
        &self.surroundings.stats
    }
}

impl Follower {
    /// Loads the newest snapshot of an engine; [`Follower::advance`] reads on from there.
    ///
    /// # Errors
    /// When the engine does not answer, or has less than or something other than what this node has seen.
    pub fn load(engine: Arc<dyn Shared>, options: Options, following: Following) -> Result<Self, Failure> {
        let Following { surroundings, high_water, rounds } = following;
        let mut journal = rounds.asking(|| engine.journal())?;
        high_water.check_journal(journal.id(), journal.end(), &engine.place())?;
        if let Some(mark) = high_water.mark().filter(|_| !is_planted("loss-unnoticed"))
            && !is_on_chain(&mut *journal, mark.link, &rounds)?
        {
            return Err(high_water::other_history(mark.link.position, &engine.place()));
        }
        let (Loaded { state, link, bytes }, recovered) = load_state(&mut *journal, options.reads, &rounds)?;
        let follower = Self {
            engine,
            journal,
            state,
            link,
            growth: Growth::after(link.position),
            snapshot_bytes: bytes,
            hinted: false,
            options,
            surroundings,
            high_water,
            recovered,
            rounds,
        };
        follower.saw();
        Ok(follower)
    }

    /// Reads on. Answers whether there was anything.
    ///
    /// # Errors
    /// When the engine does not answer, or a batch does not follow.
    pub fn advance(&mut self) -> Result<Progress, Failure> {
        match self.rounds.asking(|| self.journal.read(self.link.position, READ_BYTES))? {
            Read::End if self.hinted => self.check_hints(),
            Read::End => Ok(Progress::AtEnd),
            Read::Batches(batches) => {
                batches.into_iter().try_for_each(|batch| self.follow(batch))?;
                self.hinted = false;
                self.saw();
                Ok(Progress::Moved)
            }
            Read::Truncated(_) if is_planted("floor-unchecked-by-follower") => Ok(Progress::AtEnd),
            Read::Truncated(floor) => {
                tracing::info!(%floor, at = %self.link.position, "the journal was truncated past this node; loading a snapshot");
                let (loaded, recovered) = load_state(&mut *self.journal, self.options.reads, &self.rounds)?;
                if loaded.link.position < self.link.position {
                    let at = loaded.link.position;
                    return Err(Failure::new(format!(
                        "no snapshot is as new as the floor {floor}, only {at}"
                    )));
                }
                (self.state, self.link, self.recovered) = (loaded.state, loaded.link, recovered);
                (self.growth, self.snapshot_bytes) = (Growth::after(self.link.position), loaded.bytes);
                self.hinted = false;
                self.saw();
                Ok(Progress::Moved)
            }
        }
    }

    /// Takes a batch from the leader, who says that it is durable. Answers whether this node is as far now: if not, the
    /// engine has to be read.
    ///
    /// # Errors
    /// When it cannot be applied; what was read has to be read again then.
    pub fn hint(&mut self, journal: JournalId, batch: Batch) -> Result<bool, Failure> {
        if journal != self.journal.id() {
            return Ok(false);
        }
        if batch.last() <= self.link.position {
            return Ok(true);
        }
        if batch.previous != self.link {
            return Ok(false);
        }
        self.hinted = true;
        self.follow(batch)?;
        self.saw();
        Ok(true)
    }

    /// What the leader said has to be in the engine: that is the truth.
    fn check_hints(&mut self) -> Result<Progress, Failure> {
        let end = self.rounds.asking(|| self.journal.refresh())?;
        if end.position > self.link.position {
            return Ok(Progress::Moved);
        }
        if end != self.link {
            let (place, at) = (self.engine.place(), self.link);
            return Err(Failure::new(format!(
                "the journal at {place} ends at {} ({}), but its leader has reported {} ({})",
                end.position, end.hash, at.position, at.hash
            )));
        }
        self.hinted = false;
        Ok(Progress::AtEnd)
    }

    fn follow(&mut self, batch: Batch) -> Result<(), Failure> {
        let id = self.journal.id();
        let unchecked =
            is_planted("chain-unchecked-by-follower") && batch.previous.position == self.link.position;
        if batch.previous != self.link && !unchecked {
            let (place, at, found) = (self.engine.place(), self.link, batch.previous);
            return Err(Failure::new(format!(
                "the journal at {place} is not the one that this node follows: a batch follows {} ({}), but what was \
                 read before ends at {} ({})",
                found.position, found.hash, at.position, at.hash
            )));
        }
        let mut queues = EventQueues::default();
        replay(&mut self.state, &batch.as_ref(), self.options.reads, |state, event| {
            queues.note(state, event)
        })?;
        let before = self.link;
        self.link = batch.link(id);
        self.growth.add(self.link.position, batch.records.len() as u64);
        if self.surroundings.unsettled.is_refused(before, self.link) {
            self.surroundings.stats.stale_appends.add(1);
        }
        self.high_water.check_link(self.link, &self.engine.place())?;
        self.surroundings.events.publish(batch, Arc::new(queues));
        Ok(())
    }

    /// Goes above all that was seen before a loss that was accepted, so that no id is given out twice.
    ///
    /// # Errors
    /// When the engine does not answer, or another node has written.
    pub(crate) fn skip_lost(&mut self) -> Result<(), Failure> {
        let Some(lost) = self.high_water.lost() else { return Ok(()) };
        let target = lost.0 + LOST_MARGIN;
        let Some(missing) = target.checked_sub(self.link.position.0).filter(|missing| *missing > 0) else {
            return Ok(());
        };
        let count = u32::try_from(missing).map_err(|_| {
            Failure::new(format!(
                "{missing} positions were lost, which is more than can be skipped; restore the engine"
            ))
        })?;
        let mut records = Vec::new();
        let skipped = PositionsSkipped { count }.into();
        encode_record(self.state.format(), self.state.at(), &skipped, &mut records);
        let batch = Batch { previous: self.link, term: self.state.term(), count, records };
        tracing::warn!(from = %self.link.position, to = target, "skipping positions that were seen before the journal lost them");
        match self.rounds.asking(|| self.journal.append(&batch))? {
            Appended::Done(_) => self.follow(batch),
            Appended::Conflict(_) | Appended::Unknown => {
                Err(Failure::new("it is not certain where the journal ends".to_owned()).retry())
            }
        }
    }

    /// Tells how far this node is.
    fn saw(&self) {
        self.surroundings.events.skip_to(self.link.position);
        let stats = &self.surroundings.stats;
        stats.position.set(self.link.position.0);
        stats.durable.set(self.link.position.0);
        stats.epoch.set(self.state.epoch());
        stats.term.set(self.state.term().0);
        self.high_water.saw(self.journal.id(), self.link, self.state.epoch());
    }

    /// The last batch that was read.
    #[must_use]
    pub fn link(&self) -> Link {
        self.link
    }

    #[must_use]
    pub fn journal_id(&self) -> JournalId {
        self.journal.id()
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What a node is started from.
    pub(crate) fn into_parts(self) -> (Stored, Options, Surroundings) {
        let last_snapshot = self.last_snapshot();
        let Self { engine, journal, state, link, options, surroundings, mut recovered, .. } = self;
        recovered.position = state.position();
        let link = if is_planted("end-of-handle-trusted") { journal.end() } else { link };
        let stored = Stored { state, journal, end: link, logs: engine.logs(), last_snapshot, recovered };
        (stored, options, surroundings)
    }

    /// How much journal there is since the last snapshot, which another node may have taken while this one followed.
    fn last_snapshot(&self) -> LastSnapshot {
        let newest = self.rounds.asking(|| self.journal.snapshots().list()).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look for newer snapshots; the next one may come too early");
            Vec::new()
        });
        let newest = newest.into_iter().find(|position| *position <= self.link.position);
        let mut since_bytes = self.growth.since(newest.unwrap_or(Position(0)));
        if is_planted("journal-counted-by-term") {
            since_bytes = 0;
        }
        LastSnapshot { since_bytes, bytes: self.snapshot_bytes }
    }
}

/// Whether a follower found something to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Moved,
    AtEnd,
}

fn load_state(
    journal: &mut dyn Journal,
    reads: u8,
    rounds: &Arc<Rounds>,
) -> Result<(Loaded, Recovered), Failure> {
    // A journal that still has its beginning can be read without a snapshot.
    let floor = match rounds.asking(|| journal.read(Position(0), 1))? {
        Read::Truncated(floor) => floor,
        Read::Batches(_) | Read::End => Position(0),
    };
    let mut damaged_snapshots = Vec::new();
    let snapshots = Watched { snapshots: journal.snapshots(), rounds };
    let mut is_ours = |link| is_on_chain(journal, link, rounds);
    let loaded = newest_snapshot(&snapshots, floor, reads, &mut is_ours, &mut damaged_snapshots)?;
    let snapshot = loaded.as_ref().map(|loaded| loaded.link.position);
    if snapshot.is_none() && floor > Position(0) {
        return Err(Failure::new(format!(
            "the journal begins after {floor}, and there is no snapshot of what was before"
        )));
    }
    let loaded = loaded.unwrap_or_default();
    let (journal, took) = (Recovery::default(), Duration::ZERO);
    let position = loaded.state.position();
    let recovered = Recovered { position, snapshot, damaged_snapshots, journal, took };
    Ok((loaded, recovered))
}

/// Whether a batch of this journal ends so. An engine that forgot its latest batches may get the snapshot of a leader
/// that has not noticed yet: no node could continue from there.
fn is_on_chain(
    journal: &mut dyn Journal,
    link: Link,
    rounds: &Rounds,
) -> Result<bool, orchestrix_engine::Error> {
    if is_planted("history-unchecked-at-load") {
        return Ok(true);
    }
    loop {
        match rounds.asking(|| journal.read(link.position, 1))? {
            Read::Batches(batches) => return Ok(batches.first().is_some_and(|next| next.previous == link)),
            Read::Truncated(_) => return Ok(true),
            Read::End => {
                let end = rounds.asking(|| journal.refresh())?;
                // Unless another node has written meanwhile.
                if end.position <= link.position {
                    return Ok(end == link);
                }
            }
        }
    }
}
