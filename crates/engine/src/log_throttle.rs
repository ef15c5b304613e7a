//! Throttles log lines about a repeated failure: one at once, then after 1, 2, 4, … seconds and at last once a minute, with
//! the number of lines left out; and one line when it is over.
//!
//! Several threads retry a failed call many times a second. A log line for each try would hide the other lines.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The pause between the first two lines about one reason. It doubles with each line.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause between two lines about one reason.
const LONGEST: Duration = Duration::from_secs(60);
/// Reasons tracked separately. Bounds memory, and the number of lines if every failure has another reason.
const REASONS_MAX: usize = 8;
/// Operations tracked separately. Bounds memory.
const OPERATIONS_MAX: usize = 16;

/// Log lines about a failure that may repeat, for any reasons and in any operations. It is over when each operation that failed
/// has succeeded.
#[derive(Debug)]
pub struct LogThrottle {
    /// Logged while it lasts.
    lasts: &'static str,
    /// Logged when it is over.
    over: &'static str,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Operations that failed and have not succeeded since, each with its last reason.
    failing: Vec<(String, String)>,
    reasons: Vec<Reason>,
    /// When all operations had last succeeded.
    over_at: Option<Duration>,
    /// Whether a line was logged since then.
    is_logged: bool,
}

#[derive(Debug)]
struct Reason {
    text: String,
    next_line: Duration,
    pause: Duration,
    left_out: u64,
}

impl LogThrottle {
    #[must_use]
    pub const fn new(lasts: &'static str, over: &'static str) -> Self {
        let known = Known { failing: Vec::new(), reasons: Vec::new(), over_at: None, is_logged: false };
        Self { lasts, over, known: Mutex::new(known) }
    }

    /// For writes with an unknown outcome.
    #[cfg(any(feature = "redis", feature = "s3", feature = "mysql", feature = "postgres"))]
    pub(crate) const fn for_outcomes() -> Self {
        Self::new("write outcome unknown, retrying", "write outcomes known again")
    }

    /// An operation failed at `now` of the boot clock. A reason never contains a secret.
    pub fn failed(&self, now: Duration, operation: &str, reason: &str) {
        let line = self.known().failed(now, operation, reason);
        if let Some(left_out) = line {
            tracing::warn!(operation, reason, left_out, "{}", self.lasts);
        }
    }

    /// An operation succeeded.
    pub fn succeeded(&self, now: Duration, operation: &str) {
        let line = self.known().succeeded(now, operation);
        if let Some(left_out) = line {
            tracing::info!(left_out, "{}", self.over);
        }
    }

    /// The last operation that failed and its reason, until it is over.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.known().failing.last().map(|(operation, reason)| format!("{operation}: {reason}"))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Returns how many lines were left out, if one is due.
    fn failed(&mut self, now: Duration, operation: &str, reason: &str) -> Option<u64> {
        // A failure that returns before its next line was due continues the old one.
        let longest = self.reasons.iter().map(|reason| reason.pause).max().unwrap_or_default();
        if self.failing.is_empty() && self.over_at.is_some_and(|over| now.saturating_sub(over) >= longest) {
            self.reasons.clear();
        }
        self.failing.retain(|(failing, _)| failing != operation);
        self.failing.truncate(OPERATIONS_MAX - 1);
        self.failing.push((operation.to_owned(), reason.to_owned()));
        let place = self.reasons.iter().position(|known| known.text == reason);
        let place = place.or_else(|| (self.reasons.len() == REASONS_MAX).then_some(REASONS_MAX - 1));
        let Some(known) = place.map(|place| &mut self.reasons[place]) else {
            let text = reason.to_owned();
            self.reasons.push(Reason { text, next_line: now + FIRST, pause: FIRST, left_out: 0 });
            self.is_logged = true;
            return Some(0);
        };
        if now < known.next_line {
            known.left_out += 1;
            return None;
        }
        known.pause = (known.pause * 2).min(LONGEST);
        known.next_line = now + known.pause;
        self.is_logged = true;
        Some(std::mem::take(&mut known.left_out))
    }

