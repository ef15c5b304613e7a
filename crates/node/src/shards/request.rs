//! Asks about shards, and the times of shard leases.

use orchestrix_core::wire::{ServiceChange, ShardDeregister, ShardHeartbeat, ShardRegister};
use orchestrix_core::{Name, Refusal};

/// A question about shards.
#[derive(Clone, Debug)]
pub enum ShardAsk {
    Register {
        service: Name,
        worker: Name,
        body: ShardRegister,
    },
    Heartbeat {
        service: Name,
        worker: Name,
        body: ShardHeartbeat,
    },
    Deregister {
        service: Name,
        worker: Name,
        body: ShardDeregister,
    },
    Change {
        service: Name,
        change: ServiceChange,
    },
    /// What a worker should serve now; promises no time.
    Assignment {
        service: Name,
        worker: Name,
        /// Who asks; another process of the name is answered nothing.
        session: Name,
    },
    Service(ServicePage),
    Services {
        group: Option<Name>,
    },
}

impl ShardAsk {
    /// Whether it only reads.
    pub(crate) fn changes_nothing(&self) -> bool {
        match self {
            Self::Assignment { .. } | Self::Service(_) | Self::Services { .. } => true,
            Self::Register { .. }
            | Self::Heartbeat { .. }
            | Self::Deregister { .. }
            | Self::Change { .. } => false,
        }
    }

    /// Checks all that needs no state: sizes and ranges.
    pub(crate) fn validate(&self) -> Result<(), Refusal> {
        match self {
            Self::Register { body, .. } => body.validate(),
            Self::Heartbeat { body, .. } => body.validate(),
            Self::Change { change, .. } => change.validate(),
            Self::Deregister { .. } | Self::Assignment { .. } | Self::Service(_) | Self::Services { .. } => {
                Ok(())
            }
        }
    }
}

/// A page of the shards of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePage {
    pub service: Name,
    /// The first shard.
    pub from: u32,
    /// Shards at most; bytes are limited, too.
    pub limit: usize,
}

impl From<Name> for ServicePage {
    fn from(service: Name) -> Self {
        Self { service, from: 0, limit: usize::MAX }
    }
}

/// How long workers are believed.
#[derive(Clone, Copy, Debug)]
pub struct ShardTimes {
    /// Milliseconds that a worker may serve after its last heartbeat.
    pub lease_ms: u64,
    /// Milliseconds that two heartbeats are apart at least, for a worker that echoes no generation to be believed that it
    /// let go.
    pub check_ms: u64,
}

impl Default for ShardTimes {
    fn default() -> Self {
        Self { lease_ms: 15_000, check_ms: 5_000 }
    }
}
