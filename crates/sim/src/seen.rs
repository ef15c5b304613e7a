//! What a campaign has seen: rare things that must have happened, or it has proved nothing about them.

use std::collections::BTreeMap;
use std::fmt;

/// A kind of things that worlds see.
pub trait Kind: Copy + Ord + fmt::Debug + 'static {
    /// What went wrong, rather than what came of it. A campaign of some size must have seen all of them.
    const FAULTS: &[Self];
    /// What else it must have seen.
    const OTHERS: &[Self];
}

/// Something worth counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    Submitted,
    Completed,
    Kill,
    PowerLoss,
    /// In the middle of something.
    PowerLossWithin,
    CleanStop,
    ServerFrozen,
    WorkerCrash,
    WorkerFrozen,
    ClockJump,
    SyncFailed,
    WriteCutShort,
    DiskFilled,
    MessageLost,
    MessageDoubled,
    /// A caller closed its connection before it was answered, and asks again.
    HungUp,
    TornTailCut,
    SnapshotTaken,
    SnapshotUsed,
    SnapshotPassedOver,
    SegmentsDropped,
    StaleReportRefused,
    RepeatedReport,
    FullDiskRefused,
    Overloaded,
    DeadLetterByExpiry,
    DeadLetterByFailure,
    UnknownResolved,
    KeyRepeated,
    KeyConflict,
    /// A task for a queue that would be one too many.
    QueueRefused,
    LeaseProlongedAtStart,
    LeaseAbandoned,
    CancelHeeded,
    CancelUnheeded,
    TtlExpired,
    Timeout,
    Purged,
    KeysForgotten,
    Retried,
    ReleaseCharged,
}

impl Kind for Sight {
    const FAULTS: &[Self] = &[
        Self::Kill,
        Self::PowerLoss,
        Self::PowerLossWithin,
        Self::CleanStop,
        Self::ServerFrozen,
        Self::WorkerCrash,
        Self::WorkerFrozen,
        Self::ClockJump,
        Self::SyncFailed,
        Self::WriteCutShort,
        Self::DiskFilled,
        Self::MessageLost,
        Self::MessageDoubled,
        Self::HungUp,
    ];

    const OTHERS: &[Self] = &[
        Self::Submitted,
        Self::Completed,
        Self::KeyConflict,
        Self::QueueRefused,
        Self::LeaseProlongedAtStart,
        Self::CancelUnheeded,
        Self::Overloaded,
        Self::TornTailCut,
        Self::SnapshotTaken,
        Self::SnapshotUsed,
        Self::SegmentsDropped,
        Self::StaleReportRefused,
        Self::RepeatedReport,
        Self::FullDiskRefused,
        Self::DeadLetterByExpiry,
        Self::DeadLetterByFailure,
        Self::UnknownResolved,
        Self::KeyRepeated,
        Self::CancelHeeded,
        Self::TtlExpired,
        Self::Timeout,
        Self::Purged,
        Self::KeysForgotten,
        Self::Retried,
    ];
}

/// How often what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen<S = Sight>(BTreeMap<S, u64>);

impl<S> Default for Seen<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: Kind> Seen<S> {
    pub fn add(&mut self, sight: S) {
        self.add_many(sight, 1);
    }

    pub fn add_many(&mut self, sight: S, many: u64) {
        *self.0.entry(sight).or_default() += many;
    }

    pub fn merge(&mut self, other: &Self) {
        for (sight, count) in &other.0 {
            self.add_many(*sight, *count);
        }
    }

    #[must_use]
    pub fn count(&self, sight: S) -> u64 {
        self.0.get(&sight).copied().unwrap_or(0)
    }

    /// What must be seen and was not.
    #[must_use]
    pub fn missing(&self) -> Vec<S> {
        S::FAULTS.iter().chain(S::OTHERS).copied().filter(|sight| self.count(*sight) == 0).collect()
    }

    /// How often something went wrong.
    #[must_use]
    pub fn faults(&self) -> u64 {
        S::FAULTS.iter().map(|fault| self.count(*fault)).sum()
    }

    pub fn all(&self) -> impl Iterator<Item = (S, u64)> {
        self.0.iter().map(|(sight, count)| (*sight, *count))
    }
}
