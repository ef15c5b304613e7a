//! What may be asked about shards.

use std::collections::{BTreeMap, BTreeSet};

use super::LeaveReason;
use crate::command::{at_most, in_range};
use crate::limits::{SHARD_WEIGHT_MAX, SHARDS_MAX};
use crate::{Name, Refusal};

/// What may be asked about shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardCommand {
    /// A worker comes. `count` is how many shards it believes there are.
    Join {
        service: Name,
        worker: Name,
        group: Option<Name>,
        count: u32,
        capacity: Option<u32>,
        /// The token that it shows, if any.
        by: Option<Name>,
        /// The session that it names, if any.
        session: Option<Name>,
    },
    /// A worker has left, or its time has run out.
    Leave {
        service: Name,
        worker: Name,
        reason: LeaveReason,
    },
    /// A worker has stopped serving some of its shards.
    LetGo {
        service: Name,
        worker: Name,
        shards: Vec<u32>,
    },
    /// A worker was told to stop serving some of its shards, and does not listen.
    Overrule {
        service: Name,
        worker: Name,
        shards: BTreeSet<u32>,
    },
    /// Somebody changes the number of shards: a worker its own word, or an operator.
    SetCount {
        service: Name,
        count: u32,
        worker: Option<Name>,
    },
    /// A worker takes so many shards at most.
    SetCapacity {
        service: Name,
        worker: Name,
        capacity: Option<u32>,
    },
    SetWeights {
        service: Name,
        weights: BTreeMap<u32, u32>,
    },
    /// A service has no workers for long.
    Expire {
        service: Name,
    },
    /// Makes shares even, by at most so many withdrawals at once.
    Move {
        service: Name,
        most: usize,
    },
}

impl ShardCommand {
    pub(super) fn validate(&self) -> Result<(), Refusal> {
        match self {
            Self::Join { count, capacity, .. } => {
                in_range("capacity", u64::from(capacity.unwrap_or(0)), 0, u64::from(SHARDS_MAX))?;
                in_range("maxShardCount", u64::from(*count), 0, u64::from(SHARDS_MAX))
            }
            Self::SetCapacity { capacity, .. } => {
                in_range("capacity", u64::from(capacity.unwrap_or(0)), 0, u64::from(SHARDS_MAX))
            }
            Self::SetCount { count, worker, .. } => {
                in_range(count_field(worker.as_ref()), u64::from(*count), 0, u64::from(SHARDS_MAX))
            }
            Self::LetGo { shards, .. } => at_most("shards", shards.len(), SHARDS_MAX as usize),
            Self::Overrule { shards, .. } => at_most("shards", shards.len(), SHARDS_MAX as usize),
            Self::SetWeights { weights, .. } => {
                at_most("weights", weights.len(), SHARDS_MAX as usize)?;
                let heaviest = weights.values().max().copied().unwrap_or(1);
                let lightest = weights.values().min().copied().unwrap_or(1);
                in_range("weights", u64::from(heaviest), 1, u64::from(SHARD_WEIGHT_MAX))?;
                in_range("weights", u64::from(lightest), 1, u64::from(SHARD_WEIGHT_MAX))
            }
            Self::Leave { .. } | Self::Move { .. } | Self::Expire { .. } => Ok(()),
        }
    }
}

/// What a worker and an operator call the number of shards.
pub(super) fn count_field(worker: Option<&Name>) -> &'static str {
    if worker.is_some() { "maxShardCount" } else { "shard_count" }
}
