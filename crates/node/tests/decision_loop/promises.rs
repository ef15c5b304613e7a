//! Settings that change between terms: a new one keeps what those before it have promised.

use orchestrix_core::SnapshotLoader;
use orchestrix_node::{Options, ShardTimes};

use crate::common::World;
use crate::sharding::{after, heartbeat, register, three, view};

fn lease_of(lease_ms: u64) -> Options {
    Options { shards: ShardTimes { lease_ms, check_ms: lease_ms / 3 }, ..Options::default() }
}

/// The next term, on what this one has left, with a length of its own.
fn next_term(mut world: World, epoch: u64, lease_ms: u64) -> World {
    let mut next = World::with(lease_of(lease_ms));
    *next.decisions.state_mut() = std::mem::take(world.decisions.state_mut());
    next.now = world.now.plus(1);
    next.decisions.start_term(epoch, None, next.now);
    next
}

#[test]
fn a_shorter_shard_lease_keeps_what_was_promised() {
    let (world, assignment) = three();
    assert_eq!(assignment[0].1.lease_ms, 15_000);
    let mut next = next_term(world, 2, 2_000);
    register(&mut next, "d", "d");
    after(&mut next, 15_300);
    assert_eq!(view(&mut next).workers.len(), 4, "the others may serve for 15 s");
    after(&mut next, 10);
    assert_eq!(view(&mut next).workers.len(), 1, "and no longer; d still waits");
}

#[test]
fn a_short_term_between_takes_nothing_from_a_promise() {
    let (world, _) = three();
    let mut next = next_term(world, 2, 2_000);
    next.decisions.tick_every(Some(1_000));
    after(&mut next, 5_000);
    let mut last = next_term(next, 3, 2_000);
    after(&mut last, 10_290);
    assert_eq!(view(&mut last).workers.len(), 3, "15 s in both terms together");
    after(&mut last, 30);
    assert_eq!(view(&mut last).workers.len(), 0);
}

#[test]
fn a_promise_is_kept_from_a_snapshot_on() {
    let (mut world, _) = three();
    let mut loader = SnapshotLoader::new();
    loader.load(&world.decisions.state_mut().begin_capture()).unwrap();
    let mut chunk = Vec::new();
    world.decisions.state_mut().step_capture(1_000, 1 << 20, &mut chunk);
    loader.load(&chunk).unwrap();
    *world.decisions.state_mut() = loader.finish().unwrap();
    let mut next = next_term(world, 2, 2_000);
    after(&mut next, 15_300);
    assert_eq!(view(&mut next).workers.len(), 3);
}

#[test]
fn a_longer_shard_lease_is_promised_and_kept() {
    let (world, assignment) = three();
    let mut next = next_term(world, 2, 30_000);
    let (worker, assignment) = &assignment[0];
    let kept = heartbeat(&mut next, worker, worker, &assignment.assigned_shards, Some(assignment.generation));
    assert_eq!(kept.lease_ms, 30_000);
    let mut last = next_term(next, 3, 2_000);
    after(&mut last, 30_600);
    assert_eq!(view(&mut last).workers.len(), 3, "nobody knows who heard of the longer time");
    after(&mut last, 10);
    assert_eq!(view(&mut last).workers.len(), 0);
}
