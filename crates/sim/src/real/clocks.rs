//! `clocks`: the date of the coordinator jumps by seconds to ten years, while it runs and while it does not.
//!
//! No lease is over early or stays for ever, no task is forgotten before its time, and the time of the journal
//! follows at its own pace. Only the date is false: the clock that counts since boot is right, as on a real machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use orchestrix_client::Client;
use orchestrix_core::wire::{LeaseQueues, Leased};
use orchestrix_core::{TaskId, TaskState};

use super::ack_log::{AckEntry, AckLog};
use super::ground::Ground;
use super::load::{check_payload, completion, lease_call, name, output, task};
use super::process::{Coordinator, PATIENCE};
use super::{Checked, Round, Trial, Tried, failed};

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;
/// Seconds that the date jumps by, either way.
const JUMPS: [u64; 8] = [1, 2, 61, HOUR, 20 * HOUR, 30 * DAY, 366 * DAY, 3_650 * DAY];
const JUMPS_PER_ROUND: u64 = 4;
/// Completed tasks are kept for 24 h: a start that far in the future may forget them.
const KEPT_SECONDS: i64 = 24 * 3_600;
const PAYLOAD: usize = 10;
const LONG_LEASE_MS: u64 = 60_000;
const SHORT_LEASE_MS: u64 = 200;
/// How late a lease may be given to the next on a busy machine.
const LATE: Duration = Duration::from_secs(2);

const MUST: &[&str] =
    &["jumps", "leases held across a jump", "leases over in time", "starts under another date"];

pub(super) const ENOUGH: u64 = 2;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    trial.rounds(ENOUGH, MUST, |round| one(trial, round))
}

fn one(trial: &Trial<'_>, round: &mut Round<'_>) -> Checked {
    let coordinator = Coordinator::prepare(trial.binary, &[])?;
    let date = Date { file: coordinator.file("date") };
    let mut ground = Ground::new(coordinator, PAYLOAD)?;
    start(&mut ground.coordinator, &date, 0)?;
    let (runtime, caller) = (round.runtime, Caller::of(&ground)?);
    let done = runtime.block_on(caller.complete_one("done"))?;
    let began = runtime.block_on(caller.created_at(done))?;
    for n in 0..JUMPS_PER_ROUND {
        let seconds = draw(round);
        runtime.block_on(jump(&caller, round, &date, seconds, n))?;
        expect_kept(round, &caller.client, done, seconds)?;
    }
    let last = runtime.block_on(caller.complete_one("last"))?;
    let passed = runtime.block_on(caller.created_at(last))?.saturating_sub(began);
    if passed > 60_000 {
        return Err(format!("the time of the journal went on by {passed} ms in a round of seconds"));
    }
    ground.coordinator.kill()?;
    start(&mut ground.coordinator, &date, 0)?;
    ground.hold(round)?;
    start_under_another_date(&mut ground, round, &date, done)
}

/// Starts it under a date that is so many seconds away.
fn start(coordinator: &mut Coordinator, date: &Date, seconds: i64) -> Checked {
    date.set(seconds)?;
    coordinator.start(Some(date.program()?))?;
    coordinator.await_ready()
}

/// Seconds to jump by, either way.
fn draw(round: &mut Round<'_>) -> i64 {
    let seconds = JUMPS[round.rng.index(JUMPS.len())].cast_signed();
    if round.rng.chance(500_000) { seconds } else { -seconds }
}

/// The date that the process believes in.
struct Date {
    file: PathBuf,
}

impl Date {
    /// Moved into place, so that no reader gets half of it.
    fn set(&self, seconds: i64) -> Checked {
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{seconds:+}")).map_err(failed("write the date"))?;
        std::fs::rename(&next, &self.file).map_err(failed("set the date"))
    }

    /// What makes a program believe in it.
    fn program(&self) -> Checked<Command> {
        let mut env = Command::new("env");
        env.arg(format!("LD_PRELOAD={}", libfaketime()?.display()));
        env.arg(format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()));
        env.args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"]);
        Ok(env)
    }
}

fn libfaketime() -> Checked<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").map_err(failed("list /usr/lib"))?;
    let mut found = folders.flatten().map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    found.find(|path: &PathBuf| Path::exists(path)).ok_or_else(|| "libfaketime is not installed".to_owned())
}

/// A client of the coordinator that logs its answers.
struct Caller {
    client: Client,
    ack_log: Arc<AckLog>,
}

impl Caller {
    fn of(ground: &Ground) -> Checked<Self> {
        Ok(Self { client: ground.coordinator.client()?, ack_log: Arc::clone(&ground.ack_log) })
    }

    async fn submit(&self, key: &str) -> Checked<TaskId> {
        let submitted = self.client.submit(&task(key, PAYLOAD)).await.map_err(failed("submit"))?;
        self.ack_log.note(&AckEntry::Submitted { key: key.to_owned(), task: submitted.id });
        Ok(submitted.id)
    }

    async fn lease(&self, lease_ms: u64) -> Checked<Leased> {
        let call = LeaseQueues { wait_ms: 10_000, ..lease_call("w", lease_ms) };
        let leases = self.client.lease(&call).await.map_err(failed("lease"))?.leases;
        let leased = leases.into_iter().next().ok_or("there is a task, and nobody gets it")?;
        self.ack_log.note(&AckEntry::Granted { lease: leased.lease_id });
        check_payload(leased.task_id, &leased.payload, PAYLOAD)?;
        Ok(leased)
    }

    async fn complete(&self, leased: &Leased) -> Checked {
        let (task, lease) = (leased.task_id, leased.lease_id);
        let completed = self.client.complete(task, &completion(lease)).await;
        completed.map_err(failed("complete a task under a live lease"))?;
        self.ack_log.note(&AckEntry::Completed { task, lease });
        Ok(())
    }

