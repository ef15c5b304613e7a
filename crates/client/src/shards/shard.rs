//! A shard that a worker may serve, with the end of its lease.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orchestrix_core::Position;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// A shard that this worker serves. Cheap to clone.
#[derive(Clone)]
pub struct Shard {
    number: u32,
    token: Position,
    trust: Arc<ShardLease>,
    pub(super) revoked: CancellationToken,
}

/// Until when all shards of a worker may be served, on its own clock.
#[derive(Debug)]
pub(super) struct ShardLease {
    clock: Arc<dyn Clock>,
    /// Nanoseconds. Nothing else is published with it, so its order among other memory does not matter.
    until: AtomicU64,
}

impl Shard {
    pub(super) fn new(number: u32, token: Position, trust: &Arc<ShardLease>) -> Self {
        Self { number, token, trust: Arc::clone(trust), revoked: CancellationToken::new() }
    }

    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The fencing token: a store should refuse one that is smaller than the largest it has seen.
    #[must_use]
    pub fn token(&self) -> Position {
        self.token
    }

    /// Whether it may be served at this moment. Ask before every use: a process that was stopped for a while finds
    /// out here that its time is over, before any message could say so.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.revoked.is_cancelled() && self.trust.clock.now() < self.trust.until()
    }

    /// Waits until it has to be given up.
    pub async fn revoked(&self) {
        self.revoked.cancelled().await;
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, token, trust: _, revoked } = self;
        let mut shard = f.debug_struct("Shard");
        shard.field("number", number).field("token", &token.0).field("revoked", &revoked.is_cancelled());
        shard.finish_non_exhaustive()
    }
}

impl ShardLease {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, until: AtomicU64::new(0) }
    }

    pub(super) fn until(&self) -> Duration {
        Duration::from_nanos(self.until.load(Ordering::Relaxed))
    }

    /// A later promise counts, an earlier one takes nothing away.
    pub(super) fn extend(&self, until: Duration) {
        let until = u64::try_from(until.as_nanos()).expect("a machine does not run for 500 years");
        self.until.fetch_max(until, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }
}
