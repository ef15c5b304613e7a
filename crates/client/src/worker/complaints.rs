//! How often a worker repeats a warning: at the first failure, then now and then.

use std::time::Duration;

/// Between two complaints about the same thing.
const EVERY: Duration = Duration::from_secs(10);

/// Complaints about one thing that goes wrong again and again.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    last: Option<Duration>,
}

impl Complaints {
    /// Whether it is time for one; it counts as made then.
    pub(crate) fn are_due(&mut self, now: Duration) -> bool {
        let due = self.last.is_none_or(|last| now.saturating_sub(last) >= EVERY);
        if due {
            self.last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_reported_at_once_and_every_ten_seconds() {
        let mut complaints = Complaints::default();
        let due: Vec<u64> = (0..=25).filter(|at| complaints.are_due(Duration::from_secs(*at))).collect();
        assert_eq!(due, [0, 10, 20]);
    }
}
