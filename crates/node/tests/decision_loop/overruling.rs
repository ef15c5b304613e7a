//! Plain workers that read one assignment and no more: in a service that has no others, they are overruled.

use std::collections::BTreeMap;

use orchestrix_core::wire::{Assignment, ShardHeartbeat, ShardRegister};
use orchestrix_core::{Name, Position};
use orchestrix_node::{Ask, ShardAsk};

use crate::common::World;
use crate::sharding::{after, answers, name, view};

const SHARDS: u32 = 100;
/// Milliseconds between two heartbeats of a plain worker.
const BEAT_MS: u64 = 10_000;

/// Workers that go by what they were told first, and what each of them says.
struct Deaf {
    world: World,
    /// What each serves, and when it says so next.
    serve: BTreeMap<&'static str, (Vec<u32>, u64)>,
    /// Milliseconds since the beginning.
    now: u64,
}

impl Deaf {
    fn new() -> Self {
        let mut world = World::new();
        world.decisions.start_term(1, None, world.now);
        Self { world, serve: BTreeMap::new(), now: 0 }
    }

    fn register(&mut self, worker: &'static str, seq: Option<u64>) {
        let body = ShardRegister {
            max_shard_count: SHARDS,
            session: Some(name(worker)),
            seq,
            ..ShardRegister::default()
        };
        let (service, worker_name) = (name("s"), name(worker));
        let ask = ShardAsk::Register { service, worker: worker_name, body };
        self.world.ask(worker, Ask::Shards(Box::new(ask)));
        assert!(answers(&mut self.world).is_empty(), "it waits");
    }

    fn beat(&mut self, worker: &'static str, generation: Option<Position>) -> Assignment {
        let body = ShardHeartbeat {
            max_shard_count: SHARDS,
            assigned_shards: self.serve[worker].0.clone(),
            generation,
            session: Some(name(worker)),
            ..ShardHeartbeat::default()
        };
        let ask = ShardAsk::Heartbeat { service: name("s"), worker: name(worker), body };
        self.world.ask(worker, Ask::Shards(Box::new(ask)));
        answers(&mut self.world).into_iter().find(|(to, _)| *to == worker).expect("it is answered at once").1
    }

    /// Lets time go by. Whoever is answered for the first time serves that from then on, and says so every ten seconds.
    fn pass(&mut self, millis: u64) {
        let until = self.now + millis;
        while self.now < until {
            self.now += 50;
            for (worker, assigned) in after(&mut self.world, 50) {
                self.serve.entry(worker).or_insert((assigned.assigned_shards, self.now + BEAT_MS));
            }
            let due: Vec<&'static str> =
                self.serve.iter().filter(|(_, (_, at))| *at <= self.now).map(|(worker, _)| *worker).collect();
            for worker in due {
                assert!(!self.beat(worker, None).fenced, "{worker} is believed");
                self.serve.get_mut(worker).unwrap().1 += BEAT_MS;
            }
        }
    }

    fn served(&self, worker: &str) -> usize {
        self.serve[worker].0.len()
    }

    fn overruled(&self) -> u64 {
        self.world.stats.shards_overruled.get()
    }
}

#[test]
fn three_that_come_two_seconds_apart_all_get_a_share() {
    let mut deaf = Deaf::new();
    deaf.register("w1", None);
    deaf.pass(2_000);
    deaf.register("w2", None);
    deaf.pass(2_000);
    deaf.register("w3", None);
    deaf.pass(11_950);
    assert_eq!(deaf.serve.len(), 3, "the second must be answered 14 seconds after it came");
    assert_eq!(["w1", "w2", "w3"].map(|worker| deaf.served(worker)), [100, 33, 33]);
    let service = view(&mut deaf.world);
    let shares: Vec<usize> = service.workers.iter().map(|worker| worker.shards.len()).collect();
    assert_eq!(shares, [34, 33, 33]);
    assert_eq!(deaf.overruled(), 66);
    // It goes on to say that it serves everything: that is seen, and changes nothing.
    deaf.pass(60_000);
    let service = view(&mut deaf.world);
    let seen: Vec<(usize, bool)> =
        service.workers.iter().map(|worker| (worker.shards.len(), worker.listens)).collect();
    assert_eq!(seen, [(34, false), (33, true), (33, true)]);
    assert_eq!(deaf.overruled(), 66);
}

