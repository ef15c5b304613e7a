//! Events of services and their shards.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};
use serde::Serialize;

use super::Runs;
use crate::Name;
use crate::event::events;

events! {
    /// What happens to services and their shards.
    ShardEvent of Shard;

    /// A worker came to a service. The first one makes the service.
    17 ShardWorkerJoined {
        #[n(0)] pub service: Name,
        #[n(1)] pub worker: Name,
        #[n(2)] pub group: Option<Name>,
        /// The number of shards from here on, if the worker says another than before.
        #[n(3)] pub count: Option<u32>,
        #[n(4)] pub capacity: Option<u32>,
        /// What the worker says about the number of shards, if an operator's word stands against it.
        #[n(5)]
        #[serde(skip_serializing_if = "Option::is_none")]
        pub said: Option<u32>,
        /// The token by which the service was made, if one was shown.
        #[n(6)]
        #[serde(skip_serializing_if = "Option::is_none")]
        pub by: Option<Name>,
        /// The session that the process names, if it names one: the next leader knows it again by that. Not shown: it
        /// lets a process speak for the worker.
        #[n(7)]
        #[serde(skip)]
        pub session: Option<Name>,
    }

    /// A worker is gone, and with it its right to all of its shards.
    18 ShardWorkerLeft {
        #[n(0)] pub service: Name,
        #[n(1)] pub worker: Name,
        #[n(2)] pub reason: LeaveReason,
    }

    /// The number of shards changed; a worker's own word about it, or an operator's.
    19 ShardCountSet {
        #[n(0)] pub service: Name,
        #[n(1)] pub count: u32,
        #[n(2)] pub worker: Option<Name>,
    }

    /// Shards weigh something else from here on; those that are not named weigh 1.
    20 ShardWeightsSet {
        #[n(0)] pub service: Name,
        #[n(1)] pub weights: BTreeMap<u32, u32>,
    }

    /// A worker has released some shards; they are free now.
    21 ShardsLetGo {
        #[n(0)] pub service: Name,
        #[n(1)] pub worker: Name,
        #[n(2)] pub shards: Runs,
        /// They were withdrawn and not released, and this service does not wait for that.
        #[n(3)]
        #[serde(skip_serializing_if = "Option::is_none")]
        pub overruled: Option<bool>,
    }

    /// One rebalance of a service: shards are withdrawn from some workers and granted to others. The position of this event is the
    /// token of what it grants.
    22 ShardsMoved {
        #[n(0)] pub service: Name,
        #[n(1)] pub withdrawn: Runs,
        #[n(2)] pub granted: Vec<Grant>,
        /// A worker changed its capacity. Nothing moves by the same event. A field and no event of its own: nodes of the
        /// version before read on.
        #[n(3)]
        #[serde(skip_serializing_if = "Option::is_none")]
        pub capacity: Option<NewCapacity>,
    }
}

/// What one worker gets by a [`ShardsMoved`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Grant {
    #[n(0)]
    pub worker: Name,
    #[n(1)]
    pub shards: Runs,
}

/// How many shards a worker takes at most from a [`ShardsMoved`] on; as many as there are if it does not say.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct NewCapacity {
    #[n(0)]
    pub worker: Name,
    #[n(1)]
    pub capacity: Option<u32>,
}

/// Why a worker is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "snake_case")]
pub enum LeaveReason {
    /// It said so.
    #[n(0)]
    Deregistered,
    /// Nothing was heard of it for its time.
    #[n(1)]
    Silent,
    /// Another took its name, and its time is over.
    #[n(2)]
    Fenced,
}
