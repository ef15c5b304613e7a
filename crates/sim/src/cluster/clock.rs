//! The clocks of the machines of a cluster: each has its own speed, and a wall clock that jumps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use orchestrix_node::Clock;

/// The wall clock when a world begins, in milliseconds.
const BEGINNING_MS: i64 = 1_790_000_000_000;
/// Room before the beginning of the world.
const BOOT_US: u64 = 1_000_000;

/// The clock of one machine. It goes on while the machine's processes are frozen or dead.
#[derive(Debug)]
pub(crate) struct NodeClock {
    /// Microseconds of the world.
    world_us: Arc<AtomicU64>,
    /// Parts per million that it is fast; negative when it is slow.
    drift_ppm: i64,
    ahead_ms: AtomicI64,
}

impl NodeClock {
    pub(crate) fn new(world_us: Arc<AtomicU64>, drift_ppm: i64) -> Self {
        Self { world_us, drift_ppm, ahead_ms: AtomicI64::new(0) }
    }

    pub(crate) fn jump(&self, by_ms: i64) {
        let ahead = self.ahead_ms.load(Relaxed).saturating_add(by_ms);
        self.ahead_ms.store(ahead.clamp(-BEGINNING_MS / 2, BEGINNING_MS), Relaxed);
    }

    fn boot_us(&self) -> u64 {
        let world = i128::from(self.world_us.load(Relaxed));
        let own = world + world * i128::from(self.drift_ppm) / 1_000_000;
        BOOT_US + u64::try_from(own).unwrap_or(0)
    }

    /// The first moment of the world at which this clock shows a time.
    pub(crate) fn world_at(&self, boot: Duration) -> u64 {
        let own = u64::try_from(boot.as_micros()).unwrap_or(u64::MAX).saturating_sub(BOOT_US);
        let rate = u128::try_from(1_000_000 + self.drift_ppm).unwrap_or(1_000_000);
        u64::try_from((u128::from(own) * 1_000_000).div_ceil(rate)).unwrap_or(u64::MAX)
    }
}

impl Clock for NodeClock {
    fn boot(&self) -> Duration {
        Duration::from_micros(self.boot_us())
    }

    fn busy(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Duration {
        // It is set now and then, so it does not drift away; but it jumps.
        let base = u64::try_from(BEGINNING_MS + self.ahead_ms.load(Relaxed)).unwrap_or(0);
        Duration::from_millis(base) + Duration::from_micros(self.world_us.load(Relaxed))
    }

    fn pause(&self, _: Duration) {}
}
