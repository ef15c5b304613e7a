//! What may happen in a world with several nodes.

use std::pin::Pin;

use orchestrix_node::Error;

use crate::cluster::engine::Who;
use crate::cluster::versions::Duty;
use crate::history::Answer;

/// One thing that happens, at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// Something happens at a life of a node.
    At(Who, Doing),
    /// The same, which was due while that one was frozen.
    PutOff(Who, Doing),
    /// A request arrives at the engine.
    Arrive(u64),
    /// A question of an op that was long under way arrives at the leader by then.
    Deliver(usize),
    /// The answer of an op arrives at its actor.
    Answered(usize, usize),
    /// A node says that it does not lead.
    Refused(usize),
    GiveUp(usize),
    /// The actor of an op closes its connection.
    HangUp(usize),
    Wake(usize),
    /// Workers write output, and a client reads it.
    Write,
    /// An append of output arrives long after it was sent.
    LateOutput(u64),
    /// Once a second: what goes wrong now?
    Nemesis,
    /// A node that is down starts.
    Start(usize),
    /// A process is gone without a word.
    Crash(Who),
    /// A node is cut off from the engine.
    Cut(usize),
    /// A node that was cut off reaches the engine again.
    Mended(usize),
    EngineUp,
    /// The engine refuses no more.
    EngineWilling,
    FaultsEnd,
    /// The operator accepts the loss of data.
    Accepted,
    /// By now there must be a leader.
    LeaderDue,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doing {
    /// Asks the elector what to do.
    Elect,
    /// Hears what came of a request.
    Hear(u64),
    /// Reads the journal.
    Look,
    /// Hears of a batch from the leader.
    Hint(u64),
    /// Begins a term.
    Begin(u64),
    /// Leaves a term.
    StepDown(u64),
    Decide,
    /// Sends a batch, or sends it again.
    Send,
    WriteSnapshot,
    /// A question of an op arrives.
    Question(usize),
    /// A question about output arrives.
    Output(u64),
    /// A call of the engine about output is made.
    CallOutput(u64),
    /// Something about who is present.
    Member(Duty),
}

/// A question that is with a node.
pub(crate) struct Pending {
    pub(crate) op: usize,
    pub(crate) who: Who,
    pub(crate) future: Pin<Box<dyn Future<Output = Result<Answer, Error>>>>,
}
