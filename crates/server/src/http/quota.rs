//! What one token may ask for: requests at one time, and requests per second.
//!
//! A rate is kept by one number per token, the time at which all that was asked so far would have been asked
//! evenly. A token that was silent for a second may ask for a whole second's worth at once, and no more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::http::error::Fault;
use crate::http::limits::Limits;
use crate::tokens::Tokens;

/// How far ahead of an even pace a token may be.
const BURST: Duration = Duration::from_secs(1);

/// The quotas of all tokens, by name.
#[derive(Debug)]
pub(crate) struct Quotas {
    by_token: HashMap<String, Quota>,
    start: Instant,
    in_flight_max: usize,
    per_second: u32,
}

#[derive(Debug, Default)]
struct Quota {
    in_flight: AtomicUsize,
    /// Nanoseconds since the start.
    even: AtomicU64,
}

/// A request on its way; no longer when dropped.
#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a Quota);

impl Quotas {
    pub(crate) fn new(tokens: Option<&Tokens>, limits: &Limits) -> Self {
        let names = tokens.into_iter().flat_map(Tokens::names);
        Self {
            by_token: names.map(|name| (name.to_owned(), Quota::default())).collect(),
            start: Instant::now(),
            in_flight_max: limits.in_flight_per_token,
            per_second: limits.requests_per_second_per_token,
        }
    }

    /// Lets one more request of a token in.
    pub(crate) fn enter(&self, token: &str) -> Result<InFlight<'_>, Fault> {
        self.enter_at(token, self.start.elapsed())
    }

    fn enter_at(&self, token: &str, now: Duration) -> Result<InFlight<'_>, Fault> {
        let quota = self.by_token.get(token).expect("every token has a quota");
        let max = self.in_flight_max;
        let one_more = |count: usize| (count < max).then_some(count + 1);
        if quota.in_flight.fetch_update(Relaxed, Relaxed, one_more).is_err() {
            return Err(Fault::RateLimited(format!(
                "token {token} has {max} requests on their way, which is the limit; wait for an answer"
            )));
        }
        let entered = InFlight(quota);
        let (now, burst) = (nanos(now), nanos(BURST));
        let share = burst / u64::from(self.per_second);
        let step = |even: u64| Some(even.max(now) + share).filter(|next| *next <= now + burst);
        if quota.even.fetch_update(Relaxed, Relaxed, step).is_err() {
            let per_second = self.per_second;
            return Err(Fault::RateLimited(format!(
                "token {token} asks for more than {per_second} requests a second, which is the limit; ask less often"
            )));
        }
        Ok(entered)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: &str = r#"
        [[token]]
        name = "ci"
        roles = ["submit"]
        sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
    "#;

    fn quotas(in_flight: usize, per_second: u32) -> Quotas {
        let limits = Limits {
            in_flight_per_token: in_flight,
            requests_per_second_per_token: per_second,
            ..Limits::default()
        };
        Quotas::new(Some(&Tokens::parse(TOKENS).unwrap()), &limits)
    }

    #[test]
    fn as_many_requests_at_one_time_as_the_limit_says_and_not_one_more() {
        let quotas = quotas(3, 1_000);
        let mut held: Vec<_> = (0..3).map(|_| quotas.enter("ci").unwrap()).collect();
        assert!(matches!(quotas.enter("ci"), Err(Fault::RateLimited(why)) if why.contains("3 requests")));
        held.pop();
        assert!(quotas.enter("ci").is_ok(), "an answer makes room");
    }

    #[test]
    fn as_many_requests_a_second_as_the_limit_says_and_not_one_more() {
        let quotas = quotas(1, 100);
        let at = |millis: u64| quotas.enter_at("ci", Duration::from_millis(millis)).is_ok();
        assert_eq!((0..150).filter(|_| at(5_000)).count(), 100, "a second's worth at once");
        assert_eq!((5_000..=6_000).filter(|millis| at(*millis)).count(), 100, "then evenly");
        assert!(!at(6_000));
        assert_eq!((0..150).filter(|_| at(60_000)).count(), 100, "silence saves up one second's worth only");
    }

    #[test]
    fn a_request_that_is_refused_is_not_on_its_way() {
        let quotas = quotas(1, 1);
        drop(quotas.enter_at("ci", Duration::ZERO).unwrap());
        for _ in 0..10 {
            assert!(quotas.enter_at("ci", Duration::ZERO).is_err());
        }
        assert!(quotas.enter_at("ci", Duration::from_secs(1)).is_ok());
    }
}
