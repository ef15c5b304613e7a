//! Coverage of a campaign: rare states that must occur, or the campaign has proved nothing about them.

use std::collections::BTreeMap;
use std::fmt;

/// States that a campaign counts.
pub trait Coverable: Copy + Ord + fmt::Debug + 'static {
    /// Faults. A campaign of some size must have had all of them.
    const FAULTS: &[Self];
    /// Other states that must occur.
    const OTHERS: &[Self];
}

/// A state that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Covered {
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

impl Coverable for Covered {
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

/// How often each state occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage<S = Covered>(BTreeMap<S, u64>);

impl<S> Default for Coverage<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: Coverable> Coverage<S> {
    pub fn add(&mut self, item: S) {
        self.add_many(item, 1);
    }

    pub fn add_many(&mut self, item: S, many: u64) {
        *self.0.entry(item).or_default() += many;
    }

    pub fn merge(&mut self, other: &Self) {
        for (item, count) in &other.0 {
            self.add_many(*item, *count);
        }
    }

    #[must_use]
    pub fn count(&self, item: S) -> u64 {
        self.0.get(&item).copied().unwrap_or(0)
    }

    /// States that must occur and did not.
    #[must_use]
    pub fn missing(&self) -> Vec<S> {
        S::FAULTS.iter().chain(S::OTHERS).copied().filter(|item| self.count(*item) == 0).collect()
    }

    /// The number of faults.
    #[must_use]
    pub fn faults(&self) -> u64 {
        S::FAULTS.iter().map(|fault| self.count(*fault)).sum()
    }

    pub fn all(&self) -> impl Iterator<Item = (S, u64)> {
        self.0.iter().map(|(item, count)| (*item, *count))
    }
}
