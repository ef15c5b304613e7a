//! The contract of a bus: how nodes and workers talk that know only channels.
//!
//! There are queues with competing consumers, topics that everyone reads, and two channels for each leased task. A
//! message is a hint; the journal is the truth. So a bus may forget, and says so; it never lets two consumers have one
//! offer, and never takes an offer from a publisher that was replaced.
//!
//! **Offers.** A leader claims the bus for its term and gets a [`Publisher`], with a generation of its own. An offer is
//! published under the id of its lease, in the order of these ids over all queues. So the last id is the cursor, and a
//! repeat is recognised, even after the message is gone. After any other stop the leader claims again: what the
//! old publisher sent and nobody heard of can no longer take effect, and the new cursor says what did.
//!
//! **Lost replies.** Where a repeat could do something twice, the result says that the outcome is unknown. All other calls may
//! be repeated: they fail with an error that is retryable, and take effect once.
//!
//! **A bus that was rolled back.** A server that restarts without its last second has forgotten messages, and
//! perhaps a claim. Each handle remembers the newest it has seen and compares. The result is `RolledBack` until the
//! handle calls [`Bus::open`] again, which makes what is missing.
//!
//! **Invariant:** a bus knows channels, ids and bytes, never what a message means.

mod entry;
mod seen;

use std::fmt;
use std::time::Duration;

use orchestrix_core::{LeaseId, Name, TaskId, Term};

use crate::fault::invalid;
use crate::{Error, JournalId};

pub use entry::*;
pub use orchestrix_core::wire::bus::{Channel, Channels, JobChannel, MESSAGE_BYTES_MAX, Queue, Topic};
pub(crate) use seen::*;

/// Channels in one read. Bounds how long it blocks the server for others.
pub const READ_CHANNELS_MAX: usize = 512;
/// Offers in one call. Bounds memory, and what is unknown after a lost reply.
pub const OFFERS_MAX: usize = 1_000;
/// Messages taken, settled or deleted by one call, and channels closed. Bounds how long it blocks the server for others.
pub const ENTRIES_MAX: usize = 1_000;
/// How long topics are kept.
pub const TOPIC_KEPT: Duration = Duration::from_secs(60);

/// An offered lease as two messages: to the workers of its queue, and to the nodes of which one becomes its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub task: TaskId,
    pub lease: LeaseId,
    pub queue: Name,
    /// The message to workers.
    pub dispatch: String,
    /// The message to nodes. The channels of the task begin with it, too.
    pub assigned: String,
    /// The lease before this one, whose messages and channels are removed.
    pub previous: Option<LeaseId>,
}

/// A lease whose channels are not needed any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub task: TaskId,
    pub lease: LeaseId,
    /// If it ended before a worker took it: the queue in which it still may be offered.
    pub offered_in: Option<Name>,
}

/// A message to one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub channel: Channel,
    pub data: String,
}

/// How much one read may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub entries: usize,
    /// Of data, in bytes. The first entry is given at any length.
    pub bytes: usize,
}

/// The result of a claim.
pub enum Claimed {
    Done(Box<dyn Publisher>),
    /// A later term has claimed the bus.
    Stale {
        term: Term,
        generation: u64,
    },
    RolledBack,
}

/// How far a publisher got.
#[derive(Debug)]
pub struct Progress {
    /// So many of the offers are published, from the first on.
    pub published: usize,
    /// So many of these were published before. That is harmless; only if they were never sent before, somebody else
    /// writes to this bus.
    pub repeated: usize,
    /// Why the others are not. Without a stop all are.
    pub stop: Option<Stop>,
}

/// Why a publisher stopped. It is of no more use: claim the bus again.
#[derive(Debug)]
pub enum Stop {
    /// Another claim came after this one. Nothing more was published.
    Stale { term: Term, generation: u64 },
    /// Nothing more was published.
    RolledBack,
    /// The rest may or may not be published, even later, until the bus is claimed again.
    Unknown,
    /// The bus refused the next one. Nothing more was published.
    Refused(Error),
}

/// Whether the bus is what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    Sound,
    RolledBack,
}

/// What became of the channels of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Done,
    /// There are none.
    Absent,
    /// They belong to another lease of the task, and stay.
    Other,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Done(EntryId),
    /// There is no such channel, or no more. Only [`Bus::open`] and [`Publisher::publish`] make channels.
    Closed,
    /// The bus said no to this one.
    Refused,
    /// It may or may not be there.
    Unknown,
}

/// Messages for one consumer. It has them until it settles them, or another reclaims them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    Entries(Vec<Entry>),
    /// Some may be with this consumer now. Those of nodes are reclaimed when they are idle.
    Unknown,
    RolledBack,
}

/// What a read found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// In the order of the channels, each with the place of its channel among those that were asked for.
    pub entries: Vec<(usize, Entry)>,
    /// So many channels were read to their end, from the first on. The next one spent the budget.
    pub channels: usize,
}

/// What became of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Done,
    /// It has so many messages that it did not settle, and stays until they are settled or reclaimed.
    Holding(usize),
}

/// Some of the leases that have channels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenJobs {
    pub leases: Vec<(TaskId, LeaseId)>,
    /// Where to go on, if there may be more.
    pub next: Option<u64>,
}

