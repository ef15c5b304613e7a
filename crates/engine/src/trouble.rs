//! How often the log says that the same thing fails: at once, then after 1, 2, 4, … seconds and at last once a minute, with a
//! count of what was left out; and once that it is over.
//!
//! What fails is tried again many times a second, by several threads. A log that has a line for each try hides the others.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between the first two lines about one reason. It doubles with each line.
const FIRST: Duration = Duration::from_secs(1);
/// Between two lines about one reason, in the end.
const LONGEST: Duration = Duration::from_secs(60);
/// Reasons that are told apart. Bounds memory, and the lines where each failure says something else.
const REASONS_MAX: usize = 8;
/// Operations that are told apart. Bounds memory.
const OPERATIONS_MAX: usize = 16;

/// Something that fails again and again, for one or for several reasons, in one or in several operations. It lasts until each
/// operation that failed has been done.
#[derive(Debug)]
pub struct Trouble {
    /// What the log says while it lasts, and when it is over.
    lasts: &'static str,
    over: &'static str,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Those that failed and were not done since, each with its last reason.
    failing: Vec<(String, String)>,
    reasons: Vec<Reason>,
    /// When it was last over.
    over_at: Option<Duration>,
    /// Whether there was a line about it since it was last over.
    is_said: bool,
}

#[derive(Debug)]
struct Reason {
    text: String,
    next_line: Duration,
    pause: Duration,
    left_out: u64,
}

impl Trouble {
    #[must_use]
    pub const fn new(lasts: &'static str, over: &'static str) -> Self {
        let known = Known { failing: Vec::new(), reasons: Vec::new(), over_at: None, is_said: false };
        Self { lasts, over, known: Mutex::new(known) }
    }

    /// Writes whose outcome an engine does not know.
    #[cfg(any(feature = "redis", feature = "s3", feature = "mysql", feature = "postgres"))]
    pub(crate) const fn of_outcomes() -> Self {
        Self::new("the outcome of a write is unknown", "the outcome of writes is known again")
    }

    /// An operation failed at a moment of the boot clock. A reason never has a secret.
    pub fn failed(&self, now: Duration, operation: &str, reason: &str) {
        let line = self.known().failed(now, operation, reason);
        if let Some(left_out) = line {
            tracing::warn!(operation, reason, left_out, "{}", self.lasts);
        }
    }

    /// An operation was done.
    pub fn passed(&self, now: Duration, operation: &str) {
        let line = self.known().passed(now, operation);
        if let Some(left_out) = line {
            tracing::info!(left_out, "{}", self.over);
        }
    }

