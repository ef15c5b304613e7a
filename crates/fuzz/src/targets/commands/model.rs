//! The rules once more, as naively as they can be said: tasks in a list, everything found by looking at all of
//! them. Shares no code with the rules themselves.

use orchestrix_core::wire::{Backoff, Submit};
use orchestrix_core::{
    Command, Lease, LeaseId, Retention, State, TaskCommand, TaskId, TaskState, TermCommand,
};

const DAY_MS: u64 = 86_400_000;
/// Attempts that a task remembers.
const REMEMBERED: usize = 20;

/// What comes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Event(&'static str),
    Already(u64, TaskState),
    Nothing,
    Refused(&'static str),
}

#[derive(Debug, Default)]
pub(super) struct Model {
    tasks: Vec<Task>,
    epoch: u64,
    /// When the last event happened.
    at: u64,
}

#[derive(Clone, Debug)]
struct Task {
    id: u64,
    submit: Submit,
    state: TaskState,
    /// The earliest and the latest time from which it may be leased: a backoff leaves some room.
    from: (u64, u64),
    ttl_at: Option<u64>,
    charged: u32,
    releases: u32,
    round: u32,
    held: Option<Held>,
    attempts: Vec<Attempt>,
    ended_at: u64,
    /// Until when the key of a purged task counts; 0 when nothing of it is left.
    purged: Option<u64>,
}

#[derive(Clone, Debug)]
struct Held {
    lease: u64,
    worker: String,
    length: u64,
    expires: u64,
    timeout: Option<u64>,
    cancel: Option<u64>,
    prolonged: bool,
}

#[derive(Clone, Debug)]
struct Attempt {
    lease: u64,
    worker: String,
    how: &'static str,
    left: TaskState,
}

