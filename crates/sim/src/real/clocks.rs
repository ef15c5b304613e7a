//! `clocks`: the date of the coordinator jumps by seconds to ten years, while it runs and while it does not.
//!
//! No lease is over early or stays for ever, no task is forgotten before its time, and the time of the journal
//! follows at its own pace. Only the date is false: the clock that counts since boot is right, as on a real machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use orchestrix_client::Client;
use orchestrix_core::wire::{LeaseQueues, Leased};
use orchestrix_core::{TaskId, TaskState};

use super::load::{completion, lease_call, name, task};
use super::process::{Coordinator, eventually};
use super::{Checked, Round, Trial, Tried, failed};

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;
/// Seconds that the date jumps by, either way.
const JUMPS: [u64; 8] = [1, 2, 61, HOUR, 20 * HOUR, 30 * DAY, 366 * DAY, 3_650 * DAY];
const JUMPS_PER_ROUND: u64 = 4;
/// Completed tasks are kept for 24 h: a start that far in the future may forget them.
const KEPT_SECONDS: i64 = 24 * 3_600;
const LONG_LEASE_MS: u64 = 60_000;
const SHORT_LEASE_MS: u64 = 200;
/// How late a lease may be given to the next on a busy machine.
const LATE: Duration = Duration::from_secs(2);

const MUST: &[&str] =
    &["jumps", "leases held across a jump", "leases over in time", "starts under another date"];

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    trial.rounds(2, MUST, |round| one(trial, round))
}

