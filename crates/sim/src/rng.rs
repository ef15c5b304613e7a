//! Random numbers that a seed repeats.

/// A splitmix64 sequence. Good enough to choose faults, and the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A sequence of its own, which does not depend on how much is drawn from this one later.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.next() % len as u64).unwrap_or(0)
    }

    /// True so many times in a million.
    pub(crate) fn chance(&mut self, per_million: u32) -> bool {
        self.next() % 1_000_000 < u64::from(per_million)
    }

    /// From `low` to `high`, small numbers as often as large ones.
    pub(crate) fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let bits = (high / low.max(1)).max(1).ilog2();
        let top = low.max(1) << self.range(0, u64::from(bits));
        self.range(low, top.clamp(low, high))
    }
}
