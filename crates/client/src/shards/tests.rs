//! A worker's book, step by step, with a manual clock.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::Position;
use orchestrix_core::wire::Assignment;

use super::book::{Book, Change, RequestKind};
use super::shard::{Shard, ShardLease};
use super::{ShardWorker, tcp};
use crate::clock::Clock;
use crate::clock::manual::ManualClock;

const LEASE_MS: u64 = 10_000;

struct Harness {
    clock: Arc<ManualClock>,
    book: Book,
}

fn assignment(shards: &[u32], generation: u64) -> Assignment {
    let tokens = shards.iter().map(|_| Position(1)).collect();
    Assignment {
        assigned_shards: shards.to_vec(),
        tokens,
        generation: Position(generation),
        ..Assignment::default()
    }
}

fn fenced() -> Assignment {
    Assignment { fenced: true, ..Assignment::default() }
}

fn numbers(shards: &[Shard]) -> Vec<u32> {
    shards.iter().map(Shard::number).collect()
}

impl Harness {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1_000));
        let trust = Arc::new(ShardLease::new(Arc::<ManualClock>::clone(&clock)));
        Self { clock, book: Book::new(trust, None, None) }
    }

    /// A worker that serves these since a moment ago, by generation 5.
    fn serving(shards: &[u32]) -> Self {
        let mut harness = Self::new();
        let (number, kind) = harness.speak().expect("it comes");
        assert_eq!(kind, RequestKind::Register);
        harness.answer(assignment(shards, 5), number);
        let [Change::Assigned(assigned)] = &harness.changes()[..] else { panic!("they are assigned") };
        assert_eq!(numbers(assigned), shards);
        harness.returned(&Change::Assigned(assigned.clone()));
        harness
    }

    fn advance(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    fn speak(&mut self) -> Option<(u64, RequestKind)> {
        self.book.speak(self.clock.now()).map(|request| (request.number, request.kind))
    }

    fn answer(&mut self, assignment: Assignment, number: u64) {
        let assignment = Assignment { lease_ms: LEASE_MS, ..assignment };
        self.book.hear(&assignment, Some(number), self.clock.now());
    }

    /// Answers the next heartbeat.
    fn answer_next(&mut self, assignment: Assignment) {
        let (number, ..) = self.beat();
        self.answer(assignment, number);
    }

    fn push(&mut self, assignment: &Assignment) {
        self.book.hear(assignment, None, self.clock.now());
    }

    fn changes(&mut self) -> Vec<Change> {
        self.book.changes(self.clock.now())
    }

    /// The only change that is due, which takes shards away.
    fn revoked(&mut self) -> Change {
        let mut changes = self.changes();
        assert!(matches!(&changes[..], [Change::Revoked(_)]), "{changes:?}");
        changes.remove(0)
    }

    fn returned(&mut self, change: &Change) {
        self.book.returned(change, self.clock.now());
    }

    /// What the next heartbeat says, and that it is one.
    fn beat(&mut self) -> (u64, Vec<u32>, u64) {
        match self.speak() {
            Some((number, RequestKind::Heartbeat { serves, generation })) => (number, serves, generation.0),
            other => panic!("{other:?} is no heartbeat"),
        }
    }
}

#[test]
fn a_shorter_lease_applies_from_the_next_heartbeat() {
    let mut harness = Harness::serving(&[1]);
    let (number, ..) = harness.beat();
    let shorter = Assignment { lease_ms: LEASE_MS / 5, ..assignment(&[1], 5) };
    harness.book.hear(&shorter, Some(number), harness.clock.now());
    assert_eq!(harness.book.speak_at, harness.clock.now() + Duration::from_millis(LEASE_MS / 5) / 3);
}

#[test]
fn heartbeats_name_a_shard_until_its_callback_returned() {
    let mut harness = Harness::serving(&[1, 2]);
    harness.push(&assignment(&[1], 7));
    let revoked = harness.revoked();
    assert_eq!(numbers(revoked.shards()), [2]);
    assert!(!revoked.shards()[0].is_held(), "nothing new is begun with it");
    assert_eq!(harness.beat().1, [1, 2]);
    assert!(harness.changes().is_empty(), "it is not called again");
    harness.returned(&revoked);
    assert!(harness.book.speak_at <= harness.clock.now(), "others wait for it");
    let (_, serves, generation) = harness.beat();
    assert_eq!((serves, generation), (vec![1], 7));
}

