//! The times of a cluster on a bus, in settings.

use std::time::Duration;

use orchestrix_core::limits::LEASE_MS_MAX;
use orchestrix_node::BusOptions;

use super::ClusterArgs;
use crate::units::Span;

/// A shorter lease of the bus ends while its worker and the server only do other things for a moment.
const LEASE_MIN: Duration = Duration::from_secs(5);
const LEASE_MAX: Duration = Duration::from_millis(LEASE_MS_MAX);
/// A shorter time is over before a busy machine has answered.
const TIME_MIN: Duration = Duration::from_millis(100);
/// A longer one keeps tasks waiting for what only a node can give them.
const TIME_MAX: Duration = Duration::from_secs(3_600);
/// Bounds how long a stop takes.
const RETRIES_MAX: u32 = 100;

/// # Errors
/// The first value that makes no sense, and what would.
pub(super) fn bus_options(lease: Option<Span>, set: &ClusterArgs) -> Result<BusOptions, String> {
    let usual = BusOptions::default();
    let time = |name, set: Option<Span>, usual| within(name, set, usual, (TIME_MIN, TIME_MAX));
    let options = BusOptions {
        lease: within("bus_lease", lease, usual.lease, (LEASE_MIN, LEASE_MAX))?,
        heartbeat_interval: time(
            "cluster.heartbeat_interval",
            set.heartbeat_interval,
            usual.heartbeat_interval,
        )?,
        dead_node_timeout: time("cluster.dead_node_timeout", set.dead_node_timeout, usual.dead_node_timeout)?,
        handoff_ack_timeout: time(
            "cluster.handoff_ack_timeout",
            set.handoff_ack_timeout,
            usual.handoff_ack_timeout,
        )?,
        handoff_max_retries: retries(set.handoff_max_retries.unwrap_or(usual.handoff_max_retries))?,
        handoff_hard_timeout: time(
            "cluster.handoff_hard_timeout",
            set.handoff_hard_timeout,
            usual.handoff_hard_timeout,
        )?,
        orphan_check_interval: time(
            "cluster.orphan_check_interval",
            set.orphan_check_interval,
            usual.orphan_check_interval,
        )?,
    };
    let two_heartbeats = 2 * options.heartbeat_interval;
    if options.dead_node_timeout < two_heartbeats {
        return Err(format!(
            "cluster.dead_node_timeout is {:?}; at least {two_heartbeats:?} is needed, which is twice \
             cluster.heartbeat_interval",
            options.dead_node_timeout
        ));
    }
    let all_tries = options.handoff_ack_timeout * (options.handoff_max_retries + 1);
    if options.handoff_hard_timeout < all_tries {
        return Err(format!(
            "cluster.handoff_hard_timeout is {:?}; at least {all_tries:?} is needed, which is one \
             cluster.handoff_ack_timeout for the first try and each of {} retries",
            options.handoff_hard_timeout, options.handoff_max_retries
        ));
    }
    Ok(options)
}

fn within(
    name: &str,
    set: Option<Span>,
    usual: Duration,
    (min, max): (Duration, Duration),
) -> Result<Duration, String> {
    let value = set.map_or(usual, |span| span.0);
    if value < min {
        return Err(format!("{name} is {value:?}; at least {min:?} is needed"));
    }
    if value > max {
        return Err(format!("{name} is {value:?}; at most {max:?} is accepted"));
    }
    Ok(value)
}

fn retries(value: u32) -> Result<u32, String> {
    let name = "cluster.handoff_max_retries";
    if value == 0 {
        return Err(format!("{name} is 0; at least 1 is needed"));
    }
    if value > RETRIES_MAX {
        return Err(format!("{name} is {value}; at most {RETRIES_MAX} is accepted"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn checked(lease: Option<Duration>, set: ClusterArgs) -> Result<BusOptions, String> {
        bus_options(lease.map(Span), &set)
    }

    #[test]
    fn without_settings_the_options_are_the_usual_ones() {
        assert_eq!(checked(None, ClusterArgs::default()), Ok(BusOptions::default()));
    }

    #[test]
    fn each_time_has_a_shortest_and_a_longest() {
        let lease = |lease| checked(Some(lease), ClusterArgs::default()).map(|options| options.lease);
        assert_eq!((lease(LEASE_MIN), lease(LEASE_MAX)), (Ok(LEASE_MIN), Ok(LEASE_MAX)));
        assert!(lease(LEASE_MIN - MS).unwrap_err().contains("bus_lease is 4.999s; at least 5s"));
        assert!(lease(LEASE_MAX + MS).unwrap_err().contains("at most 86400s"));
        type Set = fn(&mut ClusterArgs, Span);
        let settings: [(&str, Set); 5] = [
            ("heartbeat_interval", |set, span| set.heartbeat_interval = Some(span)),
            ("dead_node_timeout", |set, span| set.dead_node_timeout = Some(span)),
            ("handoff_ack_timeout", |set, span| set.handoff_ack_timeout = Some(span)),
            ("handoff_hard_timeout", |set, span| set.handoff_hard_timeout = Some(span)),
            ("orphan_check_interval", |set, span| set.orphan_check_interval = Some(span)),
        ];
        for (name, put) in settings {
            // A value in range may still not fit to the others.
            let told = |span| {
                let mut set = ClusterArgs::default();
                put(&mut set, Span(span));
                checked(None, set).err().unwrap_or_default()
            };
            let (short, long) =
                (format!("cluster.{name} is 99ms; at least 100ms"), "at most 3600s is accepted");
            assert!(told(TIME_MAX + MS).contains(long), "{name}: {}", told(TIME_MAX + MS));
            assert!(told(TIME_MIN - MS).contains(&short), "{name}: {}", told(TIME_MIN - MS));
            assert!(!told(TIME_MAX).contains(long) && !told(TIME_MIN).contains("100ms is needed"), "{name}");
        }
    }

    #[test]
    fn a_dead_node_has_missed_two_heartbeats() {
        let with = |interval: u32, timeout: u32| {
            let set = ClusterArgs {
                heartbeat_interval: Some(Span(MS * interval)),
                dead_node_timeout: Some(Span(MS * timeout)),
                ..ClusterArgs::default()
            };
            checked(None, set)
        };
        assert!(with(2_000, 4_000).is_ok());
        let why = with(2_000, 3_999).unwrap_err();
        assert!(why.contains("cluster.dead_node_timeout is 3.999s; at least 4s"), "{why}");
    }

    #[test]
    fn a_stop_has_time_for_all_its_retries() {
        let with = |retries, hard: u32| {
            let set = ClusterArgs {
                handoff_ack_timeout: Some(Span(MS * 1_000)),
                handoff_max_retries: Some(retries),
                handoff_hard_timeout: Some(Span(MS * hard)),
                ..ClusterArgs::default()
            };
            checked(None, set)
        };
        assert!(with(3, 4_000).is_ok());
        let why = with(3, 3_999).unwrap_err();
        assert!(why.contains("cluster.handoff_hard_timeout is 3.999s; at least 4s"), "{why}");
        assert!(with(1, 60_000).is_ok() && with(RETRIES_MAX, 3_600_000).is_ok());
        assert!(with(0, 60_000).unwrap_err().contains("handoff_max_retries is 0; at least 1"));
        assert!(with(RETRIES_MAX + 1, 3_600_000).unwrap_err().contains("is 101; at most 100"));
    }
}
