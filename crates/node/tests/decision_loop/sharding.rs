//! Shards in the loop: who gets what when, and who has to let go first.

use orchestrix_core::shards::CONNECTION_SESSION;
use orchestrix_core::wire::{
    Assignment, ServiceChange, ServiceView, ShardDeregister, ShardHeartbeat, ShardRegister,
};
use orchestrix_core::{Name, Position, SnapshotLoader, State};
use orchestrix_node::{Answer, Ask, Error, ShardAsk};

use crate::common::World;

const LEASE_MS: u64 = 15_000;

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn register(world: &mut World, worker: &'static str, session: &str) {
    let body = ShardRegister {
        max_shard_count: 10,
        capacity: None,
        group: None,
        session: Some(name(session)),
        ..ShardRegister::default()
    };
    world.ask(
        worker,
        Ask::Shards(Box::new(ShardAsk::Register { service: name("s"), worker: name(worker), body })),
    );
}

pub(crate) fn heartbeat(
    world: &mut World,
    worker: &'static str,
    session: &str,
    serves: &[u32],
    generation: Option<Position>,
) -> Assignment {
    let body = ShardHeartbeat {
        max_shard_count: 10,
        assigned_shards: serves.to_vec(),
        generation,
        seq: Some(7),
        session: Some(name(session)),
        ..ShardHeartbeat::default()
    };
    world.ask(
        worker,
        Ask::Shards(Box::new(ShardAsk::Heartbeat { service: name("s"), worker: name(worker), body })),
    );
    answers(world).pop().expect("a heartbeat is answered at once").1
}

/// The assignments that were answered by now.
pub(crate) fn answers(world: &mut World) -> Vec<(&'static str, Assignment)> {
    let (answers, _) = world.commit();
    answers
        .into_iter()
        .map(|(name, answer)| match answer {
            Ok(Answer::Assignment(assignment)) => (name, assignment),
            other => panic!("{name} heard {other:?}"),
        })
        .collect()
}

