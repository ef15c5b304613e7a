//! A follower that becomes a leader, step by step and without threads.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;

use orchestrix_core::{
    Event, FIRST_FORMAT, FORMAT, Position, State, Term, TermEvent, TermStarted, Timestamp, encode_record,
};
use orchestrix_engine::memory::MemoryPlace;
use orchestrix_engine::{Batch, ChainHash, Journal, JournalId, Link, Read, Shared};
use orchestrix_node::{
    Failure, Follower, Following, HighWater, Mark, Options, Progress, Stepped, SystemClock, WriteGuard,
};

fn follower(place: &MemoryPlace) -> Follower {
    follower_that_saw(place, None).unwrap()
}

fn follower_that_saw(place: &MemoryPlace, mark: Option<Mark>) -> Result<Follower, Failure> {
    let following = Following::new(Arc::new(SystemClock), HighWater::remembering(mark), &Options::default());
    let mut follower = Follower::load(Arc::new(place.clone()), Options::default(), following)?;
    while follower.advance()? == Progress::Moved {}
    Ok(follower)
}

fn begin_term(journal: &mut dyn Journal, previous: Link, epoch: u64) -> Link {
    let mut records = Vec::new();
    let event = Event::Term(TermEvent::TermStarted(TermStarted {
        epoch,
        node: "other".to_owned(),
        actor: None,
        shard_lease_ms: None,
    }));
    encode_record(FIRST_FORMAT, Timestamp(1), &event, &mut records);
    let term = Term(previous.position.0 + 1);
    journal.append(&Batch { previous, term, count: 1, records }).unwrap();
    journal.end()
}

/// Decides a round and appends what comes of it.
fn round(stepped: &mut Stepped) -> Result<(), String> {
    stepped.decide().and_then(|_| stepped.write()).map_err(|failure| failure.to_string())
}

#[test]
fn the_journal_refuses_an_overtaken_first_event() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut journal = place.journal().unwrap();
    let first = begin_term(&mut *journal, Link::default(), 1);
    let follower = follower(&place);
    assert_eq!(follower.link(), first);
    let second = begin_term(&mut *journal, first, 2);
    let (_, mut stepped) = Stepped::lead(follower, WriteGuard { epoch: 3, ..WriteGuard::default() });
    let refused = round(&mut stepped).unwrap_err();
    assert!(refused.contains("another node wrote to the journal first, which ends at 2"), "{refused}");
    assert_eq!(journal.refresh().unwrap(), second, "it added nothing");
}

#[test]
fn a_follower_that_read_to_the_end_leads_from_there() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut journal = place.journal().unwrap();
    begin_term(&mut *journal, Link::default(), 1);
    let (_, mut stepped) = Stepped::lead(follower(&place), WriteGuard { epoch: 2, ..WriteGuard::default() });
    round(&mut stepped).unwrap();
    assert_eq!(stepped.state().format(), FORMAT, "a node that is alone raises it at once");
    assert_eq!(journal.refresh().unwrap().position, Position(3));
}

/// Leaves a snapshot of a state with nothing in it.
fn leave_snapshot(journal: &dyn Journal, at: Link) {
    let mut state = State::new();
    for _ in 0..at.position.0 {
        let event = TermStarted {
            epoch: state.epoch() + 1,
            node: "other".to_owned(),
            actor: None,
            shard_lease_ms: None,
        };
        state.apply(Timestamp(1), Event::Term(TermEvent::TermStarted(event)));
    }
    let mut writer = journal.snapshots().create(at).unwrap();
    writer.chunk(&state.begin_capture()).unwrap();
    let mut chunk = Vec::new();
    state.step_capture(100, 1 << 20, &mut chunk);
    assert!(chunk.is_empty());
    writer.finish().unwrap();
}

#[test]
fn a_snapshot_of_another_history_is_passed_over() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut journal = place.journal().unwrap();
    let first = begin_term(&mut *journal, Link::default(), 1);
    leave_snapshot(&*journal, first);
    // Of a leader whose engine forgot that batch while the snapshot was on its way: at the end of the journal, behind
    // it, and later within it.
    let foreign = |position| Link { position: Position(position), hash: ChainHash([9; 16]) };
    leave_snapshot(&*journal, foreign(3));
    let second = begin_term(&mut *journal, first, 2);
    leave_snapshot(&*journal, foreign(2));
    assert_eq!(follower(&place).link(), second);
    let third = begin_term(&mut *journal, second, 3);
    assert_eq!(follower(&place).link(), third);
    let fourth = begin_term(&mut *journal, third, 4);
    assert_eq!(follower(&place).link(), fourth);
    assert_eq!(follower(&place).state().epoch(), 4);
}

