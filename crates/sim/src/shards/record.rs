//! What the workers of services did and said, in the time of the world: what they are held against is not what the
//! coordinator believes of them.

use orchestrix_core::{Name, Position};

use crate::shards::coverage::ShardCoverage;

/// One process of a worker. Those of one name are different processes, one after the other or at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) service: Name,
    pub(crate) worker: Name,
    pub(crate) kind: Kind,
    /// Parts per million that its clock is fast; negative when it is slow.
    pub(crate) drift_ppm: i64,
}

/// What a worker knows of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It echoes generations, ignores lower ones, and stops by itself when its time is over.
    Aware,
    /// It does what the last answer says and knows nothing of time.
    Plain,
    /// It follows the first answer and ignores later ones.
    Deaf,
}

impl Kind {
    /// Whether it echoes no generation.
    pub(crate) fn is_plain(self) -> bool {
        match self {
            Self::Aware => false,
            Self::Plain | Self::Deaf => true,
        }
    }
}

/// A process served a shard, in microseconds of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) process: usize,
    pub(crate) shard: u32,
    pub(crate) token: Position,
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
}

/// A message that a process sent to the coordinator, delivered or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentMessage {
    pub(crate) process: usize,
    pub(crate) at_us: u64,
    pub(crate) what: Message,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// It comes; so many shards there are.
    Comes {
        count: u32,
    },
    Serves {
        count: u32,
        shards: Vec<u32>,
        generation: Option<Position>,
    },
    /// It serves nothing, and goes.
    Goes,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// When each event of the journal was first known to be durable, in microseconds of the world.
    pub(crate) durable_us: Vec<u64>,
    /// Messages that were sent, either way.
    pub(crate) messages: u64,
    pub(crate) processes: Vec<Process>,
    pub(crate) served: Vec<Served>,
    pub(crate) sent: Vec<SentMessage>,
    /// A shard count that the operator set: the service and the number.
    pub(crate) orders: Vec<(Name, u32)>,
    /// A process ended or stood still: of which service, and when.
    pub(crate) troubles: Vec<(Name, u64)>,
    /// When everything had come to rest.
    pub(crate) rested_us: Option<u64>,
    pub(crate) coverage: ShardCoverage,
}

impl Process {
    /// How long so much time of its clock is in the world, in microseconds.
    pub(crate) fn world_us(&self, own_ms: u64) -> u64 {
        let rate = u128::try_from(1_000_000 + self.drift_ppm).unwrap_or(1_000_000);
        u64::try_from(u128::from(own_ms) * 1_000 * 1_000_000 / rate).unwrap_or(u64::MAX)
    }
}

impl Record {
    /// Whether a service has workers that ignore assignments, and another one, so that no worker is overruled.
    pub(crate) fn is_stuck(&self, service: &Name) -> bool {
        let has = |kind| self.processes.iter().any(|it| it.service == *service && it.kind == kind);
        has(Kind::Deaf) && has(Kind::Aware)
    }

    /// A process begins. Answers its number.
    pub(crate) fn begin(&mut self, process: Process) -> usize {
        self.processes.push(process);
        self.processes.len() - 1
    }

    /// Events up to this position are durable by now.
    pub(crate) fn durable(&mut self, events: usize, now: u64) {
        self.durable_us.resize(events.max(self.durable_us.len()), now);
    }

    pub(crate) fn trouble(&mut self, process: usize, now: u64) {
        let service = self.processes[process].service.clone();
        self.troubles.push((service, now));
    }
}
