//! Durations and times for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use orchestrix_core::Timestamp;
use orchestrix_server::units::Span;

/// Reads `100ms`, `30s`, `5m`, `2h`, `7d`, and sums like `1h30m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse().map(|Span(duration)| duration)
}

/// A duration in one or two units: `420ms`, `3.2s`, `4m10s`, `2h05m`, `3d4h`.
pub(crate) fn show_duration(millis: u64) -> String {
    let seconds = millis / 1_000;
    match seconds {
        0 => format!("{millis}ms"),
        1..60 => format!("{seconds}.{}s", millis % 1_000 / 100),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// A moment from here: `12s ago`, `in 5m`, `now`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    let coarse = |millis: u64| match millis / 1_000 {
        seconds @ 1..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..86_400 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    };
    match (now.since(at), at.since(now)) {
        (0..1_000, 0..1_000) => "now".to_owned(),
        (past, 0) => format!("{} ago", coarse(past)),
        (_, ahead) => format!("in {}", coarse(ahead)),
    }
}

/// The time of this machine.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Whole milliseconds of a duration.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_two_units_at_most() {
        let shown = [0, 999, 1_000, 59_999, 60_000, 3_599_999, 3_600_000, 90_000_000].map(show_duration);
        assert_eq!(shown, ["0ms", "999ms", "1.0s", "59.9s", "1m00s", "59m59s", "1h00m", "1d1h"]);
    }

    #[test]
    fn moments_are_shown_from_here() {
        let now = Timestamp(10_000_000);
        let shown = |at| relative(Timestamp(at), now);
        assert_eq!(shown(10_000_000), "now");
        assert_eq!(shown(9_988_000), "12s ago");
        assert_eq!(shown(10_300_000), "in 5m");
        assert_eq!(shown(2_800_000), "2h ago");
    }
}
