//! What a campaign has seen: rare things that must have happened, or it has proved nothing about them.

use std::collections::BTreeMap;

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
    LeaseProlongedAtStart,
    LeaseAbandoned,
    CancelHeeded,
    CancelUnheeded,
    TtlExpired,
    Timeout,
    Purged,
    Retried,
    ReleaseCharged,
}

impl Sight {
    /// What a campaign of some size must have seen.
    pub const MUST: [Self; 35] = [
        Self::Submitted,
        Self::Completed,
        Self::Kill,
        Self::PowerLoss,
        Self::PowerLossWithin,
        Self::KeyConflict,
        Self::LeaseProlongedAtStart,
        Self::CancelUnheeded,
        Self::Overloaded,
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
        Self::Retried,
    ];
}

/// How often what was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(BTreeMap<Sight, u64>);

impl Seen {
    pub fn add(&mut self, sight: Sight) {
        *self.0.entry(sight).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        for (sight, count) in &other.0 {
            *self.0.entry(*sight).or_default() += count;
        }
    }

    #[must_use]
    pub fn count(&self, sight: Sight) -> u64 {
        self.0.get(&sight).copied().unwrap_or(0)
    }

    /// What must be seen and was not.
    #[must_use]
    pub fn missing(&self) -> Vec<Sight> {
        Sight::MUST.into_iter().filter(|sight| self.count(*sight) == 0).collect()
    }

    pub fn all(&self) -> impl Iterator<Item = (Sight, u64)> {
        self.0.iter().map(|(sight, count)| (*sight, *count))
    }
}
