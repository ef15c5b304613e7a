//! One life of a coordinator, from a seed: work of all kinds, a kill, restarts, snapshots, and how it ended.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use orchestrix_core::limits::QUEUES_MAX;
use orchestrix_core::wire::{Backoff, Complete, Fail, Heartbeat, LeaseQueues, Release, Submit};
use orchestrix_core::{Json, Key, LeaseId, Name, Position, Retention, State, TaskId};
use orchestrix_engine::disk::sim::{Faults, SimDisk};
use orchestrix_node::{Error, Node};

use crate::check::Violation;
use crate::clock::SimClock;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::server::{Mirror, Process};

/// Processes of one life, one after the other on the same disk.
const PROCESSES: u64 = 3;
/// Groups of questions to one process.
const GROUPS: u64 = 45;
/// Rounds in which a question is answered, or never.
const ROUNDS: u32 = 20;
const LEASE_MS: u64 = 2_000;
const QUEUES: [&str; 2] = ["mail", "video"];

/// What a life left behind.
pub(super) struct Life {
    pub(super) disk: SimDisk,
    pub(super) plan: Plan,
    /// The fingerprint of the state after each position, from none on.
    pub(super) states: Vec<[u8; 16]>,
    /// Everything up to here was acknowledged.
    pub(super) acknowledged: Position,
}

/// How the last process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// All is marked as durable.
    Stopped,
    /// The last batch may have no mark.
    Killed,
}

/// Lives until the end, or until the disk fails.
pub(super) fn live(seed: u64, ending: Ending, faults: Faults) -> Result<Life, Violation> {
    let disk = SimDisk::new(seed);
    disk.set_faults(faults);
    let (plan, clock) = (plan(seed), Arc::new(SimClock::new(0, disk.clone())));
    let mut script = Script {
        rng: Rng::new(seed ^ 0xda_3a6e),
        clock: Arc::clone(&clock),
        now_us: 0,
        mirror: Mirror::new(),
        acknowledged: Position(0),
        tasks: Vec::new(),
        held: Vec::new(),
    };
    for number in 0..PROCESSES {
        // Only the disk ends a process here; the next start looks for damage.
        let Ok((mut process, _)) = Process::start(&disk, &plan, &clock, 1) else { break };
        if script.run(&mut process)?.is_none() {
            break;
        }
        let stops = number == 1 || (number + 1 == PROCESSES && ending == Ending::Stopped);
        if stops && process.stepped.stop().is_err() {
            break;
        }
    }
    Ok(Life { disk, plan, states: states(&script.mirror), acknowledged: script.acknowledged })
}

/// Small segments, snapshots and numbers, so that all that a journal has is in a few kilobytes.
fn plan(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed);
    plan.segment_bytes = 2_048 + 512 * (seed % 3);
    plan.snapshot_bytes = 2_500;
    plan.retention = Retention { done_ms: 20_000, failed_ms: 30_000, count: 8, ..plan.retention };
    (plan.queues_max, plan.queue_max, plan.polls_max) = (QUEUES_MAX, 64, 16);
    plan
}

fn states(mirror: &Mirror) -> Vec<[u8; 16]> {
    let mut state = State::new();
    let mut states = vec![state.fingerprint()];
    for entry in &mirror.log {
        state.apply(entry.at, entry.event.clone());
        states.push(state.fingerprint());
    }
    states
}

/// What a caller heard.
enum Heard {
    Submitted(TaskId),
    Leased(Vec<(TaskId, LeaseId)>),
    Other,
}

type Call = Pin<Box<dyn Future<Output = Result<Heard, Error>>>>;

struct Script {
    rng: Rng,
    clock: Arc<SimClock>,
    now_us: u64,
    mirror: Mirror,
    acknowledged: Position,
    tasks: Vec<TaskId>,
    held: Vec<(TaskId, LeaseId)>,
}

impl Script {
    /// Asks a process all sorts of things. Nothing comes back when the disk failed.
    fn run(&mut self, process: &mut Process) -> Result<Option<()>, Violation> {
        for _ in 0..GROUPS {
            let count = self.rng.range(1, 3);
            let mut calls: Vec<Call> = (0..count).map(|_| self.call(&process.node)).collect();
            for _ in 0..ROUNDS {
                self.answers(&mut calls);
                if process.stepped.decide().is_err() || process.stepped.write().is_err() {
                    return Ok(None);
                }
                process.stepped.write_snapshot();
                self.mirror.follow(process)?;
                self.answers(&mut calls);
                if calls.is_empty() {
                    break;
                }
            }
            self.now_us += self.rng.skewed(1_000, 1_500_000) + self.clock.take_paused_us();
            self.clock.set(self.now_us);
        }
        Ok(Some(()))
    }