#[test]
fn another_history_is_noticed_at_any_batch_or_snapshot() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut journal = place.journal().unwrap();
    let first = begin_term(&mut *journal, Link::default(), 1);
    // Two events in one batch: none ends at position 2.
    let mut records = Vec::new();
    for epoch in [2, 3] {
        let event = Event::Term(TermEvent::TermStarted(TermStarted {
            epoch,
            node: "other".to_owned(),
            actor: None,
            shard_lease_ms: None,
        }));
        encode_record(FIRST_FORMAT, Timestamp(1), &event, &mut records);
    }
    journal.append(&Batch { previous: first, term: Term(2), count: 2, records }).unwrap();
    let end = journal.end();
    let mark = |link| Some(Mark { journal: journal.id(), link, epoch: 1 });
    let lost = Link { position: Position(2), hash: ChainHash([9; 16]) };
    for ours in [first, end] {
        follower_that_saw(&place, mark(ours)).unwrap();
    }
    let told = |link| follower_that_saw(&place, mark(link)).unwrap_err().to_string();
    assert!(told(lost).contains("another history"), "{}", told(lost));
    leave_snapshot(&*journal, end);
    assert!(told(lost).contains("another history"), "{}", told(lost));
    follower_that_saw(&place, mark(first)).unwrap();
}

/// The batch that ends where a journal does.
fn last_batch(journal: &dyn Journal, after: Link) -> Batch {
    match journal.read(after.position, 1 << 20).unwrap() {
        Read::Batches(batches) => batches.into_iter().next().unwrap(),
        Read::End | Read::Truncated(_) => panic!("there should be a batch"),
    }
}

#[test]
fn a_hint_is_applied_only_if_it_follows() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut journal = place.journal().unwrap();
    let first = begin_term(&mut *journal, Link::default(), 1);
    let mut follower = follower(&place);
    let second = begin_term(&mut *journal, first, 2);
    let hint = last_batch(&*journal, first);
    assert!(!follower.hint(JournalId([6; 16]), hint.clone()).unwrap(), "another journal");
    let elsewhere = Link { hash: ChainHash([9; 16]), ..first };
    assert!(!follower.hint(journal.id(), Batch { previous: elsewhere, ..hint.clone() }).unwrap());
    let later = Link { position: Position(7), ..second };
    assert!(!follower.hint(journal.id(), Batch { previous: later, ..hint.clone() }).unwrap());
    assert_eq!(follower.link(), first);
    assert!(follower.hint(journal.id(), hint.clone()).unwrap());
    assert_eq!((follower.link(), follower.state().epoch()), (second, 2));
    assert!(follower.hint(journal.id(), hint).unwrap(), "a repeat changes nothing");
    assert_eq!(follower.advance().unwrap(), Progress::AtEnd);
    let third = begin_term(&mut *journal, second, 3);
    while follower.advance().unwrap() == Progress::Moved {}
    assert_eq!(follower.link(), third);
}

#[test]
fn a_loss_in_the_engine_is_noticed_before_a_term_begins() {
    let (place, other) = (MemoryPlace::new(JournalId([5; 16])), MemoryPlace::new(JournalId([5; 16])));
    let (mut journal, mut elsewhere) = (place.journal().unwrap(), other.journal().unwrap());
    let first = begin_term(&mut *journal, Link::default(), 1);
    assert_eq!(begin_term(&mut *elsewhere, Link::default(), 1), first);
    begin_term(&mut *elsewhere, first, 2);
    let told = last_batch(&*elsewhere, first);
    let (mut one, mut two) = (follower(&place), follower(&place));
    for follower in [&mut one, &mut two] {
        assert!(follower.hint(journal.id(), told.clone()).unwrap());
    }
    let refused = one.advance().unwrap_err();
    assert!(refused.to_string().contains("its leader has reported 2"), "{refused}");
    assert!(!refused.is_retryable());
    // The same when the engine has something else there by now.
    begin_term(&mut *journal, first, 3);
    let refused = two.advance().unwrap_err();
    assert!(refused.to_string().contains("its leader has reported 2"), "{refused}");
}
