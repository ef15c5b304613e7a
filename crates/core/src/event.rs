//! What has happened: the events of the journal, and how they are written.
//!
//! A record is `length u32 | kind u8 | format u8 | at u64`, little-endian, then `length` bytes of CBOR: an
//! array of the event's fields by number. Fields may be added at the end as options; a changed meaning is a
//! new kind. A reader that meets a kind or format it does not know stops; it never skips.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::shards::Runs;
use crate::task::KeyClaim;
use crate::wire::Backoff;
use crate::{Json, LeaseId, Name, TaskId, Timestamp};

/// The newest format of records that this version reads and, after `FormatRaised`, writes.
pub const FORMAT: u8 = 1;

/// Bytes before the body of a record.
const HEADER_BYTES: usize = 14;

/// Defines the enum of all events and the way between an event and its kind.
macro_rules! events {
    ($($(#[$doc:meta])* $kind:literal $name:ident { $($body:tt)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize)]
            pub struct $name { $($body)* }

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

            fn encode_body(&self, out: &mut Vec<u8>) {
                let written = match self { $(Self::$name(event) => minicbor::encode(event, out),)* };
                written.expect("writing to memory cannot fail");
            }

            fn decode_body(kind: u8, body: &[u8]) -> Result<Self, RecordError> {
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
    }

    /// A leased task is to be cancelled; its worker is told by the next heartbeat.
    11 CancelRequested {
        #[n(0)] pub task: TaskId,
        /// When it ends even if the worker does nothing.
        #[n(1)] pub cancel_at: Timestamp,
    }

    /// The ttl of a waiting task was over.
    12 TaskExpired {
        #[n(0)] pub task: TaskId,
    }

    /// A dead letter got a new round.
    13 TaskRetried {
        #[n(0)] pub task: TaskId,
    }

    /// Ended tasks were forgotten. A key among them is remembered until `key_until`.
    14 TaskPurged {
        #[n(0)] pub tasks: Vec<Purge>,
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
    }

    /// One round of a service: some workers are told to stop, some get what is free. The position of this event is the
    /// token of what it grants.
    22 ShardsMoved {
        #[n(0)] pub service: Name,
        #[n(1)] pub withdrawn: Runs,
        #[n(2)] pub granted: Vec<Grant>,
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

/// Appends the record of an event to `out`.
///
/// # Panics
/// When a record is larger than 4 GiB, which the limits on requests exclude.
pub fn encode_record(at: Timestamp, event: &Event, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[event.kind(), FORMAT]);
    out.extend_from_slice(&at.0.to_le_bytes());
    event.encode_body(out);
    let length = u32::try_from(out.len() - start - HEADER_BYTES).expect("a record is far smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Walks over the records of a batch.
#[derive(Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    #[must_use]
    pub fn new(batch: &'a [u8]) -> Self {
        Self { rest: batch }
    }

    fn take(&mut self) -> Result<(Timestamp, Event), RecordError> {
        let (header, rest) = self.rest.split_at_checked(HEADER_BYTES).ok_or(RecordError::Short)?;
        let length = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        let length = usize::try_from(length).expect("an address has at least 32 bits");
        let (kind, format) = (header[4], header[5]);
        if format > FORMAT {
            return Err(RecordError::UnknownFormat(format));
        }
        let at = Timestamp(u64::from_le_bytes(header[6..].try_into().expect("eight bytes")));
        let (body, rest) = rest.split_at_checked(length).ok_or(RecordError::Short)?;
        self.rest = rest;
        Ok((at, Event::decode_body(kind, body)?))
    }
}

impl Iterator for Records<'_> {
    type Item = Result<(Timestamp, Event), RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_err() {
            self.rest = &[];
        }
        Some(taken)
    }
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("the batch ends inside a record")]
    Short,
    #[error("a record has format {0}, this version reads up to {FORMAT}; use a newer version")]
    UnknownFormat(u8),
    #[error("a record has kind {0}, which this version does not know; use a newer version")]
    UnknownKind(u8),
    #[error("a record's body is not what its kind says: {0}")]
    Body(#[from] minicbor::decode::Error),
}

fn decode_whole<'b, T: Decode<'b, ()>>(body: &'b [u8]) -> Result<T, RecordError> {
    let mut decoder = minicbor::Decoder::new(body);
    let value = decoder.decode()?;
    if decoder.position() != body.len() {
        return Err(minicbor::decode::Error::message("there are bytes after the last field").into());
    }
    Ok(value)
}
