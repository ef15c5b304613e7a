//! Leases tasks and does them, honestly: it stops at the end of what it trusts on its own clock. It also
//! crashes, freezes, and reports late and twice.

use std::collections::BTreeMap;

use orchestrix_core::wire::Leased;
use orchestrix_core::{LeaseId, Name, Refusal, TaskId};
use orchestrix_node::Error;

use crate::actors::{Ground, Heard};
use crate::coverage::Covered;
use crate::history::{Answer, Execution, Question};
use crate::plan::Plan;
use crate::rng::Rng;

/// Microseconds.
const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;
/// The share of a lease that a worker does not trust, in percent.
const MARGIN: u64 = 2;

pub(crate) struct Worker {
    name: Name,
    rng: Rng,
    drift_ppm: i64,
    capacity: Option<u32>,
    frozen_until: u64,
    polling: Option<usize>,
    /// A lease call without an answer, to be repeated.
    again: Option<Question>,
    heartbeat: Option<usize>,
    next_heartbeat: u64,
    held: BTreeMap<LeaseId, Job>,
    /// Reports that have no certain answer yet, with the op that is on its way.
    reports: Vec<Report>,
    requests: u64,
    /// The coordinator asked it to repeat a lease call or a report later.
    patient_until: u64,
    reports_from: u64,
}

struct Job {
    task: TaskId,
    from: u64,
    trusted_until: u64,
    ends: u64,
    poison: bool,
}

struct Report {
    lease: LeaseId,
    question: Question,
    op: Option<usize>,
    tries: u32,
}

