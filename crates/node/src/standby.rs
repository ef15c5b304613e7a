//! The journal of a node through changes of leader: it reads, begins a term at the end of the journal, and reads
//! again. Without threads and clocks; [`Member`](crate::Member) and simulations run it.
//!
//! **Invariant:** a term begins only on a journal that was read to its end, and only in an epoch above all that this
//! node has seen.

use std::sync::Arc;

use orchestrix_core::is_planted;
use orchestrix_engine::{Batch, JournalId, Shared};

use crate::follower::{Follower, Following, Progress};
use crate::open::Failure;
use crate::options::Options;

/// A node that stands by.
pub struct Standby {
    engine: Arc<dyn Shared>,
    options: Options,
    following: Following,
    /// Not there while this node leads, and while the engine does not answer.
    follower: Option<Follower>,
}

impl std::fmt::Debug for Standby {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standby").field("follower", &self.follower).finish_non_exhaustive()
    }
}

/// What comes of an election.
#[derive(Debug)]
pub enum Beginning {
    /// A term can begin on this.
    Term(Box<Follower>),
    /// The register has forgotten: this epoch was seen before. The elected node releases the leader lease and stands
    /// again above it, since an epoch never comes twice.
    Outdated { seen: u64 },
}

impl Standby {
    /// Reads nothing yet.
    #[must_use]
    pub fn new(engine: Arc<dyn Shared>, options: Options, following: Following) -> Self {
        Self { engine, options, following, follower: None }
    }

    /// Reads to the end, from a snapshot if need be.
    ///
    /// # Errors
    /// When the engine does not answer, or has less than or something other than what this node has seen.
    pub fn read_to_end(&mut self) -> Result<&Follower, Failure> {
        let follower = match &mut self.follower {
            Some(follower) => follower,
            none => none.insert(Follower::load(
                Arc::clone(&self.engine),
                self.options.clone(),
                self.following.clone(),
            )?),
        };
        while follower.advance()? == Progress::Moved {}
        Ok(follower)
    }

    /// Takes a batch that the leader says is durable. Answers whether this node is as far now: if not, it has to read.
    pub fn hint(&mut self, journal: JournalId, batch: Batch) -> bool {
        let Some(follower) = &mut self.follower else { return false };
        follower.hint(journal, batch).unwrap_or_else(|failure| {
            tracing::warn!(%failure, "cannot apply the replication feed; reading the journal again");
            self.forget_state();
            false
        })
    }

    /// This node was elected in an epoch: reads to the end once more, and gives out what a term begins on.
    ///
    /// # Errors
    /// As for [`Standby::read_to_end`].
    pub fn begin(&mut self, epoch: u64) -> Result<Beginning, Failure> {
        self.read_to_end()?;
        let seen = self.epoch();
        if epoch <= seen && !is_planted("epoch-not-raised") {
            return Ok(Beginning::Outdated { seen });
        }
        let follower = self.follower.take().expect("it was read to its end just now");
        Ok(Beginning::Term(Box::new(follower)))
    }

    /// Drops what was read: it is read again from the engine.
    pub fn forget_state(&mut self) {
        self.follower = None;
    }

    /// The highest epoch that this node has seen, in the journal or before.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        let read = self.follower.as_ref().map_or(0, |follower| follower.state().epoch());
        read.max(self.following.high_water.epoch())
    }

    /// What was read, unless it was given out.
    #[must_use]
    pub fn follower(&self) -> Option<&Follower> {
        self.follower.as_ref()
    }
}
