//! Commands about tasks.

use crate::command::{at_most, fits, in_range, invalid};
use crate::limits::{
    ATTEMPTS_MAX, BACKOFF_FACTOR_MAX, BATCH_ITEMS_MAX, BATCH_PAYLOAD_BYTES_MAX, DELAY_MS_MAX,
    ERROR_BYTES_MAX, LEASE_MS_MAX, LEASE_MS_MIN, LEASE_QUEUES_MAX, NOTE_BYTES_MAX, PAYLOAD_BYTES_MAX,
    PRIORITY_MAX, TIMEOUT_MS_MAX, WAIT_MS_MAX,
};
use crate::wire::{self, Submit};
use crate::{Command, Json, LeaseId, Name, Refusal, TaskId, Timestamp, canonical_hash};

/// What may be asked about tasks.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskCommand {
    /// `request` is the hash of all fields of the task, see [`Command::submit`]; it matters only with a key.
    Submit {
        task: Box<Submit>,
        request: [u8; 16],
    },
    /// One task for a worker.
    Lease(Lease),
    /// One task for the worker that starts it over the bus.
    Offer(Offer),
    /// Workers say over the bus which offers they have started. What cannot be started is passed over.
    Start(Vec<HeldLease>),
    /// The same for leases that they have.
    Extend(Vec<HeldLease>),
    /// What a worker says over the bus of a lease that it has, which lasts no longer for that.
    Note {
        task: TaskId,
        lease: LeaseId,
        worker: Name,
        progress: Option<u8>,
        note: Option<String>,
    },
    /// The bus answers again, and was silent since then.
    ResumeBus {
        silent_since: Timestamp,
    },
    Heartbeat {
        task: TaskId,
        lease: LeaseId,
        worker: Option<Name>,
        progress: Option<u8>,
        note: Option<String>,
    },
    HeartbeatAll {
        worker: Name,
        leases: Vec<LeaseId>,
    },
    Complete {
        task: TaskId,
        lease: LeaseId,
        worker: Option<Name>,
        result: Option<Json>,
    },
    Fail {
        task: TaskId,
        lease: LeaseId,
        worker: Option<Name>,
        error: String,
        retry: bool,
    },
    Release {
        task: TaskId,
        lease: LeaseId,
        worker: Option<Name>,
    },
    /// The answer with a lease was not delivered.
    Abandon {
        task: TaskId,
        lease: LeaseId,
    },
    /// `actor` is who asks, if known by name.
    Cancel {
        task: TaskId,
        actor: Option<Name>,
    },
    Retry {
        task: TaskId,
        actor: Option<Name>,
    },
    /// Time has passed: end what is over for this task.
    Expire {
        task: TaskId,
    },
    /// Time has passed: forget what was kept long enough.
    Purge(Retention),
}

/// One grant of a lease call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub queues: Vec<Name>,
    pub worker: Name,
    pub lease_ms: u64,
    pub request_id: Option<Name>,
    pub capacity: Option<u32>,
}

/// One offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub queues: Vec<Name>,
    /// How long the lease lasts without a heartbeat, once it is started.
    pub lease_ms: u64,
}

/// A lease, and the worker that says it has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLease {
    pub lease: LeaseId,
    pub worker: Name,
}

/// How long ended tasks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Milliseconds that completed and cancelled tasks are kept.
    pub done_ms: u64,
    /// Milliseconds that dead letters are kept.
    pub failed_ms: u64,
    /// Tasks of each of the two kinds that are kept at most, the newest ones.
    pub count: usize,
    /// Milliseconds after the end of a task that its key is remembered, if the task is purged before.
    pub key_ms: u64,
    /// Keys of purged tasks that are remembered at most, those of the tasks that were purged last.
    pub keys: usize,
}

impl Default for Retention {
    fn default() -> Self {
        let day_ms = 86_400_000;
        Self { done_ms: day_ms, failed_ms: 7 * day_ms, count: 250_000, key_ms: day_ms, keys: 10_000_000 }
    }
}

impl Command {
    /// A submit, with the hash of its request when that is needed.
    #[must_use]
    pub fn submit(task: Submit) -> Self {
        let request = if task.key.is_some() { request_hash(&task) } else { [0; 16] };
        Self::Task(TaskCommand::Submit { task: Box::new(task), request })
    }
}

