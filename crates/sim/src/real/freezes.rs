//! `freezes`: the coordinator, its callers and real worker processes are frozen for half a lease to three leases.
//!
//! A lease is never over before its length has passed, no worker finishes a task after it, and what a frozen
//! worker says when it wakes up is refused.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_client::{Client, Error};
use orchestrix_core::wire::{LeaseQueues, Leased, TaskView};
use orchestrix_core::{LeaseId, TaskId, TaskState};
use rustix::process::{Pid, Signal, kill_process};

use super::ack_log::{AckEntry, AckLog};
use super::ground::Ground;
use super::load::{QUEUE, check_payload, completion, lease_call, task};
use super::oracle::{check_one_outcome, outcomes};
use super::process::{Coordinator, eventually};
use super::{Checked, Round, Trial, Tried, failed};

const LEASE_MS: u64 = 300;
/// Of real workers: long enough for them to heartbeat on a busy machine.
const WORKER_LEASE_MS: u64 = 600;
/// What a real worker does for each task.
const COMMAND: &str = "sleep 0.3";

const PAYLOAD: usize = 10;
/// After so many rounds it is killed, and held to all of them.
const KILL_EVERY: u64 = 6;
/// A freeze of so many tenths of a lease outlives one that was extended at the last moment.
const OUTLIVES: u64 = 12;

const MUST: &[&str] = &[
    "coordinator frozen",
    "caller frozen",
    "worker process frozen",
    "reported in time",
    "stale reports refused",
    "tasks taken over",
    "leases of frozen workers ended",
];

/// Each kind of freeze four times.
pub(super) const ENOUGH: u64 = 12;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    let mut ground: Option<Ground> = None;
    trial.rounds(ENOUGH, MUST, |round| {
        let here = match ground.take() {
            Some(ground) => ground,
            None => {
                let mut ground = Ground::new(Coordinator::prepare(trial.binary, &[])?, PAYLOAD)?;
                ground.coordinator.launch()?;
                ground
            }
        };
        let ground = ground.insert(here);
        // From half of a lease to three; the first rounds have one of each kind.
        let tenths =
            if round.number <= 6 { [5, 15][usize::from(round.number > 3)] } else { round.rng.range(5, 30) };
        let runtime = round.runtime;
        round.tried.faults += 1;
        match round.number % 3 {
            0 => freeze_worker(ground, round, tenths)?,
            1 => runtime.block_on(freeze_coordinator(ground, round, tenths))?,
            _ => runtime.block_on(freeze_caller(ground, round, tenths))?,
        }
        ground.hold(round)?;
        if round.number.is_multiple_of(KILL_EVERY) {
            ground.coordinator.kill()?;
            ground.launch_and_hold(round)?;
        }
        Ok(())
    })
}

/// A lease, and when the caller knew what about it.
struct Held {
    leased: Leased,
    sent: Instant,
    got: Instant,
}

/// What a report was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Accepted,
    Stale,
}

/// A worker that leases and reports, and logs the answers of the coordinator.
#[derive(Clone)]
struct Caller {
    client: Client,
    ack_log: Arc<AckLog>,
}

impl Caller {
    fn of(ground: &Ground) -> Checked<Self> {
        Ok(Self { client: ground.coordinator.client()?, ack_log: Arc::clone(&ground.ack_log) })
    }

    async fn submit(&self, round: u64) -> Checked<TaskId> {
        let key = format!("f{round}");
        let submitted = self.client.submit(&task(&key, PAYLOAD)).await.map_err(failed("submit"))?;
        self.ack_log.note(&AckEntry::Submitted { key, task: submitted.id });
        Ok(submitted.id)
    }

    async fn take(&self, worker: &str, wait_ms: u64) -> Checked<Option<Held>> {
        let sent = Instant::now();
        let call = LeaseQueues { wait_ms, ..lease_call(worker, LEASE_MS) };
        let leases = self.client.lease(&call).await.map_err(failed("lease"))?.leases;
        let got = Instant::now();
        let Some(leased) = leases.into_iter().next() else { return Ok(None) };
        self.ack_log.note(&AckEntry::Granted { lease: leased.lease_id });
        check_payload(leased.task_id, &leased.payload, PAYLOAD)?;
        Ok(Some(Held { leased, sent, got }))
    }

    async fn look(&self, id: TaskId) -> Checked<TaskView> {
        self.client.task(id).await.map_err(failed("look at a task"))
    }
}

