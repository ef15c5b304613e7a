//! What happened between nodes and engine, as those saw it who stand outside of both. Times are microseconds of the
//! world, so that no node's clock is believed.

use orchestrix_core::{Position, Term};
use orchestrix_engine::{ChainHash, Link};

use crate::cluster::engine::Who;

/// The cell of the leader lease, as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaderCell {
    pub(crate) by: Who,
    pub(crate) epoch: u64,
    pub(crate) held: bool,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fact {
    /// A node asks for the leader lease for the first time in this attempt.
    Asked,
    /// A writing of the leader lease's cell landed. `leads` is what its writer was trusted with when it was sent.
    LeaderCellWritten {
        was: Option<LeaderCell>,
        now: LeaderCell,
        leads: Option<u64>,
    },
    /// By the cell, and counted from when its writer first asked, it may act until then.
    Entitled {
        who: Who,
        epoch: u64,
        until: u64,
    },
    Elected {
        who: Who,
        epoch: u64,
    },
    /// A node acts under an epoch until then, unless it hears otherwise.
    Trusts {
        who: Who,
        epoch: u64,
        until: u64,
    },
    /// It does not act any more: it was deposed, or is dead.
    Distrusts {
        who: Who,
        epoch: u64,
    },
    /// A term begins at a node that has seen such an epoch before.
    Begins {
        who: Who,
        epoch: u64,
        seen: u64,
    },
    /// The node has left the term for good.
    SteppedDown {
        who: Who,
        epoch: u64,
    },
    /// A batch leaves a node.
    Sent {
        who: Who,
        epoch: u64,
        batch: ChainHash,
    },
    /// The node learned that the outcome of its last batch is unknown.
    Unknown {
        who: Who,
    },
    /// The node heard what became of it.
    Settled {
        who: Who,
    },
    /// A batch is in the journal; `term` is the one that it names.
    Landed {
        who: Who,
        epoch: u64,
        previous: Link,
        link: Link,
        term: Term,
        begins: Option<u64>,
    },
    /// A caller got an answer about a change or a state.
    Answered {
        who: Who,
        epoch: u64,
    },
    /// Another node was seen as holder of the leader lease.
    Observed {
        who: Who,
        epoch: u64,
    },
    /// The engine has forgotten everything after this.
    Lost {
        after: Position,
    },
    /// Nothing goes wrong from now on.
    Healed,
}

/// All of it, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) facts: Vec<(u64, Fact)>,
    /// The engine may forget.
    pub(crate) forgets: bool,
    /// Nothing goes wrong.
    pub(crate) calm: bool,
    /// The longest time that a leader lease of this cluster lasts, in microseconds.
    pub(crate) ttl_us: u64,
}

impl Record {
    pub(crate) fn note(&mut self, at: u64, fact: Fact) {
        self.facts.push((at, fact));
    }
}
