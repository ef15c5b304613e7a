//! What clusters have met: rare things that must have happened, or nothing was proved about them.

use std::collections::BTreeMap;

/// Something worth counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterSight {
    Elected,
    NodeCrashed,
    NodeStopped,
    NodeFrozen,
    NodeCutOff,
    /// The register did not answer a node, though the journal did.
    RegisterMute,
    ClockJump,
    EngineStalled,
    RequestUnsent,
    RequestLost,
    ReplyLost,
    RequestDelayed,
    MessageLost,
    StaleAppendRefused,
    FrozenLeaderWokeAndWasRefused,
    AmbiguousAcquireAdopted,
    AmbiguousAcquireAbandoned,
    LeaderChangedWithABatchInFlight,
    SnapshotLoadedAfterTruncation,
    UnknownAppendResolved,
    DelayedAppendLandedLate,
    DeposedForLackOfProof,
    AskedOfAStaleLeader,
    EngineFailedOver,
    EngineWiped,
    /// The register alone is empty.
    CellsForgotten,
    DataLossNoticed,
    EpochRaisedAboveTheRegister,
    /// A follower went on with what the leader told it.
    HintApplied,
    /// It did not follow what was read before.
    HintRefused,
}

impl ClusterSight {
    /// What a campaign of some size must have seen.
    pub const MUST: [Self; 29] = [
        Self::Elected,
        Self::NodeCrashed,
        Self::NodeStopped,
        Self::NodeFrozen,
        Self::NodeCutOff,
        Self::RegisterMute,
        Self::ClockJump,
        Self::EngineStalled,
        Self::RequestUnsent,
        Self::RequestLost,
        Self::ReplyLost,
        Self::RequestDelayed,
        Self::MessageLost,
        Self::StaleAppendRefused,
        Self::FrozenLeaderWokeAndWasRefused,
        Self::AmbiguousAcquireAdopted,
        Self::AmbiguousAcquireAbandoned,
        Self::LeaderChangedWithABatchInFlight,
        Self::SnapshotLoadedAfterTruncation,
        Self::UnknownAppendResolved,
        Self::DelayedAppendLandedLate,
        Self::DeposedForLackOfProof,
        Self::AskedOfAStaleLeader,
        Self::EngineFailedOver,
        Self::EngineWiped,
        Self::CellsForgotten,
        Self::DataLossNoticed,
        Self::HintApplied,
        Self::HintRefused,
    ];

    /// Things that went wrong, rather than what came of them.
    pub(crate) const FAULTS: [Self; 16] = [
        Self::NodeCrashed,
        Self::NodeStopped,
        Self::NodeFrozen,
        Self::NodeCutOff,
        Self::RegisterMute,
        Self::ClockJump,
        Self::EngineStalled,
        Self::RequestUnsent,
        Self::RequestLost,
        Self::ReplyLost,
        Self::RequestDelayed,
        Self::MessageLost,
        Self::AskedOfAStaleLeader,
        Self::EngineFailedOver,
        Self::EngineWiped,
        Self::CellsForgotten,
    ];
}

/// How often what was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sights(BTreeMap<ClusterSight, u64>);

impl Sights {
    pub(crate) fn add(&mut self, sight: ClusterSight) {
        *self.0.entry(sight).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (sight, count) in &other.0 {
            *self.0.entry(*sight).or_default() += count;
        }
    }

    #[must_use]
    pub fn count(&self, sight: ClusterSight) -> u64 {
        self.0.get(&sight).copied().unwrap_or(0)
    }

    /// What must be met and was not.
    #[must_use]
    pub fn missing(&self) -> Vec<ClusterSight> {
        ClusterSight::MUST.into_iter().filter(|sight| self.count(*sight) == 0).collect()
    }

    pub fn all(&self) -> impl Iterator<Item = (ClusterSight, u64)> {
        self.0.iter().map(|(sight, count)| (*sight, *count))
    }
}
