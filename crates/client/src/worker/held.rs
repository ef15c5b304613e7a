//! The leases of a worker, with their ends on its own clock.
//!
//! **Invariant:** a lease is trusted only until the sending of the request that granted or extended it, plus
//! its length, less a margin, all on the worker's own clock. A lease that was given up is never trusted again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrix_core::LeaseId;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// The longest time between the request to stop because of a time limit and the end of the handler.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// Why a handler is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The task was cancelled. It can still be completed.
    CancelRequested,
    /// The worker is stopping; the task goes back to its queue.
    Shutdown,
    /// The coordinator says that the lease is over: another worker may have the task.
    LeaseLost,
    /// The lease may be over: no heartbeat was answered in time.
    Deadline,
    /// The time limit of the attempt is over in a moment. What is completed within that moment counts.
    TimedOut,
}

/// Until when a lease is trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrustedUntil {
    /// When the handler is asked to stop.
    until: Duration,
    /// How much later the lease is gone for it.
    moment: Duration,
    /// What is over then.
    end: Stop,
}

/// Tells one handler to stop, and why.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    why: Mutex<Option<Stop>>,
    /// The handler should come to an end.
    pub(crate) stop: CancellationToken,
    /// The lease is not ours any more: the handler is dropped soon.
    pub(crate) gone: CancellationToken,
}

/// All leases of one worker.
#[derive(Debug)]
pub(crate) struct Held {
    clock: Arc<dyn Clock>,
    leases: Mutex<BTreeMap<LeaseId, Entry>>,
    /// There is a deadline to watch.
    added: Notify,
}

#[derive(Debug)]
struct Entry {
    /// None once the handler has ended: there is nothing left to stop.
    trust: Option<TrustedUntil>,
    signal: Arc<Signal>,
}

/// Of a lease that ends by itself.
impl From<Duration> for TrustedUntil {
    fn from(until: Duration) -> Self {
        Self { until, moment: Duration::ZERO, end: Stop::Deadline }
    }
}

impl Signal {
    pub(crate) fn why(&self) -> Option<Stop> {
        *lock(&self.why)
    }

    fn tell(&self, stop: Stop) {
        self.say(stop, stop.ends_the_right());
    }

    /// Nothing that follows counts any more.
    fn end(&self, stop: Stop) {
        self.say(stop, true);
    }

    fn say(&self, stop: Stop, ends_the_right: bool) {
        let mut why = lock(&self.why);
        // Losing the lease outweighs every earlier reason: nothing that follows counts any more.
        if why.is_none() || ends_the_right {
            *why = Some(stop);
        }
        drop(why);
        self.stop.cancel();
        if ends_the_right {
            self.gone.cancel();
        }
    }
}

impl Stop {
    fn ends_the_right(self) -> bool {
        match self {
            Self::CancelRequested | Self::Shutdown | Self::TimedOut => false,
            Self::LeaseLost | Self::Deadline => true,
        }
    }
}

impl Held {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, leases: Mutex::default(), added: Notify::new() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn add(&self, lease: LeaseId, trust: impl Into<TrustedUntil>) -> Arc<Signal> {
        let signal = Arc::new(Signal::default());
        let entry = Entry { trust: Some(trust.into()), signal: Arc::clone(&signal) };
        lock(&self.leases).insert(lease, entry);
        self.added.notify_one();
        signal
    }

    /// The handler has ended. The lease is renewed until its outcome is reported, but has no deadline.
    pub(crate) fn ended(&self, lease: LeaseId) {
        if let Some(entry) = lock(&self.leases).get_mut(&lease) {
            entry.trust = None;
        }
    }

    pub(crate) fn remove(&self, lease: LeaseId) {
        lock(&self.leases).remove(&lease);
    }

    pub(crate) fn ids(&self) -> Vec<LeaseId> {
        lock(&self.leases).keys().copied().collect()
    }

    /// How many handlers run.
    pub(crate) fn running(&self) -> usize {
        lock(&self.leases).values().filter(|entry| entry.trust.is_some()).count()
    }