impl Held {
    /// Completes the task, and holds the answer against the time that has passed.
    async fn report(&self, caller: &Caller) -> Checked<Report> {
        let asked = Instant::now();
        let (task, lease) = (self.leased.task_id, self.leased.lease_id);
        let answer = caller.client.complete(task, &completion(lease)).await;
        let length = Duration::from_millis(self.leased.lease_ms);
        let report = judge(answer.map(|_| ()))?;
        caller.ack_log.note(&match report {
            Report::Accepted => AckEntry::Completed { task, lease },
            Report::Stale => AckEntry::Stale { task, lease },
        });
        // It was granted between `sent` and `got` and judged between `asked` and now. Clocks may differ by a
        // hundredth, and the coordinator adds another one.
        let (at_least, at_most) = (asked - self.got, self.sent.elapsed());
        if report == Report::Accepted && at_least > length.mul_f64(1.03) + Duration::from_millis(5) {
            return Err(format!("a report was accepted {at_least:?} after a lease of {length:?}"));
        }
        if report == Report::Stale && at_most < length {
            return Err(format!("a lease of {length:?} was over after {at_most:?}"));
        }
        Ok(report)
    }
}

fn judge(answer: Result<(), Error>) -> Checked<Report> {
    match answer {
        Ok(()) => Ok(Report::Accepted),
        Err(error) if error.code() == "stale_lease" => Ok(Report::Stale),
        Err(error) => Err(format!("a report was neither accepted nor stale: {error}")),
    }
}

async fn freeze_coordinator(ground: &Ground, round: &mut Round<'_>, tenths: u64) -> Checked {
    let caller = Caller::of(ground)?;
    let id = caller.submit(round.number).await?;
    let held = caller.take("a", 0).await?.ok_or("the task was not leased")?;
    ground.coordinator.signal(Signal::STOP)?;
    tokio::time::sleep(Duration::from_millis(LEASE_MS * tenths / 10)).await;
    ground.coordinator.signal(Signal::CONT)?;
    round.tried.see("coordinator frozen", 1);
    match held.report(&caller).await? {
        Report::Accepted => end_in_time(&caller, round, id, held.leased.lease_id).await,
        Report::Stale => {
            let next = caller.take("b", 5_000).await?.ok_or("nobody got the task after its lease")?;
            end_late(&caller, round, &held, &next).await
        }
    }
}

async fn freeze_caller(ground: &Ground, round: &mut Round<'_>, tenths: u64) -> Checked {
    let caller = Caller::of(ground)?;
    let id = caller.submit(round.number).await?;
    let held = caller.take("a", 0).await?.ok_or("the task was not leased")?;
    // Another worker waits for the task all the time.
    let other = tokio::spawn({
        let caller = caller.clone();
        async move { caller.take("b", 2 * LEASE_MS).await }
    });
    let silence = Duration::from_millis(LEASE_MS * tenths / 10);
    tokio::time::sleep_until((held.got + silence).into()).await;
    round.tried.see("caller frozen", 1);
    let report = held.report(&caller).await?;
    let next = other.await.map_err(|error| format!("a call stopped: {error}"))??;
    match (report, next) {
        (Report::Accepted, None) => end_in_time(&caller, round, id, held.leased.lease_id).await,
        (Report::Accepted, Some(next)) => Err(format!(
            "two had the task: {} reported, {} was granted",
            held.leased.lease_id, next.leased.lease_id
        )),
        (Report::Stale, Some(next)) => {
            if next.got - held.sent < Duration::from_millis(LEASE_MS) {
                return Err(format!("a lease was over after {:?}", next.got - held.sent));
            }
            end_late(&caller, round, &held, &next).await
        }
        (Report::Stale, None) => Err("nobody got the task after its lease".to_owned()),
    }
}

async fn end_in_time(caller: &Caller, round: &mut Round<'_>, id: TaskId, lease: LeaseId) -> Checked {
    round.tried.see("reported in time", 1);
    check_one_outcome(&caller.look(id).await?, lease)
}

