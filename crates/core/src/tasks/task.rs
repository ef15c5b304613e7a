//! One task in the state. Small: a million of them wait in memory.

use std::fmt;

use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::AttemptEnd;
use crate::limits::OFFER_MS;
use crate::wire::Backoff;
use crate::{Json, Key, LeaseId, Name, TaskId, Timestamp};

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
#[cbor(index_only)]
#[serde(rename_all = "UPPERCASE")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TaskState {
    #[n(0)]
    Waiting,
    #[n(1)]
    Leased,
    #[n(2)]
    Completed,
    /// A dead letter.
    #[n(3)]
    Failed,
    #[n(4)]
    Cancelled,
}

impl TaskState {
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Leased, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether only a retry or a purge can change it.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Waiting | Self::Leased => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Leased => "LEASED",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One unit of work. What most tasks do not have is behind a pointer.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Task {
    #[n(0)]
    pub id: TaskId,
    #[n(1)]
    pub queue: Name,
    #[n(2)]
    pub payload: Json,
    #[n(3)]
    pub created_at: Timestamp,
    /// Not leased before this time. Meaningful while waiting.
    #[n(4)]
    pub not_before: Timestamp,
    #[n(5)]
    pub priority: i32,
    #[n(6)]
    pub max_attempts: u32,
    /// Attempts of this round that count.
    #[n(7)]
    pub charged: u32,
    #[n(8)]
    pub state: TaskState,
    /// Only in snapshots of earlier versions: purged, and kept because its key must be remembered.
    #[n(9)]
    pub purged: bool,
    #[n(10)]
    pub lease: Option<Box<LiveLease>>,
    #[n(11)]
    pub terms: Option<Box<Terms>>,
    #[n(12)]
    pub past: Option<Box<Past>>,
}

/// What a submitter asked for beyond the defaults.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Terms {
    #[n(0)]
    pub key: Option<KeyClaim>,
    #[n(1)]
    pub timeout_ms: Option<u64>,
    #[n(2)]
    pub ttl_at: Option<Timestamp>,
    #[n(3)]
    pub backoff: Option<Backoff>,
}

/// A key and what it was used for.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct KeyClaim {
    #[n(0)]
    pub key: Key,
    /// [`crate::canonical_hash`] of the request.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    #[serde(skip)]
    pub request: [u8; 16],
}

/// A worker's right to a task until a time.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LiveLease {
    #[n(0)]
    pub id: LeaseId,
    /// `None` while it is offered: nobody has started it.
    #[n(1)]
    pub worker: Option<Name>,
    #[n(2)]
    pub attempt: u32,
    #[n(3)]
    pub granted_at: Timestamp,
    /// The length that was promised to the worker.
    #[n(4)]
    pub length_ms: u64,
    #[n(5)]
    pub expires_at: Timestamp,
    /// The execution limit. A new term moves it as far as it was promised to the worker, and never further.
    #[n(6)]
    pub timeout_at: Option<Timestamp>,
    /// When a cancellation that was asked for takes effect anyway; never prolonged.
    #[n(7)]
    pub cancel_at: Option<Timestamp>,
    /// A new term has given it its length again since its worker last did; another only keeps what is left.
    #[n(8)]
    pub prolonged: bool,
    #[n(9)]
    pub request_id: Option<Name>,
    #[n(10)]
    pub progress: Option<u8>,
    #[n(11)]
    pub note: Option<Box<str>>,
    /// Who asked for the cancellation, if known by name.
    #[n(12)]
    pub cancel_by: Option<Name>,
    /// How it reached its worker, if not by an answer.
    #[n(13)]
    pub via: Option<Via>,
}

/// Another way to a worker than the answer to its lease call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Via {
    #[n(0)]
    Bus,
}

/// What a task has behind it.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Past {
    #[n(0)]
    pub round: u32,
    /// Releases of this round.
    #[n(1)]
    pub releases: u32,
    /// The last attempts, oldest first.
    #[n(2)]
    pub attempts: Vec<Attempt>,
    #[n(3)]
    pub ending: Option<Ending>,
    /// Only in snapshots of earlier versions: until when the key of a purged task is remembered.
    #[n(4)]
    pub key_until: Timestamp,
}

