//! The worker's own clock. It never goes back and it counts the time that the machine slept, so a lease
//! that ran out while a laptop was closed is over when it opens.

use std::fmt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since some fixed moment.
pub trait Clock: fmt::Debug + Send + Sync {
    fn now(&self) -> Duration;
}

/// The clock of this machine since its boot, time asleep included.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT: ClockId = ClockId::Monotonic;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        let time = clock_gettime(BOOT);
        let seconds = u64::try_from(time.tv_sec).expect("the boot clock starts at zero");
        let nanos = u32::try_from(time.tv_nsec).expect("nanoseconds are less than a second");
        Duration::new(seconds, nanos)
    }
}

#[cfg(test)]
pub(crate) mod manual {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::Clock;

    /// A clock that a test moves.
    #[derive(Debug, Default)]
    pub(crate) struct ManualClock(Mutex<Duration>);

    impl ManualClock {
        pub(crate) fn advance(&self, by: Duration) {
            *self.0.lock().unwrap() += by;
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_does_not_go_back() {
        let first = BootClock.now();
        assert!(first > Duration::ZERO);
        assert!(BootClock.now() >= first);
    }
}
