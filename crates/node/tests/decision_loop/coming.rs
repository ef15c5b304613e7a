//! How workers with shards come: what is echoed, what is kept, and who is let in.

use orchestrix_core::limits::SHARD_WORKERS_MAX;
use orchestrix_core::wire::{Assignment, ShardHeartbeat, ShardRegister};
use orchestrix_core::{Name, Position};
use orchestrix_node::{Answer, Ask, Error, ServicePage, ShardAsk};

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
    world.decisions.tick(world.now);
    let assignment = |answer| match answer {
        Ok(Answer::Assignment(assignment)) => assignment,
        other => panic!("{other:?}"),
    };
    world.commit().0.into_iter().map(|(caller, answer)| (caller, assignment(answer))).collect()
}

fn world() -> World {
    let mut world = World::new();
    world.decisions.start_term(1, None, world.now);
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
fn a_worker_known_by_heartbeat_keeps_capacity_and_group() {
    let mut world = world();
    let body = ShardHeartbeat {
        max_shard_count: 8,
        capacity: Some(3),
        group: Some(name("eu")),
        session: Some(name("a")),
        seq: Some(5),
        ..ShardHeartbeat::default()
    };
    let (service, worker) = (name("s"), name("a"));
    world.ask("a", Ask::Shards(Box::new(ShardAsk::Heartbeat { service, worker, body })));
    let assignment = after(&mut world, 250).pop().unwrap().1;
    assert_eq!((assignment.assigned_shards.len(), assignment.seq), (3, Some(5)));
    world.ask("operator", Ask::Shards(Box::new(ShardAsk::Service(name("s").into()))));
    let Ok(Answer::Service(service)) = world.commit().0.pop().unwrap().1 else { panic!("a service") };
    assert_eq!((service.group.as_str(), service.workers[0].capacity), ("eu", Some(3)));
}

#[test]
fn a_repeated_registration_changes_the_capacity() {
    let mut world = world();
    let comes = |world: &mut World, capacity| {
        let session = Some(name("a"));
        let body = ShardRegister { max_shard_count: 8, capacity, session, ..ShardRegister::default() };
        let (service, worker) = (name("s"), name("a"));
        world.ask("a", Ask::Shards(Box::new(ShardAsk::Register { service, worker, body })));
        after(world, 0);
        after(world, 250)
    };
    let mut serves: Vec<u32> = comes(&mut world, Some(3)).pop().unwrap().1.assigned_shards;
    assert_eq!(serves.len(), 3);
    for (capacity, most) in [(Some(5), 5), (Some(2), 2), (Some(2), 2), (Some(0), 0), (None, 8)] {
        comes(&mut world, capacity);
        for _ in 0..2 {
            let body = ShardHeartbeat {
                max_shard_count: 8,
                assigned_shards: serves,
                generation: Some(world.decisions.state().position()),
                session: Some(name("a")),
                ..ShardHeartbeat::default()
            };
            let (service, worker) = (name("s"), name("a"));
            world.ask("a", Ask::Shards(Box::new(ShardAsk::Heartbeat { service, worker, body })));
            serves = after(&mut world, 0).pop().unwrap().1.assigned_shards;
            after(&mut world, 250);
        }
        assert_eq!(serves.len(), most, "{capacity:?}");
        let there = world.decisions.state().service(&name("s")).unwrap().workers[&name("a")].capacity;
        assert_eq!(there, capacity);
    }
}

#[test]
fn a_disconnected_worker_is_not_registered() {
    let mut world = world();
    register(&mut world, "first", "a", 1);
    after(&mut world, 250);
    // It starts again twice; the process in between has died.
    register(&mut world, "second", "a", 1);
    register(&mut world, "third", "a", 1);
    world.gone.lock().unwrap().insert("second");
    after(&mut world, 15_500);
    let assignment = after(&mut world, 250).pop().unwrap();
    assert_eq!((assignment.0, assignment.1.assigned_shards.len()), ("third", 8));
}

fn beats(world: &mut World, caller: &'static str, worker: &str, generation: Option<Position>) -> Assignment {
    let body = ShardHeartbeat {
        max_shard_count: 8,
        generation,
        session: Some(name(caller)),
        ..ShardHeartbeat::default()
    };
    let (service, worker) = (name("s"), name(worker));
    world.ask(caller, Ask::Shards(Box::new(ShardAsk::Heartbeat { service, worker, body })));
    after(world, 250).pop().unwrap().1
}

#[test]
fn a_second_process_replaces_one_that_serves_nothing() {
    let mut world = world();
    let body = ShardRegister {
        max_shard_count: 8,
        capacity: Some(0),
        session: Some(name("zmq-first")),
        ..ShardRegister::default()
    };
    let (service, worker) = (name("s"), name("a"));
    world.ask("zmq-first", Ask::Shards(Box::new(ShardAsk::Register { service, worker, body })));
    assert_eq!(after(&mut world, 250)[0].1.assigned_shards.len(), 0);
    assert!(!beats(&mut world, "zmq-first", "a", None).fenced);
    assert_eq!(beats(&mut world, "zmq-second", "a", None).assigned_shards.len(), 8);
    world.ask("operator", Ask::Shards(Box::new(ShardAsk::Service(name("s").into()))));
    let Ok(Answer::Service(service)) = world.commit().0.pop().unwrap().1 else { panic!("a service") };
    assert_eq!(service.workers.len(), 1);
    let body = ShardHeartbeat {
        max_shard_count: 8,
        assigned_shards: vec![0],
        session: Some(name("zmq-first")),
        generation: Some(Position(2)),
        ..ShardHeartbeat::default()
    };
    let (service, worker) = (name("s"), name("a"));
    world.ask("zmq-first", Ask::Shards(Box::new(ShardAsk::Heartbeat { service, worker, body })));
    assert!(after(&mut world, 0)[0].1.fenced, "the first is not believed any more");
}

#[test]
fn a_worker_of_a_lost_generation_starts_again() {
    let mut world = world();
    let assignment = beats(&mut world, "a", "a", Some(Position(500)));
    assert!(assignment.fenced, "it knows another journal: {assignment:?}");
    assert_eq!(beats(&mut world, "a", "a", None).assigned_shards.len(), 8);
}

#[test]
fn a_refused_registration_blocks_no_other() {
    let mut world = world();
    register(&mut world, "first", "a", 1);
    after(&mut world, 250);
    let other = |group: Option<Name>, count| ShardRegister {
        max_shard_count: count,
        group,
        session: Some(name("second")),
        ..ShardRegister::default()
    };
    for body in [other(Some(name("eu")), 8), other(None, 100_001)] {
        let (service, worker) = (name("s"), name("a"));
        world.ask("second", Ask::Shards(Box::new(ShardAsk::Register { service, worker, body })));
        assert!(world.commit().0.pop().unwrap().1.is_err());
    }
    register(&mut world, "first", "a", 2);
    assert_eq!(after(&mut world, 0)[0].1.assigned_shards.len(), 8, "the first is still believed");
}

#[test]
fn so_many_wait_for_a_service_and_no_more() {
    let mut world = world();
    register(&mut world, "first", "a", 1);
    after(&mut world, 250);
    for n in 0..2 * SHARD_WORKERS_MAX {
        register(&mut world, format!("p{n}").leak(), "a", 1);
    }
    assert!(world.commit().0.is_empty(), "all of them wait");
    register(&mut world, "one-more", "a", 1);
    assert!(matches!(world.commit().0[..], [("one-more", Err(Error::Overloaded))]));
}

#[test]
fn a_page_behind_the_last_shard_is_empty() {
    let mut world = world();
    let body = ShardRegister { max_shard_count: 8, session: Some(name("a")), ..ShardRegister::default() };
    let (service, worker) = (name("s"), name("a"));
    world.ask("a", Ask::Shards(Box::new(ShardAsk::Register { service, worker, body })));
    assert_eq!(after(&mut world, 250)[0].1.assigned_shards.len(), 8);
    for (from, shown) in [(7, 1), (8, 0), (u32::MAX - 1, 0), (u32::MAX, 0)] {
        let page = ServicePage { service: name("s"), from, limit: 100 };
        world.ask("operator", Ask::Shards(Box::new(ShardAsk::Service(page))));
        let Ok(Answer::Service(service)) = world.commit().0.pop().unwrap().1 else { panic!("a service") };
        assert_eq!((service.shards.len(), service.next_cursor), (shown, None), "{from}");
    }
}
