//! Tasks and leases as the model has them.

use std::collections::BTreeMap;

use orchestrix_core::{AttemptEnd, Json, Key, LeaseId, Name, Position, TaskCreated, TaskId, Timestamp};

/// What a task is at one place of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::check) enum Is {
    Waiting,
    Leased(LeaseId),
    /// Leased, and asked to stop.
    Asked(LeaseId),
    Completed,
    Failed,
    Cancelled,
    Purged,
}

#[derive(Debug)]
pub(in crate::check) struct Task {
    pub(in crate::check) queue: Name,
    pub(in crate::check) payload: Json,
    pub(in crate::check) key: Option<Key>,
    pub(in crate::check) priority: i32,
    pub(super) created: Position,
    /// As it was made, and when.
    pub(in crate::check) made: TaskCreated,
    pub(in crate::check) made_at: Timestamp,
    pub(super) max_attempts: u32,
    pub(super) timeout_ms: Option<u64>,
    pub(super) ttl_at: Option<Timestamp>,
    pub(super) not_before: Timestamp,
    pub(super) charged: u32,
    pub(super) lease: Option<Lease>,
    /// What it was from each position on.
    pub(in crate::check) was: Vec<(Position, Is)>,
    /// How each of its leases ended.
    pub(in crate::check) ended: BTreeMap<LeaseId, (Position, AttemptEnd)>,
    /// The leases under which it was given up with attempts left.
    pub(in crate::check) given_up: Vec<LeaseId>,
    pub(in crate::check) result: Option<Json>,
    pub(super) key_until: Option<Timestamp>,
    pub(super) ended_at: Timestamp,
}

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) id: LeaseId,
    /// Nobody has started an offer.
    pub(super) worker: Option<Name>,
    pub(super) of_bus: bool,
    pub(super) length_ms: u64,
    pub(super) expires_at: Timestamp,
    pub(super) timeout_at: Option<Timestamp>,
    pub(super) cancel_at: Option<Timestamp>,
    pub(super) prolonged: bool,
}

/// What is known of a lease for ever.
#[derive(Clone, Debug)]
pub(in crate::check) struct Granted {
    pub(in crate::check) task: TaskId,
    /// `None` for an offer that nobody has started.
    pub(in crate::check) worker: Option<Name>,
    pub(in crate::check) of_bus: bool,
    pub(in crate::check) attempt: u32,
    pub(in crate::check) request_id: Option<Name>,
    /// Live leases of the worker with this one.
    pub(in crate::check) held: usize,
    /// When it would end, from each position on.
    pub(in crate::check) ends: Vec<(Position, Timestamp)>,
}

impl Lease {
    pub(super) fn ends_at(&self) -> Timestamp {
        [Some(self.expires_at), self.timeout_at, self.cancel_at]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.expires_at)
    }
}

impl Task {
    pub(in crate::check) fn is(&self) -> Is {
        self.was.last().map_or(Is::Waiting, |(_, is)| *is)
    }

    /// What it was at a place of the journal; `None` before it was there.
    pub(in crate::check) fn at(&self, position: Position) -> Option<Is> {
        let index = self.was.partition_point(|(from, _)| *from <= position);
        Some(self.was[index.checked_sub(1)?].1)
    }
}
