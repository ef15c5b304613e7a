//! Checks the journal, the answers and the actions of workers against the invariants of shards (H).
//!
//! [`model`] walks the journal and says whether each event may follow those before it, [`answers`] whether each
//! assignment is what the journal says, [`sessions`] whether processes of one name take turns, [`served`] whether two were
//! ever at work on one shard. None of them uses the rules' own code: what is wrong there must not be wrong here too.

mod answers;
mod model;
mod served;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::{Name, Position};

use crate::check::Violation;
use crate::history::History;
use crate::shards::coverage::ShardCovered;
use crate::shards::plan::ShardPlan;

/// The first of each invariant that does not hold; nothing when all is well.
pub(crate) fn check(history: &mut History, plan: &ShardPlan) -> Vec<Violation> {
    let mut record = std::mem::take(&mut history.shards);
    record.coverage.add_many(ShardCovered::HeartbeatOfAnOldGeneration, answers::overtaken(history));
    let rights = answers::rights(history, &record);
    let model = model::walk(history, &mut record, &rights);
    let mut found = model.found;
    found.extend(answers::check(history, &record, &model.versions));
    found.extend(sessions::check(history));
    found.extend(served::check(&mut record, plan));
    history.shards = record;
    let mut named = BTreeSet::new();
    found.retain(|violation| named.insert(violation.invariant));
    found
}

/// The right of a process to serve a shard under a token, with its end in microseconds of the world.
pub(crate) type Rights = BTreeMap<(Name, u32, Position), BTreeMap<usize, u64>>;

/// What each worker had, after each event of a service that changed it.
pub(crate) type Versions = BTreeMap<Name, BTreeMap<Position, BTreeMap<Name, BTreeMap<u32, Position>>>>;

#[cfg(test)]
mod tests;