impl Worker {
    pub(crate) fn new(number: usize, plan: &Plan, mut rng: Rng) -> Self {
        let drift_ppm = if rng.chance(500_000) { plan.worker_drift_ppm } else { 0 };
        Self {
            name: Name::new(&format!("w{number}")).expect("a plain name"),
            drift_ppm,
            capacity: rng.chance(300_000).then(|| u32::try_from(rng.range(1, 4)).unwrap_or(1)),
            rng,
            frozen_until: 0,
            polling: None,
            again: None,
            heartbeat: None,
            next_heartbeat: 0,
            held: BTreeMap::new(),
            reports: Vec::new(),
            requests: 0,
            patient_until: 0,
            reports_from: 0,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.held.is_empty() && self.reports.is_empty()
    }

    pub(crate) fn wake(&mut self, world: &mut dyn Ground, me: usize) {
        if world.now() < self.frozen_until && world.faulty() {
            let left = self.frozen_until - world.now();
            world.wake_after(me, left);
            return;
        }
        if world.faulty() && self.misfortune(world, me) {
            return;
        }
        self.work(world);
        self.send_reports(world, me);
        self.beat(world, me);
        self.poll(world, me);
        let busy = self.held.values().map(|job| job.ends.min(job.trusted_until)).min();
        let next = busy.unwrap_or(u64::MAX).min(self.next_heartbeat.max(world.now() + 10 * MS));
        let pause = self.rng.range(MS, SECOND);
        world.wake_after(me, next.saturating_sub(world.now()).clamp(1, pause));
    }

    /// Crashes and freezes, now and then.
    fn misfortune(&mut self, world: &mut dyn Ground, me: usize) -> bool {
        // Woken about five times a second.
        if self.rng.chance(world.plan().worker_crashes / 5) {
            world.see(true, Covered::WorkerCrash);
            self.crash(world, me);
            return true;
        }
        if self.rng.chance(world.plan().worker_freezes / 5) {
            world.see(true, Covered::WorkerFrozen);
            // Nothing is done while it is frozen; whether it may go on is the first thing it looks at after.
            self.pause_all(world);
            self.frozen_until = world.now() + self.rng.range(10 * MS, 3 * world.plan().lease_ms * MS);
            let left = self.frozen_until - world.now();
            world.wake_after(me, left);
            return true;
        }
        false
    }

    fn crash(&mut self, world: &mut dyn Ground, me: usize) {
        self.pause_all(world);
        self.held.clear();
        self.reports.clear();
        (self.polling, self.heartbeat, self.again) = (None, None, None);
        let down = self.rng.range(10 * MS, 5 * SECOND);
        world.wake_after(me, down);
    }

    /// Notes down what was executed so far.
    fn pause_all(&mut self, world: &mut dyn Ground) {
        for (lease, job) in &mut self.held {
            let to_us = world.now().min(job.trusted_until);
            if to_us > job.from {
                world.executed(Execution { task: job.task, lease: *lease, from_us: job.from, to_us });
            }
            job.from = world.now();
        }
    }

    fn work(&mut self, world: &mut dyn Ground) {
        let now = world.now();
        let over = self.held.iter().filter(|(_, job)| now >= job.ends || now >= job.trusted_until);
        let over: Vec<LeaseId> = over.map(|(lease, _)| *lease).collect();
        for lease in over {
            let Some(job) = self.held.remove(&lease) else { continue };
            let to_us = job.ends.min(job.trusted_until);
            if to_us > job.from {
                world.executed(Execution { task: job.task, lease, from_us: job.from, to_us });
            }
            if self.rng.chance(world.plan().late_reports / 10)
                && let Some((task, lease)) = world.lease_of_another(&self.name)
            {
                // A worker that names a wrong lease: it must be refused.
                let question = self.report(world, task, lease);
                self.reports.push(Report { lease, question, op: None, tries: 3 });
            }
            let lost = job.trusted_until < job.ends;
            if lost && !self.rng.chance(world.plan().late_reports) {
                continue;
            }
            if job.poison {
                // The task kills its worker: there is no report.
                self.reports.clear();
                continue;
            }
            let question = self.report(world, job.task, lease);
            self.reports.push(Report { lease, question, op: None, tries: 0 });
        }
    }

    fn report(&mut self, world: &dyn Ground, task: TaskId, lease: LeaseId) -> Question {
        let worker = self.name.clone();
        if self.rng.chance(world.plan().failures) {
            let retry = self.rng.chance(800_000);
            Question::Fail { task, lease, worker, retry }
        } else if self.rng.chance(world.plan().releases) {
            Question::Release { task, lease, worker }
        } else {
            Question::Complete { task, lease, worker, result: format!("\"done {task} {lease}\"") }
        }
    }

    fn send_reports(&mut self, world: &mut dyn Ground, me: usize) {
        if world.now() < self.reports_from {
            return;
        }
        for report in self.reports.iter_mut().filter(|report| report.op.is_none()) {
            report.tries += 1;
            report.op = Some(world.ask(me, report.question.clone()));
        }
    }

    fn beat(&mut self, world: &mut dyn Ground, me: usize) {
        // What is done is still held until the coordinator knows.
        let done = self.reports.iter().filter(|report| report.tries < 3).map(|report| report.lease);
        let leases: Vec<LeaseId> = self.held.keys().copied().chain(done).collect();
        if leases.is_empty() || self.heartbeat.is_some() || world.now() < self.next_heartbeat {
            return;
        }
        self.next_heartbeat = world.now() + world.plan().lease_ms * MS / 4;
        let worker = self.name.clone();
        let alone = self.held.iter().next().filter(|_| leases.len() == 1 && self.rng.chance(500_000));
        let question = match alone {
            Some((lease, job)) => Question::Heartbeat { task: job.task, lease: *lease, worker },
            None => Question::HeartbeatAll { worker, leases },
        };
        self.heartbeat = Some(world.ask(me, question));
    }

    fn poll(&mut self, world: &mut dyn Ground, me: usize) {
        let room = self.capacity.map_or(4, |capacity| capacity as usize).saturating_sub(self.held.len());
        if self.polling.is_some() || room == 0 || !self.reports.is_empty() || world.now() < self.patient_until
        {
            return;
        }
        let question = match self.again.take() {
            Some(mut question) => {
                // One that was started anew may ask other queues under an old name.
                if let Question::Lease { queues, .. } = &mut question
                    && self.rng.chance(500_000)
                {
                    *queues = self.some_queues(world);
                }
                question
            }
            None => self.lease_call(world, room),
        };
        self.polling = Some(world.ask(me, question));
    }

    fn lease_call(&mut self, world: &dyn Ground, room: usize) -> Question {
        self.requests += 1;
        let request_id = self.rng.chance(500_000).then(|| format!("r{}", self.requests));
        Question::Lease {
            queues: self.some_queues(world),
            worker: self.name.clone(),
            max: 1 + self.rng.index(room),
            lease_ms: world.plan().lease_ms,
            wait_ms: if self.rng.chance(700_000) {
                self.rng.skewed(1, 20_000.min(10 * world.plan().lease_ms))
            } else {
                0
            },
            request_id: request_id.map(|id| Name::new(&id).expect("a plain name")),
            capacity: self.capacity,
        }
    }

    /// All queues, or some of them.
    fn some_queues(&mut self, world: &dyn Ground) -> Vec<Name> {
        let name = |n: usize| Name::new(&format!("q{n}")).expect("a plain name");
        // In the end nothing may be left lying.
        if !world.faulty() || self.rng.chance(700_000) {
            return (0..world.plan().queues).map(name).collect();
        }
        vec![name(self.rng.index(world.plan().queues))]
    }

    pub(crate) fn hear(&mut self, world: &mut dyn Ground, me: usize, op: usize, heard: Heard) {
        if world.now() < self.frozen_until && world.faulty() {
            // It is in the socket until the worker is awake again; by then it may be too late for it.
            self.hear_late(op);
            return;
        }
        let sent = world.op(op).sent;
        if self.polling == Some(op) {
            self.polling = None;
            match heard.certain() {
                Some(Ok(Answer::Leases(leases))) => {
                    for leased in leases.leases {
                        self.begin(world, sent + leases.waited_ms * MS, &leased);
                    }
                }
                None => {
                    let question = world.op(op).question.clone();
                    if matches!(&question, Question::Lease { request_id: Some(_), .. }) {
                        self.again = Some(question);
                    }
                }
                Some(_) => self.patient_until = world.now() + self.rng.range(100 * MS, SECOND),
            }
        } else if self.heartbeat == Some(op) {
            self.heartbeat = None;
            let heard = heard.certain();
            if let (Question::Heartbeat { lease, .. }, Some(Ok(Answer::Extended(extended)))) =
                (&world.op(op).question, &heard)
            {
                let (lease, until) = (*lease, self.trust(sent, extended.lease_ms));
                if let Some(job) = self.held.get_mut(&lease) {
                    job.trusted_until = job.trusted_until.max(until);
                }
                if extended.cancel_requested {
                    self.stop(world, lease, true);
                }
            }
            if let Some(Ok(Answer::WorkerExtended(heard))) = heard {
                for (lease, lease_ms) in heard.extended.iter().zip(&heard.lease_ms_each) {
                    let until = self.trust(sent, *lease_ms);
                    if let Some(job) = self.held.get_mut(lease) {
                        job.trusted_until = job.trusted_until.max(until);
                    }
                }
                for lease in heard.lost.iter().chain(&heard.cancel) {
                    self.stop(world, *lease, heard.cancel.contains(lease));
                }
            }
        } else {
            self.hear_report(world, op, heard);
        }
        world.wake_after(me, 1);
    }

    fn hear_late(&mut self, op: usize) {
        if self.polling == Some(op) {
            self.polling = None;
        }
        if self.heartbeat == Some(op) {
            self.heartbeat = None;
        }
        for report in self.reports.iter_mut().filter(|report| report.op == Some(op)) {
            report.op = None;
        }
    }

    fn hear_report(&mut self, world: &mut dyn Ground, op: usize, heard: Heard) {
        let Some(index) = self.reports.iter().position(|report| report.op == Some(op)) else { return };
        match heard.certain() {
            None
            | Some(Err(Error::Overloaded | Error::Stopping | Error::StorageFull | Error::Unavailable)) => {
                self.reports[index].op = None;
                self.reports_from = world.now() + world.plan().lease_ms * MS / self.rng.range(8, 20);
            }
            Some(answer) => {
                let report = self.reports.remove(index);
                world.see(report.tries > 1, Covered::UnknownResolved);
                world.see(
                    matches!(answer, Err(Error::Refused(Refusal::StaleLease { .. }))),
                    Covered::StaleReportRefused,
                );
                // Some say everything twice.
                if answer.is_ok() && report.tries < 3 && self.rng.chance(world.plan().late_reports / 4) {
                    world.see(true, Covered::RepeatedReport);
                    self.reports.push(Report { tries: 3, op: None, ..report });
                }
            }
        }
    }

    /// Begins a task, if there is time left to do so.
    fn begin(&mut self, world: &mut dyn Ground, from: u64, leased: &Leased) {
        let trusted_until = self.trust(from, leased.lease_ms);
        if world.now() >= trusted_until {
            return;
        }
        let takes = self.rng.skewed(MS, 2 * world.plan().lease_ms * MS);
        let poison = leased.payload.as_str().contains("\"poison\":true");
        let job =
            Job { task: leased.task_id, from: world.now(), trusted_until, ends: world.now() + takes, poison };
        self.held.insert(leased.lease_id, job);
        self.next_heartbeat = self.next_heartbeat.min(world.now() + world.plan().lease_ms * MS / 4);
    }

    fn stop(&mut self, world: &mut dyn Ground, lease: LeaseId, cancelled: bool) {
        let Some(job) = self.held.remove(&lease) else { return };
        let to_us = world.now().min(job.trusted_until);
        if to_us > job.from {
            world.executed(Execution { task: job.task, lease, from_us: job.from, to_us });
        }
        if cancelled {
            // It gives the task back, or says that it failed: the task is cancelled all the same.
            let (task, worker) = (job.task, self.name.clone());
            let question = match lease.0 % 3 {
                0 => Question::Release { task, lease, worker },
                other => Question::Fail { task, lease, worker, retry: other == 1 },
            };
            self.reports.push(Report { lease, question, op: None, tries: 0 });
        }
    }

    /// Until when a lease of this length is trusted, in the time of the world, if it was asked for at `from`.
    fn trust(&self, from: u64, lease_ms: u64) -> u64 {
        let own = i128::from(lease_ms * MS * (100 - MARGIN) / 100);
        let world = own - own * i128::from(self.drift_ppm) / 1_000_000;
        from + u64::try_from(world).unwrap_or(0)
    }
}
