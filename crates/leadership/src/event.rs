//! What happens to leadership, for those who watch: six kinds of events, and the names under which duties tell them
//! again.

use serde::Serialize;

/// One event. Times are Unix milliseconds; `epoch` is the end of a mandate, `term` the fencing token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum LeadershipEvent {
    /// This candidate showed that it is present.
    WorkerHeartbeat { worker_id: String, timestamp: u64 },
    /// Somebody was seen in office for the first time.
    CoordinatorElected { worker_id: String, epoch: u64, active_workers: Vec<String>, term: u64 },
    /// This one holds the office now.
    CoordinatorPromoted { worker_id: String, timestamp: u64, term: u64 },
    /// This one does not hold it any more.
    CoordinatorDemoted { worker_id: String, reason: String, term: u64 },
    /// This one goes on.
    CoordinatorEpochRenewed { worker_id: String, new_epoch: u64, term: u64 },
    /// The cold start has come to another phase, after so many milliseconds in the one before.
    ColdStartPhaseChanged { phase: Phase, duration: u64 },
}

/// Where the cold start of a candidate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Shows itself and watches the others.
    Observing,
    /// May stand.
    Election,
    /// Lets the others see who was elected, before it acts.
    Preparation,
    Ready,
}

impl LeadershipEvent {
    /// The name of its kind, as it is published.
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

    /// The name under which a duty tells it again.
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
    fn news_have_the_names_and_fields_that_were_agreed() {
        let id = || "worker-1734567890-abc123".to_owned();
        let told = [
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
        for (news, expected) in told {
            assert_eq!(format!("{} {}", news.name(), serde_json::to_string(&news).unwrap()), expected);
        }
        let news = LeadershipEvent::CoordinatorPromoted { worker_id: "a".into(), timestamp: 5, term: 2 };
        assert_eq!(news.name_of("s3-queue"), "plg:s3-queue:coordinator-promoted");
    }
}
