//! The rules of shards, step by step and at random.

mod budget;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::state::numbered;

use super::*;
use crate::Position;
use crate::limits::{SERVICES_MAX, SHARD_WORKERS_MAX};
use crate::{Decision, Event, ShardEvent, SnapshotLoader, Timestamp};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Decides, and applies what comes of it. Answers the event.
fn does(state: &mut State, command: ShardCommand) -> Option<Event> {
    let command = crate::Command::Shard(command);
    command.validate().unwrap();
    match state.decide(&command, Timestamp(1)).unwrap() {
        Decision::Event(event) => {
            state.apply(Timestamp(1), event.clone());
            Some(event)
        }
        Decision::Already(_) | Decision::Nothing => None,
    }
}

fn join(worker: &str, count: u32) -> ShardCommand {
    ShardCommand::Join {
        service: name("s"),
        worker: name(worker),
        group: None,
        count,
        capacity: None,
        by: None,
        session: None,
    }
}

fn leave(worker: &str) -> ShardCommand {
    ShardCommand::Leave { service: name("s"), worker: name(worker), reason: LeaveReason::Silent }
}

fn let_go(worker: &str, shards: &[u32]) -> ShardCommand {
    ShardCommand::LetGo { service: name("s"), worker: name(worker), shards: shards.to_vec() }
}

fn set_count(count: u32, worker: Option<&str>) -> ShardCommand {
    ShardCommand::SetCount { service: name("s"), count, worker: worker.map(name) }
}

fn shuffle() -> ShardCommand {
    ShardCommand::Move { service: name("s"), most: 1_000 }
}

fn held(state: &State, worker: &str) -> Vec<u32> {
    state.service(&name("s")).unwrap().held_by(&name(worker)).map(|(shard, _)| shard).collect()
}

fn withdrawn(state: &State, worker: &str) -> Vec<u32> {
    state.service(&name("s")).unwrap().withdrawn_from(&name(worker)).map(|(shard, _)| shard).collect()
}

/// Three workers that divide ten shards.
fn three() -> State {
    let mut state = State::new();
    for worker in ["c", "a", "b"] {
        does(&mut state, join(worker, 10)).unwrap();
    }
    does(&mut state, shuffle()).unwrap();
    state
}

#[test]
fn ten_shards_are_split_as_the_protocol_says() {
    let mut state = three();
    assert_eq!(held(&state, "a"), [0, 1, 2, 3]);
    assert_eq!(held(&state, "b"), [4, 5, 6]);
    assert_eq!(held(&state, "c"), [7, 8, 9]);
    assert_eq!(does(&mut state, shuffle()), None, "even shares are left alone");
    assert_eq!(does(&mut state, join("a", 10)), None, "whoever is there joins no more");
}

#[test]
fn no_worker_gets_a_shard_before_its_release() {
    let mut state = three();
    let before: Vec<_> = state.service(&name("s")).unwrap().held_by(&name("a")).collect();
    does(&mut state, join("d", 10)).unwrap();
    does(&mut state, shuffle()).unwrap();
    assert_eq!((held(&state, "a"), withdrawn(&state, "a")), (vec![0, 1, 2], vec![3]));
    assert_eq!(withdrawn(&state, "b").len() + withdrawn(&state, "c").len(), 1);
    assert_eq!(does(&mut state, shuffle()), None, "what is on its way is waited for");
    assert_eq!(held(&state, "d"), [0; 0]);
    assert_eq!(does(&mut state, let_go("b", &[3])), None, "not its own to let go of");
    does(&mut state, let_go("a", &[3, 3, 99])).unwrap();
    does(&mut state, shuffle()).unwrap();
    assert_eq!(held(&state, "d"), [3]);
    let (_, token) = state.service(&name("s")).unwrap().held_by(&name("d")).next().unwrap();
    assert!(token > before[3].1, "a later holder has a larger token");
}

#[test]
fn a_departed_worker_has_no_shards_and_others_keep_theirs() {
    let mut state = three();
    does(&mut state, leave("b")).unwrap();
    assert_eq!(does(&mut state, leave("b")), None);
    does(&mut state, shuffle()).unwrap();
    assert_eq!(held(&state, "a"), [0, 1, 2, 3, 4]);
    assert_eq!(held(&state, "c"), [5, 6, 7, 8, 9]);
    for worker in ["a", "c"] {
        does(&mut state, leave(worker)).unwrap();
    }
    assert_eq!(does(&mut state, shuffle()), None);
    assert!(state.service(&name("s")).unwrap().shards.iter().all(|shard| *shard == Shard::Free));
}

