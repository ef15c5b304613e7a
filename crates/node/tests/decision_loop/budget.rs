//! Many shards at once: the loop goes on, and services that nobody needs are forgotten.

use orchestrix_core::limits::SERVICE_KEPT_MS;
use orchestrix_core::wire::{ServiceChange, ShardDeregister, ShardRegister};
use orchestrix_node::{Answer, Ask, ShardAsk};

use crate::common::World;
use crate::sharding::{after, answers, name};

fn comes(world: &mut World, service: &str, count: u32) {
    let body = ShardRegister { max_shard_count: count, session: Some(name("p")), ..ShardRegister::default() };
    let ask = ShardAsk::Register { service: name(service), worker: name("w"), body };
    world.ask("w", Ask::Shards(Box::new(ask)));
}

fn services(world: &mut World) -> Vec<String> {
    world.ask("operator", Ask::Shards(Box::new(ShardAsk::Services { group: None })));
    match world.commit().0.pop().unwrap().1 {
        Ok(Answer::Services(list)) => {
            list.services.iter().map(|service| service.service.as_str().to_owned()).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn world() -> World {
    let mut world = World::new();
    world.decisions.start_term(1, None, world.now);
    world
}

#[test]
fn a_million_shards_are_granted_in_slices() {
    let mut world = world();
    for n in 0..10 {
        comes(&mut world, &format!("s{n}"), 100_000);
    }
    world.commit();
    world.now = world.now.plus(250);
    let (mut slices, mut before) = (0, 0);
    let mut answered = Vec::new();
    while answered.len() < 10 {
        world.decisions.tick(world.now);
        let granted = world.stats.shards_granted.get();
        assert!(granted - before <= 20_000, "{} at one go", granted - before);
        (slices, before) = (slices + 1, granted);
        assert!(slices <= 200, "it comes to an end");
        answered.extend(answers(&mut world));
    }
    assert!(answered.iter().all(|(_, assignment)| assignment.assigned_shards.len() == 100_000));
    assert_eq!(before, 1_000_000);
}

#[test]
fn a_service_that_lost_its_workers_is_forgotten_after_a_while() {
    let mut world = world();
    comes(&mut world, "s", 4);
    comes(&mut world, "kept", 4);
    assert_eq!(after(&mut world, 250).len(), 2);
    let change = ServiceChange { shard_count: Some(5), weights: None };
    world.ask("operator", Ask::Shards(Box::new(ShardAsk::Change { service: name("kept"), change })));
    world.commit();
    for service in ["s", "kept"] {
        let body = ShardDeregister { session: Some(name("p")), seq: None };
        let ask = ShardAsk::Deregister { service: name(service), worker: name("w"), body };
        world.ask("w", Ask::Shards(Box::new(ask)));
    }
    answers(&mut world);
    after(&mut world, SERVICE_KEPT_MS - 1);
    assert_eq!(services(&mut world), ["kept", "s"]);
    after(&mut world, 1);
    assert_eq!(services(&mut world), ["kept"]);
    assert_eq!(world.stats.services_expired.get(), 1);
    after(&mut world, 10 * SERVICE_KEPT_MS);
    assert_eq!(services(&mut world), ["kept"], "an operator set its number");
}

#[test]
fn a_service_that_its_workers_come_back_to_is_kept() {
    let mut world = world();
    comes(&mut world, "s", 4);
    after(&mut world, 250);
    after(&mut world, 16_000);
    after(&mut world, SERVICE_KEPT_MS - 1_000);
    comes(&mut world, "s", 4);
    assert_eq!(after(&mut world, 250)[0].1.assigned_shards.len(), 4);
    after(&mut world, 10_000);
    assert_eq!(services(&mut world), ["s"]);
}

#[test]
fn a_new_leader_forgets_services_without_workers_too() {
    let mut world = world();
    comes(&mut world, "s", 4);
    after(&mut world, 250);
    after(&mut world, 16_000);
    let mut next = World::new();
    *next.decisions.state_mut() = std::mem::take(world.decisions.state_mut());
    next.now = world.now.plus(1);
    next.decisions.start_term(2, None, next.now);
    after(&mut next, SERVICE_KEPT_MS - 1);
    assert_eq!(services(&mut next), ["s"]);
    after(&mut next, 1);
    assert!(services(&mut next).is_empty());
}