fn one(trial: &Trial<'_>, round: &mut Round<'_>) -> Checked {
    let mut coordinator = Coordinator::prepare(trial.binary, &[])?;
    let date = Date { file: coordinator.file("date") };
    date.set(0)?;
    coordinator.start(Some(date.program()?))?;
    coordinator.await_ready()?;
    believe(&coordinator, &date)?;
    let client = coordinator.client()?;
    let runtime = round.runtime;
    let done = runtime.block_on(complete_one(&client, round, "done"))?;
    let began = runtime.block_on(created_at(&client, done))?;
    for n in 0..JUMPS_PER_ROUND {
        let seconds = draw(round);
        runtime.block_on(jump(&client, round, &date, seconds, n))?;
        expect_kept(round, &client, done, seconds)?;
    }
    let last = runtime.block_on(complete_one(&client, round, "last"))?;
    let passed = runtime.block_on(created_at(&client, last))?.saturating_sub(began);
    if passed > 60_000 {
        return Err(format!("the time of the journal went on by {passed} ms in a round of seconds"));
    }
    date.set(0)?;
    start_under_another_date(&mut coordinator, round, &date, done)
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
    /// Moved into place, so that nobody reads half of it.
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

/// The process must have taken the date, or the rounds prove nothing: the date of its answers shows it.
fn believe(coordinator: &Coordinator, date: &Date) -> Checked {
    let year = || -> Checked<i64> {
        let answer = coordinator.get("/health")?;
        let year = answer.split_once("date: ").and_then(|(_, rest)| rest.split(' ').nth(3)?.parse().ok());
        year.ok_or_else(|| "an answer has no date".to_owned())
    };
    let now = year()?;
    date.set((3_650 * DAY).cast_signed())?;
    eventually("the process believes in the other date", || Ok((year()? >= now + 9).then_some(())))?;
    date.set(0)
}

async fn complete_one(client: &Client, round: &mut Round<'_>, key: &str) -> Checked<TaskId> {
    client.submit(&task(key, 10)).await.map_err(failed("submit"))?;
    let leased = lease(client, LONG_LEASE_MS).await?;
    complete(client, &leased).await?;
    round.tried.acknowledged += 3;
    Ok(leased.task_id)
}

async fn lease(client: &Client, lease_ms: u64) -> Checked<Leased> {
    let call = LeaseQueues { wait_ms: 10_000, ..lease_call("w", lease_ms) };
    let leases = client.lease(&call).await.map_err(failed("lease"))?.leases;
    leases.into_iter().next().ok_or_else(|| "there is a task, and nobody gets it".to_owned())
}

async fn complete(client: &Client, leased: &Leased) -> Checked {
    let completed = client.complete(leased.task_id, &completion(leased.lease_id)).await;
    completed.map(|_| ()).map_err(failed("complete a task under a live lease"))
}

async fn created_at(client: &Client, id: TaskId) -> Checked<u64> {
    Ok(client.task(id).await.map_err(failed("look at a task"))?.summary.created_at.0)
}

/// One jump between two leases: a long one goes on, a short one is over when its length has passed.
async fn jump(client: &Client, round: &mut Round<'_>, date: &Date, seconds: i64, n: u64) -> Checked {
    let context = |why: String| format!("a jump by {seconds} s: {why}");
    client.submit(&task(&format!("long-{n}"), 10)).await.map_err(failed("submit"))?;
    let long = lease(client, LONG_LEASE_MS).await?;
    client.submit(&task(&format!("short-{n}"), 10)).await.map_err(failed("submit"))?;
    let sent = Instant::now();
    let short = lease(client, SHORT_LEASE_MS).await?;
    date.set(seconds)?;
    round.tried.faults += 1;
    round.tried.see("jumps", 1);
    let next = lease(client, LONG_LEASE_MS).await.map_err(context)?;
    let (passed, length) = (sent.elapsed(), Duration::from_millis(SHORT_LEASE_MS));
    if next.task_id != short.task_id || passed < length || passed > length + LATE {
        return Err(context(format!("{next:?} came {passed:?} after {short:?}")));
    }
    round.tried.see("leases over in time", 1);
    let heard =
        client.heartbeat_worker(&name("w"), vec![long.lease_id]).await.map_err(failed("heartbeat"))?;
    if heard.extended != [long.lease_id] {
        return Err(context(format!("a lease of a minute is lost: {heard:?}")));
    }
    round.tried.see("leases held across a jump", 1);
    complete(client, &long).await.map_err(context)?;
    complete(client, &next).await.map_err(context)?;
    round.tried.acknowledged += 7;
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
    coordinator: &mut Coordinator,
    round: &mut Round<'_>,
    date: &Date,
    done: TaskId,
) -> Checked {
    let runtime = round.runtime;
    let client = coordinator.client()?;
    let submitted = runtime.block_on(client.submit(&task("waits", 10))).map_err(failed("submit"))?;
    let held = runtime.block_on(lease(&client, LONG_LEASE_MS))?;
    let waits = runtime.block_on(client.submit(&task("waits more", 10))).map_err(failed("submit"))?;
    if held.task_id != submitted.id {
        return Err(format!("{held:?} is not the task that was submitted first: {submitted:?}"));
    }
    let away = draw(round);
    for seconds in [away, 0] {
        coordinator.kill()?;
        date.set(seconds)?;
        coordinator.start(Some(date.program()?))?;
        coordinator.await_ready()?;
        round.tried.faults += 1;
        round.tried.see("starts under another date", u64::from(seconds != 0));
        let client = coordinator.client()?;
        let context = |why: String| format!("a start {seconds} s away: {why}");
        let heard = runtime.block_on(client.heartbeat_worker(&name("w"), vec![held.lease_id]));
        let heard = heard.map_err(failed("heartbeat"))?;
        if heard.extended != [held.lease_id] {
            return Err(context(format!("a lease of a minute is lost: {heard:?}")));
        }
        let view = runtime.block_on(client.task(waits.id)).map_err(failed("find the waiting task"))?;
        if view.summary.state != TaskState::Waiting {
            return Err(context(format!("a waiting task is {:?}", view.summary.state)));
        }
        if away < KEPT_SECONDS {
            expect_kept(round, &client, done, seconds)?;
        }
    }
    runtime.block_on(complete(&coordinator.client()?, &held))?;
    round.tried.acknowledged += 4;
    Ok(())
}
