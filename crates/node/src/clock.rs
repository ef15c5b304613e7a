//! The time of a term.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::{Timestamp, is_planted};
use orchestrix_engine::Clock;

/// The time of one term: begins at the wall clock, or at the last event if that is later, and then follows
/// the boot clock. A step of the wall clock is slewed in, never jumped, so no right ends early by more than
/// the share that every lease has in reserve.
#[derive(Debug)]
pub struct TermClock {
    clock: Arc<dyn Clock>,
    boot: Duration,
    now: Duration,
}

/// The clock of a term runs faster or slower by 1/100 at most, to get back to the wall clock.
const SLEW: u32 = 100;

impl TermClock {
    #[must_use]
    pub fn start(clock: Arc<dyn Clock>, last_event: Timestamp) -> Self {
        let now = clock.wall().max(Duration::from_millis(last_event.0));
        Self { boot: clock.boot(), now, clock }
    }

    pub fn now(&mut self) -> Timestamp {
        let (boot, wall) = (self.clock.boot(), self.clock.wall());
        if is_planted("wall-clock") {
            return Timestamp(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX));
        }
        let passed = boot.saturating_sub(self.boot);
        self.boot = self.boot.max(boot);
        let straight = self.now + passed;
        let step = passed / SLEW;
        self.now = if wall > straight {
            straight + step.min(wall - straight)
        } else {
            straight - step.min(straight - wall)
        };
        Timestamp(u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct SetClock(Mutex<(Duration, Duration)>);

    impl SetClock {
        fn set(&self, boot_s: u64, wall_s: u64) {
            *self.0.lock().unwrap() = (Duration::from_secs(boot_s), Duration::from_secs(wall_s));
        }
    }

    impl Clock for SetClock {
        fn boot(&self) -> Duration {
            self.0.lock().unwrap().0
        }
        fn busy(&self) -> Duration {
            Duration::ZERO
        }
        fn wall(&self) -> Duration {
            self.0.lock().unwrap().1
        }
        fn pause(&self, _: Duration) {}
    }

    fn started(boot_s: u64, wall_s: u64, last_event: u64) -> (Arc<SetClock>, TermClock) {
        let clock = Arc::new(SetClock::default());
        clock.set(boot_s, wall_s);
        (clock.clone(), TermClock::start(clock, Timestamp(last_event)))
    }

    #[test]
    fn a_term_never_begins_before_the_last_event() {
        assert_eq!(started(5, 1_000, 0).1.now(), Timestamp(1_000_000));
        assert_eq!(started(5, 1_000, 2_000_000).1.now(), Timestamp(2_000_000));
    }

    #[test]
    fn a_clock_jump_moves_time_by_one_percent_of_what_passed() {
        let (clock, mut term) = started(0, 1_000_000_000, 0);
        let start = term.now();
        clock.set(100, 1_315_000_000);
        assert_eq!(term.now().since(start), 101_000);
        clock.set(200, 500);
        assert_eq!(term.now().since(start), 101_000 + 99_000, "and it never goes back");
    }

    #[test]
    fn a_small_step_is_made_up_for_exactly() {
        let (clock, mut term) = started(0, 1_000, 0);
        clock.set(100, 1_100);
        term.now();
        clock.set(1_000, 2_001);
        assert_eq!(term.now(), Timestamp(2_001_000));
    }
}
