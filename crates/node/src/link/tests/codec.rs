use std::fmt::Debug;
use std::net::IpAddr;

use orchestrix_core::wire::{LeaseQueues, Outcome, ShardHeartbeat, Submit, TaskSummary};
use orchestrix_core::{
    Command, Filter, Forbidden, Json, Key, LeaseId, Name, Position, Refusal, TaskCommand, TaskId, TaskState,
    Timestamp,
};
use proptest::prelude::*;

use super::rules::{name, submit};
use crate::caller::Caller;
use crate::link::codec::{Field, decoded, encoded};
use crate::link::{Answered, Question, Reply};
use crate::request::{Answer, Ask, Error, Seen};
use crate::shards::{ServicePage, ShardAsk};

/// What is written is read as the same, and nothing that is cut off is read.
pub(super) fn comes_back<T: Field + Debug>(value: &T) {
    let bytes = encoded(value);
    let back: T = decoded(&bytes).unwrap();
    assert_eq!(format!("{value:?}"), format!("{back:?}"));
    for end in (0..bytes.len()).step_by(bytes.len() / 50 + 1) {
        assert!(decoded::<T>(&bytes[..end]).is_err(), "{end} of {} bytes", bytes.len());
    }
}

fn names() -> impl Strategy<Value = Name> {
    "[a-zA-Z0-9._:-]{1,20}".prop_map(|text| name(&text))
}

fn json() -> impl Strategy<Value = Json> {
    any::<String>().prop_map(|text| Json::parse(&serde_json::to_string(&text).unwrap()).unwrap())
}

fn commands() -> impl Strategy<Value = Command> {
    let ids = || (any::<u64>(), any::<u64>(), proptest::option::of(names()));
    prop_oneof![
        (names(), json(), proptest::option::of("[a-z]{1,9}"), any::<i32>(), any::<u64>(), 1.0..9.0).prop_map(
            |(queue, payload, key, priority, delay_ms, factor)| {
                let mut task = Submit::new(queue, payload);
                task.key = key.map(|key| Key::new(&key).unwrap());
                (task.priority, task.delay_ms, task.backoff.factor) = (priority, delay_ms, factor);
                Command::submit(task)
            }
        ),
        (ids(), proptest::option::of(json())).prop_map(|((task, lease, worker), result)| {
            Command::Task(TaskCommand::Complete { task: TaskId(task), lease: LeaseId(lease), worker, result })
        }),
        (ids(), any::<String>(), any::<bool>()).prop_map(|((task, lease, worker), error, retry)| {
            Command::Task(TaskCommand::Fail {
                task: TaskId(task),
                lease: LeaseId(lease),
                worker,
                error,
                retry,
            })
        }),
        ids().prop_map(|(task, lease, worker)| Command::Task(TaskCommand::Release {
            task: TaskId(task),
            lease: LeaseId(lease),
            worker
        })),
        ids().prop_map(|(task, _, actor)| Command::Task(TaskCommand::Cancel { task: TaskId(task), actor })),
    ]
}

