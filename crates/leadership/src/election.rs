//! Types of an election: candidates, steps, changes and their reasons.

use std::time::Duration;

use orchestrix_engine::{Claim, Version};
use serde::{Deserialize, Serialize};

/// A node that stands for leader, or leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    pub name: String,
    /// Identifies one run of the process.
    pub incarnation: String,
    /// Where other nodes reach it.
    pub address: String,
}

/// A candidate as other nodes see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    #[serde(flatten)]
    pub candidate: Candidate,
    /// Opaque to this crate; written and read by the application.
    #[serde(default)]
    pub note: String,
    /// Whether its heartbeats arrive and it has not left.
    #[serde(skip)]
    pub present: bool,
    /// When its last heartbeat was seen, on the observer's boot clock.
    #[serde(skip)]
    pub seen: Duration,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until then or until the elector is called.
    Wait(Duration),
    /// Read the cell; the result goes to [`crate::Elector::on_read`].
    Read,
    /// Write the cell; the result goes to [`crate::Elector::on_set`].
    Set { seen: Option<Version>, claim: Claim },
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This node became leader.
    Elected {
        epoch: u64,
    },
    Renewed {
        epoch: u64,
    },
    /// This node lost leadership.
    Deposed {
        epoch: u64,
        reason: Reason,
    },
    /// Another node leads, or no node does.
    Leader(Option<(Candidate, u64)>),
}

/// Why a node lost leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The lease could not be renewed in time.
    NotRenewed,
    /// The cell has another holder.
    Replaced,
    /// The leader had no proof of health for too long.
    NoProof,
    /// The leader released the lease.
    Resigned,
    /// Leadership was transferred.
    Passed,
}

impl Reason {
    /// A stable word, for logs and events.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotRenewed => "not_renewed",
            Self::Replaced => "replaced",
            Self::NoProof => "no_proof",
            Self::Resigned => "resigned",
            Self::Passed => "passed",
        }
    }
}

/// The timing of an election.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub ttl: Duration,
    pub renew: Duration,
    pub poll_interval: Duration,
    pub needs_proof: bool,
}

/// Whether a candidate acquires a free lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    Yes,
    /// Only if leadership was transferred to it.
    IfChosen,
    No,
}
