//! The names of the files in a data folder. No other file of the engine spells one.

use orchestrix_core::Position;

/// The lock that the process with the journal holds.
pub(crate) const LOCK: &str = "lock";
/// Up to where the journal was dropped.
pub(crate) const FLOOR: &str = "floor";
/// What is being written has this ending until it is complete.
const UNFINISHED: &str = ".tmp";

const SEGMENT: &str = ".journal";
const SPARE: &str = ".spare";
const SNAPSHOT: &str = ".snapshot";
const SNAPSHOT_START: &str = "snap-";

pub(crate) fn segment(first: Position) -> String {
    format!("{:020}{SEGMENT}", first.0)
}

pub(crate) fn segment_position(name: &str) -> Option<Position> {
    digits(name.strip_suffix(SEGMENT)?).map(Position)
}

pub(crate) fn snapshot(at: Position) -> String {
    format!("{SNAPSHOT_START}{:020}{SNAPSHOT}", at.0)
}

pub(crate) fn snapshot_position(name: &str) -> Option<Position> {
    digits(name.strip_prefix(SNAPSHOT_START)?.strip_suffix(SNAPSHOT)?).map(Position)
}

/// A segment that is prepared, but has no place in the journal yet.
pub(crate) fn spare(number: u64) -> String {
    format!("{number:020}{SPARE}")
}

pub(crate) fn spare_number(name: &str) -> Option<u64> {
    digits(name.strip_suffix(SPARE)?)
}

/// Whether this is a file of the journal that was never finished.
pub(crate) fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).is_some_and(|name| {
        name == FLOOR || spare_number(name).is_some() || snapshot_position(name).is_some()
    })
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
        assert_eq!(segment_position("42.journal"), None);
        assert_eq!(snapshot_position(&unfinished(&snapshot(at))), None);
    }
}
