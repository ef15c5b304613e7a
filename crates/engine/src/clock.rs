//! The clocks of this machine, for all decisions that depend on time. Call timeouts are measured by the caller with
//! `Instant`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A source of time; a simulation has its own.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Time since some moment in the past. Goes on while the machine is suspended, never jumps.
    fn boot(&self) -> Duration;

    /// Processor time that the calling thread has used.
    fn busy(&self) -> Duration;

    /// Time since the Unix epoch according to this machine. May jump either way.
    fn wall(&self) -> Duration;

    /// Sleeps.
    fn pause(&self, time: Duration);
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot(&self) -> Duration {
        read(ClockId::Boottime)
    }

    fn busy(&self) -> Duration {
        read(ClockId::ThreadCPUTime)
    }

    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
