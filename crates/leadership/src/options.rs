//! The options of an election, and which combinations are invalid.

use std::time::Duration;

/// Which candidate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The first that finds the leader lease free.
    FirstCome,
    /// The lowest id present, after the cold start.
    Roster(Roster),
}

/// The options of the roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// How often a candidate sends a heartbeat.
    pub heartbeat_interval: Duration,
    /// A candidate without a heartbeat for so long is gone; so is a leader.
    pub worker_timeout: Duration,
    /// A transfer is refused while the mandate is younger, unless forced.
    pub min_epoch_duration: Duration,
    /// The length of a mandate. Then the lowest id present becomes leader.
    pub max_epoch_duration: Duration,
    /// How long a candidate observes the others before it stands.
    pub cold_start_observation_window: Duration,
    /// How long the first leader waits before it acts.
    pub cold_start_preparation_delay: Duration,
    /// Stand at once. Of two that start together, first one may lead and then the other.
    pub skip_cold_start: bool,
}

/// The options of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether this candidate ever stands.
    pub enable_coordinator: bool,
    /// How long the leader lease lasts without a renewal.
    pub leader_ttl: Duration,
    /// How often the leader renews it.
    pub leader_renew: Duration,
    pub policy: Policy,
    /// A leader whose duties made no progress for half of `leader_ttl` releases the lease: it may look alive and do nothing.
    pub needs_proof: bool,
}

/// The shortest leader lease. Below it, the answers of an engine would take too large a part of it.
pub const LEADER_TTL_MIN: Duration = Duration::from_millis(100);
/// The longest leader lease: a day without a leader is long enough.
pub const LEADER_TTL_MAX: Duration = Duration::from_secs(86_400);

impl Default for Roster {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(30),
            worker_timeout: Duration::from_secs(90),
            min_epoch_duration: Duration::from_secs(60),
            max_epoch_duration: Duration::from_secs(300),
            cold_start_observation_window: Duration::from_secs(15),
            cold_start_preparation_delay: Duration::from_secs(5),
            skip_cold_start: false,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::first_come(Duration::from_secs(30))
    }
}

impl Options {
    /// The first candidate that finds the leader lease free takes it, for `ttl`, and renews it three times in that time.
    #[must_use]
    pub fn first_come(ttl: Duration) -> Self {
        Self {
            enable_coordinator: true,
            leader_ttl: ttl,
            leader_renew: ttl / 3,
            policy: Policy::FirstCome,
            needs_proof: false,
        }
    }

    /// The lowest id present leads.
    #[must_use]
    pub fn roster(roster: Roster) -> Self {
        Self {
            enable_coordinator: true,
            leader_ttl: roster.worker_timeout,
            leader_renew: roster.heartbeat_interval,
            policy: Policy::Roster(roster),
            needs_proof: false,
        }
    }

    /// # Errors
    /// The first invalid combination.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let ensure =
            |holds: bool, what: &dyn Fn() -> String| if holds { Ok(()) } else { Err(OptionsError(what())) };
        if let Policy::Roster(roster) = &self.policy {
            let (interval, timeout) = (roster.heartbeat_interval, roster.worker_timeout);
            ensure(timeout >= 2 * interval, &|| {
                format!(
                    "worker_timeout ({timeout:?}) must be at least twice heartbeat_interval ({interval:?}): \
                     one lost heartbeat must not end a leadership"
                )
            })?;
            let (min, max) = (roster.min_epoch_duration, roster.max_epoch_duration);
            ensure(min <= max, &|| {
                format!("min_epoch_duration ({min:?}) must not be longer than max_epoch_duration ({max:?})")
            })?;
        }
        let (ttl, renew) = (self.leader_ttl, self.leader_renew);
        ensure((LEADER_TTL_MIN..=LEADER_TTL_MAX).contains(&ttl), &|| {
            format!("leader_ttl ({ttl:?}) must be from {LEADER_TTL_MIN:?} to {LEADER_TTL_MAX:?}")
        })?;
        ensure(!renew.is_zero() && renew <= ttl / 2, &|| {
            format!("leader_renew ({renew:?}) must be positive and at most half of leader_ttl ({ttl:?})")
        })
    }
}

/// An invalid combination of options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(String);

impl From<String> for OptionsError {
    fn from(sentence: String) -> Self {
        Self(sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_defaults_are_those_of_the_documents() {
        let options = Options::default();
        assert_eq!((options.leader_ttl, options.leader_renew), (30 * SECOND, 10 * SECOND));
        assert!(options.enable_coordinator);
        let roster = Roster::default();
        assert_eq!((roster.heartbeat_interval, roster.worker_timeout), (30 * SECOND, 90 * SECOND));
        assert_eq!((roster.min_epoch_duration, roster.max_epoch_duration), (60 * SECOND, 300 * SECOND));
        assert_eq!(roster.cold_start_observation_window, 15 * SECOND);
        assert_eq!(roster.cold_start_preparation_delay, 5 * SECOND);
        assert!(!roster.skip_cold_start);
        let options = Options::roster(roster);
        assert_eq!((options.leader_ttl, options.leader_renew), (90 * SECOND, 30 * SECOND));
        options.validate().unwrap();
        Options::default().validate().unwrap();
    }

    #[test]
    fn invalid_combinations_are_refused_with_a_sentence() {
        let refused = |options: Options| options.validate().unwrap_err().to_string();
        let renew = |leader_renew| Options { leader_renew, ..Options::default() };
        renew(15 * SECOND).validate().unwrap();
        assert!(refused(renew(15 * SECOND + Duration::from_millis(1))).contains("leader_renew (15.001s)"));
        assert!(refused(renew(Duration::ZERO)).contains("leader_renew"));
        let ttl = |millis| Options::first_come(Duration::from_millis(millis));
        ttl(100).validate().unwrap();
        assert!(refused(ttl(99)).contains("leader_ttl (99ms)"));
        ttl(86_400_000).validate().unwrap();
        assert!(refused(ttl(86_400_001)).contains("leader_ttl"));
        let roster = |change: &dyn Fn(&mut Roster)| {
            let mut roster = Roster::default();
            change(&mut roster);
            Options::roster(roster)
        };
        roster(&|roster| roster.worker_timeout = 60 * SECOND).validate().unwrap();
        assert!(
            refused(roster(&|roster| roster.worker_timeout = 59 * SECOND)).contains("worker_timeout (59s)")
        );
        roster(&|roster| roster.min_epoch_duration = 300 * SECOND).validate().unwrap();
        let longer = roster(&|roster| roster.min_epoch_duration = 301 * SECOND);
        assert!(refused(longer).contains("min_epoch_duration (301s)"));
    }
}
