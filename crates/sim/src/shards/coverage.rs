//! Coverage of worlds with shards: rare states that must occur, or they have proved nothing about them.

use crate::coverage::{Coverable, Coverage};

/// A state that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShardCovered {
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
    /// A shard was taken from a worker that does not listen.
    Overruled,
}

impl Coverable for ShardCovered {
    const FAULTS: &[Self] = &[
        Self::WorkerDied,
        Self::WorkerFrozen,
        Self::WorkerLeft,
        Self::WorkerReconnected,
        Self::SecondProcess,
        Self::MessageLost,
        Self::MessageDoubled,
        Self::MessageLate,
    ];

    const OTHERS: &[Self] = &[
        Self::Granted,
        Self::Withdrawn,
        Self::LetGo,
        Self::LeftByWord,
        Self::LeftSilent,
        Self::LeftFenced,
        Self::CountChanged,
        Self::ServerChanged,
        Self::TermBeganWithAMoveUnderWay,
        Self::StoppedByItself,
        Self::WokeTooLate,
        Self::Fenced,
        Self::LowerGenerationIgnored,
        Self::AnswerOfBeforeIgnored,
        Self::HeartbeatOfAnOldGeneration,
        Self::NotLetIn,
        Self::CapacityFull,
        Self::PlainMove,
        Self::Overruled,
    ];
}

/// How often what was met.
pub type ShardCoverage = Coverage<ShardCovered>;
