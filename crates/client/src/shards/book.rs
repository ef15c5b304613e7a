//! The state of a worker: its assignment, the shards that it serves, its last messages, and the end of its lease.
//!
//! Nothing here waits, sends or reads a clock. The owner of the book asks it what to do next.
//!
//! **Invariants:** a shard is served from before its `on_assigned` is called until its `on_revoked` has returned, and
//! every heartbeat says so. Time counts from the sending of what was answered. The generation that is echoed is that
//! of the newest assignment, so that a missing shard is not taken for a release.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::Position;
use orchestrix_core::wire::Assignment;

use super::shard::{Shard, ShardLease};

/// How long a lease is taken to be before the first answer.
const LEASE_FIRST: Duration = Duration::from_secs(15);
/// How long a registration may take before the length of a lease is known.
const REGISTER_FIRST: Duration = Duration::from_secs(60);
/// Two processes of one name wait for each other for longer and longer, in leases. A new process gets shards after one
/// lease; so it has them for one at least.
const CONFLICT_LEASES: u32 = 2;
const CONFLICT_LEASES_MAX: u32 = 32;

/// What is said to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// No other of this worker has it.
    pub(super) number: u64,
    pub(super) kind: RequestKind,
    /// How long an answer may take.
    pub(super) patience: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Register,
    Heartbeat { serves: Vec<u32>, generation: Position },
    Deregister,
}

/// A callback to call.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Assigned(Vec<Shard>),
    Revoked(Vec<Shard>),
}

#[derive(Debug)]
pub(super) struct Book {
    trust: Arc<ShardLease>,
    served: BTreeMap<u32, Served>,
    /// What should be served, by the newest assignment.
    assigned: BTreeMap<u32, Position>,
    generation: Position,
    lease: Option<Duration>,
    /// What the owner wants instead of a third and a tenth of a lease.
    interval: Option<Duration>,
    wind_up: Option<Duration>,
    last: u64,
    /// What has no answer yet.
    request: BTreeMap<u64, Unanswered>,
    /// The registration among them.
    registered: Option<u64>,
    /// The last registration. What was said before belongs to a life that is over.
    came: u64,
    came_at: Duration,
    come_again_at: Duration,
    conflicts: u32,
    /// Fenced and not registered since: shards that are still served are not reported.
    is_fenced: bool,
    is_leaving: bool,
    pub(super) speak_at: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Unanswered {
    sent: Duration,
    /// When the connection is not to be trusted any more.
    late: Duration,
}

#[derive(Debug)]
struct Served {
    shard: Shard,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// `on_assigned` has not returned.
    Starting,
    Serving,
    /// `on_revoked` has not returned.
    Stopping,
}

impl Book {
    pub(super) fn new(trust: Arc<ShardLease>, interval: Option<Duration>, wind_up: Option<Duration>) -> Self {
        Self {
            trust,
            served: BTreeMap::new(),
            assigned: BTreeMap::new(),
            generation: Position(0),
            lease: None,
            interval,
            wind_up,
            last: 0,
            request: BTreeMap::new(),
            registered: None,
            came: 0,
            came_at: Duration::ZERO,
            come_again_at: Duration::ZERO,
            conflicts: 0,
            is_fenced: false,
            is_leaving: false,
            speak_at: Duration::ZERO,
        }
    }

    fn lease(&self) -> Duration {
        self.lease.unwrap_or(LEASE_FIRST)
    }

    /// Time between two heartbeats.
    pub(super) fn interval(&self) -> Duration {
        self.interval.unwrap_or(self.lease() / 3)
    }

    /// When shards are given up unless there is an answer before.
    fn give_up_at(&self) -> Duration {
        // With half of its time a worker still gets something done.
        let wind_up = self.wind_up.unwrap_or(self.lease() / 10).min(self.lease() / 2);
        self.trust.until().saturating_sub(wind_up)
    }

    fn is_live(&self, now: Duration) -> bool {
        now < self.give_up_at()
    }

