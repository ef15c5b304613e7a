//! Whether the replication feed is alive. While it is, the engine is only asked now and then.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A leader that is heard of tells at least so often that it is there.
pub(super) const SILENCE: Duration = Duration::from_secs(2);

/// Until when the leader is believed to tell.
#[derive(Debug, Default)]
pub(super) struct FeedLiveness {
    until: Mutex<Option<Instant>>,
    ended: Condvar,
}

impl FeedLiveness {
    /// The leader was heard of just now.
    pub(super) fn heard(&self) {
        *self.lock() = Some(Instant::now() + SILENCE);
    }

    /// The leader tells no more.
    pub(super) fn end(&self) {
        *self.lock() = None;
        self.ended.notify_all();
    }

    /// Waits until the leader is silent, but not longer than this. Answers whether it still tells.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let give_up = Instant::now() + at_most;
        let mut until = self.lock();
        loop {
            let now = Instant::now();
            let Some(silent) = until.filter(|silent| *silent > now) else { return false };
            if now >= give_up {
                return true;
            }
            let waited = self.ended.wait_timeout(until, silent.min(give_up) - now);
            until = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