#[test]
fn a_change_of_the_number_wins_and_a_repeat_does_not() {
    let mut state = three();
    does(&mut state, set_count(20, Some("a"))).unwrap();
    assert_eq!(does(&mut state, set_count(10, Some("b"))), None, "it says what it said before");
    assert_eq!(does(&mut state, set_count(20, Some("a"))), None);
    does(&mut state, leave("b")).unwrap();
    does(&mut state, join("b", 10)).unwrap();
    assert_eq!(state.service(&name("s")).unwrap().count, 20, "it has said ten before it left");
    does(&mut state, join("d", 12)).unwrap();
    assert_eq!(state.service(&name("s")).unwrap().count, 12, "the first word of a worker is a change");
    does(&mut state, set_count(5, None)).unwrap();
    assert_eq!(state.service(&name("s")).unwrap().count, 5);
}

#[test]
fn shards_above_a_smaller_number_go_when_they_are_let_go_of() {
    let mut state = three();
    does(&mut state, set_count(3, None)).unwrap();
    does(&mut state, shuffle()).unwrap();
    assert_eq!(withdrawn(&state, "c"), [7, 8, 9]);
    assert_eq!(withdrawn(&state, "b"), [4, 5, 6]);
    assert_eq!((held(&state, "a"), withdrawn(&state, "a")), (vec![0], vec![1, 2, 3]));
    does(&mut state, let_go("c", &[7, 8, 9])).unwrap();
    assert_eq!(state.service(&name("s")).unwrap().shards.len(), 7);
    does(&mut state, let_go("a", &[1, 2, 3])).unwrap();
    does(&mut state, let_go("b", &[4, 5, 6])).unwrap();
    does(&mut state, shuffle()).unwrap();
    let service = state.service(&name("s")).unwrap();
    assert_eq!(service.shards.len(), 3);
    assert_eq!([held(&state, "a"), held(&state, "b"), held(&state, "c")], [[0], [1], [2]]);
}

#[test]
fn a_round_withdraws_no_more_than_it_may() {
    let mut state = State::new();
    does(&mut state, join("a", 100)).unwrap();
    does(&mut state, shuffle()).unwrap();
    does(&mut state, join("b", 100)).unwrap();
    does(&mut state, ShardCommand::Move { service: name("s"), most: 7 }).unwrap();
    assert_eq!(withdrawn(&state, "a").len(), 7);
}

fn join_of(worker: &str, group: Option<&str>) -> ShardCommand {
    let (worker, group) = (name(worker), group.map(name));
    ShardCommand::Join {
        service: name("s"),
        worker,
        group,
        count: 10,
        capacity: None,
        by: None,
        session: None,
    }
}

fn refused(state: &State, command: ShardCommand) -> String {
    state.decide(&crate::Command::Shard(command), Timestamp(1)).unwrap_err().to_string()
}

#[test]
fn a_worker_without_a_group_is_in_the_default_group() {
    for (first, second) in [(None, Some("default")), (Some("default"), None)] {
        let mut state = State::new();
        assert!(does(&mut state, join_of("a", first)).is_some());
        assert!(does(&mut state, join_of("b", second)).is_some(), "{first:?} and {second:?} are one group");
        assert!(refused(&state, join_of("c", Some("other"))).contains("belongs to group default"));
    }
}

#[test]
fn a_configured_service_joins_its_first_workers_group() {
    let mut state = State::new();
    does(&mut state, set_count(10, None)).unwrap();
    does(&mut state, join_of("a", Some("billing"))).unwrap();
    assert_eq!(state.service(&name("s")).unwrap().group, Some(name("billing")));
    assert!(refused(&state, join_of("b", None)).contains("belongs to group billing"));
    // It stays there when its workers go.
    does(&mut state, leave("a")).unwrap();
    assert!(refused(&state, join_of("b", None)).contains("belongs to group billing"));
}

