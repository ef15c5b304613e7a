//! What a node says of itself to all others, every so often. Seed 000 calls this `CoordinatorHeartbeatService`.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::Name;
use orchestrix_core::wire::bus::{CoordinatorHeartbeat, NodeState, write};
use orchestrix_engine::Clock;
use orchestrix_engine::bus::{Bus, Message, Topic};

use crate::stats::Stats;

pub(crate) struct HeartbeatService {
    bus: Arc<dyn Bus>,
    clock: Arc<dyn Clock>,
    node: Name,
    stats: Arc<Stats>,
    every: Duration,
    sent: Option<Duration>,
}

impl HeartbeatService {
    pub(crate) fn new(
        bus: Arc<dyn Bus>,
        clock: Arc<dyn Clock>,
        node: Name,
        stats: Arc<Stats>,
        every: Duration,
    ) -> Self {
        Self { bus, clock, node, stats, every, sent: None }
    }

    /// Sends one if it is time.
    pub(crate) fn beat(&mut self, now: Duration) {
        if self.sent.is_some_and(|sent| now.saturating_sub(sent) < self.every) {
            return;
        }
        let (owned, drains) = (self.stats.bus.owned.get(), self.stats.bus.drains.get() > 0);
        let heartbeat = CoordinatorHeartbeat {
            node_id: self.node.clone(),
            job_count: owned,
            timestamp: u64::try_from(self.clock.wall().as_millis()).unwrap_or(u64::MAX),
            state: if drains { NodeState::Draining } else { NodeState::Active },
        };
        let message = Message { channel: Topic::CoordinatorHeartbeat.into(), data: write(&heartbeat) };
        match self.bus.send(&[message]) {
            Ok(_) => self.sent = Some(now),
            Err(error) => tracing::debug!(%error, "cannot send a heartbeat; it is sent again"),
        }
    }
}