impl TaskCommand {
    pub(super) fn validate(&self) -> Result<(), Refusal> {
        match self {
            Self::Submit { task, .. } => validate_submit(task),
            Self::Lease(Lease { lease_ms, .. }) | Self::Offer(Offer { lease_ms, .. }) => {
                in_range("lease_ms", *lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)
            }
            Self::Start(leases) | Self::Extend(leases) => at_most("leases", leases.len(), BATCH_ITEMS_MAX),
            Self::Heartbeat { progress, note, .. } | Self::Note { progress, note, .. } => {
                in_range("progress", u64::from(progress.unwrap_or(0)), 0, 100)?;
                fits("note", note.as_deref().map_or(0, str::len), NOTE_BYTES_MAX)
            }
            Self::HeartbeatAll { leases, .. } => Self::validate_leases(leases),
            Self::Complete { result, .. } => {
                fits("result", result.as_ref().map_or(0, |result| result.as_str().len()), PAYLOAD_BYTES_MAX)
            }
            Self::Fail { error, .. } => fits("error", error.len(), ERROR_BYTES_MAX),
            Self::Release { .. }
            | Self::Abandon { .. }
            | Self::Cancel { .. }
            | Self::Retry { .. }
            | Self::Expire { .. }
            | Self::ResumeBus { .. }
            | Self::Purge(_) => Ok(()),
        }
    }

    /// Whether one heartbeat may name so many leases.
    ///
    /// # Errors
    /// When there are too many.
    pub fn validate_leases(leases: &[LeaseId]) -> Result<(), Refusal> {
        at_most("leases", leases.len(), BATCH_ITEMS_MAX)
    }
}

impl wire::LeaseQueues {
    /// Checks all that needs no state: sizes and ranges.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn validate(&self) -> Result<(), Refusal> {
        in_range("queues", self.queues.len() as u64, 1, LEASE_QUEUES_MAX as u64)?;
        in_range("max", self.max as u64, 1, BATCH_ITEMS_MAX as u64)?;
        in_range("lease_ms", self.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)?;
        in_range("wait_ms", self.wait_ms, 0, WAIT_MS_MAX)?;
        in_range("capacity", u64::from(self.capacity.unwrap_or(1)), 1, u64::from(u32::MAX))
    }
}

impl wire::SubmitBatch {
    /// # Errors
    /// When there are too many items, or they are too large together.
    pub fn validate(&self) -> Result<(), Refusal> {
        at_most("tasks", self.tasks.len(), BATCH_ITEMS_MAX)?;
        let bytes = self.tasks.iter().map(|task| task.payload.as_str().len());
        fits("tasks", bytes.sum(), BATCH_PAYLOAD_BYTES_MAX)
    }
}

impl wire::CompleteBatch {
    /// # Errors
    /// When there are too many items, or they are too large together.
    pub fn validate(&self) -> Result<(), Refusal> {
        at_most("items", self.items.len(), BATCH_ITEMS_MAX)?;
        let results = self.items.iter().filter_map(|item| item.result.as_ref());
        fits("items", results.map(|result| result.as_str().len()).sum(), BATCH_PAYLOAD_BYTES_MAX)
    }
}

/// What makes two submits with one key the same request: all its fields, defaults filled in.
fn request_hash(task: &Submit) -> [u8; 16] {
    let json = serde_json::to_string(task).expect("a submit is plain JSON");
    canonical_hash(&json)
}

fn validate_submit(task: &Submit) -> Result<(), Refusal> {
    fits("payload", task.payload.as_str().len(), PAYLOAD_BYTES_MAX)?;
    if task.priority.unsigned_abs() > PRIORITY_MAX.unsigned_abs() {
        return Err(invalid(
            "priority",
            format!("must be from -{PRIORITY_MAX} to {PRIORITY_MAX}, not {}", task.priority),
        ));
    }
    in_range("delay_ms", task.delay_ms, 0, DELAY_MS_MAX)?;
    in_range("max_attempts", u64::from(task.max_attempts), 1, u64::from(ATTEMPTS_MAX))?;
    in_range("timeout_ms", task.timeout_ms.unwrap_or(1), 1, TIMEOUT_MS_MAX)?;
    in_range("ttl_ms", task.ttl_ms.unwrap_or(1), 1, DELAY_MS_MAX)?;
    in_range("backoff.max_ms", task.backoff.max_ms, 0, DELAY_MS_MAX)?;
    in_range("backoff.base_ms", task.backoff.base_ms, 0, task.backoff.max_ms)?;
    if !(1.0..=BACKOFF_FACTOR_MAX).contains(&task.backoff.factor) {
        let factor = task.backoff.factor;
        return Err(invalid(
            "backoff.factor",
            format!("must be from 1 to {BACKOFF_FACTOR_MAX}, not {factor}"),
        ));
    }
    Ok(())
}
