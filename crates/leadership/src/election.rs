//! The words of an office: who, what to do next, what has changed and why.

use std::time::Duration;

use orchestrix_engine::{Claim, Version};
use serde::{Deserialize, Serialize};

/// Who stands, or holds the office.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    pub name: String,
    /// Tells one life of a process from the next.
    pub incarnation: String,
    /// Where the others reach it.
    pub address: String,
}

/// A candidate as it shows itself to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    #[serde(flatten)]
    pub candidate: Candidate,
    /// What it says of itself; means something only to those who wrote it.
    #[serde(default)]
    pub note: String,
    /// Whether it has shown itself lately and has not left.
    #[serde(skip)]
    pub present: bool,
    /// When it was last seen to show itself, on the boot clock of who looked.
    #[serde(skip)]
    pub seen: Duration,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until then or until something is asked of the elector.
    Wait(Duration),
    /// Read the cell; the answer goes to [`crate::Elector::heard_cell`].
    Read,
    /// Write the cell; the answer goes to [`crate::Elector::heard_set`].
    Set { seen: Option<Version>, claim: Claim },
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This one holds the office now.
    Elected {
        epoch: u64,
    },
    Renewed {
        epoch: u64,
    },
    /// This one does not hold it any more.
    Deposed {
        epoch: u64,
        reason: Reason,
    },
    /// Somebody else was seen in office, or nobody.
    Leader(Option<(Candidate, u64)>),
}

/// Why an office ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It could not be renewed in time.
    NotRenewed,
    /// The cell has another holder.
    Replaced,
    /// Its duties proved nothing for too long.
    NoProof,
    /// It was given back.
    Resigned,
    /// It was passed on.
    Passed,
}

impl Reason {
    /// As a word for people and programs.
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

/// How leadership is timed.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub ttl: Duration,
    pub renew: Duration,
    pub look_every: Duration,
    pub needs_proof: bool,
}

/// Whether a candidate takes an office that is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    Yes,
    /// Only if it was passed to it by name.
    IfChosen,
    No,
}
