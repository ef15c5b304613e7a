//! When to ask again: after what the coordinator asked for, or after a wait that grows and is spread by
//! chance, so that many clients do not come back in step.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::random;
use crate::tried::Tried;

/// The first wait.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait of our own choice: a coordinator that is back is noticed within this time.
const LONGEST: Duration = Duration::from_secs(5);
/// The longest wait that a coordinator may ask for. Bounds what a wrong answer can cost.
const ASKED_LONGEST: Duration = Duration::from_secs(30);

/// The waits between the tries of one call.
#[derive(Debug)]
pub(crate) struct Backoff {
    tries: u32,
    retries: u32,
    /// What they came to.
    tried: Tried,
    /// How long to repeat while nodes answer that there is no leader, whatever the number of tries.
    patience: Duration,
    /// Since when they do, and what was said last.
    leaderless: Option<(Instant, Error)>,
}

impl Backoff {
    pub(crate) fn new(retries: u32, patience: Duration) -> Self {
        Self { tries: 0, retries, tried: Tried::default(), patience, leaderless: None }
    }

    /// Tries for ever.
    pub(crate) fn endless() -> Self {
        Self::new(u32::MAX, Duration::MAX)
    }

    /// How long to wait before the next try.
    ///
    /// # Errors
    /// The same error, as it is returned, with a summary of all tries.
    pub(crate) fn next(&mut self, error: Error) -> Result<Duration, Error> {
        self.tried.add(error.tried());
        if error.is_leaderless() {
            let since = self.leaderless.as_ref().map_or_else(Instant::now, |(since, _)| *since);
            self.leaderless = Some((since, error.clone()));
        }
        if !error.is_retryable() {
            return Err(error.after(self.tried.clone()));
        }
        if self.tries >= self.retries && !self.waits_for_a_leader() {
            return Err(self.headline(error).after(self.tried.clone()));
        }
        Ok(self.pause(error.retry_after()))
    }

    /// Whether one of the nodes answers that there is no leader: there will be one soon. A call without repeats does not wait.
    fn waits_for_a_leader(&self) -> bool {
        let since = self.leaderless.as_ref().map(|(since, _)| since);
        self.retries > 0
            && self.tried.is_leaderless()
            && since.is_some_and(|since| since.elapsed() < self.patience)
    }

    /// What to tell of several addresses: if one says that there is no leader, it does not matter that another one is down.
    fn headline(&self, error: Error) -> Error {
        match &self.leaderless {
            Some((_, leaderless)) if error.code() == "unreachable" && self.tried.is_leaderless() => {
                leaderless.clone()
            }
            Some(_) | None => error,
        }
    }

    /// The next wait, for any error.
    pub(crate) fn pause(&mut self, asked: Option<Duration>) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.tries.min(10)).min(LONGEST);
        self.tries = self.tries.saturating_add(1);
        match asked {
            // Never earlier than asked for, and up to a quarter later.
            Some(asked) => asked.min(ASKED_LONGEST).mul_f64(1.0 + random::fraction() / 4.0),
            None => doubled.mul_f64(0.5 + random::fraction() / 2.0),
        }
    }

    /// Things go well again.
    pub(crate) fn reset(&mut self) {
        self.tries = 0;
        self.tried = Tried::default();
        self.leaderless = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Kind, Repeat};

    const NOT: Duration = Duration::ZERO;

    fn unreachable() -> Error {
        Error::new(Kind::Unreachable { url: String::new(), why: String::new() }, Repeat::Doubles)
    }

    #[test]
    fn waits_grow_up_to_a_limit() {
        let mut backoff = Backoff::endless();
        let waits: Vec<Duration> = (0..20).map(|_| backoff.next(unreachable()).unwrap()).collect();
        assert!(waits[0] <= FIRST);
        assert!(waits[19] >= LONGEST / 2 && waits[19] <= LONGEST);
    }

    #[test]
    fn the_number_of_tries_is_bounded() {
        let mut backoff = Backoff::new(2, NOT);
        assert!(backoff.next(unreachable()).is_ok());
        assert!(backoff.next(unreachable()).is_ok());
        assert!(backoff.next(unreachable()).is_err());
    }

    #[test]
    fn the_time_between_the_tries_is_bounded() {
        let mut backoff = Backoff::new(5, NOT);
        let waits: Duration = std::iter::from_fn(|| backoff.next(unreachable()).ok()).sum();
        assert!(waits <= 31 * FIRST, "{waits:?}");
    }

    #[test]
    fn the_error_in_the_end_names_every_address() {
        let refused = |url: &str| {
            let kind = Kind::Unreachable { url: url.to_owned(), why: "refused".to_owned() };
            Error::of_a_try(kind, Repeat::Doubles, url)
        };
        let mut backoff = Backoff::new(2, NOT);
        assert!(backoff.next(refused("http://a")).is_ok());
        assert!(backoff.next(refused("http://b")).is_ok());
        let told = backoff.next(refused("http://c")).unwrap_err().to_string();
        assert!(
            told.ends_with("; tried http://a (refused), http://b (refused), http://c (refused)"),
            "{told}"
        );
        backoff.reset();
        assert!(backoff.next(refused("http://a")).is_ok(), "and is forgotten when things go well");
    }

    #[test]
    fn no_caller_returns_earlier_than_asked() {
        let asked = Duration::from_secs(2);
        let mut backoff = Backoff::endless();
        for _ in 0..100 {
            let wait = backoff.pause(Some(asked));
            assert!(wait >= asked && wait <= asked.mul_f64(1.25));
        }
        assert!(backoff.pause(Some(Duration::from_secs(86_400))) < ASKED_LONGEST * 2);
    }

    #[test]
    fn a_permanent_error_is_returned_at_once() {
        assert!(Backoff::endless().next(Error::invalid("no")).is_err());
    }
}
