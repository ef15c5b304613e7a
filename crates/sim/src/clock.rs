//! The clocks of the simulated machine.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrix_engine::disk::sim::{Faults, SimDisk};
use orchestrix_node::Clock;

/// The wall clock when the world begins: some day in 2026, in milliseconds.
const BEGINNING_MS: i64 = 1_790_000_000_000;
/// Room before it, so that a jump of ten years back stays a time.
const BOOT_MS: u64 = 1_000;
/// After so many pauses in a row the operator frees disk space: a full disk causes pauses.
const PATIENCE: u32 = 30;

/// Clocks that follow the time of the world, at a rate of their own, and a wall clock that jumps.
pub(crate) struct SimClock(Mutex<Times>);

struct Times {
    disk: SimDisk,
    pauses: u32,
    /// Microseconds of the world.
    world_us: u64,
    /// Parts per million that this machine's clock is fast; negative when it is slow.
    drift_ppm: i64,
    /// Milliseconds that the wall clock is ahead.
    ahead_ms: i64,
    /// Microseconds of pauses.
    paused_us: u64,
}

impl SimClock {
    pub(crate) fn new(drift_ppm: i64, disk: SimDisk) -> Self {
        Self(Mutex::new(Times { disk, pauses: 0, world_us: 0, drift_ppm, ahead_ms: 0, paused_us: 0 }))
    }

    pub(crate) fn use_disk(&self, disk: SimDisk) {
        self.times().disk = disk;
    }

    pub(crate) fn set(&self, world_us: u64) {
        self.times().world_us = world_us;
    }

    pub(crate) fn jump(&self, by_ms: i64) {
        let mut times = self.times();
        times.ahead_ms = times.ahead_ms.saturating_add(by_ms).clamp(-BEGINNING_MS / 2, BEGINNING_MS);
    }

    /// Takes the pauses since the last call: time that passed for the machine inside one of its steps.
    pub(crate) fn take_paused_us(&self) -> u64 {
        let mut times = self.times();
        times.pauses = 0;
        std::mem::take(&mut times.paused_us)
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SimClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimClock").field("world_us", &self.times().world_us).finish_non_exhaustive()
    }
}

impl Times {
    fn boot_us(&self) -> u64 {
        let world = self.world_us + self.paused_us;
        let drift = i128::from(world) * i128::from(self.drift_ppm) / 1_000_000;
        BOOT_MS * 1_000 + u64::try_from(i128::from(world) + drift).unwrap_or(0)
    }
}

impl Clock for SimClock {
    fn boot(&self) -> Duration {
        Duration::from_micros(self.times().boot_us())
    }

    fn busy(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Duration {
        let times = self.times();
        let base = u64::try_from(BEGINNING_MS + times.ahead_ms).unwrap_or(0);
        Duration::from_millis(base) + Duration::from_micros(times.boot_us())
    }

    fn pause(&self, time: Duration) {
        let mut times = self.times();
        times.paused_us += u64::try_from(time.as_micros()).unwrap_or(0);
        times.pauses += 1;
        if times.pauses >= PATIENCE {
            times.disk.set_faults(Faults::default());
        }
    }
}
