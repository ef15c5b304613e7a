//! What worlds with shards have met: rare things that must have happened, or nothing was proved about them.

use std::collections::BTreeMap;

/// Something worth counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShardSight {
    Granted,
    Withdrawn,
    LetGo,
    LeftByWord,
    LeftSilent,
    LeftFenced,
    CountChanged,
    /// A shard was served by one worker after another.
    ServerChanged,
    /// The coordinator began anew, or another node did, while a shard was on its way.
    TermBeganWithAMoveUnderWay,
    WorkerDied,
    WorkerFrozen,
    WorkerLeft,
    WorkerReconnected,
    SecondProcess,
    /// A worker stopped because its time was over on its own clock.
    StoppedByItself,
    /// It woke, and its time was over.
    WokeTooLate,
    Fenced,
    LowerGenerationIgnored,
    AnswerOfBeforeIgnored,
    HeartbeatOfAnOldGeneration,
    NotLetIn,
    CapacityFull,
    MessageLost,
    MessageDoubled,
    MessageLate,
    /// Two served one shard, and the earlier is a worker that echoes no generation.
    PlainOverlap,
    PlainOverlapMs,
    PlainMove,
}

impl ShardSight {
    /// What a campaign of some size must have seen.
    pub const MUST: [Self; 26] = [
        Self::Granted,
        Self::Withdrawn,
        Self::LetGo,
        Self::LeftByWord,
        Self::LeftSilent,
        Self::LeftFenced,
        Self::CountChanged,
        Self::ServerChanged,
        Self::TermBeganWithAMoveUnderWay,
        Self::WorkerDied,
        Self::WorkerFrozen,
        Self::WorkerLeft,
        Self::WorkerReconnected,
        Self::SecondProcess,
        Self::StoppedByItself,
        Self::WokeTooLate,
        Self::Fenced,
        Self::LowerGenerationIgnored,
        Self::AnswerOfBeforeIgnored,
        Self::HeartbeatOfAnOldGeneration,
        Self::NotLetIn,
        Self::CapacityFull,
        Self::MessageLost,
        Self::MessageDoubled,
        Self::MessageLate,
        Self::PlainMove,
    ];

    /// Things that went wrong, rather than what came of them.
    pub(crate) const FAULTS: [Self; 8] = [
        Self::WorkerDied,
        Self::WorkerFrozen,
        Self::WorkerLeft,
        Self::WorkerReconnected,
        Self::SecondProcess,
        Self::MessageLost,
        Self::MessageDoubled,
        Self::MessageLate,
    ];
}

/// How often what was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardSights(BTreeMap<ShardSight, u64>);

impl ShardSights {
    pub(crate) fn add(&mut self, sight: ShardSight) {
        self.add_many(sight, 1);
    }

    pub(crate) fn add_many(&mut self, sight: ShardSight, many: u64) {
        *self.0.entry(sight).or_default() += many;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (sight, count) in &other.0 {
            self.add_many(*sight, *count);
        }
    }

    #[must_use]
    pub fn count(&self, sight: ShardSight) -> u64 {
        self.0.get(&sight).copied().unwrap_or(0)
    }

    /// What must be met and was not.
    #[must_use]
    pub fn missing(&self) -> Vec<ShardSight> {
        ShardSight::MUST.into_iter().filter(|sight| self.count(*sight) == 0).collect()
    }

    pub fn all(&self) -> impl Iterator<Item = (ShardSight, u64)> {
        self.0.iter().map(|(sight, count)| (*sight, *count))
    }
}
