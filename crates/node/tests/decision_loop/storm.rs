//! Many workers at once: restarts cause no storm.

use std::collections::BTreeMap;

use orchestrix_core::Name;
use orchestrix_core::wire::{Assignment, ShardHeartbeat, ShardRegister};
use orchestrix_node::{Answer, Ask, ShardAsk};

use crate::common::World;

const SHARDS: u32 = 1_024;
const WORKERS: usize = 100;

/// A worker that does as it is told, and which process of its name it is.
struct Worker {
    name: &'static str,
    process: u32,
    assignment: Assignment,
    /// A call of its waits.
    waits: bool,
}

impl Worker {
    fn session(&self) -> Option<Name> {
        Some(Name::new(&format!("{}-{}", self.name, self.process)).unwrap())
    }

    fn comes(&mut self, world: &mut World) {
        let body = ShardRegister {
            max_shard_count: SHARDS,
            capacity: None,
            group: None,
            session: self.session(),
            ..ShardRegister::default()
        };
        let (service, worker) = (Name::new("s").unwrap(), Name::new(self.name).unwrap());
        world.ask(self.name, Ask::Shards(Box::new(ShardAsk::Register { service, worker, body })));
        self.waits = true;
    }

    fn says(&self, world: &mut World) {
        let body = ShardHeartbeat {
            max_shard_count: SHARDS,
            assigned_shards: self.assignment.assigned_shards.clone(),
            generation: Some(self.assignment.generation),
            seq: None,
            session: self.session(),
            ..ShardHeartbeat::default()
        };
        let (service, worker) = (Name::new("s").unwrap(), Name::new(self.name).unwrap());
        world.ask(self.name, Ask::Shards(Box::new(ShardAsk::Heartbeat { service, worker, body })));
    }
}

/// Lets a second go by in which those who do not wait say that they are there.
fn second(world: &mut World, workers: &mut [Worker]) {
    for _ in 0..4 {
        world.now = world.now.plus(250);
        world.decisions.tick(world.now);
        hear(world, workers);
    }
    for worker in workers.iter().filter(|worker| !worker.waits) {
        worker.says(world);
    }
    hear(world, workers);
}

fn hear(world: &mut World, workers: &mut [Worker]) {
    for (name, answer) in world.commit().0 {
        let Ok(Answer::Assignment(assignment)) = answer else { panic!("{name} heard {answer:?}") };
        let worker = workers.iter_mut().find(|worker| worker.name == name).unwrap();
        (worker.assignment, worker.waits) = (assignment, false);
    }
}

fn holders(workers: &[Worker]) -> BTreeMap<u32, &'static str> {
    workers
        .iter()
        .flat_map(|worker| worker.assignment.assigned_shards.iter().map(|shard| (*shard, worker.name)))
        .collect()
}

#[test]
fn twenty_of_a_hundred_workers_restart_undisturbed() {
    let mut world = World::new();
    world.decisions.start_term(1, None, world.now);
    let mut workers: Vec<Worker> = (0..WORKERS)
        .map(|n| Worker {
            name: format!("w{n:03}").leak(),
            process: 1,
            assignment: Assignment::default(),
            waits: false,
        })
        .collect();
    workers.iter_mut().for_each(|worker| worker.comes(&mut world));
    (0..3).for_each(|_| second(&mut world, &mut workers));
    let before = holders(&workers);
    assert_eq!(before.len(), SHARDS as usize);
    let (rounds, withdrawn) = (world.stats.shard_rounds.get(), world.stats.shards_withdrawn.get());
    // One every second and a half, for 30 seconds; then until the time of the last is over.
    for at in 0..60 {
        if at < 30 && at % 3 != 1 {
            let worker = &mut workers[at * 3];
            worker.process += 1;
            worker.assignment = Assignment::default();
            worker.comes(&mut world);
        }
        second(&mut world, &mut workers);
    }
    let after = holders(&workers);
    assert_eq!(after.len(), SHARDS as usize, "every shard is served");
    assert_eq!(world.stats.shards_withdrawn.get(), withdrawn, "nobody was asked for anything");
    let restarted: Vec<&str> =
        workers.iter().filter(|worker| worker.process > 1).map(|worker| worker.name).collect();
    assert_eq!(restarted.len(), 20);
    for (shard, holder) in &before {
        assert!(restarted.contains(holder) || after[shard] == *holder, "shard {shard} of {holder} moved");
    }
    let rounds = world.stats.shard_rounds.get() - rounds;
    assert!(rounds <= 20, "{rounds} rounds, one for each at most");
}