    /// The coordinator says what to serve: in answer to something, or because it changed.
    pub(super) fn hear(&mut self, assignment: &Assignment, answers: Option<u64>, now: Duration) {
        let unanswered = answers.and_then(|number| self.request.remove(&number));
        if answers.is_some_and(|number| number < self.came) {
            return;
        }
        if assignment.fenced {
            // A worker that waits for its registration has stopped already.
            if answers.is_some() || self.registered.is_none() {
                self.fence(now);
            }
            return;
        }
        if answers.is_some() && answers == self.registered {
            self.registered = None;
            // The answer may have taken most of the time that it promises.
            self.speak_at = now;
        }
        if let (Some(Unanswered { sent, .. }), 1..) = (unanswered, assignment.lease_ms) {
            let lease = Duration::from_millis(assignment.lease_ms);
            self.lease = Some(lease);
            // The coordinator waits for a little more, because clocks differ; here it is 1 % less.
            self.trust.extend(sent + lease.mul_f64(0.99));
            // It may be shorter than what the next heartbeat was planned for.
            self.speak_at = self.speak_at.min(sent + self.interval());
        }
        if assignment.generation < self.generation || self.is_leaving {
            return;
        }
        let assigned_now: BTreeMap<u32, Position> =
            assignment.assigned_shards.iter().copied().zip(assignment.tokens.iter().copied()).collect();
        if answers.is_none() {
            // A push may reach the wrong process. Shards that it does not name are released; for the rest the worker asks: only an
            // answer lets a process begin.
            if assigned_now.iter().any(|(shard, token)| self.assigned.get(shard) != Some(token)) {
                self.speak_at = now;
            }
            self.assigned.retain(|shard, token| assigned_now.get(shard) == Some(token));
        } else {
            self.assigned = assigned_now;
        }
        self.generation = assignment.generation;
    }

    /// Something may have changed, says a message that may be meant for another process: the worker asks the coordinator.
    pub(super) fn hint(&mut self, generation: Position, now: Duration) {
        if generation > self.generation {
            self.speak_at = now;
        }
    }

    fn fence(&mut self, now: Duration) {
        if now < self.trust.until() {
            // Our time was not over, so another process has our name. It may keep it for a while.
            if now.saturating_sub(self.came_at) > self.lease() * CONFLICT_LEASES_MAX {
                self.conflicts = 0;
            }
            let leases = CONFLICT_LEASES.saturating_mul(1 << self.conflicts.min(8)).min(CONFLICT_LEASES_MAX);
            self.come_again_at = now + self.lease() * leases;
            self.conflicts = self.conflicts.saturating_add(1);
            tracing::warn!("another process has the name of this worker");
        }
        self.trust.end();
        self.is_fenced = true;
        self.assigned.clear();
        self.request.clear();
        self.registered = None;
        self.speak_at = self.come_again_at.max(now);
    }

    /// The callbacks to call now. What runs is not called again.
    pub(super) fn changes(&mut self, now: Duration) -> Vec<Change> {
        let live = self.is_live(now);
        if !live {
            self.assigned.clear();
        }
        let mut revoked = Vec::new();
        for (number, served) in &mut self.served {
            // A revoked shard stops, even if it is assigned again by now: that is a new start.
            if self.assigned.get(number) == Some(&served.shard.token())
                && !served.shard.revoked.is_cancelled()
            {
                continue;
            }
            served.shard.revoked.cancel();
            if served.phase == Phase::Serving {
                served.phase = Phase::Stopping;
                revoked.push(served.shard.clone());
            }
        }
        let mut assigned = Vec::new();
        for (number, token) in &self.assigned {
            if !self.served.contains_key(number) {
                let shard = Shard::new(*number, *token, &self.trust);
                assigned.push(shard.clone());
                self.served.insert(*number, Served { shard, phase: Phase::Starting });
            }
        }
        let changes = [Change::Revoked(revoked), Change::Assigned(assigned)];
        changes.into_iter().filter(|change| !change.shards().is_empty()).collect()
    }

