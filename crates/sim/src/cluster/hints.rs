//! The replication feed in a simulation: late, twice, out of order, or never. The engine is the truth.

use std::sync::Arc;

use orchestrix_engine::{Batch, JournalId};

use crate::check::Violation;
use crate::cluster::coverage::ClusterCovered;
use crate::cluster::engine::Who;
use crate::cluster::handles::lock;
use crate::cluster::happening::Doing;
use crate::cluster::world::ClusterWorld;
use crate::world::{MS, SECOND};

/// A batch on its way to one who follows.
#[derive(Clone, Debug)]
pub(crate) struct Hint {
    journal: JournalId,
    batch: Arc<Batch>,
}

impl ClusterWorld {
    /// A leader has heard that a batch is durable, and tells the others.
    pub(crate) fn spread(&mut self, from: Who, batch: Batch) {
        let hint = Hint { journal: lock(&self.model).id(), batch: Arc::new(batch) };
        for node in (0..self.machines.len()).filter(|node| *node != from.node) {
            let Some(to) = self.who(node) else { continue };
            // Never, once or twice; mostly soon.
            for _ in 0..self.rng.range(0, 3) {
                let number = self.next_hint;
                self.next_hint += 1;
                self.hints.insert(number, hint.clone());
                let takes = self.rng.skewed(MS / 2, 2 * SECOND);
                self.after(takes, to, Doing::Hint(number));
            }
        }
    }

    /// A follower hears of a batch.
    pub(crate) fn hint(&mut self, who: Who, number: u64) -> Result<(), Violation> {
        let Some(Hint { journal, batch }) = self.hints.remove(&number) else { return Ok(()) };
        let process = self.process(who);
        let Some(before) = process.standby.follower().map(|follower| follower.link()) else { return Ok(()) };
        // What does not follow makes a node read; here it does so now and then by itself.
        if !process.standby.hint(journal, Arc::unwrap_or_clone(batch)) {
            self.coverage.add(ClusterCovered::HintRefused);
            return Ok(());
        }
        let epoch = process.standby.epoch();
        process.elector.raise_epoch(epoch);
        let after = process.standby.follower().map(|follower| follower.link());
        if after != Some(before) {
            self.coverage.add(ClusterCovered::HintApplied);
        }
        self.compare(who)
    }
}