#[test]
fn time_counts_from_the_sending_of_what_was_answered() {
    let mut harness = Harness::serving(&[1]);
    let (number, ..) = harness.beat();
    harness.advance(6_000);
    harness.answer(assignment(&[1], 5), number);
    harness.advance(2_899);
    assert!(harness.changes().is_empty());
    harness.advance(1);
    // A tenth of the lease is for the callback, and a hundredth for clocks that differ.
    let revoked = harness.revoked();
    assert!(!revoked.shards()[0].is_held());
}

#[test]
fn a_push_and_an_old_answer_promise_no_time() {
    let mut harness = Harness::serving(&[1]);
    let (first, ..) = harness.beat();
    harness.advance(5_000);
    harness.push(&assignment(&[1], 6));
    harness.answer(assignment(&[1], 6), first);
    harness.advance(4_000);
    assert_eq!(numbers(harness.revoked().shards()), [1]);
}

#[test]
fn a_process_that_slept_finds_out_by_its_clock() {
    let mut harness = Harness::new();
    let (number, _) = harness.speak().unwrap();
    harness.answer(assignment(&[1], 5), number);
    let changes = harness.changes();
    let shard = &changes[0].shards()[0];
    assert!(shard.is_held());
    harness.advance(9_899);
    assert!(shard.is_held());
    harness.advance(1);
    assert!(!shard.is_held(), "although nobody has told it anything");
}

#[test]
fn an_assignment_older_than_the_last_one_is_ignored() {
    let mut harness = Harness::serving(&[1, 2]);
    harness.answer_next(assignment(&[1, 2, 3], 7));
    let assigned = harness.changes();
    assert_eq!(numbers(assigned[0].shards()), [3]);
    harness.returned(&assigned[0]);
    harness.push(&assignment(&[1], 6));
    assert!(harness.changes().is_empty());
    assert_eq!(harness.beat().2, 7);
}

#[test]
fn a_starting_callback_is_awaited_and_its_shard_not_held() {
    let mut harness = Harness::serving(&[1]);
    harness.answer_next(assignment(&[1, 2], 6));
    let assigned = harness.changes().remove(0);
    harness.push(&assignment(&[1], 7));
    assert!(harness.changes().is_empty());
    assert!(!assigned.shards()[0].is_held());
    assert_eq!(harness.beat().1, [1, 2]);
    harness.returned(&assigned);
    assert_eq!(numbers(harness.revoked().shards()), [2]);
}

#[test]
fn a_shard_withdrawn_while_starting_starts_anew_later() {
    let mut harness = Harness::serving(&[1]);
    harness.answer_next(assignment(&[1, 2], 6));
    let assigned = harness.changes().remove(0);
    harness.push(&assignment(&[1], 7));
    assert!(harness.changes().is_empty());
    harness.answer_next(assignment(&[1, 2], 8));
    harness.returned(&assigned);
    let revoked = harness.revoked();
    assert_eq!(numbers(revoked.shards()), [2], "though it is told to serve it by now");
    harness.returned(&revoked);
    let [Change::Assigned(assigned)] = &harness.changes()[..] else { panic!("it is assigned") };
    assert!(assigned[0].is_held());
}

#[test]
fn a_push_ends_shards_and_begins_none() {
    let mut harness = Harness::serving(&[1, 2]);
    harness.push(&assignment(&[1, 3], 7));
    let changes = harness.changes();
    assert_eq!((changes.len(), numbers(changes[0].shards())), (1, vec![2]), "it gives up what is not named");
    harness.returned(&changes[0]);
    // It asks, and gets the answer.
    harness.answer_next(assignment(&[1, 3], 7));
    assert_eq!(numbers(harness.changes()[0].shards()), [3]);
}

#[test]
fn a_shard_that_was_granted_anew_is_given_up_before_it_is_taken() {
    let mut harness = Harness::serving(&[1]);
    let again = Assignment { tokens: vec![Position(9)], ..assignment(&[1], 9) };
    harness.push(&again);
    let revoked = harness.revoked();
    harness.returned(&revoked);
    harness.answer_next(again);
    let [Change::Assigned(assigned)] = &harness.changes()[..] else { panic!("it is assigned") };
    assert_eq!(assigned[0].token(), Position(9));
}

#[test]
fn at_the_end_of_its_time_a_worker_gives_up_and_comes_anew() {
    let mut harness = Harness::serving(&[1]);
    harness.advance(9_000);
    let revoked = harness.revoked();
    assert_eq!(harness.beat().1, [1], "until it has stopped");
    harness.returned(&revoked);
    let (number, kind) = harness.speak().unwrap();
    assert_eq!(kind, RequestKind::Register);
    assert!(harness.speak().is_none(), "it waits for the answer");
    // A coordinator that began a new journal counts from the beginning.
    harness.answer(assignment(&[1], 2), number);
    assert!(matches!(&harness.changes()[..], [Change::Assigned(_)]));
}