    pub(crate) fn extend(&self, lease: LeaseId, trust: impl Into<TrustedUntil>) {
        let (now, trust) = (self.now(), trust.into());
        if let Some(Entry { trust: Some(old), signal }) = lock(&self.leases).get_mut(&lease)
            && !signal.gone.is_cancelled()
            && now < old.until
            && old.until < trust.until
        {
            *old = trust;
        }
    }

    /// Whether a handler may run under a lease at this moment.
    pub(crate) fn is_trusted(&self, lease: LeaseId) -> bool {
        let now = self.now();
        let ours = |entry: &Entry| {
            entry.trust.is_some_and(|trust| now < trust.until) && !entry.signal.gone.is_cancelled()
        };
        lock(&self.leases).get(&lease).is_some_and(ours)
    }

    pub(crate) fn tell(&self, lease: LeaseId, stop: Stop) {
        if let Some(entry) = lock(&self.leases).get(&lease) {
            entry.signal.tell(stop);
        }
    }

    pub(crate) fn tell_all(&self, stop: Stop) {
        for entry in lock(&self.leases).values() {
            entry.signal.tell(stop);
        }
    }

    /// Stops what has run out of time; answers how long until the next one does.
    pub(crate) fn expire(&self) -> Option<Duration> {
        let now = self.now();
        let leases = lock(&self.leases);
        let live = |entry: &&Entry| !entry.signal.gone.is_cancelled();
        let mut next: Option<Duration> = None;
        for Entry { trust, signal } in leases.values().filter(live) {
            let Some(TrustedUntil { until, moment, end }) = *trust else { continue };
            if until + moment <= now {
                signal.end(end);
                continue;
            }
            if until <= now {
                signal.tell(end);
            }
            let left = if until <= now { until + moment - now } else { until - now };
            next = Some(next.map_or(left, |next| next.min(left)));
        }
        next
    }

    /// Watches the deadlines for ever.
    pub(crate) async fn watch(&self) {
        /// A machine that was asleep does not count that time in its timers: look at the clock this often.
        const LOOK: Duration = Duration::from_millis(250);
        loop {
            match self.expire() {
                Some(next) => tokio::time::sleep(next.min(LOOK)).await,
                None => self.added.notified().await,
            }
        }
    }
}

/// How far a lease is trusted that was asked for at `sent`. One that ends with the time limit of its attempt is used for as long
/// as the limit allows: there is no more than a moment for the end of the handler.
pub(crate) fn trusted(
    sent: Duration,
    waited_ms: u64,
    lease_ms: u64,
    timeout_ms: Option<u64>,
) -> TrustedUntil {
    let until = trusted_until(sent, waited_ms, lease_ms);
    if timeout_ms.is_none_or(|timeout_ms| timeout_ms > lease_ms) {
        return until.into();
    }
    let lease = Duration::from_millis(lease_ms);
    let moment = (lease / 50).min(LAST_MOMENT);
    TrustedUntil { until: until + wind_up(lease) - moment, moment, end: Stop::TimedOut }
}

/// The moment up to which a lease is trusted that was asked for at `sent`.
pub(crate) fn trusted_until(sent: Duration, waited_ms: u64, lease_ms: u64) -> Duration {
    let lease = Duration::from_millis(lease_ms);
    let granted = sent.saturating_add(Duration::from_millis(waited_ms));
    granted.saturating_add(lease.saturating_sub(drift(lease) + wind_up(lease)))
}

/// What two clocks may differ over the length of a lease: one part in a hundred.
fn drift(lease: Duration) -> Duration {
    lease / 100
}

/// The time that a handler has to come to an end when its lease does.
pub(crate) fn wind_up(lease: Duration) -> Duration {
    (lease / 10).min(Duration::from_secs(1))
}