#[test]
fn a_heartbeat_with_withdrawn_shards_is_overruled_at_once() {
    let mut deaf = Deaf::new();
    deaf.register("w1", None);
    deaf.pass(1_000);
    deaf.register("w2", None);
    deaf.pass(1_000);
    deaf.beat("w1", None);
    assert_eq!(deaf.overruled(), 0, "it may not have heard of it when it sent this");
    deaf.beat("w1", None);
    assert_eq!(deaf.overruled(), 50, "now it has");
    deaf.pass(500);
    assert_eq!(deaf.served("w2"), 50);
}

#[test]
fn no_worker_is_overruled_beside_an_aware_one() {
    for comes_with_number in [true, false] {
        let mut deaf = Deaf::new();
        deaf.register("w1", None);
        deaf.pass(1_000);
        // One says by a number that it knows more than the plain protocol, another by its first heartbeat.
        deaf.register("w2", comes_with_number.then_some(1));
        deaf.pass(500);
        if !comes_with_number {
            deaf.serve.insert("w2", (vec![], u64::MAX));
            let generation = Some(view(&mut deaf.world).generation);
            deaf.beat("w2", generation);
        }
        deaf.register("w3", None);
        deaf.pass(14_000);
        assert_eq!((deaf.served("w1"), deaf.served("w3"), deaf.overruled()), (100, 0, 0));
    }
}

#[test]
fn an_unanswered_worker_is_not_overruled() {
    let mut deaf = Deaf::new();
    deaf.register("w1", None);
    deaf.pass(1_000);
    // It says nothing for as long as the other waits.
    deaf.serve.get_mut("w1").unwrap().1 = 14_500;
    deaf.register("w2", None);
    deaf.pass(13_450);
    assert_eq!(deaf.overruled(), 0);
    // Then it does, and the other is still there to be answered.
    deaf.pass(550);
    assert_eq!((deaf.overruled(), deaf.served("w2")), (50, 50));
}

#[test]
fn a_new_leader_hears_of_all_before_it_overrules_any() {
    let mut deaf = Deaf::new();
    for worker in ["w1", "w2"] {
        deaf.register(worker, None);
    }
    deaf.pass(1_000);
    let mut next = World::new();
    *next.decisions.state_mut() = std::mem::take(deaf.world.decisions.state_mut());
    next.now = deaf.world.now.plus(1);
    next.decisions.start_term(2, None, next.now);
    deaf.world = next;
    deaf.register("w3", None);
    deaf.pass(500);
    for _ in 0..3 {
        deaf.beat("w1", None);
    }
    assert_eq!(deaf.overruled(), 0, "nobody knows whether the other echoes generations");
    deaf.beat("w2", None);
    deaf.beat("w1", None);
    assert!(deaf.overruled() > 0);
}

/// What was taken from it is among what it names, for ever.
#[test]
fn a_new_leader_believes_a_worker_that_was_overruled() {
    let mut deaf = Deaf::new();
    deaf.register("w1", None);
    deaf.pass(1_000);
    deaf.register("w2", None);
    deaf.pass(20_000);
    assert_eq!((deaf.served("w1"), deaf.served("w2")), (100, 50));
    let mut next = World::new();
    *next.decisions.state_mut() = std::mem::take(deaf.world.decisions.state_mut());
    next.now = deaf.world.now.plus(1);
    next.decisions.start_term(2, None, next.now);
    deaf.world = next;
    assert!(!deaf.beat("w1", None).fenced);
    deaf.pass(60_000);
    assert_eq!(view(&mut deaf.world).workers.len(), 2);
}

#[test]
fn overlapping_shards_are_counted_for_each_service() {
    let mut deaf = Deaf::new();
    deaf.register("w1", None);
    deaf.pass(1_000);
    deaf.register("w2", None);
    deaf.pass(30_000);
    deaf.world.ask("operator", Ask::Shards(Box::new(ShardAsk::Services { group: None })));
    let Ok(orchestrix_node::Answer::Services(list)) = deaf.world.commit().0.pop().unwrap().1 else {
        panic!("a list")
    };
    let of: Vec<(&Name, u64)> =
        list.services.iter().map(|service| (&service.service, service.overlapping)).collect();
    assert_eq!(of, [(&name("s"), 50)]);
}