    /// Returns how many lines were left out since the last, if it is over and a line was logged about it.
    fn succeeded(&mut self, now: Duration, operation: &str) -> Option<u64> {
        let before = self.failing.len();
        self.failing.retain(|(failing, _)| failing != operation);
        if before == 0 || !self.failing.is_empty() {
            return None;
        }
        self.over_at = Some(now);
        let left_out = self.reasons.iter_mut().map(|reason| std::mem::take(&mut reason.left_out)).sum();
        std::mem::take(&mut self.is_logged).then_some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// When lines are logged, in milliseconds, if an operation fails every `every` milliseconds.
    fn lines(known: &mut Known, from: u64, until: u64, every: usize, reason: &str) -> Vec<(u64, u64)> {
        let moments = (from..=until).step_by(every);
        moments.filter_map(|at| known.failed(ms(at), "read", reason).map(|left| (at, left))).collect()
    }

    #[test]
    fn the_same_failure_is_logged_less_and_less_often() {
        let mut known = Known::default();
        let logged = lines(&mut known, 0, 240_000, 100, "refused");
        let at: Vec<u64> = logged.iter().map(|(at, _)| at / 1_000).collect();
        assert_eq!(at, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
        let left: Vec<u64> = logged.iter().map(|(_, left)| *left).collect();
        assert_eq!(left, [0, 9, 19, 39, 79, 159, 319, 599, 599]);
        assert_eq!(known.succeeded(ms(240_000), "read"), Some(570));
        assert_eq!(known.succeeded(ms(240_001), "read"), None, "once");
    }

    #[test]
    fn another_reason_is_logged_at_once_up_to_a_limit() {
        let mut known = Known::default();
        let mut fail = |at, reason: &str| known.failed(ms(at), "read", reason).is_some();
        for reason in 0..REASONS_MAX {
            assert!(fail(0, &format!("reason {reason}")), "{reason}");
        }
        assert!(!fail(0, "one too many"), "it counts as the last");
        assert!(!fail(999, "reason 0") && fail(1_000, "reason 0") && fail(1_000, "one too many"));
    }

    #[test]
    fn a_failure_is_over_when_every_operation_succeeded() {
        let mut known = Known::default();
        assert_eq!(known.failed(ms(0), "read", "refused"), Some(0));
        assert_eq!(known.failed(ms(0), "write", "refused"), None);
        assert_eq!(known.succeeded(ms(1), "read"), None, "writes still fail");
        assert_eq!(known.succeeded(ms(2), "write"), Some(1));
    }

    #[test]
    fn a_failure_that_comes_and_goes_stays_throttled() {
        let mut known = Known::default();
        let mut logged = 0;
        for at in (0..100_000).step_by(20) {
            logged += usize::from(known.failed(ms(at), "read", "refused").is_some());
            logged += usize::from(known.succeeded(ms(at + 10), "read").is_some());
        }
        assert_eq!(logged, 2 * 7, "at 0, 1, 3, 7, 15, 31 and 63 seconds, and each time that it is over");
    }

    #[test]
    fn a_failure_after_a_long_pause_is_a_new_one() {
        let mut known = Known::default();
        let at = |logged: Vec<(u64, u64)>| logged.into_iter().map(|(at, _)| at / 1_000).collect::<Vec<_>>();
        lines(&mut known, 0, 100_000, 100, "refused");
        known.succeeded(ms(100_000), "read");
        assert_eq!(at(lines(&mut known, 159_900, 159_900, 1, "refused")), [159], "its line is due since 123");
        known.succeeded(ms(159_901), "read");
        // The pause was 60 seconds. It starts at one second again, and doubles as before.
        let logged = at(lines(&mut known, 220_000, 300_000, 100, "refused"));
        assert_eq!(logged, [220, 221, 223, 227, 235, 251, 283]);
    }

    #[test]
    fn the_reason_is_the_last_of_a_limited_number() {
        let throttle = LogThrottle::new("it fails", "it is over");
        assert_eq!(throttle.reason(), None);
        for operation in 0..2 * OPERATIONS_MAX {
            throttle.failed(ms(0), &format!("read {operation}"), "refused");
            assert_eq!(throttle.reason(), Some(format!("read {operation}: refused")));
        }
        assert_eq!(throttle.known().failing.len(), OPERATIONS_MAX);
        throttle.failed(ms(1), "read 0", "no room");
        assert_eq!(throttle.reason().unwrap(), "read 0: no room", "the last one that failed");
        for operation in 0..2 * OPERATIONS_MAX {
            throttle.succeeded(ms(2), &format!("read {operation}"));
        }
        assert_eq!(throttle.reason(), None);
    }
}
