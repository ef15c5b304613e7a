//! What a snapshot may not have, limits, and what nodes cost.

use super::section::Item;
use super::*;
use crate::limits::{NAME_BYTES_MAX, NODE_ADDRESS_BYTES_MAX, NODES_MAX, OWNED_LEASES_MAX};
use crate::snapshot::{Header, SnapshotError, encode_item};
use crate::wire::Submit;
use crate::{
    Command, Event, FormatRaised, Json, LeaseId, Name, Offer, OwnerToken, Position, SnapshotLoader,
    TaskCommand, Timestamp,
};

fn does(state: &mut State, command: &Command) -> Position {
    command.validate().unwrap();
    let Decision::Event(event) = state.decide(command, Timestamp(1_000)).unwrap() else { panic!("no event") };
    state.apply(Timestamp(1_000), event)
}

fn join(node: &str) -> Command {
    OwnershipCommand::Join { node: node.to_owned(), incarnation: "1".to_owned(), address: String::new() }
        .into()
}

fn offer() -> Command {
    Command::Task(TaskCommand::Offer(Offer { queues: vec![Name::new("mail").unwrap()], lease_ms: 60_000 }))
}

/// A node that owns one of two offers; answers all three by their positions.
fn state() -> (State, OwnerToken, [LeaseId; 2]) {
    let mut state = State::new();
    state.apply(Timestamp(1_000), FormatRaised { format: 2 }.into());
    let node = OwnerToken(does(&mut state, &join("a")).0);
    let leases = [(); 2].map(|()| {
        does(&mut state, &Command::submit(Submit::new(Name::new("mail").unwrap(), Json::null())));
        LeaseId(does(&mut state, &offer()).0)
    });
    let claims = vec![Claim { lease: leases[0], previous: None }];
    does(&mut state, &OwnershipCommand::Own { node, claims }.into());
    (state, node, leases)
}

/// A snapshot with other items of this section, and the tasks of a state.
fn load(state: &State, items: &[Item]) -> Result<State, SnapshotError> {
    let mut header = Header::of(state);
    header.tagged = None;
    header.announce(1, items.len());
    let mut chunk = Vec::new();
    items.iter().for_each(|item| encode_item(item, &mut chunk));
    let mut loader = SnapshotLoader::new();
    loader.load(&header.encode())?;
    loader.load(&chunk)?;
    chunk.clear();
    crate::snapshot::Section::each_item(&state.tasks, &mut |item| chunk.extend_from_slice(item));
    loader.load(&chunk)?;
    loader.finish()
}

fn node(token: OwnerToken, name: &str) -> Item {
    let (incarnation, address) = ("1".to_owned(), String::new());
    Item::Node { token, name: name.to_owned(), incarnation, address, draining: false }
}

fn lease(lease: LeaseId, owner: u64) -> Item {
    Item::Lease { lease, owner: OwnerToken(owner), since: Timestamp(1_000) }
}

#[test]
fn impossible_owners_are_refused() {
    let (state, a, [one, two]) = state();
    let gone = |token, at| Item::Gone { token: OwnerToken(token), at: Timestamp(at) };
    let whole = [node(a, "a"), lease(one, a.0), lease(two, 0)];
    assert_eq!(load(&state, &whole).unwrap().fingerprint(), state.fingerprint());
    assert!(load(&state, &[node(a, "a"), gone(1, 999), lease(one, 1), lease(two, 0)]).is_ok());
    let impossible: [&[Item]; 13] = [
        &[node(OwnerToken(0), "a"), lease(one, 0), lease(two, 0)],
        &[node(OwnerToken(99), "a"), lease(one, 0), lease(two, 0)],
        &[node(a, "a"), node(a, "b"), lease(one, 0), lease(two, 0)],
        &[node(a, "a"), node(OwnerToken(1), "a"), lease(one, 0), lease(two, 0)],
        &[gone(0, 999), lease(one, 0), lease(two, 0)],
        &[gone(99, 999), lease(one, 99), lease(two, 0)],
        &[node(a, "a"), gone(a.0, 999), lease(one, a.0), lease(two, 0)],
        &[gone(1, 1_001), lease(one, 1), lease(two, 0)],
        &[gone(1, 999), lease(one, 0), lease(two, 0)],
        &[lease(two, 0), lease(one, 0)],
        &[lease(one, 0), lease(one, 0)],
        &[lease(one, 1), lease(two, 0)],
        &[lease(one, 0)],
    ];
    for items in impossible {
        assert!(matches!(load(&state, items), Err(SnapshotError::ImpossibleOwner(_))), "{items:?}");
    }
    let late = Item::Lease { lease: two, owner: OwnerToken(0), since: Timestamp(1_001) };
    assert!(load(&state, &[lease(one, 0), late]).is_err());
    assert!(load(&state, &[lease(one, 0), lease(two, 0), lease(LeaseId(99), 0)]).is_err());
    assert!(load(&state, &[lease(one, 0), lease(two, 0), lease(LeaseId(state.position().0), 0)]).is_err());
}