fn asks() -> impl Strategy<Value = Ask> {
    prop_oneof![
        commands().prop_map(Ask::Command),
        proptest::collection::vec(commands(), 0..5).prop_map(Ask::Batch),
        (proptest::collection::vec(names(), 1..4), names(), 1_usize..1_000, any::<u64>()).prop_map(
            |(queues, worker, max, wait_ms)| Ask::Lease(LeaseQueues {
                queues,
                worker,
                max,
                lease_ms: 1_000,
                wait_ms,
                request_id: None,
                capacity: Some(3),
            })
        ),
        (names(), proptest::collection::vec(any::<u64>(), 0..9)).prop_map(|(worker, leases)| {
            Ask::HeartbeatAll { worker, leases: leases.into_iter().map(LeaseId).collect() }
        }),
        (names(), any::<u64>(), 0_usize..100).prop_map(|(queue, after, limit)| Ask::Tasks {
            filter: Filter { queue: Some(queue), state: Some(TaskState::Failed) },
            after: Some(TaskId(after)),
            limit
        }),
        Just(()).prop_map(|()| Ask::Queues),
        Just(()).prop_map(|()| Ask::Workers),
        Just(()).prop_map(|()| Ask::Cluster),
        any::<u64>().prop_map(|id| Ask::Task(TaskId(id))),
        any::<u64>().prop_map(|id| Ask::Explain(TaskId(id))),
        (names(), any::<u32>())
            .prop_map(|(service, from)| ShardAsk::Service(ServicePage { service, from, limit: 9 }))
            .prop_map(|ask| Ask::Shards(Box::new(ask))),
        (names(), names(), proptest::collection::vec(any::<u32>(), 0..9)).prop_map(
            |(service, worker, assigned_shards)| {
                let session = Some(worker.clone());
                let body = ShardHeartbeat { assigned_shards, session, ..ShardHeartbeat::default() };
                Ask::Shards(Box::new(ShardAsk::Heartbeat { service, worker, body }))
            }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_question_comes_back_as_it_was(
        ask in asks(),
        caller in (proptest::option::of(names()), proptest::collection::vec(names(), 0..3), any::<IpAddr>()),
        position in any::<u64>(),
    ) {
        let (name, queues, address) = caller;
        let caller = Caller { name, queues: Some(queues.into()), address: Some(address) };
        comes_back(&Question { caller, position: Some(Position(position)), ..Question::new(ask) });
    }

    #[test]
    fn an_outcome_comes_back_as_it_was(id in any::<u64>(), at in proptest::option::of(any::<u64>()), repeat: bool) {
        let not_before_at = at.map(Timestamp);
        let outcome = Outcome { id: TaskId(id), state: TaskState::Waiting, not_before_at, cancel_requested: repeat };
        let seen = if repeat { Seen::Repeat } else { Seen::First };
        let reply = Reply::Done(Ok(Answer::Outcome { outcome, seen }));
        comes_back(&Answered { reply, position: Position(id) });
    }

    #[test]
    fn random_bytes_are_no_question(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(question) = decoded::<Question>(&bytes) {
            comes_back(&question);
        }
    }
}

#[test]
fn every_error_and_refusal_comes_back() {
    let (task, lease) = (TaskId(1), LeaseId(2));
    let refusals = [
        Refusal::Invalid { field: "payload", problem: "no".to_owned() },
        Refusal::TooLarge { field: "items", bytes: 2, max: 1 },
        Refusal::NotFound(task),
        Refusal::NoService(name("s")),
        Refusal::StaleLease { task, lease, why: "it has expired" },
        Refusal::KeyConflict { key: Key::new("k").unwrap(), task },
        Refusal::NotFailed { task, state: TaskState::Leased },
        Refusal::Finished { task, state: TaskState::Completed },
        Refusal::Forbidden(Forbidden::Queue(name("q"))),
        Refusal::Forbidden(Forbidden::AnyQueue),
        Refusal::Forbidden(Forbidden::Everything),
        Refusal::NotOwner { lease, why: "another node owns it" },
        Refusal::Upgrading { format: 2 },
        Refusal::Internal,
    ];
    for refusal in refusals.clone() {
        comes_back(&Reply::Done(Err(Error::Refused(refusal))));
    }
    for error in
        [Error::Overloaded, Error::StorageFull, Error::Stopping, Error::Unavailable, Error::OutcomeUnknown]
    {
        comes_back(&Reply::Done(Err(error)));
    }
    let refused = refusals.into_iter().map(Err).collect();
    comes_back(&Reply::Done(Ok(Answer::Batch(refused))));
    for reply in [
        Reply::NotTaken,
        Reply::Limited("why".to_owned()),
        Reply::Behind { asked: 2, at: 1 },
        Reply::Cancelled,
    ] {
        comes_back(&reply);
    }
}

#[test]
fn a_field_of_a_newer_node_is_named_in_the_sentence() {
    let newer = Refusal::Invalid { field: "colour", problem: "is not known".to_owned() };
    let read: Refusal = decoded(&encoded(&newer)).unwrap();
    assert_eq!(read, Refusal::Invalid { field: "request", problem: "colour: is not known".to_owned() });
}

#[test]
fn a_field_that_is_not_known_is_skipped() {
    let mut bytes = encoded(&Outcome {
        id: TaskId(1),
        state: TaskState::Waiting,
        not_before_at: None,
        cancel_requested: false,
    });
    assert_eq!(bytes.pop(), Some(0xff), "the end of the fields");
    bytes.extend([0x18, 99, 0x63, b'n', b'e', b'w', 0xff]);
    assert_eq!(decoded::<Outcome>(&bytes).unwrap().id, TaskId(1));
}

#[test]
fn names_keys_and_json_are_checked() {
    for bad in ["", "a/b", "a b", "ä"] {
        assert!(decoded::<Name>(&encoded(&bad.to_owned())).is_err(), "{bad:?}");
    }
    assert!(decoded::<Key>(&encoded(&"a\tb".to_owned())).is_err());
    assert!(decoded::<Json>(&encoded(&"{".to_owned())).is_err());
    assert!(decoded::<Json>(&encoded(&"[".repeat(65))).is_err());
}

#[test]
fn a_list_longer_than_its_bytes_is_refused_before_there_is_room() {
    let bytes = [0x9b, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0];
    assert!(decoded::<Vec<TaskSummary>>(&bytes).is_err());
}

#[test]
fn the_hash_of_a_request_is_made_by_the_leader() {
    let Question { ask: Ask::Command(Command::Task(TaskCommand::Submit { mut task, .. })), .. } = submit(3)
    else {
        unreachable!("a submit")
    };
    task.key = Some(Key::new("k").unwrap());
    let forged = Command::Task(TaskCommand::Submit { task: task.clone(), request: [7; 16] });
    assert_eq!(decoded::<Command>(&encoded(&forged)).unwrap(), Command::submit(*task));
}