    async fn complete_one(&self, key: &str) -> Checked<TaskId> {
        self.submit(key).await?;
        let leased = self.lease(LONG_LEASE_MS).await?;
        self.complete(&leased).await?;
        Ok(leased.task_id)
    }

    async fn created_at(&self, id: TaskId) -> Checked<u64> {
        Ok(self.client.task(id).await.map_err(failed("look at a task"))?.summary.created_at.0)
    }

    /// Waits until the process believes in a date so many seconds away. Output of tasks bears the date of the process
    /// as it is, and shows it.
    async fn believe(&self, leased: &Leased, seconds: i64) -> Checked {
        let (task, lease) = (leased.task_id, leased.lease_id);
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let page = self.client.logs(task, None, 0, None).await.map_err(failed("read output"))?;
            let next = page.next_offset;
            let earliest = date_ms(seconds)?;
            let lines = output(lease, next..next + 1);
            self.client.append_logs(task, &lines).await.map_err(failed("write output"))?;
            let latest = date_ms(seconds)?;
            self.ack_log.note(&AckEntry::Logged { task, lease, lines: 1 });
            let page = self.client.logs(task, None, next, None).await.map_err(failed("read output"))?;
            let at = page.lines.first().ok_or("a line of output is not there")?.at.0;
            if (earliest..=latest).contains(&at) {
                return Ok(());
            }
        }
        Err(format!("the process never believed in a date {seconds} s away"))
    }
}

/// The date so many seconds away, in milliseconds.
fn date_ms(seconds: i64) -> Checked<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(failed("read the date"))?;
    let now = u64::try_from(now.as_millis()).map_err(failed("read the date"))?;
    Ok(now.saturating_add_signed(seconds * 1_000))
}

/// One jump between two leases: a long one goes on, a short one is over when its length has passed.
async fn jump(caller: &Caller, round: &mut Round<'_>, date: &Date, seconds: i64, n: u64) -> Checked {
    let context = |why: String| format!("a jump by {seconds} s: {why}");
    caller.submit(&format!("long-{n}")).await?;
    let long = caller.lease(LONG_LEASE_MS).await?;
    caller.submit(&format!("short-{n}")).await?;
    let sent = Instant::now();
    let short = caller.lease(SHORT_LEASE_MS).await?;
    date.set(seconds)?;
    caller.believe(&long, seconds).await?;
    round.tried.faults += 1;
    round.tried.see("jumps", 1);
    let next = caller.lease(LONG_LEASE_MS).await.map_err(context)?;
    let (passed, length) = (sent.elapsed(), Duration::from_millis(SHORT_LEASE_MS));
    if next.task_id != short.task_id || passed < length || passed > length + LATE {
        return Err(context(format!("{next:?} came {passed:?} after {short:?}")));
    }
    round.tried.see("leases over in time", 1);
    expect_extended(caller, &long).await.map_err(context)?;
    round.tried.see("leases held across a jump", 1);
    caller.complete(&long).await.map_err(context)?;
    caller.complete(&next).await.map_err(context)
}

async fn expect_extended(caller: &Caller, long: &Leased) -> Checked {
    let heard = caller.client.heartbeat_worker(&name("w"), vec![long.lease_id]).await;
    let heard = heard.map_err(failed("heartbeat"))?;
    if heard.extended != [long.lease_id] {
        return Err(format!("a lease of a minute is lost: {heard:?}"));
    }
    Ok(())
}

fn expect_kept(round: &Round<'_>, client: &Client, done: TaskId, seconds: i64) -> Checked {
    let view = round.runtime.block_on(client.task(done));
    let view = view.map_err(|error| format!("a completed task is forgotten after {seconds} s: {error}"))?;
    if view.summary.state != TaskState::Completed {
        return Err(format!("a completed task is {:?} after {seconds} s", view.summary.state));
    }
    Ok(())
}

/// Stops it, starts it under another date, and once more under the true one.
fn start_under_another_date(
    ground: &mut Ground,
    round: &mut Round<'_>,
    date: &Date,
    done: TaskId,
) -> Checked {
    let (runtime, caller) = (round.runtime, Caller::of(ground)?);
    let submitted = runtime.block_on(caller.submit("held"))?;
    let held = runtime.block_on(caller.lease(LONG_LEASE_MS))?;
    let waits = runtime.block_on(caller.submit("waits"))?;
    if held.task_id != submitted {
        return Err(format!("{held:?} is not the task that was submitted first: {submitted}"));
    }
    let away = draw(round);
    for seconds in [away, 0] {
        ground.coordinator.kill()?;
        start(&mut ground.coordinator, date, seconds)?;
        let (context, caller) =
            (|why: String| format!("a start {seconds} s away: {why}"), Caller::of(ground)?);
        runtime.block_on(caller.believe(&held, seconds)).map_err(context)?;
        round.tried.faults += 1;
        round.tried.see("starts under another date", u64::from(seconds != 0));
        runtime.block_on(expect_extended(&caller, &held)).map_err(context)?;
        let view = runtime.block_on(caller.client.task(waits)).map_err(failed("find the waiting task"))?;
        if view.summary.state != TaskState::Waiting {
            return Err(context(format!("a waiting task is {:?}", view.summary.state)));
        }
        if away < KEPT_SECONDS {
            expect_kept(round, &caller.client, done, seconds)?;
        }
    }
    runtime.block_on(Caller::of(ground)?.complete(&held))?;
    if away < KEPT_SECONDS {
        ground.hold(round)?;
    }
    Ok(())
}
