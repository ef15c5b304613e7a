//! The names of the files in a data folder. No other file of the engine spells one.

use orchestrix_core::Position;
use orchestrix_core::limits::ID_MAX;

/// The lock that the process with the journal holds.
pub(crate) const LOCK: &str = "lock";
/// The lock that the process with the task logs holds.
pub(crate) const LOGS_LOCK: &str = "logs.lock";
/// Up to where the journal was dropped.
pub(crate) const FLOOR: &str = "floor";
/// The file that the next floor will be written to.
pub(crate) const FLOOR_NEXT: &str = "floor.next";
/// What is being written has this ending until it is complete.
const UNFINISHED: &str = ".tmp";

const SEGMENT: &str = ".journal";
const SPARE: &str = ".spare";
const SNAPSHOT: &str = ".snapshot";
const SNAPSHOT_START: &str = "snap-";
const LOG: &str = ".chunks";
const LOG_START: &str = "logs-";

pub(crate) fn segment(first: Position) -> String {
    format!("{:020}{SEGMENT}", first.0)
}

pub(crate) fn segment_position(name: &str) -> Option<Position> {
    digits(name.strip_suffix(SEGMENT)?).map(Position)
}

/// Where the segments begin that a journal with this floor needs, in a sorted list of names; `None` if the
/// one that it has to begin with is missing. Those before are left over from a truncation.
pub(crate) fn first_needed(segments: &[String], floor: Position) -> Option<usize> {
    let begins = |name: &String| segment_position(name).is_some_and(|first| first.0 <= floor.0 + 1);
    segments.partition_point(begins).checked_sub(1)
}

pub(crate) fn snapshot(at: Position) -> String {
    format!("{SNAPSHOT_START}{:020}{SNAPSHOT}", at.0)
}

pub(crate) fn snapshot_position(name: &str) -> Option<Position> {
    digits(name.strip_prefix(SNAPSHOT_START)?.strip_suffix(SNAPSHOT)?).map(Position)
}

/// A file of task logs.
pub(crate) fn log(number: u32) -> String {
    format!("{LOG_START}{number:020}{LOG}")
}

pub(crate) fn log_number(name: &str) -> Option<u32> {
    digits(name.strip_prefix(LOG_START)?.strip_suffix(LOG)?).and_then(|number| u32::try_from(number).ok())
}

pub(crate) fn is_unfinished_log(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).and_then(log_number).is_some()
}

/// A segment that is prepared, but has no place in the journal yet.
pub(crate) fn spare(number: u64) -> String {
    format!("{number:020}{SPARE}")
}

/// Numbers so large that the next one would not fit are not ours.
pub(crate) fn spare_number(name: &str) -> Option<u64> {
    digits(name.strip_suffix(SPARE)?).filter(|number| *number <= ID_MAX)
}

/// Whether this is a file of the journal that was never finished.
pub(crate) fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED)
        .is_some_and(|name| spare_number(name).is_some() || snapshot_position(name).is_some())
}

pub(crate) fn is_unfinished_snapshot(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).and_then(snapshot_position).is_some()
}

pub(crate) fn unfinished(name: &str) -> String {
    format!("{name}{UNFINISHED}")
}

fn digits(text: &str) -> Option<u64> {
    if text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let at = Position(42);
        assert_eq!(segment(at), "00000000000000000042.journal");
        assert_eq!(segment_position(&segment(at)), Some(at));
        assert_eq!(snapshot_position(&snapshot(at)), Some(at));
        assert_eq!(spare_number(&spare(3)), Some(3));
        assert_eq!(log_number(&log(7)), Some(7));
        assert!(is_unfinished_log(&unfinished(&log(7))));
        assert_eq!(segment_position("42.journal"), None);
        assert_eq!(snapshot_position(&unfinished(&snapshot(at))), None);
    }
}