    /// Takes all answers. Everything answered is acknowledged.
    fn answers(&mut self, calls: &mut Vec<Call>) {
        let mut context = Context::from_waker(Waker::noop());
        let mut heard = Vec::new();
        calls.retain_mut(|call| match call.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                heard.push(answer);
                false
            }
        });
        for answer in heard {
            let told = match answer {
                Ok(Heard::Submitted(task)) => {
                    self.tasks.push(task);
                    task.0
                }
                Ok(Heard::Leased(leases)) => {
                    self.held.extend(&leases);
                    leases.iter().map(|(_, lease)| lease.0).max().unwrap_or(0)
                }
                Ok(Heard::Other) | Err(Error::Refused(_)) => 0,
                Err(
                    Error::Overloaded
                    | Error::StorageFull
                    | Error::Stopping
                    | Error::Unavailable
                    | Error::OutcomeUnknown,
                ) => {
                    continue;
                }
            };
            self.acknowledged = self.acknowledged.max(Position(told)).max(self.mirror.durable());
        }
    }

    fn call(&mut self, node: &Node) -> Call {
        let node = node.clone();
        let (held, task) = (self.pick_held(), self.pick_task());
        match (self.rng.range(0, 13), held, task) {
            (0..=1, Some((task, lease_id)), _) => {
                let result = Json::parse(&format!("{{\"done\":{task}}}")).ok();
                let body = Complete { lease_id, worker: None, result };
                Box::pin(async move { node.complete(task, body).await.map(|_| Heard::Other) })
            }
            (2, Some((task, lease_id)), _) => {
                let retry = self.rng.chance(700_000);
                let body = Fail { lease_id, worker: None, error: "it broke".to_owned(), retry };
                Box::pin(async move { node.fail(task, body).await.map(|_| Heard::Other) })
            }
            (3, Some((task, lease_id)), _) => {
                let body = Release { lease_id, worker: None };
                Box::pin(async move { node.release(task, body).await.map(|_| Heard::Other) })
            }
            (4, Some((task, lease_id)), _) => {
                let note = Some("going on".to_owned());
                let body = Heartbeat { lease_id, worker: None, progress: Some(50), note };
                Box::pin(async move { node.heartbeat(task, body).await.map(|_| Heard::Other) })
            }
            (5, _, Some(task)) => {
                Box::pin(async move { node.cancel(task, None).await.map(|_| Heard::Other) })
            }
            (6, _, Some(task)) => Box::pin(async move { node.retry(task, None).await.map(|_| Heard::Other) }),
            (7..=9, ..) => {
                let request = self.lease();
                Box::pin(async move {
                    let leases = node.lease(request).await?.leases;
                    Ok(Heard::Leased(leases.iter().map(|leased| (leased.task_id, leased.lease_id)).collect()))
                })
            }
            _ => {
                let task = self.submit();
                Box::pin(
                    async move { node.submit(task).await.map(|(outcome, _)| Heard::Submitted(outcome.id)) },
                )
            }
        }
    }

    fn pick_held(&mut self) -> Option<(TaskId, LeaseId)> {
        if self.held.is_empty() {
            return None;
        }
        let index = self.rng.index(self.held.len());
        // One that is kept is used again later: a stale report.
        Some(if self.rng.chance(800_000) { self.held.swap_remove(index) } else { self.held[index] })
    }

    fn pick_task(&mut self) -> Option<TaskId> {
        let from = self.tasks.len().saturating_sub(12);
        (!self.tasks.is_empty()).then(|| self.tasks[from + self.rng.index(self.tasks.len() - from)])
    }

    fn submit(&mut self) -> Submit {
        let text = "x".repeat(usize::try_from(self.rng.range(0, 60)).unwrap_or(0));
        let key = self.rng.chance(300_000).then(|| self.rng.range(0, 9));
        Submit {
            queue: name(QUEUES[self.rng.index(QUEUES.len())]),
            payload: Json::parse(&format!("{{\"text\":\"{text}\"}}")).expect("it is JSON"),
            key: key.map(|key| Key::new(&format!("key-{key}")).expect("it is a key")),
            priority: i32::try_from(self.rng.range(0, 4)).unwrap_or(0) - 2,
            delay_ms: if self.rng.chance(200_000) { self.rng.range(1, 3_000) } else { 0 },
            max_attempts: u32::try_from(self.rng.range(1, 3)).unwrap_or(1),
            timeout_ms: self.rng.chance(200_000).then_some(3_000),
            ttl_ms: self.rng.chance(200_000).then_some(5_000),
            backoff: Backoff { base_ms: 100, factor: 2.0, max_ms: 1_000 },
        }
    }

    fn lease(&mut self) -> LeaseQueues {
        LeaseQueues {
            queues: QUEUES.map(name).to_vec(),
            worker: name(if self.rng.chance(500_000) { "ann" } else { "bob" }),
            max: usize::try_from(self.rng.range(1, 3)).unwrap_or(1),
            lease_ms: LEASE_MS,
            wait_ms: 0,
            request_id: None,
            capacity: None,
        }
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("it is a name")
}
