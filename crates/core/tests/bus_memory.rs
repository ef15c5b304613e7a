//! What a lease of the bus costs in memory beside one over HTTP. Alone in its process, so that what that takes says something.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use orchestrix_core::{
    FormatRaised, Json, LeaseGranted, LeaseId, LeaseOffered, LeasesStarted, LiveLease, Name, NodeJoined,
    OwnerToken, OwnersAssigned, Start, State, TaskCreated, TaskId, Timestamp,
};

/// Bytes for each lease of the bus, more than one over HTTP has.
const BYTES_MAX: usize = 80;
const LEASES: usize = 200_000;
const AT: Timestamp = Timestamp(1);

/// Bytes of memory that this process has.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn created(state: &mut State) -> TaskId {
    let created = TaskCreated {
        queue: Name::new("mail").unwrap(),
        payload: Json::null(),
        priority: 0,
        not_before: AT,
        max_attempts: 1,
        key: None,
        timeout_ms: None,
        ttl_at: None,
        backoff: None,
    };
    TaskId(state.apply(AT, created.into()).0)
}

fn worker(number: usize) -> Name {
    Name::new(&format!("worker-{}", number % 1_000)).unwrap()
}

fn over_http(state: &mut State, number: usize) {
    let task = created(state);
    let granted = LeaseGranted {
        task,
        worker: worker(number),
        attempt: 1,
        length_ms: 60_000,
        expires_at: Timestamp(60_000),
        timeout_at: None,
        request_id: None,
    };
    state.apply(AT, granted.into());
}

fn over_the_bus(state: &mut State, number: usize, node: OwnerToken) {
    let (task, expires_at) = (created(state), Timestamp(60_000));
    let offered = LeaseOffered { task, attempt: 1, length_ms: 60_000, expires_at };
    let lease = LeaseId(state.apply(AT, offered.into()).0);
    state.apply(AT, OwnersAssigned { node, leases: vec![lease] }.into());
    let started = vec![Start { lease, worker: worker(number), expires_at }];
    state.apply(AT, LeasesStarted { started }.into());
}

#[test]
fn a_lease_of_the_bus_takes_at_most_80_bytes_more() {
    let mut state = State::new();
    state.apply(AT, FormatRaised { format: 2 }.into());
    let joined = NodeJoined { node: "a".to_owned(), incarnation: String::new(), address: String::new() };
    let node = OwnerToken(state.apply(AT, joined.into()).0);
    // What is taken once, whatever comes.
    (0..1_000).for_each(|number| over_http(&mut state, number));
    (0..1_000).for_each(|number| over_the_bus(&mut state, number, node));
    let start = resident();
    (0..LEASES).for_each(|number| over_http(&mut state, number));
    let http = (resident() - start) / LEASES;
    let start = resident();
    (0..LEASES).for_each(|number| over_the_bus(&mut state, number, node));
    let bus = (resident() - start) / LEASES;
    assert_eq!((state.bus_lease_count(), state.orphan_count()), (LEASES + 1_000, 0));
    println!("{http} bytes for each lease over HTTP, {bus} over the bus, with their tasks");
    assert!(bus <= http + BYTES_MAX, "{http} bytes over HTTP, {bus} over the bus");
}

/// What an HTTP lease pays for the bus is nothing: what says that a lease is of the bus stands where nothing stood.
#[test]
fn a_lease_is_no_larger_for_the_bus() {
    assert!(size_of::<LiveLease>() <= 144, "{} bytes", size_of::<LiveLease>());
}
