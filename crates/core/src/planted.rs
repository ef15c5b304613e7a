//! Bugs that can be planted, to see that they are found.
//!
//! Without the feature `planted`, which no program that ships has, nothing can be planted and nothing here costs
//! anything.

/// Every bug that can be planted, by name, with what it does.
pub const BUGS: [(&str, &str); 24] = [
    ("ack-before-sync", "answers are sent before the turn is written"),
    ("refusal-before-durable", "refusals are sent while what they were decided on is not durable"),
    ("sync-skipped", "a batch is acknowledged without a sync"),
    ("sync-retried", "a failed sync is tried again and believed"),
    ("last-frame-trusted", "a start trusts the last frame as the cache shows it"),
    ("delay-never-over", "a delayed task never comes into line"),
    ("floor-too-high", "segments are dropped that the older of two snapshots needs"),
    ("capture-misses-changes", "a snapshot shows tasks as they are when their turn comes"),
    ("question-forgotten", "now and then a question is taken out of the line and never answered"),
    ("expiry-uncounted", "an attempt that ends by time does not count"),
    ("no-prolonging", "a new term gives leases no more time"),
    ("lease-too-short", "a lease is kept for less than what its worker was told"),
    ("told-too-long", "a worker is told twice what its lease is kept for"),
    ("expired-lease-accepted", "a report under a lease that is over is accepted"),
    ("completed-by-task-only", "a report is taken from whoever had the task once"),
    ("wall-clock", "rights end by the wall clock"),
    ("key-without-request", "the same key with another request finds the first task"),
    ("key-forgotten", "a purge forgets keys at once"),
    ("priority-ignored", "tasks are granted in the order of their ids"),
    ("granted-early", "a delayed task is granted half a second early"),
    ("attempts-unlimited", "a task is tried again and again"),
    ("cancel-forgotten", "a task that was to be cancelled goes on when it is given back"),
    ("capacity-ignored", "a worker gets more than it wants"),
    ("repeat-of-any-queue", "a repeat gets tasks of queues that it does not ask for"),
];

#[cfg(feature = "planted")]
mod ground {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// The number of the planted bug, plus one.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);

    /// Plants a bug in this process. Answers whether there is one of this name.
    pub fn plant(name: &str) -> bool {
        let found = super::BUGS.iter().position(|(bug, _)| *bug == name);
        PLANTED.store(found.map_or(0, |number| number + 1), Relaxed);
        found.is_some()
    }

    /// Whether a bug is planted.
    #[must_use]
    pub fn is_planted(name: &str) -> bool {
        let planted = PLANTED.load(Relaxed);
        planted > 0 && super::BUGS[planted - 1].0 == name
    }
}

#[cfg(feature = "planted")]
pub use ground::{is_planted, plant};

/// Nothing can be planted in this build.
#[cfg(not(feature = "planted"))]
#[must_use]
pub const fn plant(_: &str) -> bool {
    false
}

/// Nothing is planted in this build.
#[cfg(not(feature = "planted"))]
#[must_use]
#[inline]
pub const fn is_planted(_: &str) -> bool {
    false
}
