//! How much journal there is after a position, for a node that has read it.

use orchestrix_core::Position;

/// Places that are remembered at most. Bounds memory; what is answered is too much by one part in a quarter of so many
/// at most, or by one batch.
const MARKS_MAX: usize = 256;

/// Bytes of journal since a first position, and how many of them were there at some places between.
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    bytes: u64,
    end: Position,
    /// The end of a batch, and the bytes up to it; in order, and never empty.
    marks: Vec<(Position, u64)>,
    /// Bytes between two marks at least.
    step: u64,
}

impl Growth {
    pub(crate) fn after(first: Position) -> Self {
        Self { bytes: 0, end: first, marks: vec![(first, 0)], step: 0 }
    }

    /// A batch was read that ends at `end`.
    pub(crate) fn add(&mut self, end: Position, bytes: u64) {
        self.bytes += bytes;
        self.end = end;
        if self.bytes - self.marks.last().map_or(0, |(_, bytes)| *bytes) < self.step {
            return;
        }
        if self.marks.len() >= MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
            self.step = self.bytes / (MARKS_MAX as u64 / 2);
        }
        self.marks.push((end, self.bytes));
    }

    /// Bytes after a position: as many as were read, or some more; never less, unless it is before the first.
    pub(crate) fn since(&self, position: Position) -> u64 {
        if position >= self.end {
            return 0;
        }
        let known = self.marks.partition_point(|(at, _)| *at <= position);
        let before = known.checked_sub(1).map_or(0, |last| self.marks[last].1);
        self.bytes - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_after_a_position_are_counted() {
        let mut growth = Growth::after(Position(10));
        [(12, 100), (13, 20), (20, 3)].into_iter().for_each(|(end, bytes)| growth.add(Position(end), bytes));
        let since = |position| growth.since(Position(position));
        assert_eq!([since(0), since(10), since(12), since(13), since(20)], [123, 123, 23, 3, 0]);
        assert_eq!((since(11), since(19)), (123, 3), "inside a batch, all of it counts");
    }

    #[test]
    fn a_long_journal_is_counted_in_few_places() {
        let mut growth = Growth::after(Position(0));
        (1..=100_000).for_each(|end| growth.add(Position(end), 10));
        assert!(growth.marks.len() <= MARKS_MAX);
        for position in [0, 1, 70_000, 99_999, 100_000] {
            let (exact, counted) = (10 * (100_000 - position), growth.since(Position(position)));
            assert!((exact..=exact + 1_000_000 / 64).contains(&counted), "{counted} after {position}");
        }
    }
}
