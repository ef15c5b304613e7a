//! Commands about shards.

use std::collections::{BTreeMap, BTreeSet};

use super::LeaveReason;
use crate::command::{at_most, in_range};
use crate::limits::{SHARD_WEIGHT_MAX, SHARDS_MAX};
use crate::{Name, Refusal, wire};

/// What may be asked about shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardCommand {
    /// A worker registers. `count` is how many shards it believes there are.
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
    /// A worker keeps serving withdrawn shards.
    Overrule {
        service: Name,
        worker: Name,
        shards: BTreeSet<u32>,
    },
    /// A worker changes its own shard count, or an operator sets it.
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
                shards_at_most("capacity", *capacity)?;
                shards_at_most("maxShardCount", Some(*count))
            }
            Self::SetCapacity { capacity, .. } => shards_at_most("capacity", *capacity),
            Self::SetCount { count, worker, .. } => {
                shards_at_most(count_field(worker.as_ref()), Some(*count))
            }
            Self::LetGo { shards, .. } => at_most("shards", shards.len(), SHARDS_MAX as usize),
            Self::Overrule { shards, .. } => at_most("shards", shards.len(), SHARDS_MAX as usize),
            Self::SetWeights { weights, .. } => valid_weights(weights),
            Self::Leave { .. } | Self::Move { .. } | Self::Expire { .. } => Ok(()),
        }
    }
}

impl wire::ShardRegister {
    /// # Errors
    /// The first field that is out of its range.
    pub fn validate(&self) -> Result<(), Refusal> {
        shards_at_most("maxShardCount", Some(self.max_shard_count))?;
        shards_at_most("capacity", self.capacity)
    }
}

impl wire::ShardHeartbeat {
    /// # Errors
    /// The first field that is out of its range.
    pub fn validate(&self) -> Result<(), Refusal> {
        shards_at_most("maxShardCount", Some(self.max_shard_count))?;
        shards_at_most("capacity", self.capacity)?;
        at_most("assignedShards", self.assigned_shards.len(), SHARDS_MAX as usize)
    }
}

impl wire::ServiceChange {
    /// # Errors
    /// The first field that is out of its range.
    pub fn validate(&self) -> Result<(), Refusal> {
        shards_at_most("shard_count", self.shard_count)?;
        self.weights.as_ref().map_or(Ok(()), valid_weights)
    }
}

fn shards_at_most(field: &'static str, shards: Option<u32>) -> Result<(), Refusal> {
    in_range(field, u64::from(shards.unwrap_or(0)), 0, u64::from(SHARDS_MAX))
}

fn valid_weights(weights: &BTreeMap<u32, u32>) -> Result<(), Refusal> {
    at_most("weights", weights.len(), SHARDS_MAX as usize)?;
    let in_range = |weight: &u32| in_range("weights", u64::from(*weight), 1, u64::from(SHARD_WEIGHT_MAX));
    weights.values().try_for_each(in_range)
}

/// What a worker and an operator call the number of shards.
pub(super) fn count_field(worker: Option<&Name>) -> &'static str {
    if worker.is_some() { "maxShardCount" } else { "shard_count" }
}