/// Another worker has the task now: the first worker is refused before and after the second one's report.
async fn end_late(caller: &Caller, round: &mut Round<'_>, first: &Held, second: &Held) -> Checked {
    round.tried.see("tasks taken over", 1);
    if (second.leased.task_id, second.leased.attempt) != (first.leased.task_id, first.leased.attempt + 1) {
        return Err(format!("the next lease is {:?}, after {:?}", second.leased, first.leased));
    }
    let refused = first.report(caller).await?;
    let ended = second.report(caller).await?;
    let late = first.report(caller).await?;
    if [refused, late] != [Report::Stale; 2] {
        return Err(format!(
            "lease {} was over, and its reports were {refused:?}, {late:?}",
            first.leased.lease_id
        ));
    }
    round.tried.see("stale reports refused", 3);
    let view = caller.look(first.leased.task_id).await?;
    if ended == Report::Accepted {
        return check_one_outcome(&view, second.leased.lease_id);
    }
    if outcomes(&view).is_empty() { drain(caller, view.summary.id).await } else { Err(format!("{view:?}")) }
}

/// Completes a task whose second lease was over too, so that the next round finds the queue empty.
async fn drain(caller: &Caller, id: TaskId) -> Checked {
    while caller.look(id).await?.summary.state != TaskState::Completed {
        if let Some(held) = caller.take("c", 5_000).await? {
            held.report(caller).await?;
        }
    }
    Ok(())
}

/// An `orchestrix work` process.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(coordinator: &Coordinator, name: &str) -> Checked<Self> {
        let mut command = Command::new(coordinator.binary());
        command.args([
            "work",
            QUEUE,
            "--name",
            name,
            "--lease",
            &format!("{WORKER_LEASE_MS}ms"),
            "--",
            "sh",
            "-c",
        ]);
        command.arg(COMMAND).env("ORCHESTRIX_URL", coordinator.url()).env_remove("ORCHESTRIX_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn().map_err(failed("start a worker"))?))
    }

    fn signal(&self, signal: Signal) -> Checked {
        kill_process(Pid::from_child(&self.0), signal).map_err(failed("send a signal"))
    }

    /// Asks it to stop, and waits until it has.
    fn stop(mut self) -> Checked {
        self.signal(Signal::TERM)?;
        let status =
            eventually("the worker ends", || self.0.try_wait().map_err(failed("look at the worker")))?;
        if status.success() { Ok(()) } else { Err(format!("the worker ended with {status}")) }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn freeze_worker(ground: &Ground, round: &mut Round<'_>, tenths: u64) -> Checked {
    let caller = Caller::of(ground)?;
    let (runtime, first) = (round.runtime, WorkerProcess::start(&ground.coordinator, "first")?);
    let id = runtime.block_on(caller.submit(round.number))?;
    let view = || runtime.block_on(caller.look(id));
    let lease = eventually("the first worker has the task", || Ok(view()?.summary.lease))?.lease_id;
    first.signal(Signal::STOP)?;
    let second = WorkerProcess::start(&ground.coordinator, "second")?;
    std::thread::sleep(Duration::from_millis(WORKER_LEASE_MS * tenths / 10));
    if tenths >= OUTLIVES {
        let ended = eventually("the lease of the frozen worker ends", || Ok(outcome_of(&view()?, lease)))?;
        // Its report may have been on the way when it was frozen.
        if ended != "completed" && ended != "silent" {
            return Err(format!("the lease {lease} of a frozen worker ended as {ended}"));
        }
        round.tried.see("leases of frozen workers ended", u64::from(ended == "silent"));
    }
    first.signal(Signal::CONT)?;
    round.tried.see("worker process frozen", 1);
    let ended = eventually("the task is completed", || {
        Ok(Some(view()?).filter(|view| view.summary.state == TaskState::Completed))
    })?;
    // When both have said all that they had to say, nothing has changed.
    first.stop()?;
    second.stop()?;
    let settled = view()?;
    let [outcome] = outcomes(&settled)[..] else {
        return Err(format!("the task has {:?} as outcomes", outcomes(&settled)));
    };
    if outcomes(&ended) != [outcome] {
        return Err(format!("the task was completed under {:?}, then {outcome}", outcomes(&ended)));
    }
    caller.ack_log.note(&AckEntry::Shown { task: id, lease: outcome });
    for attempt in settled.attempts.iter().filter(|attempt| attempt.outcome == "silent") {
        let lasted = attempt.ended_at.0 - attempt.started_at.0;
        if lasted < WORKER_LEASE_MS {
            return Err(format!("a lease of {WORKER_LEASE_MS} ms was over after {lasted} ms: {attempt:?}"));
        }
    }
    Ok(())
}

/// How the attempt under a lease ended, if it did.
fn outcome_of(view: &TaskView, lease: LeaseId) -> Option<String> {
    let attempt = view.attempts.iter().find(|attempt| attempt.lease_id == lease)?;
    Some(attempt.outcome.to_string())
}
