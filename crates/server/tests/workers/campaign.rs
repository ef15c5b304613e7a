//! Many workers in three languages that are killed, frozen, told to go and started again, by chance; and whether any
//! two of them ever used one shard at a time.
//!
//! `ORCHESTRIX_WORKERS`, `ORCHESTRIX_SECONDS` and `ORCHESTRIX_SEED` make it larger, longer, and the same again.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use orchestrix_testbed::eventually;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::coordinator::{LEASE_MS, ShardCoordinator};
use crate::measure::{Life, measure};
use crate::process::{Language, Process, now};

/// Every so many workers there is a plain one, with others of its kind in a service of their own.
const PLAIN_EVERY: usize = 6;
/// Between two things that are done to a worker, for twelve of them; more have less.
const PAUSE_MS: u64 = 250;

/// What is done to workers.
#[derive(Debug, Default)]
struct Done {
    starts: usize,
    kills: usize,
    freezes: usize,
    leaves: usize,
}

/// Chance that can be had again.
struct Chance(u64);

impl Chance {
    /// A number below another.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A place for one worker, and all who had it.
struct WorkerSlot {
    name: String,
    language: Language,
    address: String,
    process: Option<Process>,
    frozen: Vec<(u64, u64)>,
    /// Since when it is frozen, and until when it shall be.
    asleep: Option<(u64, Instant)>,
    lives: Vec<Life>,
}

struct Campaign<'a> {
    folder: &'a Path,
    slots: Vec<WorkerSlot>,
    chance: Chance,
    done: Done,
}

impl WorkerSlot {
    fn service(&self) -> &'static str {
        if self.language == Language::Plain { "plain" } else { "aware" }
    }

    fn thaw(&mut self) {
        if let (Some((from, _)), Some(process)) = (self.asleep.take(), &self.process) {
            self.frozen.push((from, now()));
            process.signal(Signal::CONT);
        }
    }

    fn freeze(&mut self, time: Duration) {
        if let Some(process) = &self.process {
            process.signal(Signal::STOP);
            self.asleep = Some((now(), Instant::now() + time));
        }
    }

    /// Ends a worker; what it told becomes a life.
    fn end(&mut self, signal: Signal) {
        let Some(mut process) = self.process.take() else { return };
        process.signal(signal);
        let killed = (signal == Signal::KILL).then(now);
        let mut frozen = std::mem::take(&mut self.frozen);
        if let Some((from, _)) = self.asleep.take() {
            frozen.push((from, u64::MAX));
        }
        eventually(&format!("{} ends", self.name), || process.ended());
        let ended = killed.unwrap_or_else(now);
        self.lives.push(Life { name: self.name.clone(), lines: process.lines(), frozen, ended });
    }
}

