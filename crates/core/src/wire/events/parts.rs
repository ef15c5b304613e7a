//! What events consist of.

use serde::{Deserialize, Serialize};

use crate::{Key, LeaseId, Name, TaskId, Timestamp};

/// Derives what the parts of events have: JSON both ways, and a schema.
macro_rules! parts {
    ($($(#[$meta:meta])* $kind:ident $name:ident { $($body:tt)* })*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        $(#[$meta])*
        pub $kind $name { $($body)* }
    )*};
}

parts! {
    /// The key of a task.
    struct EventKey {
        pub key: Key,
    }

    /// A lease that was extended.
    struct ExtendedLease {
        pub lease: LeaseId,
        /// The queue of its task.
        pub queue: Name,
        pub expires_at: Timestamp,
    }

    /// A lease that was started.
    struct StartedLease {
        pub lease: LeaseId,
        /// The queue of its task.
        pub queue: Name,
        pub worker: Name,
        pub expires_at: Timestamp,
    }

    /// A task that was deleted.
    struct PurgedTask {
        pub task: TaskId,
        pub queue: Name,
        /// Until when its key is remembered, if it has one.
        pub key_until: Option<Timestamp>,
    }

    /// `count` shards from `first` on.
    #[derive(Copy)]
    struct ShardRun {
        pub first: u32,
        pub count: u32,
    }

    /// Shards that were granted to a worker.
    struct ShardGrant {
        pub worker: Name,
        pub shards: Vec<ShardRun>,
    }

    /// How many shards a worker takes at most from now on; `null` is no limit.
    struct CapacityChange {
        pub worker: Name,
        pub capacity: Option<u32>,
    }

    /// Where a task goes when an attempt ends without success.
    #[derive(Copy)]
    #[serde(rename_all = "snake_case")]
    enum NextStep {
        Waiting { not_before: Timestamp },
        Failed,
        Cancelled,
    }

    /// Why a lease ended by time.
    #[derive(Copy)]
    #[serde(rename_all = "snake_case")]
    enum ExpiryReason {
        /// No heartbeat came in time.
        Silent,
        /// The attempt took longer than the time limit of the task.
        Timeout,
    }

    /// Why a task was cancelled.
    #[derive(Copy)]
    #[serde(rename_all = "snake_case")]
    enum CancelReason {
        /// It was asked for while the task waited.
        Requested,
        /// It was asked for while the task was leased, and the worker did not answer in time.
        Unheeded,
    }

    /// Why a process of a node left.
    #[derive(Copy)]
    #[serde(rename_all = "snake_case")]
    enum NodeLeftReason {
        Stopped,
        /// Nothing was heard of it for too long.
        Silent,
        /// Another process took its name.
        Replaced,
    }

    /// Why a worker left.
    #[derive(Copy)]
    #[serde(rename_all = "snake_case")]
    enum LeaveReason {
        Deregistered,
        /// No heartbeat came in time.
        Silent,
        /// Another process took its name.
        Fenced,
    }
}