impl Default for Past {
    fn default() -> Self {
        Self { round: 1, releases: 0, attempts: Vec::new(), ending: None, key_until: Timestamp(0) }
    }
}

/// One attempt that ended.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Attempt {
    #[n(0)]
    pub lease: LeaseId,
    #[n(1)]
    pub number: u32,
    #[n(2)]
    pub round: u32,
    #[n(3)]
    pub worker: Name,
    #[n(4)]
    pub started_at: Timestamp,
    #[n(5)]
    pub ended_at: Timestamp,
    #[n(6)]
    pub end: AttemptEnd,
    #[n(7)]
    pub error: Option<Box<str>>,
    /// What became of the task then: the answer to a repeat of the call that ended this attempt.
    #[n(8)]
    pub left: TaskState,
    #[n(9)]
    pub not_before: Timestamp,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ending {
    #[n(0)]
    pub at: Timestamp,
    #[n(1)]
    pub reason: Option<Box<str>>,
    #[n(2)]
    pub result: Option<Json>,
    /// Who cancelled it, if known by name.
    #[n(3)]
    pub cancelled_by: Option<Name>,
}

impl Task {
    /// Since when it can be leased, or from when on. Meaningful while waiting.
    pub(crate) fn ready_since(&self) -> Timestamp {
        self.not_before.max(self.created_at)
    }

    #[must_use]
    pub fn key(&self) -> Option<&KeyClaim> {
        self.terms.as_ref()?.key.as_ref()
    }

    #[must_use]
    pub fn timeout_ms(&self) -> Option<u64> {
        self.terms.as_ref()?.timeout_ms
    }

    #[must_use]
    pub fn ttl_at(&self) -> Option<Timestamp> {
        self.terms.as_ref()?.ttl_at
    }

    #[must_use]
    pub fn backoff(&self) -> Backoff {
        self.terms.as_ref().and_then(|terms| terms.backoff).unwrap_or_default()
    }

    #[must_use]
    pub fn round(&self) -> u32 {
        self.past.as_ref().map_or(1, |past| past.round)
    }

    #[must_use]
    pub fn releases(&self) -> u32 {
        self.past.as_ref().map_or(0, |past| past.releases)
    }

    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        self.past.as_ref().map_or(&[], |past| &past.attempts)
    }

    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.past.as_ref()?.ending.as_ref()
    }
}

impl LiveLease {
    /// Whether nobody has started it.
    #[must_use]
    pub fn is_offer(&self) -> bool {
        self.worker.is_none()
    }

    #[must_use]
    pub fn is_of_bus(&self) -> bool {
        self.via.is_some()
    }

    /// How long it lasts when nothing is heard.
    pub(crate) fn lasts_ms(&self) -> u64 {
        if self.is_offer() { OFFER_MS } else { self.length_ms }
    }

    /// When the first of its limits is reached, without a message of its worker.
    #[must_use]
    pub fn ends_at(&self) -> Timestamp {
        let earliest = |limit: Option<Timestamp>| limit.unwrap_or(Timestamp::NEVER);
        self.expires_at.min(earliest(self.timeout_at)).min(earliest(self.cancel_at))
    }

    /// Milliseconds that its worker may count on from now: the length of the lease, or less if a limit comes
    /// first. A limit is promised as much shorter as a lease is kept longer: clocks differ in speed.
    #[must_use]
    pub fn promised_ms(&self, now: Timestamp) -> u64 {
        if crate::is_planted("told-too-long") {
            return self.length_ms * 2;
        }
        let limit = self.timeout_at.into_iter().chain(self.cancel_at).min();
        self.length_ms.min(limit.map_or(u64::MAX, |limit| promised_limit_ms(limit, now)))
    }

    /// Milliseconds of the attempt's time limit that its worker may count on from now, shortened as above.
    #[must_use]
    pub fn promised_timeout_ms(&self, now: Timestamp) -> Option<u64> {
        self.timeout_at.map(|limit| promised_limit_ms(limit, now))
    }

    /// Whether its worker may still act under it.
    #[must_use]
    pub fn is_live(&self, now: Timestamp) -> bool {
        now < self.ends_at()
    }
}

fn promised_limit_ms(limit: Timestamp, now: Timestamp) -> u64 {
    limit.since(now).saturating_sub(1).saturating_mul(100) / 101
}
