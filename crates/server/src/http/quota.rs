//! Quotas of tokens: concurrent requests, and requests per second.
//!
//! A rate is kept by one number per token, the time at which all that was asked so far would have been asked
//! evenly. A token that was silent for a second may ask for a whole second's worth at once, and no more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::http::error::Fault;
use crate::http::limits::Limits;

/// How far ahead of an even pace a token may be.
const BURST: Duration = Duration::from_secs(1);

/// The quotas of tokens, by name. One is made when its token first comes, and there are as many as tokens were known.
#[derive(Debug)]
pub(crate) struct Quotas {
    by_token: RwLock<HashMap<String, Arc<Quota>>>,
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
pub(crate) struct InFlight(Arc<Quota>);

impl Quotas {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            by_token: RwLock::default(),
            start: Instant::now(),
            in_flight_max: limits.in_flight_per_token,
            per_second: limits.requests_per_second_per_token,
        }
    }

    /// Lets one more request of a token in.
    pub(crate) fn enter(&self, token: &str) -> Result<InFlight, Fault> {
        self.enter_at(token, self.start.elapsed())
    }

    fn of(&self, token: &str) -> Arc<Quota> {
        if let Some(quota) = self.by_token.read().unwrap_or_else(PoisonError::into_inner).get(token) {
            return Arc::clone(quota);
        }
        let mut by_token = self.by_token.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_token.entry(token.to_owned()).or_default())
    }

    fn enter_at(&self, token: &str, now: Duration) -> Result<InFlight, Fault> {
        let quota = self.of(token);
        let max = self.in_flight_max;
        let one_more = |count: usize| (count < max).then_some(count + 1);
        if quota.in_flight.fetch_update(Relaxed, Relaxed, one_more).is_err() {
            return Err(Fault::RateLimited(format!(
                "token {token} has {max} requests on their way, which is the limit; wait for an answer"
            )));
        }
        let entered = InFlight(Arc::clone(&quota));
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

impl Drop for InFlight {
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

    fn quotas(in_flight: usize, per_second: u32) -> Quotas {
        let limits = Limits {
            in_flight_per_token: in_flight,
            requests_per_second_per_token: per_second,
            ..Limits::default()
        };
        Quotas::new(&limits)
    }

    #[test]
    fn the_in_flight_limit_admits_n_and_not_one_more() {
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
