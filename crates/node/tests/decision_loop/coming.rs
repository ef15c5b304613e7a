//! How workers with shards come: what is echoed, what is kept, and who is let in.

use orchestrix_core::Name;
use orchestrix_core::wire::{Assignment, ShardHeartbeat, ShardRegister};
use orchestrix_node::{Answer, Ask, ShardAsk};

use crate::common::World;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn register(world: &mut World, caller: &'static str, worker: &str, seq: u64) {
    let body = ShardRegister {
        max_shard_count: 8,
        session: Some(name(caller)),
        seq: Some(seq),
        ..ShardRegister::default()
    };
    let (service, worker) = (name("s"), name(worker));
    world.ask(caller, Ask::Shards(Box::new(ShardAsk::Register { service, worker, body })));
}

fn after(world: &mut World, millis: u64) -> Vec<(&'static str, Assignment)> {
    world.now = world.now.plus(millis);
    world.desk.tick(world.now);
    let told = |answer| match answer {
        Ok(Answer::Assignment(told)) => told,
        other => panic!("{other:?}"),
    };
    world.turn().0.into_iter().map(|(caller, answer)| (caller, told(answer))).collect()
}

fn world() -> World {
    let mut world = World::new();
    world.desk.start_term(1, world.now);
    world
}

#[test]
fn the_number_of_a_registration_comes_back_with_its_answer() {
    let mut world = world();
    register(&mut world, "a", "a", 1);
    register(&mut world, "a", "a", 2);
    let repeated = after(&mut world, 0);
    assert_eq!((repeated[0].1.seq, repeated[0].1.lease_ms), (Some(1), 0), "the second took its place");
    assert_eq!(after(&mut world, 250)[0].1.seq, Some(2));
    register(&mut world, "a", "a", 3);
    assert_eq!(after(&mut world, 0)[0].1.seq, Some(3), "again on the same socket");
}

#[test]
fn whoever_comes_by_a_heartbeat_keeps_its_capacity_and_its_group() {
    let mut world = world();
    let body = ShardHeartbeat {
        max_shard_count: 8,
        capacity: Some(3),
        group: Some(name("eu")),
        seq: Some(5),
        ..ShardHeartbeat::default()
    };
    let (service, worker) = (name("s"), name("a"));
    world.ask("a", Ask::Shards(Box::new(ShardAsk::Heartbeat { service, worker, body })));
    let told = after(&mut world, 250).pop().unwrap().1;
    assert_eq!((told.assigned_shards.len(), told.seq), (3, Some(5)));
    world.ask("operator", Ask::Shards(Box::new(ShardAsk::Service(name("s")))));
    let Ok(Answer::Service(service)) = world.turn().0.pop().unwrap().1 else { panic!("a service") };
    assert_eq!((service.group.as_str(), service.workers[0].capacity), ("eu", Some(3)));
}

#[test]
fn whoever_does_not_wait_any_more_is_not_let_in() {
    let mut world = world();
    register(&mut world, "first", "a", 1);
    after(&mut world, 250);
    // It starts again twice; the process in between has died.
    register(&mut world, "second", "a", 1);
    register(&mut world, "third", "a", 1);
    world.gone.lock().unwrap().insert("second");
    after(&mut world, 15_500);
    let told = after(&mut world, 250).pop().unwrap();
    assert_eq!((told.0, told.1.assigned_shards.len()), ("third", 8));
}