    /// A callback returned.
    pub(super) fn returned(&mut self, change: &Change, now: Duration) {
        for shard in change.shards() {
            match change {
                Change::Assigned(_) => {
                    if let Some(served) = self.served.get_mut(&shard.number()) {
                        served.phase = Phase::Serving;
                    }
                }
                Change::Revoked(_) => {
                    self.served.remove(&shard.number());
                    // Other workers wait for it; and a fenced worker waits to register again.
                    self.speak_at = if self.is_fenced { self.come_again_at } else { now };
                }
            }
        }
    }

    /// What to say now, if anything.
    pub(super) fn speak(&mut self, now: Duration) -> Option<Request> {
        self.speak_at = now + self.interval();
        let serves_nothing = self.served.is_empty();
        if self.is_leaving && serves_nothing {
            return Some(self.say(RequestKind::Deregister, now));
        }
        if self.is_fenced && !serves_nothing {
            return None;
        }
        if !serves_nothing || self.is_live(now) {
            let serves = self.served.keys().copied().collect();
            return Some(self.say(RequestKind::Heartbeat { serves, generation: self.generation }, now));
        }
        if self.registered.is_some() {
            return None;
        }
        if now < self.come_again_at {
            self.speak_at = self.come_again_at;
            return None;
        }
        // A coordinator that began anew counts from the beginning.
        self.generation = Position(0);
        self.assigned.clear();
        self.request.clear();
        self.is_fenced = false;
        let request = self.say(RequestKind::Register, now);
        (self.came, self.came_at, self.registered) = (request.number, now, Some(request.number));
        Some(request)
    }

    fn say(&mut self, kind: RequestKind, now: Duration) -> Request {
        self.last += 1;
        let patience = match kind {
            // It is answered when others have let go, which takes about a lease at most.
            RequestKind::Register => {
                self.lease.map_or(REGISTER_FIRST, |lease| 2 * lease + Duration::from_secs(5))
            }
            RequestKind::Heartbeat { .. } | RequestKind::Deregister => 2 * self.interval(),
        };
        self.request.insert(self.last, Unanswered { sent: now, late: now + patience });
        Request { number: self.last, kind, patience }
    }

    /// There will be no answer to this; it is said again after a pause.
    pub(super) fn unanswered(&mut self, number: u64, pause: Duration, now: Duration) {
        self.request.remove(&number);
        if self.registered == Some(number) {
            self.registered = None;
        }
        self.speak_at = now + pause.min(self.interval());
    }

    /// There will be no answer to anything that was said so far.
    pub(super) fn disconnected(&mut self, pause: Duration, now: Duration) {
        self.request.clear();
        self.registered = None;
        // Who comes again because of a conflict is not made faster by a broken connection.
        self.speak_at =
            (now + pause.min(self.interval())).max(if self.is_fenced { self.come_again_at } else { now });
    }

    /// Whether an answer takes so long that the connection is not to be trusted.
    pub(super) fn is_overdue(&self, now: Duration) -> bool {
        self.request.values().any(|unanswered| unanswered.late <= now)
    }

    /// Gives everything up, and comes no more.
    pub(super) fn leave(&mut self, now: Duration) {
        self.is_leaving = true;
        self.assigned.clear();
        self.speak_at = now;
    }

    pub(super) fn serves_nothing(&self) -> bool {
        self.served.is_empty()
    }

    /// When to look again.
    pub(super) fn next(&self, now: Duration) -> Duration {
        let give_up = Some(self.give_up_at()).filter(|at| !self.assigned.is_empty() && *at > now);
        let late = self.request.values().map(|unanswered| unanswered.late).min();
        [give_up, late].into_iter().flatten().fold(self.speak_at, Duration::min)
    }
}

/// A worker that does not run serves nothing.
impl Drop for Book {
    fn drop(&mut self) {
        self.trust.end();
        self.served.values().for_each(|served| served.shard.revoked.cancel());
    }
}

impl Change {
    pub(super) fn shards(&self) -> &[Shard] {
        match self {
            Self::Assigned(shards) | Self::Revoked(shards) => shards,
        }
    }
}