#[test]
fn a_service_belongs_to_one_group_and_limits_are_kept() {
    let mut state = three();
    let refused = refused(&state, join_of("x", Some("other")));
    assert!(refused.contains("belongs to group default"), "{refused}");
    for (count, fits) in [(crate::limits::SHARDS_MAX, true), (crate::limits::SHARDS_MAX + 1, false)] {
        assert_eq!(crate::Command::Shard(set_count(count, None)).validate().is_ok(), fits);
    }
    let weights = |weight| ShardCommand::SetWeights { service: name("s"), weights: [(0, weight)].into() };
    for (weight, fits) in [(0, false), (1, true), (crate::limits::SHARD_WEIGHT_MAX, true), (u32::MAX, false)]
    {
        assert_eq!(crate::Command::Shard(weights(weight)).validate().is_ok(), fits, "{weight}");
    }
    assert_eq!(does(&mut state, weights(1)), None, "everything weighs 1 already");
    assert!(does(&mut state, weights(9)).is_some());
}

#[test]
fn services_beyond_the_limit_are_refused_for_everyone() {
    let mut state = State::new();
    let made = |n: usize| ShardCommand::SetCount { service: name(&format!("s{n}")), count: 1, worker: None };
    for n in 0..SERVICES_MAX {
        does(&mut state, made(n)).unwrap();
    }
    for one_more in [made(SERVICES_MAX), join("w", 1)] {
        assert!(refused(&state, one_more).contains("services already"));
    }
    let known = ShardCommand::SetCount { service: name("s0"), count: 2, worker: None };
    assert!(does(&mut state, known).is_some(), "those that are there go on");
}

#[test]
fn workers_beyond_the_limit_are_refused() {
    let mut state = State::new();
    for worker in 0..SHARD_WORKERS_MAX {
        does(&mut state, join(&format!("w{worker}"), 1)).unwrap();
    }
    let one_more = crate::Command::Shard(join("x", 1));
    assert_eq!(state.decide(&one_more, Timestamp(1)).unwrap_err().code(), "invalid");
}

