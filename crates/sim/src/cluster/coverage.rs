//! Coverage of worlds with several nodes: rare states that must occur, or they have proved nothing about them.

use crate::coverage::{Coverable, Coverage};

/// A state that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterCovered {
    Elected,
    NodeCrashed,
    NodeStopped,
    NodeFrozen,
    NodeCutOff,
    /// The register did not answer a node, though the journal did.
    RegisterMute,
    ClockJump,
    EngineStalled,
    /// It answered everything with a refusal that passes.
    EngineRefused,
    /// On an engine that has one.
    EngineClockSetBack,
    RequestUnsent,
    RequestLost,
    ReplyLost,
    RequestDelayed,
    MessageLost,
    /// A caller closed its connection before it was answered, and asks again.
    HungUp,
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
    /// An append of output that arrived long after it was sent.
    LateOutputStored,
    LateOutputRefused,
    /// Output of which some was beyond the cap was read.
    OutputDropped,
    /// A follower applied a batch of the replication feed.
    HintApplied,
    /// It did not follow what was read before.
    HintRefused,
    FormatRaised,
    /// A leader would have raised the format, and an old node was present.
    RaiseWaited,
    /// A term of a node that reads format 1 only.
    OldVersionLeads,
    /// Such a node has met a record that it does not know.
    OldVersionStopped,
}

impl Coverable for ClusterCovered {
    const FAULTS: &[Self] = &[
        Self::NodeCrashed,
        Self::NodeStopped,
        Self::NodeFrozen,
        Self::NodeCutOff,
        Self::RegisterMute,
        Self::ClockJump,
        Self::EngineStalled,
        Self::EngineRefused,
        Self::EngineClockSetBack,
        Self::RequestUnsent,
        Self::RequestLost,
        Self::ReplyLost,
        Self::RequestDelayed,
        Self::MessageLost,
        Self::HungUp,
        Self::AskedOfAStaleLeader,
        Self::EngineFailedOver,
        Self::EngineWiped,
        Self::CellsForgotten,
    ];

    const OTHERS: &[Self] = &[
        Self::Elected,
        Self::StaleAppendRefused,
        Self::FrozenLeaderWokeAndWasRefused,
        Self::AmbiguousAcquireAdopted,
        Self::AmbiguousAcquireAbandoned,
        Self::LeaderChangedWithABatchInFlight,
        Self::SnapshotLoadedAfterTruncation,
        Self::UnknownAppendResolved,
        Self::DelayedAppendLandedLate,
        Self::DeposedForLackOfProof,
        Self::DataLossNoticed,
        Self::LateOutputStored,
        Self::LateOutputRefused,
        Self::OutputDropped,
        Self::HintApplied,
        Self::HintRefused,
        Self::FormatRaised,
        Self::RaiseWaited,
        Self::OldVersionLeads,
        Self::OldVersionStopped,
    ];
}

/// How often each state occurred.
pub type ClusterCoverage = Coverage<ClusterCovered>;