#[test]
fn an_answer_from_before_the_registration_is_ignored() {
    let mut harness = Harness::serving(&[1]);
    let (before, ..) = harness.beat();
    harness.advance(9_000);
    let revoked = harness.revoked();
    harness.returned(&revoked);
    harness.speak().expect("it comes again");
    harness.book.hear(&fenced(), Some(before), harness.clock.now());
    harness.answer(assignment(&[1], 5), before);
    assert!(harness.changes().is_empty());
}

#[test]
fn a_fenced_worker_stops_before_it_registers_again() {
    let mut harness = Harness::serving(&[1]);
    harness.advance(9_950);
    harness.push(&fenced());
    let revoked = harness.revoked();
    assert!(harness.speak().is_none());
    harness.returned(&revoked);
    assert_eq!(harness.speak().unwrap().1, RequestKind::Register, "at once: its time was over");
}

#[test]
fn two_of_one_name_leave_it_to_each_other_for_longer_and_longer() {
    let mut harness = Harness::new();
    let (number, _) = harness.speak().unwrap();
    harness.answer(assignment(&[], 5), number);
    for leases in [2, 4, 8, 16, 32, 32] {
        harness.push(&fenced());
        assert_eq!(harness.book.speak_at, harness.clock.now() + Duration::from_millis(leases * LEASE_MS));
        assert!(harness.speak().is_none());
        harness.advance(leases * LEASE_MS);
        let (number, kind) = harness.speak().unwrap();
        assert_eq!(kind, RequestKind::Register);
        harness.answer(assignment(&[], 5), number);
    }
}

#[test]
fn a_connection_that_breaks_is_the_same_session() {
    let mut harness = Harness::serving(&[1]);
    harness.beat();
    harness.book.disconnected(Duration::ZERO, harness.clock.now());
    assert_eq!(harness.beat().1, [1]);
    assert!(harness.changes().is_empty());
}

#[test]
fn a_connection_without_answers_is_left() {
    let mut harness = Harness::serving(&[1]);
    harness.beat();
    harness.advance(6_665);
    assert!(!harness.book.is_overdue(harness.clock.now()));
    harness.advance(2);
    assert!(harness.book.is_overdue(harness.clock.now()));
}

#[test]
fn a_leaving_worker_stops_all_shards_first() {
    let mut harness = Harness::serving(&[1]);
    harness.book.leave(harness.clock.now());
    let revoked = harness.revoked();
    let (number, serves, _) = harness.beat();
    assert_eq!(serves, [1]);
    harness.answer(assignment(&[1], 5), number);
    harness.returned(&revoked);
    assert!(harness.changes().is_empty(), "it takes nothing any more");
    assert_eq!(harness.speak().unwrap().1, RequestKind::Deregister);
}

#[test]
fn nothing_is_held_by_a_worker_that_does_not_run() {
    let mut harness = Harness::new();
    let (number, _) = harness.speak().unwrap();
    harness.answer(assignment(&[1], 5), number);
    let changes = harness.changes();
    let Harness { book, .. } = harness;
    drop(book);
    assert!(!changes[0].shards()[0].is_held());
}

#[tokio::test]
async fn options_that_are_not_valid_are_refused_with_a_sentence() {
    for worker in [
        ShardWorker::new("nonsense", "orders", 10),
        ShardWorker::new("tcp://h", "orders", 10),
        ShardWorker::new("tcp://h:5555,http://h:3000", "orders", 10),
        ShardWorker::new("tcp://h:5555", "no spaces", 10),
        ShardWorker::new("tcp://h:5555", "orders", 0),
        ShardWorker::new("tcp://h:5555", "orders", 100_001),
        ShardWorker::new("http://h", "orders", 1).name("no spaces"),
        ShardWorker::new("http://h", "orders", 1).group(""),
    ] {
        let shown = format!("{worker:?}");
        assert_eq!(worker.link().map(drop).unwrap_err().code(), "invalid", "{shown}");
    }
    assert_eq!(tcp(" tcp://[::1]:5555").unwrap(), "[::1]:5555");
    let shown = format!("{:?}", ShardWorker::new("tcp://h:5555", "orders", 10).token("s3cret"));
    assert!(!shown.contains("s3cret"));
}
