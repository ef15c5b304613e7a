//! What the key of a purged task costs in memory. Alone in its process, so that what that takes says something.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use orchestrix_core::{
    CancelReason, Event, Json, Key, KeyClaim, Name, Purge, State, TaskCancelled, TaskCreated, TaskEvent,
    TaskId, TaskPurged, Timestamp,
};

/// Bytes for each key that is remembered.
const BYTES_MAX: usize = 100;
const KEYS: usize = 200_000;

/// Bytes of memory that this process has.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// A task that ends and is purged, and whose key is remembered.
fn live(state: &mut State, number: usize) {
    let at = Timestamp(1);
    let key = Key::new(&format!("order-{number}-{}", "k".repeat(40))).unwrap();
    let created = TaskCreated {
        queue: Name::new("mail").unwrap(),
        payload: Json::null(),
        priority: 0,
        not_before: at,
        max_attempts: 1,
        key: Some(KeyClaim { key, request: [1; 16] }),
        timeout_ms: None,
        ttl_at: None,
        backoff: None,
    };
    let task = TaskId(state.apply(at, created.into()).0);
    state.apply(
        at,
        Event::Task(TaskEvent::TaskCancelled(TaskCancelled {
            task,
            reason: CancelReason::Requested,
            actor: None,
        })),
    );
    let tasks = vec![Purge { task, key_until: Some(Timestamp(1_000)) }];
    state.apply(at, Event::Task(TaskEvent::TaskPurged(TaskPurged { tasks, keys_kept: Some(KEYS as u64) })));
}

#[test]
fn a_key_of_a_purged_task_takes_at_most_100_bytes() {
    let mut state = State::new();
    // What is taken once, whatever comes.
    (0..1_000).for_each(|number| live(&mut state, number));
    let before = resident();
    (1_000..KEYS).for_each(|number| live(&mut state, number));
    assert_eq!(state.remembered_keys(), KEYS);
    let full = (resident() - before) / (KEYS - 1_000);
    // As many come as go: what is left behind by those that go is used again.
    (KEYS..4 * KEYS).for_each(|number| live(&mut state, number));
    assert_eq!(state.remembered_keys(), KEYS);
    let steady = (resident() - before) / (KEYS - 1_000);
    println!("{full} bytes each when they have come, {steady} when as many have gone three times");
    assert!(full <= BYTES_MAX && steady <= BYTES_MAX, "{full}, then {steady} bytes for each key");
}
