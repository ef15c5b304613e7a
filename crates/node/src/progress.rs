//! Whether the loop and the journal get anywhere: moments that they note down, looked at only when somebody asks.
//!
//! An idle loop goes round twice a second, so one that is late stands still. A loop that waits for the journal is not
//! late while the journal answers, even if it answers that it cannot write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use orchestrix_engine::Clock;

/// What takes longer than this is said: longer than a slow disk takes for a sync.
pub(crate) const LATE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Progress {
    clock: Arc<dyn Clock>,
    /// The loop has ended a round, or the journal has answered.
    beat: Moment,
    /// The journal was asked, and has not answered yet.
    asked: Moment,
    /// A batch was taken up that is not durable yet.
    batch: Moment,
}

/// A time of the boot clock, or none.
#[derive(Debug, Default)]
struct Moment(AtomicU64);

impl Moment {
    const NONE: u64 = 0;

    fn set(&self, at: Duration) {
        // One more, so that no time is none.
        self.0.store(u64::try_from(at.as_micros()).map_or(u64::MAX, |us| us.saturating_add(1)), Relaxed);
    }

    fn clear(&self) {
        self.0.store(Self::NONE, Relaxed);
    }

    /// How long ago it is.
    fn ago(&self, now: Duration) -> Option<Duration> {
        let at = self.0.load(Relaxed).checked_sub(1)?;
        Some(now.saturating_sub(Duration::from_micros(at)))
    }

    /// How long ago it is, if that is too long.
    fn late(&self, now: Duration) -> Option<Duration> {
        self.ago(now).filter(|ago| *ago > LATE)
    }
}

impl Progress {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let (beat, asked, batch) = (Moment::default(), Moment::default(), Moment::default());
        beat.set(clock.boot());
        Self { clock, beat, asked, batch }
    }

    /// The loop has ended a round.
    pub(crate) fn beat(&self, now: Duration) {
        self.beat.set(now);
    }

    /// Asks the journal for something that may take long.
    pub(crate) fn asking<T>(&self, ask: impl FnOnce() -> T) -> T {
        self.asked.set(self.clock.boot());
        let answer = ask();
        self.asked.clear();
        self.beat.set(self.clock.boot());
        answer
    }

    pub(crate) fn batch_begins(&self, now: Duration) {
        self.batch.set(now);
    }

    pub(crate) fn batch_is_durable(&self) {
        self.batch.clear();
    }

    /// Why the node stands still, if it does.
    pub(crate) fn stalled(&self) -> Option<String> {
        let now = self.clock.boot();
        let late = self.asked.late(now).or_else(|| self.beat.late(now))?;
        // A loop that writes itself began its round a little before the write that keeps it.
        if let Some(ago) = self.asked.ago(now).filter(|ago| *ago > LATE / 2) {
            let seconds = ago.as_secs();
            return Some(format!("the journal has not answered a write for {seconds} s: is the disk stuck?"));
        }
        Some(format!("the decision loop has not finished a round for {} s", late.as_secs()))
    }

    /// Why nothing can be written, if so.
    pub(crate) fn unwritten(&self) -> Option<String> {
        let ago = self.batch.late(self.clock.boot())?;
        Some(format!("nothing could be written to the journal for {} s", ago.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock in milliseconds that a test sets.
    #[derive(Debug, Default)]
    struct Set(AtomicU64);

    impl Clock for Set {
        fn boot(&self) -> Duration {
            Duration::from_millis(self.0.load(Relaxed))
        }
        fn busy(&self) -> Duration {
            Duration::ZERO
        }
        fn wall(&self) -> Duration {
            Duration::ZERO
        }
        fn pause(&self, _: Duration) {}
    }

    fn started() -> (Arc<Set>, Progress, impl Fn(u64)) {
        let clock = Arc::new(Set::default());
        let progress = Progress::new(clock.clone());
        let set = Arc::clone(&clock);
        (clock, progress, move |ms| set.0.store(ms, Relaxed))
    }

    #[test]
    fn a_loop_that_is_late_by_more_than_the_limit_stands_still() {
        let (clock, progress, set) = started();
        set(5_000);
        assert_eq!(progress.stalled(), None);
        set(5_001);
        assert_eq!(progress.stalled().unwrap(), "the decision loop has not finished a round for 5 s");
        progress.beat(clock.boot());
        assert_eq!(progress.stalled(), None);
    }

    #[test]
    fn a_write_that_does_not_return_is_a_stall_although_rounds_go_on() {
        let (clock, progress, set) = started();
        progress.asking(|| {
            set(5_001);
            progress.beat(clock.boot());
            assert!(progress.stalled().unwrap().contains("the journal has not answered a write for 5 s"));
        });
        assert_eq!(progress.stalled(), None, "it has returned");
    }

    #[test]
    fn tries_that_fail_are_no_stall_and_yet_nothing_is_written() {
        let (clock, progress, set) = started();
        progress.batch_begins(clock.boot());
        for try_at in 0..10 {
            progress.asking(|| set(try_at * 1_000));
        }
        assert_eq!(progress.stalled(), None);
        assert_eq!(progress.unwritten().unwrap(), "nothing could be written to the journal for 9 s");
        progress.batch_is_durable();
        assert_eq!(progress.unwritten(), None);
    }
}