impl Campaign<'_> {
    fn start(&mut self, place: usize, shards: u32) {
        let slot = &mut self.slots[place];
        let (language, service) = (slot.language, slot.service());
        slot.process =
            Some(Process::start(language, self.folder, &slot.address, service, &slot.name, shards));
        self.done.starts += 1;
    }

    /// Does something to a worker.
    fn disturb(&mut self, place: usize, shards: u32) {
        let what = self.chance.below(100);
        let leases = self.chance.below(250);
        let slot = &mut self.slots[place];
        match (&slot.process, slot.asleep) {
            (None, _) => self.start(place, shards),
            (Some(_), Some(_)) if what < 10 => {
                slot.end(Signal::KILL);
                self.done.kills += 1;
            }
            (Some(_), Some(_)) => {}
            (Some(_), None) if what < 35 => {
                slot.end(Signal::KILL);
                self.done.kills += 1;
            }
            (Some(_), None) if what < 75 => {
                // Half a lease to three.
                slot.freeze(Duration::from_millis(LEASE_MS * (50 + leases) / 100));
                self.done.freezes += 1;
            }
            (Some(_), None) => {
                slot.end(Signal::TERM);
                self.done.leaves += 1;
            }
        }
    }

    fn run(&mut self, time: Duration, shards: u32) {
        let pause = Duration::from_millis(PAUSE_MS * 12 / self.slots.len() as u64);
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::thread::sleep(pause);
            let awake =
                |slot: &&mut WorkerSlot| slot.asleep.is_some_and(|(_, until)| until <= Instant::now());
            self.slots.iter_mut().filter(awake).for_each(WorkerSlot::thaw);
            let place = usize::try_from(self.chance.below(self.slots.len() as u64)).unwrap();
            self.disturb(place, shards);
        }
    }

    /// Lets everybody come, and waits until every shard of those who keep to the rules is served, evenly.
    fn settle(&mut self, shards: u32) {
        for place in 0..self.slots.len() {
            self.slots[place].thaw();
            if self.slots[place].process.is_none() {
                self.start(place, shards);
            }
        }
        let aware: Vec<&WorkerSlot> = self.slots.iter().filter(|slot| slot.service() == "aware").collect();
        eventually("all shards are served, evenly", || {
            let serves = aware.iter().filter_map(|slot| slot.process.as_ref());
            let serves: Vec<BTreeSet<u32>> = serves.map(Process::serves).collect();
            let sizes = || serves.iter().map(BTreeSet::len);
            let all: BTreeSet<&u32> = serves.iter().flatten().collect();
            let whole = all.len() == shards as usize && sizes().sum::<usize>() == all.len();
            (whole && sizes().max()? - sizes().min()? <= 1).then_some(())
        });
    }

    fn lives(&self, service: &str) -> Vec<Life> {
        let slots = self.slots.iter().filter(|slot| slot.service() == service);
        slots.flat_map(|slot| slot.lives.iter().cloned()).collect()
    }
}

fn slot(coordinator: &ShardCoordinator, place: usize) -> WorkerSlot {
    let aware = [Language::Rust, Language::TypeScript, Language::Python];
    let is_plain = place % PLAIN_EVERY == PLAIN_EVERY - 1;
    let language =
        if is_plain { Language::Plain } else { aware[(place - place / PLAIN_EVERY) % aware.len()] };
    // Only the library in Rust speaks both.
    let over_http = language == Language::Rust && place.is_multiple_of(2);
    let address = if over_http { coordinator.http() } else { coordinator.tcp() };
    let name = format!("{place:02}-{language:?}");
    WorkerSlot { name, language, address, process: None, frozen: Vec::new(), asleep: None, lives: Vec::new() }
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

#[test]
fn well_behaved_workers_never_share_a_shard() {
    let workers = usize::try_from(from_environment("ORCHESTRIX_WORKERS", 12)).unwrap();
    let time = Duration::from_secs(from_environment("ORCHESTRIX_SECONDS", 12));
    let seed = from_environment("ORCHESTRIX_SEED", now() | 1);
    println!("{workers} workers for {time:?}, seed {seed}");
    let (coordinator, folder) = (ShardCoordinator::start(), TempDir::new().unwrap());
    let slots: Vec<WorkerSlot> = (0..workers).map(|place| slot(&coordinator, place)).collect();
    let shards = u32::try_from(2 * workers).unwrap();
    let done = Done::default();
    let mut campaign = Campaign { folder: folder.path(), slots, chance: Chance(seed), done };
    campaign.settle(shards);
    campaign.run(time, shards);
    campaign.settle(shards);
    campaign.slots.iter_mut().for_each(|slot| slot.end(Signal::TERM));

    println!("{:?}", campaign.done);
    let (aware, plain) = (measure(&campaign.lives("aware")), measure(&campaign.lives("plain")));
    println!("those who keep to the rules: {aware}");
    println!("plain ones: {plain}");
    assert!(aware.overlaps.is_empty(), "seed {seed}: {:#?}", aware.overlaps);
    assert!(aware.moves > 0 && aware.uses > 0, "nothing happened");
}
