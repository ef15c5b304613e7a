//! Open files of this process. The operating system grants so many, and connections are only one use of them: the journal
//! and the output of tasks must always get theirs.
//!
//! **Invariant:** strangers who connect never take the descriptors that the journal needs: a coordinator that cannot open
//! its next segment has to stop.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Settings;
use crate::engine::Engine;
use crate::http::Limits;

/// Of all descriptors, one in so many is kept for files: segments, snapshots, one for each 64 MiB of task output.
const KEPT_SHARE: u64 = 4;
/// At least so many are kept: a coordinator without output of tasks and without connections has about 25.
const KEPT_MIN: u64 = 64;

/// What connections cost here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    /// One descriptor each.
    One,
    /// A second one, where a request is passed on to a leader over HTTP.
    PassedOn,
}

impl Cost {
    fn of_http(self) -> u64 {
        match self {
            Self::One => 1,
            Self::PassedOn => 2,
        }
    }
}

/// The limits of a coordinator, with as many connections as there are descriptors for. The defaults are meant so; limits
/// that the operator chose are worth a warning.
pub(crate) fn limits(settings: &Settings) -> Limits {
    let mut limits = settings.limits.clone();
    let usual = Limits::default();
    let is_chosen =
        limits.connections != usual.connections || limits.zmq_connections != usual.zmq_connections;
    let cost = match settings.engine {
        Engine::File | Engine::Memory => Cost::One,
        Engine::Shared(_) => Cost::PassedOn,
    };
    if let Some(open_files) = raise()
        && fit(&mut limits, open_files, cost)
    {
        let (connections, zmq_connections) = (limits.connections, limits.zmq_connections);
        if is_chosen {
            tracing::warn!(
                open_files,
                connections,
                zmq_connections,
                "the limit of open files is too low for the chosen limits of connections"
            );
        } else {
            tracing::debug!(
                open_files,
                connections,
                zmq_connections,
                "limits of connections follow the limit of open files"
            );
        }
    }
    limits
}

/// Asks for as many descriptors as this process may have; how many these are, if there is a limit.
fn raise() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    if before.current == before.maximum {
        return before.current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before }) {
        Ok(()) => before.maximum,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files");
            before.current
        }
    }
}

/// Lowers the limits of connections to what so many descriptors are enough for. Both kinds keep their proportion, there is
/// always room for one of each, and one address gets at most half. Answers whether something was lowered.
fn fit(limits: &mut Limits, descriptors: u64, cost: Cost) -> bool {
    let kept = (descriptors / KEPT_SHARE).max(KEPT_MIN);
    let free = u128::from(descriptors.saturating_sub(kept));
    let of_http = u128::from(cost.of_http());
    let wanted = limits.connections as u128 * of_http + limits.zmq_connections as u128;
    if wanted <= free {
        return false;
    }
    for (connections, per_ip) in [
        (&mut limits.connections, &mut limits.connections_per_ip),
        (&mut limits.zmq_connections, &mut limits.zmq_connections_per_ip),
    ] {
        let fitting = *connections as u128 * free / wanted;
        *connections = usize::try_from(fitting).unwrap_or(usize::MAX).max(1);
        *per_ip = (*per_ip).min(connections.div_ceil(2));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(
        connections: usize,
        zmq_connections: usize,
        descriptors: u64,
        cost: Cost,
    ) -> (usize, usize, bool) {
        let mut limits = Limits { connections, zmq_connections, ..Limits::default() };
        let is_lowered = fit(&mut limits, descriptors, cost);
        (limits.connections, limits.zmq_connections, is_lowered)
    }

    #[test]
    fn limits_that_just_fit_stay_and_one_more_does_not() {
        assert_eq!(fitted(200, 100, 400, Cost::One), (200, 100, false));
        assert_eq!(fitted(200, 100, 399, Cost::One), (200, 100, false), "a quarter of 399 is 99");
        assert_eq!(fitted(201, 100, 400, Cost::One), (200, 99, true));
        assert_eq!(fitted(100, 100, 400, Cost::PassedOn), (100, 100, false));
        assert_eq!(fitted(101, 100, 400, Cost::PassedOn), (100, 99, true));
    }

    #[test]
    fn files_keep_their_share_of_descriptors() {
        assert_eq!(fitted(20_000, 10_000, 1_024, Cost::One), (512, 256, true));
        assert_eq!(fitted(20_000, 10_000, 67, Cost::One), (2, 1, true));
        for few in [0, 64, 65] {
            assert_eq!(fitted(20_000, 10_000, few, Cost::One), (1, 1, true));
        }
        let all = usize::MAX;
        let (http, zmq, _) = fitted(all, all, 1_024, Cost::PassedOn);
        assert_eq!((http, zmq), (256, 256), "no overflow");
    }

    #[test]
    fn one_address_gets_half_of_what_was_lowered() {
        let mut limits = Limits::default();
        assert!(!fit(&mut limits, 40_000, Cost::One));
        assert_eq!((limits.connections_per_ip, limits.zmq_connections_per_ip), (512, 5_000));
        assert!(fit(&mut limits, 1_024, Cost::One));
        assert_eq!((limits.connections_per_ip, limits.zmq_connections_per_ip), (256, 128));
        assert!(fit(&mut limits, 0, Cost::One));
        assert_eq!((limits.connections_per_ip, limits.zmq_connections_per_ip), (1, 1));
    }
}
