//! Events of tasks.

use minicbor::{Decode, Encode};
use serde::Serialize;

use super::KeyClaim;
use crate::event::events;
use crate::wire::Backoff;
use crate::{Json, LeaseId, Name, TaskId, Timestamp};

events! {
    /// What happens to tasks.
    TaskEvent of Task;

    /// A task was accepted. Its id is the position of this event.
    3 TaskCreated {
        #[n(0)] pub queue: Name,
        #[n(1)] pub payload: Json,
        #[n(2)] pub priority: i32,
        #[n(3)] pub not_before: Timestamp,
        #[n(4)] pub max_attempts: u32,
        #[n(5)] pub key: Option<KeyClaim>,
        #[n(6)] pub timeout_ms: Option<u64>,
        #[n(7)] pub ttl_at: Option<Timestamp>,
        #[n(8)] pub backoff: Option<Backoff>,
    }

    /// A worker got a task. The lease's id is the position of this event.
    4 LeaseGranted {
        #[n(0)] pub task: TaskId,
        #[n(1)] pub worker: Name,
        #[n(2)] pub attempt: u32,
        #[n(3)] pub length_ms: u64,
        #[n(4)] pub expires_at: Timestamp,
        #[n(5)] pub timeout_at: Option<Timestamp>,
        #[n(6)] pub request_id: Option<Name>,
    }

    /// A worker keeps its tasks.
    5 LeaseExtended {
        #[n(0)] pub extended: Vec<Extension>,
        #[n(1)] pub progress: Option<u8>,
        #[n(2)] pub note: Option<String>,
    }

    /// A worker gave a task back.
    6 LeaseReleased {
        #[n(0)] pub task: TaskId,
        #[n(1)] pub lease: LeaseId,
        /// Whether it counts as an attempt.
        #[n(2)] pub charged: bool,
        #[n(3)] pub next: Next,
        /// No worker ever had it: the answer with the lease was not delivered. No attempt is counted.
        #[n(4)] pub undelivered: Option<bool>,
        /// The worker that has started it in the same moment, if it was offered until then.
        #[n(5)] #[serde(skip_serializing_if = "Option::is_none")] pub worker: Option<Name>,
    }

    /// A lease ended by time. It counts as an attempt.
    7 LeaseExpired {
        #[n(0)] pub task: TaskId,
        #[n(1)] pub lease: LeaseId,
        #[n(2)] pub reason: ExpiryReason,
        #[n(3)] pub next: Next,
    }

    /// A worker did the task.
    8 TaskCompleted {
        #[n(0)] pub task: TaskId,
        #[n(1)] pub lease: LeaseId,
        #[n(2)] pub result: Option<Json>,
        /// The worker that has started it in the same moment, if it was offered until then.
        #[n(3)] #[serde(skip_serializing_if = "Option::is_none")] pub worker: Option<Name>,
    }

    /// An attempt failed.
    9 TaskFailed {
        #[n(0)] pub task: TaskId,
        #[n(1)] pub lease: LeaseId,
        #[n(2)] pub error: String,
        #[n(3)] pub next: Next,
        /// The worker that has started it in the same moment, if it was offered until then.
        #[n(4)] #[serde(skip_serializing_if = "Option::is_none")] pub worker: Option<Name>,
    }

    /// A task was ended without being done.
    10 TaskCancelled {
        #[n(0)] pub task: TaskId,
        #[n(1)] pub reason: CancelReason,
        /// The name of the caller who requested it just now, if it is known.
        #[n(2)] pub actor: Option<Name>,
    }

    /// A leased task is to be cancelled; its worker learns it from the next heartbeat.
    11 CancelRequested {
        #[n(0)] pub task: TaskId,
        /// When it ends even if the worker does nothing.
        #[n(1)] pub cancel_at: Timestamp,
        /// Who asked for it, if known by name.
        #[n(2)] pub actor: Option<Name>,
    }

    /// The ttl of a waiting task was over.
    12 TaskExpired {
        #[n(0)] pub task: TaskId,
    }

    /// A dead letter got a new round.
    13 TaskRetried {
        #[n(0)] pub task: TaskId,
        /// Who asked for it, if known by name.
        #[n(1)] pub actor: Option<Name>,
    }

    /// Ended tasks were forgotten. A key among them is remembered until `key_until`.
    14 TaskPurged {
        #[n(0)] pub tasks: Vec<Purge>,
        /// Keys of purged tasks that may be remembered after this, if there are more: the first ones are forgotten.
        #[n(1)] #[serde(skip_serializing_if = "Option::is_none")] pub keys_kept: Option<u64>,
    }

    /// A task is offered over the bus. The lease's id is the position of this event; it has no worker until one starts it.
    28 LeaseOffered {
        #[n(0)] pub task: TaskId,
        #[n(1)] pub attempt: u32,
        /// How long it lasts without a heartbeat, once it is started.
        #[n(2)] pub length_ms: u64,
        /// When the offer ends.
        #[n(3)] pub expires_at: Timestamp,
    }

    /// Workers have started leases that were offered. The execution limit of an attempt counts from here.
    29 LeasesStarted {
        #[n(0)] pub started: Vec<Start>,
    }

    /// The bus answers again: no heartbeat and no report could come over it. Prolongs leases of the bus as a new term does.
    30 BusResumed {
        /// Since when it was silent.
        #[n(0)] pub silent_since: Timestamp,
    }
}

/// One lease of a [`LeasesStarted`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Start {
    #[n(0)]
    pub lease: LeaseId,
    #[n(1)]
    pub worker: Name,
    #[n(2)]
    pub expires_at: Timestamp,
}

/// One lease of a [`LeaseExtended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Extension {
    #[n(0)]
    pub lease: LeaseId,
    #[n(1)]
    pub expires_at: Timestamp,
}

/// One task of a [`TaskPurged`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Purge {
    #[n(0)]
    pub task: TaskId,
    /// Present when the task has a key.
    #[n(1)]
    pub key_until: Option<Timestamp>,
}

/// Where a task goes when an attempt ends without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    #[n(0)]
    Waiting {
        #[n(0)]
        not_before: Timestamp,
    },
    #[n(1)]
    Failed,
    #[n(2)]
    Cancelled,
}

/// Why a lease ended by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "snake_case")]
pub enum ExpiryReason {
    /// Nothing was heard of the worker for the length of the lease.
    #[n(0)]
    Silent,
    /// The attempt took longer than the task allows.
    #[n(1)]
    Timeout,
}

/// Why a task was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// Requested while it waited.
    #[n(0)]
    Requested,
    /// Requested while it was leased, and the worker did nothing for one lease length.
    #[n(1)]
    Unheeded,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    #[n(0)]
    Completed,
    #[n(1)]
    Failed,
    #[n(2)]
    Released,
    #[n(3)]
    Silent,
    #[n(4)]
    Timeout,
    #[n(5)]
    Cancelled,
}

impl AttemptEnd {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Silent => "silent",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
        }
    }
}