impl Held {
    fn ends(&self) -> u64 {
        [Some(self.expires), self.timeout, self.cancel].into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

/// A lease is kept a hundredth and a millisecond longer than its worker is told.
fn lease_end(now: u64, length: u64) -> u64 {
    now + length + length / 100 + 1
}

impl Task {
    fn is_waiting(&self) -> bool {
        self.purged.is_none() && self.state == TaskState::Waiting
    }

    /// When time ends something about it.
    fn ends(&self) -> Option<u64> {
        if self.purged.is_some() {
            return None;
        }
        if self.state == TaskState::Waiting { self.ttl_at } else { self.held.as_ref().map(Held::ends) }
    }

    fn end(&mut self, state: TaskState, now: u64) {
        self.state = state;
        self.ended_at = now;
    }

    /// Ends the attempt under the lease. Where it goes: cancelled, if that was asked for; dead, if `fatal`;
    /// waiting, otherwise.
    fn leave(&mut self, how: &'static str, fatal: bool, from: (u64, u64), now: u64) {
        let held = self.held.take().expect("only a leased task is left");
        if held.cancel.is_some() && how != "completed" {
            self.end(TaskState::Cancelled, now);
        } else if how == "completed" {
            self.end(TaskState::Completed, now);
        } else if fatal {
            self.end(TaskState::Failed, now);
        } else {
            self.state = TaskState::Waiting;
            self.from = from;
        }
        self.attempts.push(Attempt { lease: held.lease, worker: held.worker, how, left: self.state });
        let forgotten = self.attempts.len().saturating_sub(REMEMBERED);
        self.attempts.drain(..forgotten);
    }

    fn backoff(&self) -> (u64, u64) {
        let Backoff { base_ms, factor, max_ms } = self.submit.backoff;
        let mut wait = base_ms as f64;
        for _ in 0..self.charged {
            wait = (wait * factor).min(max_ms as f64);
        }
        let wait = wait.min(max_ms as f64) as u64;
        (wait - wait / 10, wait)
    }
}

impl Model {
    /// What comes of a command; the model is then as after it. `id` is the position of the event, if there is one.
    pub(super) fn judge(&mut self, command: &Command, now: u64, id: u64) -> Verdict {
        let verdict = self.decide(command, now, id);
        if let Verdict::Event(_) = verdict {
            self.at = now;
        }
        verdict
    }

    fn decide(&mut self, command: &Command, now: u64, id: u64) -> Verdict {
        if let Command::Term(TermCommand::Start { epoch, .. }) = command {
            return self.start_term(*epoch, now);
        }
        // Other entities have properties of their own, and no commands are made of them here.
        let Command::Task(command) = command else { return Verdict::Nothing };
        match command {
            TaskCommand::Submit { task, .. } => self.submit(task, now, id),
            TaskCommand::Lease(lease) => self.lease(lease, now, id),
            TaskCommand::Heartbeat { task, lease, worker, .. } => {
                match self.held(*task, *lease, worker.as_ref().map(|worker| worker.as_str()), now) {
                    Ok(task) => {
                        extend(task, now);
                        Verdict::Event("LeaseExtended")
                    }
                    Err(code) => Verdict::Refused(code),
                }
            }
            TaskCommand::HeartbeatAll { worker, leases } => {
                let mut extended = false;
                for task in &mut self.tasks {
                    let mine = task.held.as_ref().is_some_and(|held| {
                        leases.contains(&LeaseId(held.lease))
                            && held.worker == worker.as_str()
                            && now < held.ends()
                    });
                    if mine {
                        extend(task, now);
                        extended = true;
                    }
                }
                if extended { Verdict::Event("LeaseExtended") } else { Verdict::Nothing }
            }
            TaskCommand::Complete { task, lease, worker, .. } => self.report(
                *task,
                *lease,
                worker.as_ref().map(|worker| worker.as_str()),
                now,
                "completed",
                |task| {
                    task.charged += 1;
                    task.leave("completed", false, (0, 0), now);
                    "TaskCompleted"
                },
            ),
            TaskCommand::Fail { task, lease, worker, retry, .. } => self.report(
                *task,
                *lease,
                worker.as_ref().map(|worker| worker.as_str()),
                now,
                "failed",
                |task| {
                    let (least, most) = task.backoff();
                    task.charged += 1;
                    let fatal = !retry || task.charged >= task.submit.max_attempts;
                    task.leave("failed", fatal, (now + least, now + most), now);
                    "TaskFailed"
                },
            ),
            TaskCommand::Release { task, lease, worker } => self.report(
                *task,
                *lease,
                worker.as_ref().map(|worker| worker.as_str()),
                now,
                "released",
                |task| {
                    let counts = task.releases >= 10;
                    task.releases += 1;
                    task.charged += u32::from(counts);
                    let fatal = counts && task.charged >= task.submit.max_attempts;
                    task.leave("released", fatal, (now, now), now);
                    "LeaseReleased"
                },
            ),
            TaskCommand::Abandon { task, lease } => match self.held(*task, *lease, None, now) {
                Ok(task) => {
                    task.leave("released", false, (now, now), now);
                    Verdict::Event("LeaseReleased")
                }
                Err(code) => Verdict::Refused(code),
            },
            TaskCommand::Offer(_)
            | TaskCommand::Start(_)
            | TaskCommand::Extend(_)
            | TaskCommand::Note { .. }
            | TaskCommand::ResumeBus { .. } => Verdict::Refused("upgrading"),
            TaskCommand::Cancel { task, .. } => self.cancel(*task, now),
            TaskCommand::Retry { task, .. } => self.retry(*task, now),
            TaskCommand::Expire { task } => self.expire(*task, now),
            TaskCommand::Purge(retention) => self.purge(*retention, now),
        }
    }

    fn start_term(&mut self, epoch: u64, now: u64) -> Verdict {
        self.epoch = epoch.max(self.epoch + 1);
        for held in self.tasks.iter_mut().filter_map(|task| task.held.as_mut()) {
            if held.prolonged {
                held.expires += now - self.at;
            } else {
                held.expires = held.expires.max(lease_end(now, held.length));
                held.prolonged = true;
            }
            let (passed, expires) = (now - self.at, held.expires);
            held.timeout = held.timeout.map(|limit| limit.max((limit + passed).min(expires)));
        }
        Verdict::Event("TermStarted")
    }

    fn submit(&mut self, submit: &Submit, now: u64, id: u64) -> Verdict {
        let same_key = self.tasks.iter().find(|task| {
            submit.key.is_some()
                && task.submit.key == submit.key
                && task.submit.queue == submit.queue
                && task.purged.is_none_or(|until| now < until)
        });
        if let Some(first) = same_key {
            let same = first.submit == *submit;
            return if same {
                Verdict::Already(first.id, first.state)
            } else {
                Verdict::Refused("key_conflict")
            };
        }
        self.tasks.push(Task {
            id,
            submit: submit.clone(),
            state: TaskState::Waiting,
            from: (now + submit.delay_ms, now + submit.delay_ms),
            ttl_at: submit.ttl_ms.map(|ttl| now + ttl),
            charged: 0,
            releases: 0,
            round: 1,
            held: None,
            attempts: Vec::new(),
            ended_at: 0,
            purged: None,
        });
        Verdict::Event("TaskCreated")
    }

    fn lease(&mut self, lease: &Lease, now: u64, id: u64) -> Verdict {
        let worker = lease.worker.as_str();
        let has =
            self.tasks.iter().filter(|task| task.held.as_ref().is_some_and(|held| held.worker == worker));
        if lease.capacity.is_some_and(|capacity| has.count() >= capacity as usize) {
            return Verdict::Nothing;
        }
        let mut best: Option<&mut Task> = None;
        for task in &mut self.tasks {
            let ready = task.is_waiting() && task.from.0 <= now && lease.queues.contains(&task.submit.queue);
            // They are listed by id, so among equals the first one stays.
            if ready && best.as_ref().is_none_or(|best| task.submit.priority > best.submit.priority) {
                best = Some(task);
            }
        }
        let Some(task) = best else { return Verdict::Nothing };
        if task.ttl_at.is_some_and(|ttl_at| ttl_at <= now) {
            task.end(TaskState::Cancelled, now);
            return Verdict::Event("TaskExpired");
        }
        task.state = TaskState::Leased;
        task.held = Some(Held {
            lease: id,
            worker: worker.to_owned(),
            length: lease.lease_ms,
            expires: lease_end(now, lease.lease_ms),
            timeout: task.submit.timeout_ms.map(|timeout| now + timeout),
            cancel: None,
            prolonged: false,
        });
        Verdict::Event("LeaseGranted")
    }

    fn known(&mut self, id: TaskId) -> Option<&mut Task> {
        self.tasks.iter_mut().find(|task| task.id == id.0 && task.purged.is_none())
    }

    /// The task, if this is its current lease, live, and of this worker.
    fn held(
        &mut self,
        id: TaskId,
        lease: LeaseId,
        worker: Option<&str>,
        now: u64,
    ) -> Result<&mut Task, &'static str> {
        let task = self.known(id).ok_or("not_found")?;
        let current = task.held.as_ref().is_some_and(|held| {
            held.lease == lease.0 && now < held.ends() && worker.is_none_or(|worker| worker == held.worker)
        });
        if current { Ok(task) } else { Err("stale_lease") }
    }

    /// What a worker says of its attempt: said before, or true now, or stale.
    fn report(
        &mut self,
        id: TaskId,
        lease: LeaseId,
        worker: Option<&str>,
        now: u64,
        how: &'static str,
        change: impl FnOnce(&mut Task) -> &'static str,
    ) -> Verdict {
        let Some(task) = self.known(id) else { return Verdict::Refused("not_found") };
        let before = task.attempts.iter().find(|attempt| attempt.lease == lease.0 && attempt.how == how);
        if let Some(before) = before {
            let same = worker.is_none_or(|worker| worker == before.worker);
            return if same { Verdict::Already(id.0, before.left) } else { Verdict::Refused("stale_lease") };
        }
        match self.held(id, lease, worker, now) {
            Ok(task) => Verdict::Event(change(task)),
            Err(code) => Verdict::Refused(code),
        }
    }

    fn cancel(&mut self, id: TaskId, now: u64) -> Verdict {
        let Some(task) = self.known(id) else { return Verdict::Refused("not_found") };
        match (task.state, &mut task.held) {
            (TaskState::Waiting, _) => {
                task.end(TaskState::Cancelled, now);
                Verdict::Event("TaskCancelled")
            }
            (_, Some(held)) if held.cancel.is_none() => {
                held.cancel = Some(lease_end(now, held.length));
                Verdict::Event("CancelRequested")
            }
            (TaskState::Leased | TaskState::Cancelled, _) => Verdict::Already(id.0, task.state),
            (TaskState::Completed | TaskState::Failed, _) => Verdict::Refused("finished"),
        }
    }

    fn retry(&mut self, id: TaskId, now: u64) -> Verdict {
        let Some(task) = self.known(id) else { return Verdict::Refused("not_found") };
        if task.state != TaskState::Failed {
            return Verdict::Refused("not_failed");
        }
        task.state = TaskState::Waiting;
        (task.charged, task.releases, task.ttl_at) = (0, 0, None);
        task.round += 1;
        task.from = (now, now);
        Verdict::Event("TaskRetried")
    }

    fn expire(&mut self, id: TaskId, now: u64) -> Verdict {
        let Some(task) = self.known(id) else { return Verdict::Nothing };
        if task.ends().is_none_or(|ends| ends > now) {
            return Verdict::Nothing;
        }
        let Some(held) = &task.held else {
            task.end(TaskState::Cancelled, now);
            return Verdict::Event("TaskExpired");
        };
        let unheeded = held.cancel.is_some_and(|cancel| cancel <= now);
        task.charged += 1;
        let fatal = task.charged >= task.submit.max_attempts;
        task.leave("expired", fatal, (now, now), now);
        Verdict::Event(if unheeded { "TaskCancelled" } else { "LeaseExpired" })
    }

    fn purge(&mut self, retention: Retention, now: u64) -> Verdict {
        let mut purged = false;
        let failed = |task: &Task| task.state == TaskState::Failed;
        for (dead, kept_ms) in [(false, retention.done_ms), (true, retention.failed_ms)] {
            let mut ended: Vec<&mut Task> = self.tasks.iter_mut().collect();
            ended.retain(|task| task.purged.is_none() && task.state.is_terminal() && failed(task) == dead);
            ended.sort_by_key(|task| (task.ended_at, task.id));
            let too_many = ended.len().saturating_sub(retention.count);
            for (n, task) in ended.into_iter().enumerate() {
                if n < too_many || task.ended_at + kept_ms <= now {
                    let remembered = task.submit.key.is_some();
                    task.purged = Some(if remembered { task.ended_at + DAY_MS } else { 0 });
                    purged = true;
                }
            }
        }
        if purged { Verdict::Event("TaskPurged") } else { Verdict::Nothing }
    }

    /// The task of which time ends something next, if that is due.
    pub(super) fn next_end(&self, now: u64) -> Option<u64> {
        let ends = self.tasks.iter().filter_map(|task| Some((task.ends()?, task.id)));
        ends.min().filter(|(at, _)| *at <= now).map(|(_, id)| id)
    }

    /// Every task is the same in both.
    pub(super) fn compare(&mut self, state: &State) {
        assert_eq!(state.epoch(), self.epoch);
        let leased = self.tasks.iter().filter(|task| task.held.is_some()).count();
        assert_eq!(state.lease_count(), leased, "leases");
        for task in &mut self.tasks {
            let real = state.task(TaskId(task.id));
            assert_eq!(real.is_some(), task.purged.is_none(), "task {} is there", task.id);
            let Some(real) = real else { continue };
            let seen = (real.state, real.charged, real.releases(), real.round(), real.attempts().len());
            let expected = (task.state, task.charged, task.releases, task.round, task.attempts.len());
            assert_eq!(seen, expected, "task {}", task.id);
            assert_eq!(real.ttl_at().map(|at| at.0), task.ttl_at, "the ttl of task {}", task.id);
            if task.state == TaskState::Waiting {
                let (least, most) = task.from;
                assert!(
                    (least..=most).contains(&real.not_before.0),
                    "task {} waits too long or not long enough",
                    task.id
                );
                task.from = (real.not_before.0, real.not_before.0);
            }
            if task.state.is_terminal() {
                assert_eq!(real.ending().map(|ending| ending.at.0), Some(task.ended_at));
            }
            let lease = real.lease.as_deref().map(|lease| {
                let limits =
                    (lease.expires_at.0, lease.timeout_at.map(|at| at.0), lease.cancel_at.map(|at| at.0));
                (
                    lease.id.0,
                    lease.worker.as_ref().map_or("", |worker| worker.as_str()),
                    limits,
                    lease.prolonged,
                )
            });
            let held = task.held.as_ref().map(|held| {
                let limits = (held.expires, held.timeout, held.cancel);
                (held.lease, held.worker.as_str(), limits, held.prolonged)
            });
            assert_eq!(lease, held, "the lease of task {}", task.id);
        }
    }
}

fn extend(task: &mut Task, now: u64) {
    let held = task.held.as_mut().expect("only a leased task is extended");
    held.expires = held.expires.max(lease_end(now, held.length));
    held.prolonged = false;
}