    /// Why something fails, while it does.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.known().failing.last().map(|(operation, reason)| format!("{operation}: {reason}"))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Answers how many lines were left out, if one is due.
    fn failed(&mut self, now: Duration, operation: &str, reason: &str) -> Option<u64> {
        // Trouble that comes back before its next line was due goes on.
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
            self.is_said = true;
            return Some(0);
        };
        if now < known.next_line {
            known.left_out += 1;
            return None;
        }
        known.pause = (known.pause * 2).min(LONGEST);
        known.next_line = now + known.pause;
        self.is_said = true;
        Some(std::mem::take(&mut known.left_out))
    }

    /// Answers how many lines were left out since the last, if it is over and people know that it was there.
    fn passed(&mut self, now: Duration, operation: &str) -> Option<u64> {
        let before = self.failing.len();
        self.failing.retain(|(failing, _)| failing != operation);
        if before == 0 || !self.failing.is_empty() {
            return None;
        }
        self.over_at = Some(now);
        let left_out = self.reasons.iter_mut().map(|reason| std::mem::take(&mut reason.left_out)).sum();
        std::mem::take(&mut self.is_said).then_some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The moments at which there is a line, in milliseconds, if an operation fails so often.
    fn lines(known: &mut Known, from: u64, until: u64, every: usize, reason: &str) -> Vec<(u64, u64)> {
        let moments = (from..=until).step_by(every);
        moments.filter_map(|at| known.failed(ms(at), "read", reason).map(|left| (at, left))).collect()
    }

    #[test]
    fn the_same_failure_is_said_less_and_less_often() {
        let mut known = Known::default();
        let said = lines(&mut known, 0, 240_000, 100, "refused");
        let at: Vec<u64> = said.iter().map(|(at, _)| at / 1_000).collect();
        assert_eq!(at, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
        let left: Vec<u64> = said.iter().map(|(_, left)| *left).collect();
        assert_eq!(left, [0, 9, 19, 39, 79, 159, 319, 599, 599]);
        assert_eq!(known.passed(ms(240_000), "read"), Some(570));
        assert_eq!(known.passed(ms(240_001), "read"), None, "once");
    }

    #[test]
    fn another_reason_is_said_at_once_up_to_a_limit() {
        let mut known = Known::default();
        let mut fail = |at, reason: &str| known.failed(ms(at), "read", reason).is_some();
        for reason in 0..REASONS_MAX {
            assert!(fail(0, &format!("reason {reason}")), "{reason}");
        }
        assert!(!fail(0, "one too many"), "it counts as the last");
        assert!(!fail(999, "reason 0") && fail(1_000, "reason 0") && fail(1_000, "one too many"));
    }

    #[test]
    fn trouble_is_over_when_every_operation_was_done() {
        let mut known = Known::default();
        assert_eq!(known.failed(ms(0), "read", "refused"), Some(0));
        assert_eq!(known.failed(ms(0), "write", "refused"), None);
        assert_eq!(known.passed(ms(1), "read"), None, "writes still fail");
        assert_eq!(known.passed(ms(2), "write"), Some(1));
    }

    #[test]
    fn trouble_that_comes_and_goes_is_no_new_trouble() {
        let mut known = Known::default();
        let mut said = 0;
        for at in (0..100_000).step_by(20) {
            said += usize::from(known.failed(ms(at), "read", "refused").is_some());
            said += usize::from(known.passed(ms(at + 10), "read").is_some());
        }
        assert_eq!(said, 2 * 7, "at 0, 1, 3, 7, 15, 31 and 63 seconds, and each time that it is over");
    }

    #[test]
    fn trouble_after_a_long_rest_is_new_trouble() {
        let mut known = Known::default();
        let at = |said: Vec<(u64, u64)>| said.into_iter().map(|(at, _)| at / 1_000).collect::<Vec<_>>();
        lines(&mut known, 0, 100_000, 100, "refused");
        known.passed(ms(100_000), "read");
        assert_eq!(at(lines(&mut known, 159_900, 159_900, 1, "refused")), [159], "its line is due since 123");
        known.passed(ms(159_901), "read");
        // The pause was 60 seconds. It begins with one second again, and grows as it did.
        let said = at(lines(&mut known, 220_000, 300_000, 100, "refused"));
        assert_eq!(said, [220, 221, 223, 227, 235, 251, 283]);
    }

    #[test]
    fn what_fails_is_named_and_so_many_are_told_apart() {
        let trouble = Trouble::new("it fails", "it is over");
        assert_eq!(trouble.reason(), None);
        for operation in 0..2 * OPERATIONS_MAX {
            trouble.failed(ms(0), &format!("read {operation}"), "refused");
            assert_eq!(trouble.reason(), Some(format!("read {operation}: refused")));
        }
        assert_eq!(trouble.known().failing.len(), OPERATIONS_MAX);
        trouble.failed(ms(1), "read 0", "no room");
        assert_eq!(trouble.reason().unwrap(), "read 0: no room", "the last one that failed");
        for operation in 0..2 * OPERATIONS_MAX {
            trouble.passed(ms(2), &format!("read {operation}"));
        }
        assert_eq!(trouble.reason(), None);
    }
}
