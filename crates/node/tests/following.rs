//! A follower that becomes a leader, step by step and without threads.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;

use orchestrix_core::{Event, Position, Term, TermStarted, Timestamp, encode_record};
use orchestrix_engine::memory::MemoryPlace;
use orchestrix_engine::{Batch, Journal, JournalId, Link, Shared};
use orchestrix_node::{Follower, Following, HighWater, Mandate, Options, Progress, Stepped, SystemClock};

fn follower(place: &MemoryPlace) -> Follower {
    let following = Following::new(Arc::new(SystemClock), HighWater::in_memory(), &Options::default());
    let mut follower = Follower::load(Arc::new(place.clone()), Options::default(), following).unwrap();
    while follower.advance().unwrap() == Progress::Moved {}
    follower
}

fn begin_term(journal: &mut dyn Journal, previous: Link, epoch: u64) -> Link {
    let mut records = Vec::new();
    let event = Event::TermStarted(TermStarted { epoch, node: "other".to_owned() });
    encode_record(Timestamp(1), &event, &mut records);
    let term = Term(previous.position.0 + 1);
    journal.append(&Batch { previous, term, count: 1, records }).unwrap();
    journal.end()
}

/// Decides a round and appends what comes of it.
fn round(stepped: &mut Stepped) -> Result<(), String> {
    stepped.decide().and_then(|_| stepped.write()).map_err(|failure| failure.to_string())
}

#[test]
fn whoever_is_overtaken_between_reading_and_its_first_event_is_refused_by_the_journal() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut journal = place.journal().unwrap();
    let first = begin_term(&mut *journal, Link::default(), 1);
    let follower = follower(&place);
    assert_eq!(follower.link(), first);
    let second = begin_term(&mut *journal, first, 2);
    let (_, mut stepped) = Stepped::lead(follower, Mandate { epoch: 3, ..Mandate::default() });
    let refused = round(&mut stepped).unwrap_err();
    assert!(refused.contains("somebody else has written to the journal: it ends at 2"), "{refused}");
    assert_eq!(journal.refresh().unwrap(), second, "it added nothing");
}

#[test]
fn whoever_has_read_to_the_end_leads_from_there() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut journal = place.journal().unwrap();
    begin_term(&mut *journal, Link::default(), 1);
    let (_, mut stepped) = Stepped::lead(follower(&place), Mandate { epoch: 2, ..Mandate::default() });
    round(&mut stepped).unwrap();
    assert_eq!(journal.refresh().unwrap().position, Position(2));
}
