//! Which process of a worker is believed, and for how long.

use orchestrix_core::Refusal;
use orchestrix_core::wire::{Assignment, ShardDeregister, ShardHeartbeat, ShardRegister};
use orchestrix_node::{Answer, Ask, Error, ShardAsk};

use crate::common::World;
use crate::sharding::{after, comes_empty, heartbeat, name, register, three, three_connections, view};

/// Lets a lease go by while workers b and c keep what they have.
fn pass_a_lease(
    world: &mut World,
    assigned: &[(&'static str, Assignment)],
) -> Vec<(&'static str, Assignment)> {
    let mut heard = Vec::new();
    for _ in 0..17 {
        heard.extend(after(world, 1_000));
        for (worker, assigned) in &assigned[1..] {
            heartbeat(world, worker, worker, &assigned.assigned_shards, Some(assigned.generation));
        }
    }
    heard
}

/// It was sent before another process took the name, and arrives when the first has come again.
#[test]
fn a_heartbeat_from_before_its_process_came_again_is_fenced() {
    let (mut world, assigned) = three();
    let (serves, generation) = (assigned[0].1.assigned_shards.clone(), Some(assigned[0].1.generation));
    register(&mut world, "a", "other");
    assert_eq!(
        pass_a_lease(&mut world, &assigned)[0].1.assigned_shards,
        serves,
        "the other process has them"
    );
    register(&mut world, "a", "a");
    let again = pass_a_lease(&mut world, &assigned);
    assert_eq!(again[0].1.assigned_shards, serves, "the first has come again");
    let left = |world: &mut World| {
        let service = view(world);
        service.workers.iter().find(|view| view.worker == name("a")).unwrap().left_ms
    };
    let before = left(&mut world);
    assert!(heartbeat(&mut world, "a", "a", &serves, generation).fenced, "it is older than that");
    assert_eq!(left(&mut world), before, "and gives no time");
    assert!(!heartbeat(&mut world, "a", "a", &serves, Some(again[0].1.generation)).fenced);
}

/// Each names what its worker has, as the protocol asks for, and neither listens.
#[test]
fn two_plain_processes_of_one_name_do_not_take_turns() {
    let (mut world, assigned) = three();
    let serves = assigned[0].1.assigned_shards.clone();
    register(&mut world, "a", "other");
    assert_eq!(pass_a_lease(&mut world, &assigned)[0].1.assigned_shards, serves);
    for _ in 0..3 {
        assert!(heartbeat(&mut world, "a", "a", &serves, None).fenced, "it was replaced");
        assert!(!heartbeat(&mut world, "a", "other", &serves, None).fenced);
    }
    // It speaks again when it has come again.
    register(&mut world, "a", "a");
    assert_eq!(pass_a_lease(&mut world, &assigned)[0].1.assigned_shards, serves);
    assert!(!heartbeat(&mut world, "a", "a", &serves, None).fenced);
    assert!(heartbeat(&mut world, "a", "other", &serves, None).fenced);
}

#[test]
fn a_silent_plain_process_is_not_taken_for_the_next() {
    let (mut world, assigned) = three();
    pass_a_lease(&mut world, &assigned);
    assert_eq!(view(&mut world).workers.len(), 2, "its time is over");
    register(&mut world, "a", "next");
    let kept: Vec<_> = ["b", "c"].map(|worker| shares(&mut world, worker)).into_iter().collect();
    after(&mut world, 250);
    let generation = Some(view(&mut world).generation);
    for (worker, serves) in ["b", "c"].into_iter().zip(&kept) {
        let kept = shares(&mut world, worker);
        assert!(kept.len() < serves.len(), "it must let go");
        heartbeat(&mut world, worker, worker, &kept, generation);
    }
    let heard = after(&mut world, 250);
    let now = heard[0].1.assigned_shards.clone();
    assert!(!now.is_empty(), "the next process has some");
    assert!(heartbeat(&mut world, "a", "a", &now, None).fenced, "it slept, and names the same shards");
    assert!(!heartbeat(&mut world, "a", "next", &now, None).fenced);
}

fn shares(world: &mut World, worker: &str) -> Vec<u32> {
    view(world).workers.into_iter().find(|view| view.worker == name(worker)).unwrap().shards
}

/// Of two that go on with heartbeats after a change of leader, one is believed, and in the end it is the same one.
#[test]
fn after_a_change_of_leader_plain_processes_settle() {
    let (world, assigned) = three_connections();
    let serves = assigned[0].1.assigned_shards.clone();
    let mut next = next_leader(world);
    assert!(!heartbeat(&mut next, "a", "zmq-a", &serves, None).fenced, "nobody else was heard of");
    assert!(!heartbeat(&mut next, "a", "zmq-other", &serves, None).fenced, "it may be a new connection");
    for _ in 0..3 {
        assert!(heartbeat(&mut next, "a", "zmq-a", &serves, None).fenced);
        assert!(!heartbeat(&mut next, "a", "zmq-other", &serves, None).fenced);
    }
}

fn next_leader(mut world: World) -> World {
    let mut next = World::new();
    *next.decisions.state_mut() = std::mem::take(world.decisions.state_mut());
    next.now = world.now.plus(1);
    next.decisions.start_term(2, None, next.now);
    next.commit();
    next
}

/// It names shards of the worker and no generation, as a plain worker does.
#[test]
fn a_process_that_never_registered_takes_no_shards() {
    let (mut world, assigned) = three();
    let (serves, generation) = (assigned[0].1.assigned_shards.clone(), Some(assigned[0].1.generation));
    assert!(!heartbeat(&mut world, "a", "a", &serves, generation).fenced);
    for session in ["other", "zmq-other"] {
        for named in [&serves[..], &[0, 7, 9]] {
            let heard = heartbeat(&mut world, "a", session, named, None);
            assert!(heard.fenced && heard.tokens.is_empty(), "{session}: {heard:?}");
        }
        assert!(heartbeat(&mut world, "a", session, &serves, generation).fenced, "nor with a generation");
    }
    assert!(!heartbeat(&mut world, "a", "a", &serves, generation).fenced, "the worker keeps them");
}

#[test]
fn a_plain_connection_does_not_replace_one_that_echoes() {
    let (mut world, assigned) = three_connections();
    let (serves, generation) = (assigned[0].1.assigned_shards.clone(), Some(assigned[0].1.generation));
    assert!(!heartbeat(&mut world, "a", "zmq-a", &serves, generation).fenced);
    assert!(heartbeat(&mut world, "a", "zmq-other", &serves, None).fenced);
    assert!(!heartbeat(&mut world, "a", "zmq-a", &serves, generation).fenced);
}

/// The one that was replaced speaks first, and is not taken for its successor.
#[test]
fn a_new_leader_knows_which_process_joined_last() {
    let (mut world, assigned) = three();
    let serves = assigned[0].1.assigned_shards.clone();
    register(&mut world, "a", "other");
    assert_eq!(pass_a_lease(&mut world, &assigned)[0].1.assigned_shards, serves);
    let mut next = next_leader(world);
    for _ in 0..2 {
        assert!(heartbeat(&mut next, "a", "a", &serves, None).fenced, "it was replaced before");
        assert!(!heartbeat(&mut next, "a", "other", &serves, None).fenced);
    }
    register(&mut next, "a", "other");
    assert_eq!(after(&mut next, 0)[0].1.assigned_shards, serves, "it is known, and waits for nobody");
}

/// A process that was fenced says that it serves nothing, and goes on saying so.
#[test]
fn an_empty_heartbeat_replaces_no_process_that_lives() {
    for prefix in ["", "zmq-"] {
        let (mut world, assigned) = if prefix.is_empty() { three() } else { three_connections() };
        let (first, other) = (format!("{prefix}a"), format!("{prefix}other"));
        let serves = assigned[0].1.assigned_shards.clone();
        register(&mut world, "a", &other);
        let mut granted = Vec::new();
        for _ in 0..17 {
            granted.extend(after(&mut world, 1_000));
            for (worker, assigned) in &assigned[1..] {
                let session = format!("{prefix}{worker}");
                heartbeat(&mut world, worker, &session, &assigned.assigned_shards, Some(assigned.generation));
            }
        }
        assert_eq!(granted[0].1.assigned_shards, serves, "the other process has them");
        for _ in 0..3 {
            let heard = comes_empty(&mut world, "a", &first);
            assert!(heard[0].1.fenced, "{prefix}: {heard:?}");
            assert!(!heartbeat(&mut world, "a", &other, &serves, None).fenced);
        }
    }
}

#[test]
fn a_message_without_a_session_is_refused() {
    let (mut world, assigned) = three();
    let (service, worker) = (name("s"), name("a"));
    let register = ShardRegister { max_shard_count: 10, ..ShardRegister::default() };
    let beat = ShardHeartbeat {
        max_shard_count: 10,
        assigned_shards: assigned[0].1.assigned_shards.clone(),
        ..ShardHeartbeat::default()
    };
    let empty = ShardHeartbeat { max_shard_count: 10, ..ShardHeartbeat::default() };
    let asks = [
        ShardAsk::Register { service: service.clone(), worker: worker.clone(), body: register },
        ShardAsk::Heartbeat { service: service.clone(), worker: worker.clone(), body: beat },
        ShardAsk::Heartbeat { service: service.clone(), worker: name("new"), body: empty },
        ShardAsk::Deregister { service, worker, body: ShardDeregister::default() },
    ];
    let before = view(&mut world);
    for ask in asks {
        world.ask("nobody", Ask::Shards(Box::new(ask.clone())));
        let answer = world.commit().0.pop().unwrap().1;
        let Err(Error::Refused(Refusal::Invalid { field, .. })) = &answer else {
            panic!("{ask:?}: {answer:?}")
        };
        assert_eq!(*field, "session");
    }
    assert_eq!(view(&mut world), before, "nothing has changed");
}

/// What another process of the name should serve would let it serve that, too.
#[test]
fn a_new_leader_shows_no_shards_before_a_heartbeat() {
    let (world, assigned) = three_connections();
    let mut next = next_leader(world);
    let look = |world: &mut World, session: &str| {
        let ask = ShardAsk::Assignment { service: name("s"), worker: name("a"), session: name(session) };
        world.ask("looks", Ask::Shards(Box::new(ask)));
        let (answers, _) = world.commit();
        match &answers[..] {
            [("looks", Ok(Answer::Assignment(assignment)))] => assignment.clone(),
            other => panic!("{other:?}"),
        }
    };
    for session in ["zmq-a", "zmq-other"] {
        assert_eq!(look(&mut next, session), Assignment::default(), "nobody is known to speak for it");
    }
    let (serves, generation) = (&assigned[0].1.assigned_shards, Some(assigned[0].1.generation));
    assert!(!heartbeat(&mut next, "a", "zmq-a", serves, generation).fenced);
    assert_eq!(look(&mut next, "zmq-a").tokens, assigned[0].1.tokens);
    assert!(look(&mut next, "zmq-other").fenced);
    let (world, _) = three();
    let mut next = next_leader(world);
    assert_eq!(look(&mut next, "a"), Assignment::default(), "it was not heard of yet");
    assert!(look(&mut next, "other").fenced, "another session than the one that joined");
}

/// It has stopped by itself meanwhile. What is slow in it must not go on with the tokens of before.
#[test]
fn an_idle_process_gets_other_tokens_after_a_new_term() {
    for by_register in [false, true] {
        let (world, assigned) = three();
        let mut next = next_leader(world);
        if by_register {
            register(&mut next, "a", "a");
        } else {
            assert!(comes_empty(&mut next, "a", "a").is_empty(), "it waits until its time before is over");
        }
        let mut heard = Vec::new();
        for _ in 0..17 {
            heard.extend(after(&mut next, 1_000));
            for (worker, assigned) in &assigned[1..] {
                heartbeat(&mut next, worker, worker, &assigned.assigned_shards, Some(assigned.generation));
            }
        }
        assert_eq!(heard[0].1.assigned_shards, assigned[0].1.assigned_shards);
        assert!(heard[0].1.tokens[0] > assigned[0].1.tokens[0], "{heard:?}");
    }
}
