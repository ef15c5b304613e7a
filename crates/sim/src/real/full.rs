//! `full`: a small disk of its own is filled up.
//!
//! New tasks are refused, what is under way can end, also with results that are longer together than what is prepared
//! in one piece, nothing is lost by a kill meanwhile, and when there is room
//! again everything goes on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use orchestrix_client::Client;
use orchestrix_core::Json;
use orchestrix_core::wire::{Complete, Leased};
use tokio::task::JoinSet;

use super::ack_log::{AckEntry, AckLog};
use super::ground::Ground;
use super::load::{completion, lease_call, task};
use super::process::{Coordinator, eventually};
use super::{Checked, Round, Trial, Tried, failed};

const PAYLOAD: usize = 100 << 10;
/// Longer than a round.
const LEASE_MS: u64 = 600_000;

/// Tasks that are completed at one time on the full disk, and the bytes of each one's result.
const ENDING: usize = 12;
const RESULT: usize = 192 << 10;

const MUST: &[&str] = &[
    "full disks",
    "completed on a full disk",
    "long groups on a full disk",
    "started on a full disk",
    "room came back",
];

pub(super) const ENOUGH: u64 = 3;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    trial.rounds(ENOUGH, MUST, |round| one(trial, round))
}

fn one(trial: &Trial<'_>, round: &mut Round<'_>) -> Checked {
    let megabytes = round.rng.range(40, 64);
    let mut disk = SmallDisk::mount(megabytes)?;
    disk.fill(round.rng.range(10, megabytes / 2))?;
    let coordinator = Coordinator::prepare_on(trial.binary, disk.path().join("data"))?;
    let mut ground = Ground::new(coordinator, PAYLOAD)?;
    ground.coordinator.launch()?;
    let client = ground.coordinator.client()?;
    let held = round.runtime.block_on(fill_up(&client, &ground.ack_log))?;
    round.tried.faults += 1;
    round.tried.see("full disks", 1);

    // Under its lease a task can end although there is no room.
    let (one, many) = held.split_first().ok_or("no task was leased")?;
    let (task, lease) = (one.task_id, one.lease_id);
    let completed = round.runtime.block_on(client.complete(task, &completion(lease)));
    completed.map_err(failed("complete a task on a full disk"))?;
    ground.ack_log.note(&AckEntry::Completed { task, lease });
    round.tried.see("completed on a full disk", 1);
    round.runtime.block_on(complete_together(&client, &ground.ack_log, many))?;
    round.tried.see("long groups on a full disk", 1);

    ground.coordinator.kill()?;
    ground.launch_and_hold(round)?;
    let client = ground.coordinator.client()?;
    // It counts only if there was still no room.
    let room = submit(round, &client, &ground.ack_log, "still")?;
    round.tried.see("started on a full disk", u64::from(room.is_none()));

    disk.free()?;
    let mut tries = 0;
    eventually("there is room again", || {
        tries += 1;
        submit(round, &client, &ground.ack_log, &format!("after-{tries}"))
    })?;
    round.tried.see("room came back", 1);
    ground.coordinator.kill()?;
    ground.launch_and_hold(round)?;
    Ok(())
}

/// Ends tasks at one time, with results that are longer together than a spare of a small journal.
async fn complete_together(client: &Client, ack_log: &AckLog, held: &[Leased]) -> Checked {
    let result = Json::parse(&format!("\"{}\"", "r".repeat(RESULT))).map_err(failed("make a result"))?;
    let mut calls = JoinSet::new();
    for (task, lease) in held.iter().map(|held| (held.task_id, held.lease_id)) {
        let (client, result) = (client.clone(), Some(result.clone()));
        calls.spawn(async move {
            let completed = client.complete(task, &Complete { lease_id: lease, worker: None, result }).await;
            completed.map(|_| (task, lease))
        });
    }
    while let Some(ended) = calls.join_next().await {
        let ended = ended.map_err(failed("wait for a completion"))?;
        let (task, lease) = ended.map_err(failed("complete many tasks on a full disk"))?;
        ack_log.note(&AckEntry::Shown { task, lease });
    }
    Ok(())
}

/// Submits until there is no room; the first tasks are under leases then.
async fn fill_up(client: &Client, ack_log: &AckLog) -> Checked<Vec<Leased>> {
    let mut held = Vec::new();
    for count in 0..10_000 {
        let key = format!("before-{count}");
        match client.submit(&task(&key, PAYLOAD)).await {
            Ok(submitted) => ack_log.note(&AckEntry::Submitted { key, task: submitted.id }),
            Err(error) if error.code() == "storage_full" && held.len() > ENDING => return Ok(held),
            Err(error) => return Err(format!("a disk that fills up is no reason for this: {error}")),
        }
        if held.len() <= ENDING {
            let leases = client.lease(&lease_call("w", LEASE_MS)).await.map_err(failed("lease"))?.leases;
            for leased in leases {
                ack_log.note(&AckEntry::Granted { lease: leased.lease_id });
                held.push(leased);
            }
        }
    }
    Err("a small disk holds a gigabyte".to_owned())
}

/// Whether a submit is accepted again. One that is refused leaves no trace.
fn submit(round: &Round<'_>, client: &Client, ack_log: &AckLog, key: &str) -> Checked<Option<()>> {
    match round.runtime.block_on(client.submit(&task(key, PAYLOAD))) {
        Ok(submitted) => {
            ack_log.note(&AckEntry::Submitted { key: key.to_owned(), task: submitted.id });
            Ok(Some(()))
        }
        Err(error) if error.code() == "storage_full" => Ok(None),
        Err(error) => Err(format!("there is room, and yet: {error}")),
    }
}

/// A disk in memory, in a namespace that goes away with the process that holds it.
struct SmallDisk {
    holder: Child,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(megabytes: u64) -> Checked<Self> {
        let folder = tempfile::tempdir().map_err(failed("make a folder"))?;
        let script = r#"mount -t tmpfs -o "size=$2m,mode=700" tmpfs "$1" && touch "$1/mounted" && exec cat"#;
        let mut command = Command::new("unshare");
        if !rustix::process::getuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.path()).arg(megabytes.to_string());
        let holder = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let holder = holder.map_err(failed("start a process with a disk of its own"))?;
        // The disk as the holder sees it.
        let inside = folder.path().strip_prefix("/").map_err(failed("find the disk"))?;
        let path = Path::new("/proc").join(holder.id().to_string()).join("root").join(inside);
        let mut disk = Self { holder, path, _folder: folder };
        eventually("the disk is mounted", || {
            if let Some(status) = disk.holder.try_wait().map_err(failed("look at the holder"))? {
                return Err(format!("a small disk cannot be mounted: {status}"));
            }
            Ok(disk.path.join("mounted").exists().then_some(()))
        })?;
        Ok(disk)
    }

    fn path(&self) -> &Path {
        &self.path
    }

    /// Takes some room away.
    fn fill(&self, megabytes: u64) -> Checked {
        let filler = std::fs::File::create(self.path.join("filler")).map_err(failed("make a file"))?;
        let bytes = vec![0; 1 << 20];
        for _ in 0..megabytes {
            std::io::Write::write_all(&mut &filler, &bytes).map_err(failed("fill the disk"))?;
        }
        Ok(())
    }

    /// Gives it back.
    fn free(&mut self) -> Checked {
        std::fs::remove_file(self.path.join("filler")).map_err(failed("free some room"))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