/// A panic elsewhere must not keep a worker from stopping what it runs.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::manual::ManualClock;

    const LEASE: LeaseId = LeaseId(7);

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn held() -> (Arc<ManualClock>, Held) {
        let clock = Arc::new(ManualClock::default());
        (Arc::clone(&clock), Held::new(clock))
    }

    #[test]
    fn a_lease_is_trusted_from_its_sending_and_less_than_its_length() {
        let until = trusted_until(seconds(100), 5_000, 30_000);
        assert_eq!(until, seconds(105 + 30) - Duration::from_millis(300) - seconds(1));
        let short = trusted_until(seconds(0), 0, 10);
        assert!(short > Duration::ZERO && short < Duration::from_millis(10));
    }

    #[test]
    fn a_handler_is_stopped_at_its_own_deadline() {
        let (clock, held) = held();
        let signal = held.add(LEASE, seconds(10));
        assert_eq!(held.expire(), Some(seconds(10)));
        clock.advance(seconds(9));
        assert_eq!(held.expire(), Some(seconds(1)));
        assert!(!signal.stop.is_cancelled());
        clock.advance(seconds(1));
        assert_eq!(held.expire(), None);
        assert!(signal.gone.is_cancelled());
        assert_eq!(signal.why(), Some(Stop::Deadline));
    }

    #[test]
    fn a_time_limit_is_used_up_to_a_moment_before_its_end() {
        let (clock, held) = held();
        let millis = Duration::from_millis;
        // Ten seconds, shortened by a hundredth; the lease would be longer.
        let trust = trusted(seconds(0), 0, 9_900, Some(9_900));
        assert_eq!(trust.until, millis(9_900 - 99 - 100));
        let signal = held.add(LEASE, trust);
        clock.advance(millis(9_700));
        assert!(held.expire().is_some() && !signal.stop.is_cancelled());
        clock.advance(millis(1));
        assert_eq!((held.expire(), signal.why()), (Some(millis(100)), Some(Stop::TimedOut)));
        assert!(signal.stop.is_cancelled() && !signal.gone.is_cancelled(), "its last lines are sent");
        clock.advance(millis(100));
        assert_eq!(held.expire(), None);
        assert!(signal.gone.is_cancelled());
        // A lease that ends before the limit does is a lease.
        assert_eq!(trusted(seconds(0), 0, 9_900, Some(9_901)).end, Stop::Deadline);
        assert_eq!(trusted(seconds(0), 0, 9_900, None).until, trusted_until(seconds(0), 0, 9_900));
    }

    #[test]
    fn a_heartbeat_moves_the_deadline_but_never_back() {
        let (clock, held) = held();
        held.add(LEASE, seconds(10));
        clock.advance(seconds(3));
        held.extend(LEASE, seconds(13));
        held.extend(LEASE, seconds(5));
        assert_eq!(held.expire(), Some(seconds(10)));
    }

    #[test]
    fn an_answer_that_comes_after_the_deadline_revives_nothing() {
        let (clock, held) = held();
        let signal = held.add(LEASE, seconds(10));
        clock.advance(seconds(11));
        held.extend(LEASE, seconds(20));
        held.expire();
        assert_eq!(signal.why(), Some(Stop::Deadline));
        held.extend(LEASE, seconds(30));
        assert!(signal.gone.is_cancelled());
    }

    #[test]
    fn losing_the_lease_outweighs_a_request_to_cancel() {
        let (_, held) = held();
        let signal = held.add(LEASE, seconds(10));
        held.tell(LEASE, Stop::CancelRequested);
        assert!(signal.stop.is_cancelled() && !signal.gone.is_cancelled());
        held.tell(LEASE, Stop::LeaseLost);
        assert_eq!(signal.why(), Some(Stop::LeaseLost));
        held.tell(LEASE, Stop::Shutdown);
        assert_eq!(signal.why(), Some(Stop::LeaseLost));
    }

    #[test]
    fn a_finished_handler_keeps_its_lease_without_a_deadline() {
        let (clock, held) = held();
        let signal = held.add(LEASE, seconds(10));
        held.ended(LEASE);
        clock.advance(seconds(100));
        assert_eq!(held.expire(), None);
        assert!(!signal.stop.is_cancelled());
        assert_eq!((held.ids(), held.running()), (vec![LEASE], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_watch_stops_a_lease_that_was_added_later() {
        let (clock, held) = held();
        let held = Arc::new(held);
        let watch = tokio::spawn({
            let held = Arc::clone(&held);
            async move { held.watch().await }
        });
        tokio::task::yield_now().await;
        let signal = held.add(LEASE, seconds(1));
        clock.advance(seconds(1));
        signal.gone.cancelled().await;
        watch.abort();
    }
}