/// The size of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Messages that nobody has taken.
    pub waiting: usize,
    /// Messages that were taken and are not settled.
    pub taken: usize,
    /// The last id ever, also if its message is gone.
    pub last: EntryId,
}

/// The names of the channels of a domain.
pub(crate) fn channels_of(domain: &str) -> Result<Channels, Error> {
    Channels::of(domain).map_err(|why| invalid("choose the domain of the bus", why))
}

/// A connection to a bus. Every node has its own; shared between its threads.
pub trait Bus: Send + Sync {
    /// Takes the bus for a journal, if it is not another's; makes the queues for nodes, the topics, and the topic for
    /// this node's acknowledgements, where they are missing. All other calls come after it.
    ///
    /// # Errors
    /// When the bus belongs to another journal: the error says what to do. And when it cannot answer.
    fn open(&self, journal: JournalId, node: &Name) -> Result<(), Error>;

    /// Raises the generation, then reads the cursor. Every earlier publisher is stale from then on.
    ///
    /// # Errors
    /// When the bus cannot answer, or belongs to another journal now.
    fn claim(&self, term: Term) -> Result<Claimed, Error>;

    /// Whether the bus still has what this handle has seen. Call it about every second.
    ///
    /// # Errors
    /// As for [`Bus::claim`].
    fn check(&self) -> Result<Checked, Error>;

    /// Closes the channels of leases that ended, and withdraws those that are still offered. Channels that begin with
    /// another lease stay.
    ///
    /// # Errors
    /// When the bus cannot answer.
    fn close(&self, ended: &[Ended]) -> Result<Vec<Closed>, Error>;

    /// Sends messages in order, each to one channel.
    ///
    /// # Errors
    /// When one is too long: none is sent then. When the bus refused all.
    fn send(&self, messages: &[Message]) -> Result<Vec<Sent>, Error>;

    /// Takes messages that no consumer has taken, oldest first.
    ///
    /// # Errors
    /// When the bus refused.
    fn take(&self, queue: &Queue, consumer: &Name, at_most: usize) -> Result<Taken, Error>;

    /// Takes messages that a consumer took so long ago and did not settle.
    ///
    /// # Errors
    /// For [`Queue::Dispatch`], which is never reclaimed: two workers would have one lease. When the bus refused.
    fn reclaim(&self, queue: &Queue, consumer: &Name, idle: Duration, at_most: usize)
    -> Result<Taken, Error>;

    /// Removes messages that were taken and are done with.
    ///
    /// # Errors
    /// When the bus cannot answer.
    fn settle(&self, queue: &Queue, entries: &[EntryId]) -> Result<(), Error>;

    /// Looks for leases that have channels, some at a time and from 0 on; a lease may be found twice. Those that were opened or
    /// closed meanwhile may be found or not.
    ///
    /// # Errors
    /// When the bus cannot answer.
    fn jobs(&self, from: u64) -> Result<OpenJobs, Error>;

    /// Reads at most [`READ_CHANNELS_MAX`] channels, each once and after a cursor. One that is not there has nothing. To be fair,
    /// go on after the channel that spent the budget.
    ///
    /// # Errors
    /// When the bus cannot answer.
    fn read(&self, after: &[(Channel, EntryId)], budget: Budget) -> Result<Found, Error>;

    /// Removes messages of a job channel that were read, if the channel is still that of the lease.
    ///
    /// # Errors
    /// When the bus cannot answer.
    fn delete(&self, channel: JobChannel, lease: LeaseId, entries: &[EntryId]) -> Result<Closed, Error>;

    /// Removes messages of topics that are older, by the clock of the bus.
    ///
    /// # Errors
    /// When the bus cannot answer.
    fn trim(&self, topics: &[Topic], keep: Duration) -> Result<(), Error>;

    /// Removes a consumer from the queues for nodes, unless it holds messages.
    ///
    /// # Errors
    /// When the bus cannot answer.
    fn leave(&self, consumer: &Name) -> Result<Left, Error>;

    /// # Errors
    /// When the bus cannot answer.
    fn figures(&self, queues: &[Queue]) -> Result<Vec<Figures>, Error>;

    /// The kind and the place of the bus, for operators; never contains a secret.
    fn place(&self) -> String;

    /// What weakens the promises of this bus, found when connecting, as sentences.
    fn warnings(&self) -> Vec<String>;
}

/// Publishes offers for one claim, over one connection.
pub trait Publisher: Send {
    fn generation(&self) -> u64;

    /// The last offer that is published, of all queues. Offers above it are made anew, with new leases: one that was refused
    /// midway may have used up its id.
    fn cursor(&self) -> EntryId;

    /// Publishes offers in ascending order of their leases. Each is published whole or not at all. Stops at the first that is
    /// refused for another reason than a repeat: none after it is published then.
    ///
    /// # Errors
    /// When they are not in order, too many or too long, or this publisher has stopped before. Nothing was sent.
    fn publish(&mut self, offers: &[Offer]) -> Result<Progress, Error>;
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(publisher) => f.debug_tuple("Done").field(&publisher.generation()).finish(),
            Self::Stale { term, generation } => {
                f.debug_struct("Stale").field("term", term).field("generation", generation).finish()
            }
            Self::RolledBack => f.write_str("RolledBack"),
        }
    }
}
