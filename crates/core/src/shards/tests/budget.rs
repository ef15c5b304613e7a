//! Limits of shards and services, the last shard count, and the capacity of workers.

use super::*;
use crate::limits::SHARD_GRANTS_MAX;

/// A service of its own with so many shards.
fn makes(service: &str, count: u32, by: Option<&str>) -> ShardCommand {
    let (service, worker, by) = (name(service), name("w"), by.map(name));
    ShardCommand::Join { service, worker, group: None, count, capacity: None, by, session: None }
}

fn why_not(state: &State, command: ShardCommand) -> String {
    match state.decide(&crate::Command::Shard(command), Timestamp(1)) {
        Err(refusal) => refusal.to_string(),
        Ok(decision) => panic!("{decision:?}"),
    }
}

#[test]
fn all_services_have_so_many_shards_and_no_more() {
    let mut state = State::new();
    for n in 0..10 {
        does(&mut state, makes(&format!("s{n}"), 100_000, None)).unwrap();
    }
    assert!(why_not(&state, makes("more", 1, None)).contains("1000000 shards at most"));
    let grow = |count| ShardCommand::SetCount { service: name("s0"), count, worker: Some(name("w")) };
    does(&mut state, grow(99_999)).unwrap();
    does(&mut state, makes("more", 1, None)).unwrap();
    assert!(why_not(&state, grow(100_000)).contains("1000000 shards at most"));
    let order = ShardCommand::SetCount { service: name("s0"), count: 100_000, worker: None };
    let problem = why_not(&state, order);
    assert!(problem.contains("1000000"), "an operator has no more either");
    assert!(problem.contains("shard_count") && !problem.contains("maxShardCount"), "{problem}");
    does(&mut state, grow(99_998)).unwrap();
}

#[test]
fn one_token_makes_so_many_services_and_no_more() {
    let mut state = State::new();
    for n in 0..crate::limits::SERVICES_PER_TOKEN_MAX {
        does(&mut state, makes(&format!("s{n}"), 1, Some("greedy"))).unwrap();
    }
    assert!(
        why_not(&state, makes("more", 1, Some("greedy"))).contains("token greedy has made 1000 services")
    );
    does(&mut state, makes("more", 1, Some("other"))).unwrap();
    let joins = ShardCommand::Join {
        service: name("more"),
        worker: name("w2"),
        group: None,
        count: 1,
        capacity: None,
        by: Some(name("greedy")),
        session: None,
    };
    does(&mut state, joins).expect("it makes nothing new");
    // One that is gone makes room.
    let gone = ShardCommand::Leave { service: name("s0"), worker: name("w"), reason: LeaveReason::Silent };
    does(&mut state, gone).unwrap();
    does(&mut state, ShardCommand::Expire { service: name("s0") }).unwrap();
    does(&mut state, makes("last", 1, Some("greedy"))).unwrap();
}

#[test]
fn a_service_without_workers_expires_unless_an_operator_made_it() {
    let expire = || ShardCommand::Expire { service: name("s") };
    let mut state = three();
    assert_eq!(does(&mut state, expire()), None, "it has workers");
    for worker in ["a", "b", "c"] {
        does(&mut state, leave(worker)).unwrap();
    }
    does(&mut state, expire()).unwrap();
    assert!(state.service(&name("s")).is_none());
    does(&mut state, set_count(5, None)).unwrap();
    assert_eq!(does(&mut state, expire()), None, "an operator made it");
}

#[test]
fn a_new_name_does_not_undo_what_an_operator_said() {
    let mut state = three();
    let count = |state: &State| state.service(&name("s")).unwrap().count;
    does(&mut state, set_count(12, None)).unwrap();
    does(&mut state, join("new", 10)).unwrap();
    assert_eq!(count(&state), 12, "it says what others said before");
    assert_eq!(does(&mut state, set_count(10, Some("new"))), None, "and repeats it");
    let again = snapshot_of(&mut state);
    assert_eq!(again.service(&name("s")), state.service(&name("s")));
    // A change of its own word counts, and then those of others do.
    does(&mut state, set_count(11, Some("new"))).unwrap();
    assert_eq!(count(&state), 11);
    does(&mut state, join("newer", 9)).unwrap();
    assert_eq!(count(&state), 9, "no operator stands against it any more");
    // To say what is so makes it an order, too.
    does(&mut state, set_count(9, None)).unwrap();
    assert_eq!(does(&mut state, set_count(9, None)), None);
    does(&mut state, join("newest", 10)).unwrap();
    assert_eq!(count(&state), 9);
}

#[test]
fn a_count_set_by_an_operator_stays() {
    let mut state = State::new();
    does(&mut state, set_count(12, None)).unwrap();
    does(&mut state, join("a", 10)).unwrap();
    assert_eq!(state.service(&name("s")).unwrap().count, 12);
    does(&mut state, shuffle()).unwrap();
    assert_eq!(held(&state, "a").len(), 12);
}

/// The same state once more, by a snapshot.
fn snapshot_of(state: &mut State) -> State {
    let mut loader = SnapshotLoader::new();
    loader.load(&state.begin_capture()).unwrap();
    let mut chunk = Vec::new();
    while state.step_capture(1_000, 1 << 20, &mut chunk) {}
    loader.load(&chunk).unwrap();
    loader.finish().unwrap()
}

#[test]
fn withdrawn_shards_count_against_the_capacity() {
    let mut state = State::new();
    let takes = |worker: &str, capacity| ShardCommand::Join {
        service: name("s"),
        worker: name(worker),
        group: None,
        count: 6,
        capacity,
        by: None,
        session: None,
    };
    does(&mut state, takes("a", Some(3))).unwrap();
    does(&mut state, takes("b", None)).unwrap();
    does(&mut state, shuffle()).unwrap();
    does(&mut state, takes("c", None)).unwrap();
    does(&mut state, shuffle()).unwrap();
    assert_eq!((held(&state, "a").len(), withdrawn(&state, "a")), (2, vec![2]));
    // Another leaves, so the shares grow; but it still serves three.
    does(&mut state, leave("b")).unwrap();
    does(&mut state, shuffle()).unwrap();
    assert_eq!(held(&state, "a").len(), 2, "it takes three at most, and may still serve the third");
    does(&mut state, let_go("a", &[2])).unwrap();
    does(&mut state, shuffle()).unwrap();
    assert_eq!(held(&state, "a").len(), 3);
}

#[test]
fn a_round_grants_so_many_shards_and_the_next_the_rest() {
    let mut state = State::new();
    let most = u32::try_from(SHARD_GRANTS_MAX).unwrap();
    for worker in ["a", "b"] {
        does(&mut state, join(worker, 2 * most + 2)).unwrap();
    }
    let granted = |event: Option<Event>| match event {
        Some(Event::Shard(ShardEvent::ShardsMoved(event))) => {
            event.granted.iter().map(|grant| grant.shards.len()).sum::<u64>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(granted(does(&mut state, shuffle())), u64::from(most));
    assert_eq!(granted(does(&mut state, shuffle())), u64::from(most));
    assert_eq!(granted(does(&mut state, shuffle())), 2);
    assert_eq!(does(&mut state, shuffle()), None);
    let first: Vec<u32> = (0..=most).collect();
    assert_eq!(held(&state, "a"), first, "in one piece, as from nothing");
}
