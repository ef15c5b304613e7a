//! What the services of a node ask the decision loop about the bus, and its answers.

use orchestrix_core::limits::{BATCH_ITEMS_MAX, OWNED_LEASES_MAX};
use orchestrix_core::wire::bus::{Handoff, JobCancel, WorkerHeartbeat};
use orchestrix_core::{Claim, Json, LeaseId, Name, OwnerToken, Refusal, TaskId};
use orchestrix_engine::bus::Ended;

/// What the leader's own services ask. It never comes from another node.
#[derive(Debug)]
pub enum DispatchAsk {
    /// The bus is claimed for this term, and offers up to the cursor are published. The others are made anew.
    Claimed { cursor: LeaseId },
    /// Nodes that were heard before this term, with the milliseconds since then.
    Nodes(Vec<(Name, u64)>),
    /// These leases have channels. The answer says which of them ended.
    Leftovers(Vec<(TaskId, LeaseId)>),
    /// What is to be published and closed after a lease; waits for it, but not for ever.
    Pull { after: LeaseId },
    /// Workers have said this since the last time. Also without a heartbeat it says that the bus answers.
    Heartbeats(Vec<WorkerHeartbeat>),
}

/// What a node asks as an owner of leases.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnerAsk {
    /// A process of a node is there.
    Join {
        node: Name,
        incarnation: String,
        address: String,
    },
    /// A process takes no more.
    Drain {
        node: OwnerToken,
    },
    /// A process ends.
    Leave {
        node: OwnerToken,
    },
    /// It gives leases away, to any other.
    Release {
        node: OwnerToken,
        leases: Vec<LeaseId>,
    },
    Report(Report),
}

/// What an owner has taken, and what workers have told it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub node: OwnerToken,
    /// Leases that it wants to own.
    pub own: Vec<Claim>,
    /// In the order in which they were said.
    pub items: Vec<ReportItem>,
    /// It has leases up to this one; the answer lists those that follow.
    pub after: Option<LeaseId>,
}

/// What the worker of a lease has said.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportItem {
    pub task: TaskId,
    pub lease: LeaseId,
    pub worker: Name,
    pub said: Said,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    Running { progress: Option<u8>, note: Option<String> },
    Completed { result: Option<Json> },
    Failed { error: String, retry: bool },
    Released,
}

impl Said {
    /// Whether the worker is done with the lease.
    #[must_use]
    pub fn is_last(&self) -> bool {
        !matches!(self, Self::Running { .. })
    }
}

#[derive(Debug)]
pub enum BusAnswer {
    Done,
    Joined(OwnerToken),
    /// The process that asked is not there any more: it left, or was taken for dead. It joins again.
    Gone,
    Pulled(Pulled),
    /// Workers should stop these.
    Heard(Vec<JobCancel>),
    Reported(Reported),
}

/// What is to be done on the bus.
#[derive(Debug, Default)]
pub struct Pulled {
    /// In the order of their leases.
    pub offers: Vec<OfferedTask>,
    pub ended: Vec<Ended>,
    pub cancels: Vec<JobCancel>,
    pub handoffs: Vec<Handoff>,
}

/// A task that is offered. Its messages are written elsewhere.
#[derive(Clone, Debug)]
pub struct OfferedTask {
    pub task: TaskId,
    pub lease: LeaseId,
    pub queue: Name,
    pub payload: Json,
    pub attempt: u32,
    pub lease_ms: u64,
    /// The lease of its attempt before.
    pub previous: Option<LeaseId>,
}

/// What came of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    /// For each claim: which attempt it is.
    pub own: Vec<Result<u32, Refusal>>,
    /// For each item.
    pub items: Vec<Result<(), Refusal>>,
    /// What the node owns, from where it asked.
    pub owned: Vec<OwnedLease>,
    /// There is more after these.
    pub more: bool,
    /// Leases that others own on the average, without this node: it takes no more while it has many more.
    pub mean: u64,
}

/// A lease of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedLease {
    pub task: TaskId,
    pub lease: LeaseId,
    pub attempt: u32,
}

impl OwnerAsk {
    /// # Errors
    /// The first field that is wrong.
    pub fn validate(&self) -> Result<(), Refusal> {
        if let Self::Release { leases, .. } = self {
            return at_most("leases", leases.len(), OWNED_LEASES_MAX);
        }
        let Self::Report(report) = self else { return Ok(()) };
        at_most("own", report.own.len(), OWNED_LEASES_MAX)?;
        at_most("items", report.items.len(), BATCH_ITEMS_MAX)
    }
}

fn at_most(field: &'static str, count: usize, max: usize) -> Result<(), Refusal> {
    if count > max {
        let problem = format!("has {count} items, at most {max} are accepted in one call");
        return Err(Refusal::Invalid { field, problem });
    }
    Ok(())
}
