//! Heartbeats: who this worker is, how much it takes, and which leases it has.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::Name;
use orchestrix_core::wire::bus::{Topic, WorkerHeartbeat, write};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::link::{Added, Failure};
use crate::retry::Backoff;
use crate::worker::complaints::Complaints;
use crate::worker::held::{lock, trusted};

/// Heartbeats within the length of a lease.
const PER_LEASE: u32 = 6;
/// Between two heartbeats.
const LONGEST: Duration = Duration::from_secs(10);
/// The same under very short leases.
const SHORTEST: Duration = Duration::from_millis(10);

/// Beats for ever, with capacity 0 after `stop`.
pub(super) async fn beat(shared: Arc<Shared>, queues: Vec<Name>, capacity: u32, stop: CancellationToken) {
    let mut backoff = Backoff::endless();
    let mut complaints = Complaints::default();
    loop {
        let began = Instant::now();
        let leaving = stop.is_cancelled();
        let pause = match say(&shared, &queues, if leaving { 0 } else { capacity }).await {
            Ok(Added::Done) => {
                backoff.reset();
                None
            }
            Ok(Added::Closed) => {
                if complaints.are_due(shared.held.now()) {
                    tracing::warn!(worker = %shared.worker, "no node has opened this bus yet");
                }
                Some(backoff.pause(None))
            }
            Err(failure) => {
                if complaints.are_due(shared.held.now()) {
                    tracing::warn!(worker = %shared.worker, %failure, "heartbeat failed");
                }
                Some(backoff.pause(None))
            }
        };
        loop {
            // A lease that came meanwhile may be shorter than all others.
            let interval = interval(&shared);
            tokio::select! {
                () = tokio::time::sleep_until(began + pause.map_or(interval, |pause| pause.min(interval))) => break,
                () = shared.more.notified() => {}
                () = stop.cancelled(), if !leaving => break,
            }
        }
    }
}

/// What it names is renewed if the bus has taken it.
async fn say(shared: &Shared, queues: &[Name], capacity: u32) -> Result<Added, Failure> {
    let named = lock(&shared.lengths).clone();
    let heartbeat = WorkerHeartbeat {
        worker_id: shared.worker.clone(),
        queues: queues.to_vec(),
        capacity,
        jobs: named.keys().copied().collect(),
        timestamp: None,
    };
    let sent = shared.held.now();
    let added = shared.link.add(&shared.channels.topic(&Topic::WorkerHeartbeat), &write(&heartbeat)).await?;
    if added == Added::Done {
        for (lease, length) in named {
            shared.held.extend(lease, trusted(sent, 0, length, None));
        }
    }
    Ok(added)
}

fn interval(shared: &Shared) -> Duration {
    let shortest = lock(&shared.lengths).values().min().copied();
    let each = shortest.map_or(LONGEST, |length| Duration::from_millis(length) / PER_LEASE);
    each.clamp(SHORTEST, LONGEST)
}
