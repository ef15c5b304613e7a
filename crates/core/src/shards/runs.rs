//! Sets of shard numbers, as runs of consecutive numbers.

use minicbor::{Decode, Encode};
use serde::Serialize;

/// Numbers in the order in which they were added; neighbours are kept together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize)]
#[cbor(transparent)]
#[serde(transparent)]
pub struct Runs(Vec<Run>);

/// `count` numbers from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
struct Run {
    #[n(0)]
    first: u32,
    #[n(1)]
    count: u32,
}

impl Runs {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|run| u64::from(run.count)).sum()
    }

    /// The first of each run, and how many it has.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().map(|run| (run.first, run.count))
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|run| run.first..run.first.saturating_add(run.count))
    }
}

impl FromIterator<u32> for Runs {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some(run) if run.first + run.count == number => run.count += 1,
                Some(_) | None => runs.push(Run { first: number, count: 1 }),
            }
        }
        Self(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_kept_together_and_come_back_in_order() {
        let runs: Runs = [4, 5, 6, 9, 2, 3].into_iter().collect();
        assert_eq!(runs.0.len(), 3);
        assert_eq!(runs.iter().collect::<Vec<_>>(), [4, 5, 6, 9, 2, 3]);
        assert_eq!((runs.len(), runs.is_empty()), (6, false));
        assert!(Runs::default().is_empty());
    }
}
