//! The examples divide shards with each other, and with what becomes of processes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use orchestrix_testbed::eventually;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::coordinator::{LEASE_MS, ShardCoordinator};
use crate::measure::{Life, measure};
use crate::process::Language::{Plain, Python, Rust, TypeScript};
use crate::process::{Event, Language, Process, now};

const SHARDS: u32 = 10;

struct Scene {
    coordinator: ShardCoordinator,
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self::with_lease(LEASE_MS)
    }

    fn with_lease(lease_ms: u64) -> Self {
        Self { coordinator: ShardCoordinator::with_lease(lease_ms), folder: TempDir::new().unwrap() }
    }

    fn start(&self, language: Language, name: &str) -> Process {
        Process::start(language, self.folder.path(), &self.coordinator.tcp(), "orders", name, SHARDS)
    }

    /// One worker of each language that keeps to all rules.
    fn start_all(&self, name: &str) -> [Process; 3] {
        [Rust, TypeScript, Python].map(|language| self.start(language, &format!("{name}-{language:?}")))
    }

    /// Waits until these have all shards, as evenly as it goes, and the coordinator says the same.
    fn settle(&self, workers: &[&Process]) {
        let what = format!("{} workers have all shards", workers.len());
        eventually(&what, || {
            let serves: Vec<BTreeSet<u32>> = workers.iter().map(|worker| worker.serves()).collect();
            let (least, most) =
                (serves.iter().map(BTreeSet::len).min()?, serves.iter().map(BTreeSet::len).max()?);
            let all: usize = serves.iter().map(BTreeSet::len).sum();
            let holders = self.coordinator.holders("orders");
            let agrees = |(worker, serves): (&&Process, &BTreeSet<u32>)| {
                serves.iter().all(|shard| holders.get(shard) == Some(&worker.name))
            };
            let even = all == SHARDS as usize && most - least <= 1;
            (even && workers.iter().zip(&serves).all(agrees)).then_some(())
        });
    }
}

fn life(worker: &Process, frozen: &[(u64, u64)]) -> Life {
    Life { name: worker.name.clone(), lines: worker.lines(), frozen: frozen.to_vec(), ended: now() }
}

fn assert_apart(lives: &[Life]) {
    let measured = measure(lives);
    assert!(measured.overlaps.is_empty(), "{:#?}", measured.overlaps);
    assert!(measured.uses > 0, "nobody used anything");
}

/// Waits for the end of a worker that was told to go; it must end well.
fn wait_for_end(worker: &mut Process) {
    let ended = eventually("the worker ends", || worker.ended());
    assert!(ended.success(), "{} ended with {ended}", worker.name);
    assert!(worker.serves().is_empty(), "{} has stopped", worker.name);
}

/// Waits until the worker has used shards for longer than a lease.
fn wait_for_a_lease(worker: &Process) {
    eventually("the worker goes on for more than a lease", || {
        let uses: Vec<u64> =
            worker.lines().iter().filter(|line| line.event == Event::Use).map(|line| line.at).collect();
        (uses.last()? - uses.first()? > LEASE_MS * 5 / 4 * 1_000_000).then_some(())
    });
}

#[test]
fn workers_in_three_languages_divide_ten_shards() {
    let scene = Scene::new();
    let [a, b, c] = &scene.start_all("all");
    // They keep what they have, for longer than they would be believed without heartbeats.
    scene.settle(&[a, b, c]);
    [a, b, c].into_iter().for_each(wait_for_a_lease);
    let plain = scene.start(Plain, "plain");
    scene.settle(&[a, b, c, &plain]);
    let share = plain.serves();
    assert_eq!(share.len(), 2, "{share:?}");
    wait_for_a_lease(&plain);
    assert_eq!(plain.serves(), share);
    scene.settle(&[a, b, c, &plain]);
    // Nobody let go of what it has again: heartbeats were in time, from the first on.
    for worker in [a, b, c] {
        let lines = worker.lines();
        let served = lines.iter().filter(|line| line.event == Event::Serve).map(|line| line.shard);
        let mut once = BTreeSet::new();
        for shard in served {
            assert!(once.insert(shard), "{} lost shard {shard} and got it again", worker.name);
        }
    }
    assert_apart(&[life(a, &[]), life(b, &[]), life(c, &[]), life(&plain, &[])]);
}

#[test]
fn shards_of_killed_workers_move_when_their_time_is_over() {
    let scene = Scene::new();
    let stays = scene.start(Rust, "stays");
    let killed = scene.start_all("killed");
    let [a, b, c] = &killed;
    scene.settle(&[&stays, a, b, c]);
    killed.iter().for_each(|worker| worker.signal(Signal::KILL));
    let mut lives: Vec<Life> = killed.iter().map(|worker| life(worker, &[])).collect();
    scene.settle(&[&stays]);
    lives.push(life(&stays, &[]));
    assert_apart(&lives);
}

#[test]
fn frozen_workers_use_no_old_shard_and_register_again() {
    let scene = Scene::new();
    let stays = scene.start(Rust, "stays");
    let mut frozen = scene.start_all("frozen");
    let [a, b, c] = &frozen;
    scene.settle(&[&stays, a, b, c]);
    frozen.iter().for_each(|worker| worker.signal(Signal::STOP));
    let from = now();
    // Whatever the frozen ones believe.
    eventually("the other has all shards", || (stays.serves().len() == SHARDS as usize).then_some(()));
    let to = now();
    frozen.iter().for_each(|worker| worker.signal(Signal::CONT));
    for worker in &frozen {
        eventually("it has stopped what it had", || {
            let stopped = worker.lines().iter().any(|line| line.event == Event::Stop && line.at > to);
            stopped.then_some(())
        });
    }
    scene.settle(&[&stays, a, b, c]);
    for worker in &mut frozen {
        worker.signal(Signal::TERM);
        wait_for_end(worker);
    }
    scene.settle(&[&stays]);
    let mut lives: Vec<Life> = frozen.iter().map(|worker| life(worker, &[(from, to)])).collect();
    lives.push(life(&stays, &[]));
    assert_apart(&lives);
}

#[test]
fn shards_of_a_leaving_worker_move_at_once() {
    let lease = Duration::from_secs(25);
    let scene = Scene::with_lease(25_000);
    let stays = scene.start(Rust, "stays");
    for language in [Rust, TypeScript, Python, Plain] {
        let mut goes = scene.start(language, "goes");
        scene.settle(&[&stays, &goes]);
        let began = Instant::now();
        goes.signal(if language == Python { Signal::INT } else { Signal::TERM });
        wait_for_end(&mut goes);
        scene.settle(&[&stays]);
        assert!(began.elapsed() < lease, "they waited until its time was over");
        assert_apart(&[life(&goes, &[]), life(&stays, &[])]);
    }
}
