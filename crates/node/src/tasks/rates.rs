//! How fast queues move: events per second over the last minute. Soft state.

use std::collections::BTreeMap;

use orchestrix_core::{Name, Timestamp};

/// Seconds that a rate looks back.
const WINDOW_S: u64 = 60;

/// What is counted per queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rate {
    Submitted,
    Completed,
    Failed,
}

#[derive(Debug, Default)]
pub(crate) struct Rates {
    queues: BTreeMap<Name, [Window; 3]>,
}

/// Counts per second, in a ring.
#[derive(Clone, Copy, Debug)]
struct Window {
    second: u64,
    counts: [u32; WINDOW_S as usize],
}

impl Default for Window {
    fn default() -> Self {
        Self { second: 0, counts: [0; WINDOW_S as usize] }
    }
}

impl Rates {
    pub(crate) fn count(&mut self, queue: &Name, rate: Rate, now: Timestamp) {
        if let Some(windows) = self.queues.get_mut(queue) {
            windows[rate as usize].add(now);
            return;
        }
        let mut windows = <[Window; 3]>::default();
        windows[rate as usize].add(now);
        self.queues.insert(queue.clone(), windows);
    }

    pub(crate) fn per_second(&self, queue: &Name, rate: Rate, now: Timestamp) -> f64 {
        self.queues.get(queue).map_or(0.0, |windows| windows[rate as usize].per_second(now))
    }

    /// Forgets queues that are no more.
    pub(crate) fn retain(&mut self, exists: impl Fn(&Name) -> bool) {
        self.queues.retain(|queue, _| exists(queue));
    }
}

impl Window {
    fn add(&mut self, now: Timestamp) {
        let second = now.0 / 1_000;
        let idle = (second - self.second.min(second)).min(WINDOW_S);
        for passed in 1..=idle {
            self.counts[place(self.second + passed)] = 0;
        }
        self.second = second;
        self.counts[place(second)] = self.counts[place(second)].saturating_add(1);
    }

    fn per_second(&self, now: Timestamp) -> f64 {
        let second = now.0 / 1_000;
        let recent = (0..WINDOW_S).filter(|ago| second.saturating_sub(*ago) <= self.second);
        let counted: u64 = recent.map(|ago| u64::from(self.counts[place(second.saturating_sub(ago))])).sum();
        f64::from(u32::try_from(counted).unwrap_or(u32::MAX)) / f64::from(WINDOW_S as u32)
    }
}

fn place(second: u64) -> usize {
    usize::try_from(second % WINDOW_S).expect("less than a minute")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_mean_of_the_last_minute() {
        let (mut rates, queue) = (Rates::default(), Name::new("mail").unwrap());
        for second in 0..120 {
            (0..6).for_each(|_| rates.count(&queue, Rate::Submitted, Timestamp(second * 1_000)));
        }
        let rate = |at| rates.per_second(&queue, Rate::Submitted, Timestamp(at));
        assert!((rate(119_999) - 6.0).abs() < 0.01, "{}", rate(119_999));
        assert!((rate(149_000) - 3.0).abs() < 0.2, "{}", rate(149_000));
        assert!(rate(300_000) == 0.0);
        assert!(rates.per_second(&queue, Rate::Failed, Timestamp(119_000)) == 0.0);
    }
}
