//! The intervals of polls: short after a new batch, then longer and longer.

use std::time::{Duration, Instant};

use orchestrix_core::Position;

/// The first pause. Nothing comes faster: a leader waits as long for more events before it appends.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause. Bounds how late a follower is, and from below what it costs: an idle one looks as often.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// When to look next. Kept between calls, so that short waits do not look more often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poll {
    after: Position,
    pause: Duration,
    due: Instant,
}

impl Poll {
    pub(super) fn new(after: Position, now: Instant) -> Self {
        Self { after, pause: PAUSE_MIN, due: now + PAUSE_MIN }
    }

    /// When to look for what follows a position.
    pub(super) fn due(&mut self, after: Position, now: Instant) -> Instant {
        if self.after != after {
            *self = Self::new(after, now);
        }
        self.due
    }

    /// There was nothing.
    pub(super) fn missed(&mut self, now: Instant) {
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.due = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_something_comes() {
        let mut now = Instant::now();
        let mut poll = Poll::new(Position(1), now);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let due = poll.due(Position(1), now);
            pauses.push((due - now).as_millis());
            now = due;
            poll.missed(now);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(poll.due(Position(2), now), now + PAUSE_MIN);
    }
}
