//! The leadership events, their published names, and the names under which duties republish them.

use serde::Serialize;

/// One event. Times are Unix milliseconds; `epoch` is the end of a mandate, `term` the fencing token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum LeadershipEvent {
    /// This candidate sent a heartbeat.
    WorkerHeartbeat { worker_id: String, timestamp: u64 },
    /// A new leader was seen.
    CoordinatorElected { worker_id: String, epoch: u64, active_workers: Vec<String>, term: u64 },
    /// This candidate became leader.
    CoordinatorPromoted { worker_id: String, timestamp: u64, term: u64 },
    /// This candidate lost leadership.
    CoordinatorDemoted { worker_id: String, reason: String, term: u64 },
    /// This candidate renewed its leader lease or its mandate.
    CoordinatorEpochRenewed { worker_id: String, new_epoch: u64, term: u64 },
    /// The cold start entered `phase`, after `duration` milliseconds in the previous one.
    ColdStartPhaseChanged { phase: Phase, duration: u64 },
}

/// The phase of a candidate's cold start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Sends heartbeats and observes the others.
    Observing,
    /// May stand.
    Election,
    /// Was elected, and waits before it acts so that the others see it.
    Preparation,
    Ready,
}

impl LeadershipEvent {
    /// The name under which it is published.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::WorkerHeartbeat { .. } => "coord:worker-heartbeat",
            Self::CoordinatorElected { .. } => "coord:coordinator-elected",
            Self::CoordinatorPromoted { .. } => "coord:coordinator-promoted",
            Self::CoordinatorDemoted { .. } => "coord:coordinator-demoted",
            Self::CoordinatorEpochRenewed { .. } => "coord:coordinator-epoch-renewed",
            Self::ColdStartPhaseChanged { .. } => "coord:cold-start-phase-changed",
        }
    }

    /// The name under which a duty republishes it.
    #[must_use]
    pub fn name_of(&self, duty: &str) -> String {
        let kind = self.name().strip_prefix("coord:").unwrap_or(self.name());
        format!("plg:{duty}:{kind}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leadership_events_have_the_documented_json() {
        let id = || "worker-1734567890-abc123".to_owned();
        let events = [
            (
                LeadershipEvent::WorkerHeartbeat { worker_id: id(), timestamp: 5 },
                r#"coord:worker-heartbeat {"workerId":"worker-1734567890-abc123","timestamp":5}"#,
            ),
            (
                LeadershipEvent::CoordinatorElected {
                    worker_id: "a".into(),
                    epoch: 9,
                    active_workers: vec!["a".into()],
                    term: 2,
                },
                r#"coord:coordinator-elected {"workerId":"a","epoch":9,"activeWorkers":["a"],"term":2}"#,
            ),
            (
                LeadershipEvent::CoordinatorPromoted { worker_id: "a".into(), timestamp: 5, term: 2 },
                r#"coord:coordinator-promoted {"workerId":"a","timestamp":5,"term":2}"#,
            ),
            (
                LeadershipEvent::CoordinatorDemoted {
                    worker_id: "a".into(),
                    reason: "resigned".into(),
                    term: 2,
                },
                r#"coord:coordinator-demoted {"workerId":"a","reason":"resigned","term":2}"#,
            ),
            (
                LeadershipEvent::CoordinatorEpochRenewed { worker_id: "a".into(), new_epoch: 7, term: 2 },
                r#"coord:coordinator-epoch-renewed {"workerId":"a","newEpoch":7,"term":2}"#,
            ),
            (
                LeadershipEvent::ColdStartPhaseChanged { phase: Phase::Preparation, duration: 15_000 },
                r#"coord:cold-start-phase-changed {"phase":"preparation","duration":15000}"#,
            ),
        ];
        for (event, expected) in events {
            assert_eq!(format!("{} {}", event.name(), serde_json::to_string(&event).unwrap()), expected);
        }
        let event = LeadershipEvent::CoordinatorPromoted { worker_id: "a".into(), timestamp: 5, term: 2 };
        assert_eq!(event.name_of("s3-queue"), "plg:s3-queue:coordinator-promoted");
    }
}
