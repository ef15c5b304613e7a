//! What workers and nodes say of themselves: their heartbeats. Every node hears them, so that a new leader knows them at once; the
//! leader's loop is told.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::Name;
use orchestrix_core::limits::NODES_MAX;
use orchestrix_core::wire::bus::{CoordinatorHeartbeat, WorkerHeartbeat, read};
use orchestrix_engine::LogThrottle;
use orchestrix_engine::bus::{Budget, Bus, Content, Entry, EntryId, Topic};

use super::complaints::Complaints;
use super::dispatcher::{Next, send_cancels};
use super::{BusAnswer, DispatchAsk};
use crate::request::Error;

/// Between two looks at the topic.
const PAUSE: Duration = Duration::from_millis(50);
/// The loop hears so often that the bus answers.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// Heartbeats told at a time.
const HEARTBEATS_MAX: usize = 500;
/// How long a worker counts as there.
const KEPT: Duration = Duration::from_secs(30);
/// How long it is known of a node when it was heard. Dead nodes are found by then.
const NODES_KEPT: Duration = Duration::from_secs(600);
const BUDGET: Budget = Budget { entries: 2_000, bytes: 4 << 20 };
/// Leases in one heartbeat.
pub(crate) const JOBS_MAX: usize = 1_000;

pub(crate) struct Listener {
    bus: Arc<dyn Bus>,
    cursor: EntryId,
    nodes_cursor: EntryId,
    /// When other nodes were heard.
    nodes: BTreeMap<Name, Duration>,
    /// The loop has not heard of them.
    nodes_untold: bool,
    /// The last heartbeat of each worker, and when it came.
    latest: BTreeMap<Name, (Duration, WorkerHeartbeat)>,
    /// Workers whose heartbeat the loop has not heard.
    untold: BTreeSet<Name>,
    told: Duration,
    leads: bool,
    complaints: Complaints,
    throttle: LogThrottle,
}

impl Listener {
    pub(crate) fn new(bus: Arc<dyn Bus>, complaints: Complaints) -> Self {
        Self {
            bus,
            cursor: EntryId::ZERO,
            nodes_cursor: EntryId::ZERO,
            nodes: BTreeMap::new(),
            nodes_untold: false,
            latest: BTreeMap::new(),
            untold: BTreeSet::new(),
            told: Duration::ZERO,
            leads: false,
            complaints,
            throttle: LogThrottle::new(
                "cannot hear workers on the bus: trying again",
                "workers are heard again",
            ),
        }
    }

    pub(crate) fn next(&mut self, leads: bool, now: Duration) -> Next<DispatchAsk> {
        if leads && !self.leads {
            self.untold = self.latest.keys().cloned().collect();
            self.nodes_untold = true;
        }
        self.leads = leads;
        let topics = [
            (Topic::CoordinatorHeartbeat.into(), self.nodes_cursor),
            (Topic::WorkerHeartbeat.into(), self.cursor),
        ];
        match self.bus.read(&topics, BUDGET) {
            Ok(found) => {
                self.throttle.succeeded(now, "read");
                let (of_nodes, of_workers): (Vec<_>, Vec<_>) =
                    found.entries.into_iter().partition(|(topic, _)| *topic == 0);
                self.hear_nodes(of_nodes.into_iter().map(|(_, entry)| entry).collect(), now);
                self.hear(of_workers.into_iter().map(|(_, entry)| entry).collect(), now);
            }
            Err(error) => {
                self.throttle.failed(now, "read", &error.to_string());
                return Next::Wait(10 * PAUSE);
            }
        }
        self.latest.retain(|_, (heard, _)| now.saturating_sub(*heard) <= KEPT);
        if !leads {
            self.untold.clear();
            return Next::Wait(PAUSE);
        }
        if self.untold.is_empty() && now.saturating_sub(self.told) < TELL_EVERY {
            return Next::Wait(PAUSE);
        }
        if mem::take(&mut self.nodes_untold) {
            let age =
                |heard: &Duration| u64::try_from(now.saturating_sub(*heard).as_millis()).unwrap_or(u64::MAX);
            let ages = self.nodes.iter().map(|(name, heard)| (name.clone(), age(heard))).collect();
            return Next::Ask(DispatchAsk::Nodes(ages));
        }
        self.told = now;
        let tell: Vec<Name> = self.untold.iter().take(HEARTBEATS_MAX).cloned().collect();
        for name in &tell {
            self.untold.remove(name);
        }
        let heartbeats = tell.iter().filter_map(|name| Some(self.latest.get(name)?.1.clone())).collect();
        Next::Ask(DispatchAsk::Heartbeats(heartbeats))
    }

    pub(crate) fn answered(&mut self, answer: Result<BusAnswer, Error>) {
        if let Ok(BusAnswer::Heard(cancels)) = answer
            && let Err(error) = send_cancels(&*self.bus, &cancels)
        {
            tracing::debug!(%error, "cannot tell workers to stop; it is said again with their next heartbeats");
        }
    }

    fn hear_nodes(&mut self, entries: Vec<Entry>, now: Duration) {
        let newest = entries.last().map_or(0, |entry| entry.id.major);
        for Entry { id, content } in entries {
            self.nodes_cursor = self.nodes_cursor.max(id);
            let heartbeat = match content {
                Content::Data(data) => read::<CoordinatorHeartbeat>(&data),
                Content::Malformed { bytes } => Err(format!("{bytes} bytes that are no message")),
            };
            match heartbeat {
                Ok(heartbeat) if self.nodes.len() < NODES_MAX => {
                    let age = Duration::from_millis(newest.saturating_sub(id.major));
                    self.nodes.insert(heartbeat.node_id, now.saturating_sub(age));
                }
                Ok(_) => {}
                Err(why) => self.complaints.about("coordinator.heartbeat", None, &why, now),
            }
        }
        self.nodes.retain(|_, heard| now.saturating_sub(*heard) <= NODES_KEPT);
    }

    fn hear(&mut self, entries: Vec<Entry>, now: Duration) {
        // The ids are times of the bus. What is older than a worker counts as there says nothing any more.
        let newest = entries.last().map_or(0, |entry| entry.id.major);
        let kept = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
        for Entry { id, content } in entries {
            self.cursor = self.cursor.max(id);
            let heartbeat = match content {
                Content::Data(data) => read::<WorkerHeartbeat>(&data),
                Content::Malformed { bytes } => Err(format!("{bytes} bytes that are no message")),
            };
            match heartbeat {
                Ok(heartbeat) if heartbeat.jobs.len() > JOBS_MAX => {
                    let why = format!("Jobs has {} leases, at most {JOBS_MAX} count", heartbeat.jobs.len());
                    self.complaints.about("worker.heartbeat", Some(&heartbeat.worker_id), &why, now);
                }
                Ok(_) if id.major.saturating_add(kept) < newest => {}
                Ok(heartbeat) => {
                    let name = heartbeat.worker_id.clone();
                    self.untold.insert(name.clone());
                    self.latest.insert(name, (now, heartbeat));
                }
                Err(why) => self.complaints.about("worker.heartbeat", None, &why, now),
            }
        }
    }
}