#[test]
fn a_journal_without_the_bus_leaves_no_trace_in_a_snapshot() {
    let mut state = State::new();
    state.apply(Timestamp(1_000), FormatRaised { format: 2 }.into());
    does(&mut state, &Command::submit(Submit::new(Name::new("mail").unwrap(), Json::null())));
    let header = Header::of(&state);
    assert_eq!((header.snapshot, header.format, header.tagged.is_none()), (1, 2, true));
    let refused = SnapshotLoader::up_to(1).load(&header.encode()).unwrap_err();
    assert!(matches!(refused, SnapshotError::UnknownRecords { found: 2, newest: 1 }), "{refused}");
}

#[test]
fn everything_has_a_limit() {
    let join = |node: usize, incarnation: usize, address: usize| {
        let text = |bytes| "x".repeat(bytes);
        let (node, incarnation, address) = (text(node), text(incarnation), text(address));
        Command::from(OwnershipCommand::Join { node, incarnation, address }).validate()
    };
    let (name, address) = (NAME_BYTES_MAX, NODE_ADDRESS_BYTES_MAX);
    assert_eq!(join(name, name, address), Ok(()));
    for (node, incarnation, address) in
        [(name + 1, name, address), (name, name + 1, address), (name, name, address + 1)]
    {
        assert!(join(node, incarnation, address).is_err());
    }
    for (more, fits) in [(0, true), (1, false)] {
        let leases = vec![LeaseId(1); OWNED_LEASES_MAX + more];
        let claims = leases.iter().map(|lease| Claim { lease: *lease, previous: None }).collect();
        let own = Command::from(OwnershipCommand::Own { node: OwnerToken(1), claims });
        let release = Command::from(OwnershipCommand::Release { node: OwnerToken(1), leases });
        assert_eq!((own.validate().is_ok(), release.validate().is_ok()), (fits, fits));
    }
}

#[test]
fn one_more_node_than_there_may_be_is_refused() {
    let mut state = State::new();
    state.apply(Timestamp(1_000), FormatRaised { format: 2 }.into());
    for n in 0..NODES_MAX {
        does(&mut state, &join(&n.to_string()));
    }
    assert!(state.decide(&join("more"), Timestamp(1_000)).is_err());
    let again =
        OwnershipCommand::Join { node: "7".to_owned(), incarnation: "2".to_owned(), address: String::new() };
    assert!(matches!(
        state.decide(&again.into(), Timestamp(1_000)),
        Ok(Decision::Event(Event::Ownership(_)))
    ));
}

#[test]
fn pages_of_leases_follow_each_other() {
    let (mut state, node, [one, two]) = state();
    let claims = vec![Claim { lease: two, previous: None }];
    does(&mut state, &OwnershipCommand::Own { node, claims }.into());
    assert_eq!(state.owned_by(node, None, 9), [one, two]);
    assert_eq!(state.owned_by(node, None, 1), [one]);
    assert_eq!(state.owned_by(node, Some(one), 1), [two]);
    assert_eq!(state.owned_by(OwnerToken(99), None, 1), []);
    let offers: Vec<LeaseId> = state.offers(Some(one)).map(|task| task.lease.as_ref().unwrap().id).collect();
    assert_eq!(offers, [two]);
}
