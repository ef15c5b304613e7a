//! What has happened: the events of the journal, each an array of its fields by number in CBOR. Fields may be added at the
//! end as options; a changed meaning is a new kind.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::record::RecordError;
use crate::shards::Runs;
use crate::task::KeyClaim;
use crate::wire::Backoff;
use crate::{Json, LeaseId, Name, TaskId, Timestamp};

/// The newest format of records that this version reads and, after `FormatRaised`, writes.
pub const FORMAT: u8 = 1;

/// Defines the enum of all events and the way between an event and its kind.
macro_rules! events {
    ($($(#[$doc:meta])* $kind:literal $name:ident { $($body:tt)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
            pub struct $name { $($body)* }

            impl $name {
                /// The number that stands for this type in the journal.
                pub const KIND: u8 = $kind;
            }

            impl From<$name> for Event {
                fn from(event: $name) -> Self {
                    Self::$name(event)
                }
            }
        )*

        /// One thing that has happened.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "type")]
        pub enum Event {
            $($name($name),)*
        }

        impl Event {
            /// The number that stands for its type in the journal.
            #[must_use]
            pub fn kind(&self) -> u8 {
                match self { $(Self::$name(_) => $kind,)* }
            }

            /// Its type, as people see it.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }

            pub(crate) fn encode_body(&self, out: &mut Vec<u8>) {
                let written = match self { $(Self::$name(event) => minicbor::encode(event, out),)* };
                written.expect("writing to memory cannot fail");
            }

            pub(crate) fn decode_body(kind: u8, body: &[u8]) -> Result<Self, RecordError> {
                match kind {
                    $($kind => Ok(Self::$name(decode_whole(body)?)),)*
                    unknown => Err(RecordError::UnknownKind(unknown)),
                }
            }
        }
    };
}

events! {
    /// A node became the leader. Prolongs every live lease to now plus its length, once between two extensions by its
    /// worker; another time, by what passed since the last event.
    1 TermStarted {
        #[n(0)] pub epoch: u64,
        #[n(1)] pub node: String,
        /// Who asked for a change of leader, if somebody did and is known by name.
        #[n(2)] pub actor: Option<Name>,
        /// Milliseconds that workers of services are promised in this term: the next one waits for them.
        #[n(3)] pub shard_lease_ms: Option<u64>,
    }

    /// From here on, records of this format may follow.
    2 FormatRaised {
        #[n(0)] pub format: u8,
    }

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
        /// No worker ever had it: the answer that carried the lease reached nobody. Counts as nothing.
        #[n(4)] pub undelivered: Option<bool>,
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
    }

    /// An attempt failed.
    9 TaskFailed {
        #[n(0)] pub task: TaskId,
        #[n(1)] pub lease: LeaseId,
        #[n(2)] pub error: String,
        #[n(3)] pub next: Next,
    }

    /// A task was ended without being done.
    10 TaskCancelled {
        #[n(0)] pub task: TaskId,
        #[n(1)] pub reason: CancelReason,
        /// Who asked for it, if it was asked for just now by somebody who is known by name.
        #[n(2)] pub actor: Option<Name>,
    }

    /// A leased task is to be cancelled; its worker is told by the next heartbeat.
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

    /// Nothing happened for a while. A leader shows with it that it can still write.
    15 Tick {}

    /// The engine has lost what this journal had at some positions, and somebody has accepted that. This event
    /// stands at that many positions, so that no id that was given out then is given out again.
    16 PositionsSkipped {
        #[n(0)] pub count: u32,
    }

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

    /// A worker has stopped serving some shards; nobody has them now.
    21 ShardsLetGo {
        #[n(0)] pub service: Name,
        #[n(1)] pub worker: Name,
        #[n(2)] pub shards: Runs,
        /// It was told to stop and has not said that it did, and in this service nobody waits for that.
        #[n(3)]
        #[serde(skip_serializing_if = "Option::is_none")]
        pub overruled: Option<bool>,
    }

    /// One round of a service: some workers are told to stop, some get what is free. The position of this event is the
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

/// A pattern for every event about shards, for those who look at tasks only.
#[macro_export]
macro_rules! any_shard_event {
    () => {
        $crate::Event::ShardWorkerJoined(_)
            | $crate::Event::ShardWorkerLeft(_)
            | $crate::Event::ShardCountSet(_)
            | $crate::Event::ShardWeightsSet(_)
            | $crate::Event::ShardsLetGo(_)
            | $crate::Event::ShardsMoved(_)
    };
}

/// A pattern for every event about tasks, for those who look at shards only.
#[macro_export]
macro_rules! any_task_event {
    () => {
        $crate::Event::TaskCreated(_)
            | $crate::Event::LeaseGranted(_)
            | $crate::Event::LeaseExtended(_)
            | $crate::Event::LeaseReleased(_)
            | $crate::Event::LeaseExpired(_)
            | $crate::Event::TaskCompleted(_)
            | $crate::Event::TaskFailed(_)
            | $crate::Event::TaskCancelled(_)
            | $crate::Event::CancelRequested(_)
            | $crate::Event::TaskExpired(_)
            | $crate::Event::TaskRetried(_)
            | $crate::Event::TaskPurged(_)
    };
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
    /// Somebody asked while it waited.
    #[n(0)]
    Requested,
    /// Somebody asked while it was leased, and the worker did nothing for one lease length.
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

fn decode_whole<'b, T: Decode<'b, ()>>(body: &'b [u8]) -> Result<T, RecordError> {
    let mut decoder = minicbor::Decoder::new(body);
    let value = decoder.decode()?;
    if decoder.position() != body.len() {
        return Err(minicbor::decode::Error::message("there are bytes after the last field").into());
    }
    Ok(value)
}
