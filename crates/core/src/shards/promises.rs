//! Promises to workers that hold when a term begins: earlier terms may have promised more than this one
//! does, and the leader by then does not know of it.

use minicbor::{Decode, Encode};

use crate::{State, Timestamp, is_planted};

/// What a term is taken to have promised if it does not say it: versions that did not say it promised this unless they
/// were set otherwise.
const UNSAID_LEASE_MS: u64 = 15_000;

/// Promises of this term and of those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Promises {
    /// Milliseconds that a worker is promised in this term after each heartbeat.
    #[n(0)]
    lease_ms: u64,
    /// Milliseconds from the beginning of this term in which promises of those before it may still run.
    #[n(1)]
    owed_ms: u64,
    /// When this term began.
    #[n(2)]
    since: Timestamp,
}

impl Promises {
    /// Those of a term that begins `at`. The time between the `last` event before it and then does not count: no node
    /// knows how long it was.
    pub(crate) fn next(self, lease_ms: Option<u64>, last: Timestamp, at: Timestamp) -> Self {
        let left_ms = self.owed_ms.saturating_sub(last.since(self.since));
        let owed_ms = left_ms.max(kept_ms(self.lease_ms));
        Self { lease_ms: lease_ms.unwrap_or(UNSAID_LEASE_MS), owed_ms, since: at }
    }
}

/// How long a promise of so many milliseconds is kept: a little longer than promised. Clocks differ by up to
/// 1 %, and the clock of a term is up to 1 % faster than that of its machine while it gets back to the wall clock.
#[must_use]
pub fn kept_ms(lease_ms: u64) -> u64 {
    if lease_ms == 0 || is_planted("workers-clocks-trusted") {
        return lease_ms;
    }
    if is_planted("term-clock-trusted") {
        return lease_ms + lease_ms / 100 + 1;
    }
    // Both together; and one for what is less than a millisecond.
    lease_ms.saturating_add(lease_ms.saturating_mul(201).div_ceil(10_000) + 1)
}

impl State {
    /// Milliseconds from the beginning of this term in which workers may serve what terms before it promised them.
    #[must_use]
    pub fn owed_ms(&self) -> u64 {
        self.shards.promises.owed_ms
    }
}

#[cfg(test)]
mod tests {
    use crate::{SnapshotLoader, State, TermStarted, Tick, Timestamp};

    use super::kept_ms;

    fn term(state: &mut State, at: u64, lease_ms: Option<u64>) {
        let epoch = state.epoch() + 1;
        let event = TermStarted { epoch, node: "n".to_owned(), actor: None, shard_lease_ms: lease_ms };
        state.apply(Timestamp(at), event.into());
    }

    fn tick(state: &mut State, at: u64) {
        state.apply(Timestamp(at), Tick {}.into());
    }

    #[test]
    fn a_term_waits_for_what_the_one_before_promised() {
        let mut state = State::new();
        term(&mut state, 1_000, Some(12_000));
        assert_eq!(state.owed_ms(), 0, "nobody was before it");
        term(&mut state, 2_000, Some(2_000));
        assert_eq!(state.owed_ms(), kept_ms(12_000));
        assert_eq!(kept_ms(12_000), 12_000 + 242 + 1);
    }

    #[test]
    fn a_long_promise_outlives_short_terms() {
        let mut state = State::new();
        term(&mut state, 0, Some(12_000));
        term(&mut state, 100_000, Some(2_000));
        tick(&mut state, 103_000);
        // However late by its clock the next one begins: only time in terms counts.
        term(&mut state, 900_000, Some(2_000));
        assert_eq!(state.owed_ms(), kept_ms(12_000) - 3_000);
        tick(&mut state, 911_000);
        term(&mut state, 911_001, Some(2_000));
        assert_eq!(state.owed_ms(), kept_ms(2_000), "it is over, and a shorter one is not");
    }

    #[test]
    fn a_term_that_says_nothing_owes_what_was_owed() {
        let mut state = State::new();
        term(&mut state, 0, Some(30_000));
        term(&mut state, 1, None);
        tick(&mut state, 1_001);
        term(&mut state, 1_002, Some(2_000));
        assert_eq!(state.owed_ms(), kept_ms(30_000) - 1_000);
    }

    #[test]
    fn a_term_that_says_nothing_promised_the_default() {
        let mut state = State::new();
        term(&mut state, 0, None);
        tick(&mut state, 100_000);
        term(&mut state, 100_001, Some(2_000));
        assert_eq!(state.owed_ms(), kept_ms(15_000));
    }

    #[test]
    fn a_snapshot_keeps_what_is_owed() {
        let mut state = State::new();
        term(&mut state, 0, Some(12_000));
        term(&mut state, 5_000, Some(3_000));
        let mut loader = SnapshotLoader::new();
        loader.load(&state.begin_capture()).unwrap();
        let mut loaded = loader.finish().unwrap();
        assert_eq!((loaded.owed_ms(), loaded.fingerprint()), (state.owed_ms(), state.fingerprint()));
        tick(&mut loaded, 20_000);
        term(&mut loaded, 20_001, None);
        assert_eq!(loaded.owed_ms(), kept_ms(3_000));
    }

    #[test]
    fn the_longest_time_is_no_overflow() {
        let mut state = State::new();
        term(&mut state, 0, Some(u64::MAX));
        term(&mut state, 1, Some(1));
        assert_eq!(state.owed_ms(), u64::MAX);
    }
}