pub(crate) fn view(world: &mut World) -> ServiceView {
    world.ask("operator", Ask::Shards(Box::new(ShardAsk::Service(name("s").into()))));
    match world.commit().0.pop().unwrap().1 {
        Ok(Answer::Service(service)) => *service,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn after(world: &mut World, millis: u64) -> Vec<(&'static str, Assignment)> {
    world.now = world.now.plus(millis);
    world.decisions.tick(world.now);
    answers(world)
}

/// Three workers that came within a moment, each with a session of its own name, and what they were told.
pub(crate) fn three() -> (World, Vec<(&'static str, Assignment)>) {
    three_with("")
}

/// The same with sessions of connections, as those have that name none.
pub(crate) fn three_connections() -> (World, Vec<(&'static str, Assignment)>) {
    three_with(CONNECTION_SESSION)
}

fn three_with(prefix: &str) -> (World, Vec<(&'static str, Assignment)>) {
    let mut world = World::new();
    world.decisions.start_term(1, None, world.now);
    for worker in ["b", "c", "a"] {
        register(&mut world, worker, &format!("{prefix}{worker}"));
    }
    assert!(answers(&mut world).is_empty(), "they wait for each other");
    let mut assigned = after(&mut world, 250);
    assigned.sort_by_key(|(worker, _)| *worker);
    (world, assigned)
}

#[test]
fn workers_that_register_together_get_the_documented_split() {
    let (mut world, assigned) = three();
    let shares: Vec<&[u32]> = assigned.iter().map(|(_, assigned)| &assigned.assigned_shards[..]).collect();
    assert_eq!(shares, [&[0, 1, 2, 3][..], &[4, 5, 6], &[7, 8, 9]]);
    for (_, assigned) in &assigned {
        assert_eq!((assigned.tokens.len(), assigned.lease_ms), (assigned.assigned_shards.len(), LEASE_MS));
    }
    // Whoever comes again on the same socket hears the same at once.
    register(&mut world, "a", "a");
    assert_eq!(answers(&mut world), [("a", assigned[0].1.clone())]);
}

#[test]
fn a_late_comer_gets_a_shard_only_when_its_worker_let_go() {
    let (mut world, assigned) = three();
    let generation = Some(assigned[0].1.generation);
    register(&mut world, "d", "d");
    assert!(after(&mut world, 250).is_empty(), "it waits for the others to let go");
    // Whoever has not heard of it yet lets go of nothing, whatever it serves.
    let new = heartbeat(&mut world, "a", "a", &[], generation);
    assert_eq!((&new.assigned_shards[..], new.seq), (&[0, 1, 2][..], Some(7)));
    assert!(after(&mut world, 250).is_empty());
    heartbeat(&mut world, "a", "a", &[0, 1, 2, 3], Some(new.generation));
    assert!(after(&mut world, 250).is_empty(), "it still serves what it should not");
    let assigned = heartbeat(&mut world, "a", "a", &[0, 1, 2], Some(new.generation));
    let withdrawn: Vec<u32> = view(&mut world)
        .shards
        .iter()
        .filter(|shard| shard.state == "WITHDRAWN")
        .map(|shard| shard.shard)
        .collect();
    assert_eq!(withdrawn.len(), 1, "{withdrawn:?}");
    let other = if withdrawn[0] <= 6 { "b" } else { "c" };
    let serves: Vec<u32> = if other == "b" { vec![4, 5, 6] } else { vec![7, 8, 9] }
        .into_iter()
        .filter(|shard| *shard != withdrawn[0])
        .collect();
    heartbeat(&mut world, other, other, &serves, Some(assigned.generation));
    let assigned = after(&mut world, 250);
    assert_eq!(assigned.len(), 1);
    assert_eq!((assigned[0].0, &assigned[0].1.assigned_shards[..]), ("d", &[3, withdrawn[0]][..]));
}

#[test]
fn a_register_that_waits_in_vain_gets_what_is_free() {
    let (mut world, assigned) = three();
    heartbeat(&mut world, "b", "b", &[4, 5, 6], Some(assigned[1].1.generation));
    register(&mut world, "d", "d");
    for _ in 0..13 {
        // The others live, and do not let go.
        for (worker, serves) in [("a", &[0, 1, 2, 3][..]), ("b", &[4, 5, 6]), ("c", &[7, 8, 9])] {
            heartbeat(&mut world, worker, worker, serves, None);
        }
        assert!(after(&mut world, 1_000).is_empty());
    }
    let assigned = after(&mut world, 1_000);
    assert_eq!((assigned[0].0, assigned[0].1.assigned_shards.len()), ("d", 0));
}

#[test]
fn a_plain_worker_is_believed_after_two_heartbeats() {
    let (mut world, _) = three();
    register(&mut world, "d", "d");
    after(&mut world, 250);
    heartbeat(&mut world, "a", "a", &[0, 1, 2], None);
    after(&mut world, 4_999);
    heartbeat(&mut world, "a", "a", &[0, 1, 2], None);
    assert_eq!(view(&mut world).shards[3].state, "WITHDRAWN", "one millisecond too early");
    after(&mut world, 1);
    heartbeat(&mut world, "a", "a", &[0, 1, 2], None);
    assert_ne!(view(&mut world).shards[3].state, "WITHDRAWN");
}

/// Such heartbeats are from before it joined, and were long under way.
#[test]
fn an_omitted_generation_releases_nothing_once_one_was_sent() {
    let (mut world, assigned) = three();
    heartbeat(&mut world, "a", "a", &[0, 1, 2, 3], Some(assigned[0].1.generation));
    register(&mut world, "d", "d");
    after(&mut world, 250);
    for _ in 0..2 {
        heartbeat(&mut world, "a", "a", &[], None);
        after(&mut world, 5_000);
    }
    assert_eq!(view(&mut world).shards[3].state, "WITHDRAWN", "it has not heard of it yet, and serves it");
}

#[test]
fn in_between_it_may_say_that_it_serves_it_after_all() {
    let (mut world, assigned) = three();
    heartbeat(&mut world, "b", "b", &[4, 5, 6], Some(assigned[1].1.generation));
    register(&mut world, "d", "d");
    after(&mut world, 250);
    for serves in [&[0, 1, 2][..], &[0, 1, 2, 3], &[0, 1, 2]] {
        heartbeat(&mut world, "a", "a", serves, None);
        after(&mut world, 2_500);
    }
    assert_eq!(view(&mut world).shards[3].state, "WITHDRAWN", "its time began anew");
}

#[test]
fn a_silent_worker_loses_its_shards_exactly_in_time() {
    let (mut world, assigned) = three();
    let generation = Some(assigned[0].1.generation);
    // What it is told is 15 s; a clock that runs 1 % slow is waited for, by one that is set 1 % fast.
    for _ in 0..3 {
        after(&mut world, 5_000);
        heartbeat(&mut world, "b", "b", &[4, 5, 6], generation);
        heartbeat(&mut world, "c", "c", &[7, 8, 9], generation);
    }
    after(&mut world, 302);
    assert_eq!(view(&mut world).shards[0].worker, Some(name("a")));
    after(&mut world, 1);
    let service = view(&mut world);
    assert_eq!(service.workers.len(), 2);
    assert!(service.shards.iter().all(|shard| shard.state == "HELD"), "its shards are held again at once");
    // It was frozen, and speaks: it must stop, and may come again when it has.
    let thawed = heartbeat(&mut world, "a", "a", &[0, 1, 2, 3], generation);
    assert!(thawed.fenced && thawed.assigned_shards.is_empty());
    let body = ShardHeartbeat {
        max_shard_count: 10,
        assigned_shards: vec![],
        generation: None,
        seq: None,
        session: Some(name("a")),
        ..ShardHeartbeat::default()
    };
    world
        .ask("a", Ask::Shards(Box::new(ShardAsk::Heartbeat { service: name("s"), worker: name("a"), body })));
    assert!(answers(&mut world).is_empty(), "it has joined, and waits for its share");
    assert_eq!(view(&mut world).workers.len(), 3);
}

#[test]
fn a_worker_that_leaves_is_replaced_at_once() {
    let (mut world, _) = three();
    after(&mut world, 1_000);
    let body = ShardDeregister { session: Some(name("a")), seq: None };
    world.ask(
        "a",
        Ask::Shards(Box::new(ShardAsk::Deregister { service: name("s"), worker: name("a"), body })),
    );
    assert!(!answers(&mut world)[0].1.fenced);
    let body = ShardDeregister { session: Some(name("other")), seq: None };
    world.ask(
        "b",
        Ask::Shards(Box::new(ShardAsk::Deregister { service: name("s"), worker: name("b"), body })),
    );
    let refused = answers(&mut world).remove(0).1;
    assert!(refused.fenced && refused.assigned_shards.is_empty(), "another process cannot go for it");
    assert_eq!(view(&mut world).workers.len(), 2);
    after(&mut world, 20);
    let service = view(&mut world);
    assert!(service.shards.iter().all(|shard| shard.state == "HELD" && shard.worker != Some(name("a"))));
}

#[test]
fn a_service_without_shards_and_workers_is_forgotten() {
    let (mut world, _) = three();
    let change = |count| {
        let change = ServiceChange { shard_count: Some(count), weights: None };
        Ask::Shards(Box::new(ShardAsk::Change { service: name("s"), change }))
    };
    world.ask("operator", change(0));
    world.commit();
    assert_eq!(view(&mut world).workers.len(), 3, "its workers are still there");
    for worker in ["a", "b", "c"] {
        let body = ShardDeregister { session: Some(name(worker)), seq: None };
        world.ask(
            worker,
            Ask::Shards(Box::new(ShardAsk::Deregister { service: name("s"), worker: name(worker), body })),
        );
        answers(&mut world);
    }
    world.ask("operator", Ask::Shards(Box::new(ShardAsk::Services { group: None })));
    let Ok(Answer::Services(list)) = world.commit().0.pop().unwrap().1 else { panic!("a list") };
    assert_eq!(list.services, []);
    world.ask("operator", change(0));
    let Ok(Answer::Service(service)) = world.commit().0.pop().unwrap().1 else { panic!("a service") };
    assert_eq!((service.shard_count, service.workers.len()), (0, 0));
    register(&mut world, "a", "a");
    assert_eq!(after(&mut world, 250)[0].1.assigned_shards.len(), 10, "whoever comes begins anew");
}

#[test]
fn a_shard_without_a_worker_is_counted_by_how_long() {
    let (mut world, _) = three();
    after(&mut world, 10_000);
    let body = ShardDeregister { session: Some(name("a")), seq: None };
    world.ask(
        "a",
        Ask::Shards(Box::new(ShardAsk::Deregister { service: name("s"), worker: name("a"), body })),
    );
    answers(&mut world);
    after(&mut world, 20);
    let vacant = &world.stats.shard_vacant;
    assert_eq!((vacant.buckets().sum::<u64>(), vacant.sum_us()), (4, 4 * 20_000));
}

#[test]
fn a_second_process_waits_until_the_firsts_time_is_over() {
    let (mut world, assigned) = three();
    let generation = Some(assigned[0].1.generation);
    register(&mut world, "a", "other");
    assert!(answers(&mut world).is_empty());
    let fenced = heartbeat(&mut world, "a", "a", &[0, 1, 2, 3], generation);
    assert!(fenced.fenced, "the first is not believed any more");
    for _ in 0..2 {
        after(&mut world, 7_000);
        heartbeat(&mut world, "b", "b", &[4, 5, 6], generation);
        heartbeat(&mut world, "c", "c", &[7, 8, 9], generation);
    }
    assert_eq!(view(&mut world).shards[0].worker, Some(name("a")), "its time is not over");
    after(&mut world, 1_303);
    let service = view(&mut world);
    assert_eq!(
        (&service.shards[0].worker, service.workers.len()),
        (&None, 3),
        "now it is, and the second is in"
    );
    let assigned = after(&mut world, 250);
    assert_eq!((assigned[0].0, assigned[0].1.assigned_shards.len()), ("a", 4));
}

#[test]
fn a_restart_right_after_a_heartbeat_gets_its_share() {
    let (mut world, assigned) = three();
    let generation = Some(assigned[0].1.generation);
    for (worker, assigned) in &assigned {
        heartbeat(&mut world, worker, worker, &assigned.assigned_shards, generation);
    }
    register(&mut world, "a", "a-again");
    for _ in 0..15 {
        assert!(after(&mut world, 1_000).is_empty(), "the time of the first is not over");
        for (worker, assigned) in &assigned[1..] {
            heartbeat(&mut world, worker, worker, &assigned.assigned_shards, generation);
        }
    }
    let mut heard: Vec<_> = (0..5).flat_map(|_| after(&mut world, 250)).collect();
    let (worker, assigned) = heard.pop().unwrap();
    assert_eq!((worker, assigned.assigned_shards.len()), ("a", 4));
}

#[test]
fn a_new_leader_treats_all_as_live_and_moves_nothing() {
    let (mut world, assigned) = three_connections();
    let before = view(&mut world).shards;
    let state = std::mem::take(world.decisions.state_mut());
    let mut next = World::new();
    *next.decisions.state_mut() = state;
    next.now = world.now.plus(1);
    next.decisions.start_term(2, None, next.now);
    after(&mut next, LEASE_MS);
    assert_eq!(view(&mut next).shards, before, "nobody was heard of, and all keep what they have");
    let kept = heartbeat(&mut next, "a", "zmq-reconnected", &[0, 1, 2, 3], Some(assigned[0].1.generation));
    assert!(!kept.fenced);
    assert_eq!(kept.tokens, assigned[0].1.tokens);
    after(&mut next, 303);
    assert_eq!(view(&mut next).workers.len(), 1, "then only whoever was heard of is there");
}

#[test]
fn a_waiting_register_moves_on_when_the_leader_stops() {
    let (mut world, _) = three();
    register(&mut world, "d", "d");
    world.commit();
    world.decisions.dismiss(world.now);
    let (answers, _) = world.commit();
    assert!(matches!(answers[..], [("d", Err(Error::Stopping))]), "{answers:?}");
}

/// What a process hears that serves nothing, if it hears anything.
pub(crate) fn comes_empty(
    world: &mut World,
    worker: &'static str,
    session: &str,
) -> Vec<(&'static str, Assignment)> {
    let body = ShardHeartbeat {
        max_shard_count: 10,
        assigned_shards: vec![],
        generation: None,
        seq: None,
        session: Some(name(session)),
        ..ShardHeartbeat::default()
    };
    world.ask(
        worker,
        Ask::Shards(Box::new(ShardAsk::Heartbeat { service: name("s"), worker: name(worker), body })),
    );
    answers(world)
}

#[test]
fn a_second_process_gets_nothing_by_heartbeats() {
    let (mut world, assigned) = three();
    let generation = Some(assigned[0].1.generation);
    let none = |heard: Vec<(&str, Assignment)>| {
        heard.iter().all(|(_, assigned)| assigned.assigned_shards.is_empty())
    };
    // By heartbeats alone, and then by heartbeats after a register.
    assert!(none(comes_empty(&mut world, "a", "other")), "the first still serves them");
    register(&mut world, "a", "other");
    for _ in 0..2 {
        for _ in 0..7 {
            assert!(none(after(&mut world, 1_000)));
            assert!(none(comes_empty(&mut world, "a", "other")));
        }
        heartbeat(&mut world, "b", "b", &[4, 5, 6], generation);
        heartbeat(&mut world, "c", "c", &[7, 8, 9], generation);
    }
    assert_eq!(view(&mut world).shards[0].worker, Some(name("a")), "14 seconds are not 15");
}

#[test]
fn a_new_process_waits_under_a_new_leader_as_well() {
    let (mut world, assigned) = three_connections();
    let mut state = std::mem::take(world.decisions.state_mut());
    for by_heartbeat in [false, true] {
        let mut next = World::new();
        *next.decisions.state_mut() = copy_of(&mut state);
        next.now = world.now.plus(1);
        next.decisions.start_term(2, None, next.now);
        let heard = if by_heartbeat {
            comes_empty(&mut next, "a", "zmq-other")
        } else {
            register(&mut next, "a", "zmq-other");
            answers(&mut next)
        };
        assert!(heard.iter().all(|(_, assigned)| assigned.assigned_shards.is_empty()), "{heard:?}");
        // Whoever speaks for the name is not known; whoever served is not believed any more, and stops.
        assert!(heartbeat(&mut next, "a", "zmq-a", &[0, 1, 2, 3], Some(assigned[0].1.generation)).fenced);
    }
}

/// The same state once more, by a snapshot.
fn copy_of(state: &mut State) -> State {
    let mut loader = SnapshotLoader::new();
    loader.load(&state.begin_capture()).unwrap();
    let mut chunk = Vec::new();
    assert!(!state.step_capture(1_000, 1 << 20, &mut chunk));
    loader.load(&chunk).unwrap();
    loader.finish().unwrap()
}

#[test]
fn a_process_that_slept_is_not_taken_for_its_successor() {
    let (mut world, assigned) = three_connections();
    let (asleep, generation) = (assigned[0].1.clone(), Some(assigned[0].1.generation));
    for _ in 0..3 {
        after(&mut world, 5_101);
        heartbeat(&mut world, "b", "zmq-b", &[4, 5, 6], generation);
        heartbeat(&mut world, "c", "zmq-c", &[7, 8, 9], generation);
    }
    assert_eq!(view(&mut world).workers.len(), 2, "its time is over");
    comes_empty(&mut world, "a", "zmq-other");
    for _ in 0..3 {
        after(&mut world, 250);
        let service = view(&mut world);
        for worker in ["b", "c"] {
            let serves = &service.workers.iter().find(|view| view.worker == name(worker)).unwrap().shards;
            heartbeat(&mut world, worker, &format!("zmq-{worker}"), serves, Some(service.generation));
        }
    }
    let now: Vec<u32> =
        view(&mut world).workers.iter().find(|view| view.worker == name("a")).unwrap().shards.clone();
    assert!(!now.is_empty());
    let thawed = heartbeat(&mut world, "a", "zmq-a", &now, Some(asleep.generation));
    assert!(thawed.fenced, "it has heard of none of these grants");
    let heard_of = Some(view(&mut world).generation);
    let live = heartbeat(&mut world, "a", "zmq-reconnected", &now, heard_of);
    assert!(!live.fenced, "whoever has heard of them speaks for it from a new socket, too");
}