#[derive(Clone, Debug)]
enum Act {
    Join(u8, u32),
    Leave(u8),
    LetGo(u8, Vec<u32>),
    LetGoOfWithdrawn(u8),
    Count(u32, Option<u8>),
    Weigh(u32, u32),
    Move(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let worker = || 0..5_u8;
    prop_oneof![
        3 => (worker(), 0..12_u32).prop_map(|(worker, count)| Act::Join(worker, count)),
        1 => worker().prop_map(Act::Leave),
        1 => (worker(), prop::collection::vec(0..14_u32, 0..4)).prop_map(|(worker, shards)| Act::LetGo(worker, shards)),
        3 => worker().prop_map(Act::LetGoOfWithdrawn),
        1 => (0..12_u32, prop::option::of(worker())).prop_map(|(count, worker)| Act::Count(count, worker)),
        1 => (0..12_u32, 1..9_u32).prop_map(|(shard, weight)| Act::Weigh(shard, weight)),
        4 => (1..6_usize).prop_map(Act::Move),
    ]
}

fn command(state: &State, act: Act) -> ShardCommand {
    let worker = |number: u8| format!("w{number}");
    match act {
        Act::Join(number, count) => join(&worker(number), count),
        Act::Leave(number) => leave(&worker(number)),
        Act::LetGo(number, shards) => let_go(&worker(number), &shards),
        Act::LetGoOfWithdrawn(number) => {
            let shards = state.service(&name("s")).map(|_| withdrawn(state, &worker(number)));
            let_go(&worker(number), &shards.unwrap_or_default())
        }
        Act::Count(count, number) => set_count(count, number.map(worker).as_deref()),
        Act::Weigh(shard, weight) => {
            ShardCommand::SetWeights { service: name("s"), weights: [(shard, weight)].into() }
        }
        Act::Move(most) => ShardCommand::Move { service: name("s"), most },
    }
}

proptest! {
    /// H3, H4 and H5: a shard is free before its next worker gets it, and tokens and generations only grow.
    #[test]
    fn a_shard_is_always_free_between_two_workers(acts in prop::collection::vec(act(), 1..80)) {
        let mut state = State::new();
        let mut tokens: BTreeMap<u32, Position> = BTreeMap::new();
        let mut generation = Position(0);
        for act in acts {
            let before = state.service(&name("s")).cloned().unwrap_or_default();
            let command = command(&state, act);
            if matches!(command, ShardCommand::SetWeights { .. }) && state.service(&name("s")).is_none() {
                continue;
            }
            does(&mut state, command);
            let Some(after) = state.service(&name("s")) else { continue };
            for (number, shard) in numbered(&after.shards) {
                let was = before.shards.get(number as usize).unwrap_or(&Shard::Free);
                if let Shard::Held { worker, token } = shard {
                    prop_assert!(after.workers.contains_key(worker));
                    if was.worker() != Some(worker) {
                        prop_assert_eq!(was, &Shard::Free);
                        prop_assert!(tokens.insert(number, *token).is_none_or(|old| old < *token));
                    }
                }
            }
            prop_assert!(after.generation >= generation);
            prop_assert!(after.shards == before.shards || after.generation > generation);
            generation = after.generation;
        }
        // What a snapshot brings back is the same, and goes on the same.
        let mut loader = SnapshotLoader::new();
        loader.load(&state.begin_capture()).unwrap();
        loop {
            let mut chunk = Vec::new();
            let more = state.step_capture(10, 100, &mut chunk);
            loader.load(&chunk).unwrap();
            if !more {
                break;
            }
        }
        let mut again = loader.finish().unwrap();
        prop_assert_eq!(again.fingerprint(), state.fingerprint());
        prop_assert_eq!(does(&mut again, shuffle()), does(&mut state, shuffle()));
        prop_assert_eq!(again.service(&name("s")), state.service(&name("s")));
    }

    /// Rounds come to rest, everything is held, and shares are even.
    #[test]
    fn rebalances_end_when_all_shards_are_released(acts in prop::collection::vec(act(), 1..60)) {
        let mut state = State::new();
        for act in acts.into_iter().filter(|act| !matches!(act, Act::Weigh(..))) {
            let command = command(&state, act);
            does(&mut state, command);
        }
        for _ in 0..200 {
            let moved = does(&mut state, ShardCommand::Move { service: name("s"), most: 3 });
            let mut freed = false;
            for worker in 0..5 {
                let command = command(&state, Act::LetGoOfWithdrawn(worker));
                freed |= does(&mut state, command).is_some();
            }
            if moved.is_none() && !freed {
                break;
            }
        }
        prop_assert_eq!(does(&mut state, shuffle()), None);
        let Some(service) = state.service(&name("s")) else { return Ok(()) };
        prop_assert_eq!(service.shards.len(), service.count as usize);
        if service.workers.is_empty() {
            return Ok(());
        }
        let counts: Vec<usize> = service.workers.keys().map(|worker| service.held_by(worker).count()).collect();
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        prop_assert_eq!(counts.iter().sum::<usize>(), service.count as usize);
    }
}

#[test]
fn only_what_was_withdrawn_is_overruled() {
    let mut state = three();
    does(&mut state, join("d", 10)).unwrap();
    does(&mut state, shuffle()).unwrap();
    assert_eq!(withdrawn(&state, "a"), [3]);
    let overrule = |shards: &[u32]| ShardCommand::Overrule {
        service: name("s"),
        worker: name("a"),
        shards: shards.iter().copied().collect(),
    };
    assert_eq!(does(&mut state, overrule(&[0, 4])), None, "it should serve the one, and never had the other");
    let Some(Event::Shard(ShardEvent::ShardsLetGo(event))) = does(&mut state, overrule(&[0, 3, 4])) else {
        panic!("an event")
    };
    assert_eq!((event.shards.iter().collect::<Vec<_>>(), event.overruled), (vec![3], Some(true)));
    does(&mut state, shuffle()).unwrap();
    assert_eq!((held(&state, "d"), held(&state, "a")), (vec![3], vec![0, 1, 2]));
}

#[test]
fn a_worker_keeps_its_place_while_others_come_and_go() {
    let mut state = three();
    let place = |state: &State, worker: &str| state.service(&name("s")).unwrap().workers[&name(worker)].place;
    assert_eq!(["a", "b", "c"].map(|worker| place(&state, worker)), [Some(0), Some(1), Some(2)]);
    does(&mut state, leave("a")).unwrap();
    does(&mut state, shuffle()).unwrap();
    let places = ["b", "c"].map(|worker| place(&state, worker));
    assert_eq!(places, [Some(1), Some(2)], "one that goes moves nobody");
    does(&mut state, join("bb", 10)).unwrap();
    assert_eq!(place(&state, "bb"), None, "it has no shards yet");
    does(&mut state, join("aa", 10)).unwrap();
    does(&mut state, shuffle()).unwrap();
    for worker in ["b", "c"] {
        let told = withdrawn(&state, worker);
        does(&mut state, let_go(worker, &told)).unwrap();
    }
    does(&mut state, shuffle()).unwrap();
    // The order of names says nothing: one that comes takes a place that is free.
    let places = ["b", "c", "aa", "bb"].map(|worker| place(&state, worker));
    assert_eq!(places, [Some(1), Some(2), Some(0), Some(3)]);
}
