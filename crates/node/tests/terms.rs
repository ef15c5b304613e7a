//! Many short terms on one engine, step by step and without threads.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use orchestrix_core::wire::Submit;
use orchestrix_core::{Json, Name, Position, Retention};
use orchestrix_engine::memory::MemoryPlace;
use orchestrix_engine::{JournalId, Read, Shared};
use orchestrix_node::{
    Beginning, Following, HighWater, Node, Options, Standby, Stepped, SystemClock, WriteGuard,
};

const SNAPSHOT_BYTES: u64 = 32 << 10;

fn options() -> Options {
    let retention = Retention { done_ms: 0, failed_ms: 0, count: 0, key_ms: 0, keys: 0 };
    Options { snapshot_bytes: SNAPSHOT_BYTES, retention, ..Options::default() }
}

fn standby(place: &MemoryPlace) -> Standby {
    let following = Following::new(Arc::new(SystemClock), HighWater::in_memory(), &options());
    Standby::new(Arc::new(place.clone()), options(), following)
}

fn lead(standby: &mut Standby, epoch: u64) -> (Node, Stepped) {
    let Beginning::Term(follower) = standby.begin(epoch).unwrap() else { panic!("a later epoch was seen") };
    Stepped::lead(*follower, WriteGuard { epoch, ..WriteGuard::default() })
}

/// Decides and writes until nothing is left, and all of a snapshot if `snapshots` says so.
fn go_on(stepped: &mut Stepped, snapshots: bool) {
    for _ in 0..20 {
        let _ = stepped.decide().unwrap();
        stepped.write().unwrap();
        if snapshots {
            stepped.write_snapshot();
        }
    }
}

/// Submits a task of a kilobyte and cancels it: the next term forgets it.
fn write_a_kilobyte(node: &Node, stepped: &mut Stepped) {
    let payload = Json::parse(&format!("\"{}\"", "x".repeat(1_000))).unwrap();
    let (outcome, _) =
        answer(node.submit(Submit::new(Name::new("mail").unwrap(), payload)), stepped).unwrap();
    answer(node.cancel(outcome.id, None), stepped).unwrap();
}

fn answer<T>(asked: impl Future<Output = T>, stepped: &mut Stepped) -> T {
    let (mut asked, mut context) = (pin!(asked), Context::from_waker(Waker::noop()));
    for _ in 0..3 {
        if let Poll::Ready(answer) = asked.as_mut().poll(&mut context) {
            return answer;
        }
        let _ = stepped.decide().unwrap();
        stepped.write().unwrap();
    }
    panic!("nobody answered");
}

/// Where the journal begins, and the bytes of it.
fn kept(place: &MemoryPlace) -> (Position, u64) {
    let journal = place.journal().unwrap();
    let floor = match journal.read(Position(0), 1).unwrap() {
        Read::Truncated(floor) => floor,
        Read::Batches(_) | Read::End => Position(0),
    };
    let Read::Batches(batches) = journal.read(floor, usize::MAX).unwrap() else { return (floor, 0) };
    (floor, batches.iter().map(|batch| batch.records.len() as u64).sum())
}

#[test]
fn a_journal_of_many_short_terms_is_truncated() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut nodes = [standby(&place), standby(&place), standby(&place)];
    let mut most = 0;
    for epoch in 1..=60 {
        let (node, mut stepped) = lead(&mut nodes[usize::try_from(epoch).unwrap() % 3], epoch);
        (0..8).for_each(|_| write_a_kilobyte(&node, &mut stepped));
        go_on(&mut stepped, true);
        most = most.max(kept(&place).1);
        drop(stepped);
        nodes.iter_mut().for_each(|node| _ = node.read_to_end().unwrap());
    }
    let (floor, bytes) = kept(&place);
    assert!(floor > Position(0), "{bytes} bytes are kept of 60 terms");
    // Down to the older of two snapshots, each at most a term later than it is due.
    assert!(most <= 3 * (SNAPSHOT_BYTES + (10 << 10)), "{most} bytes are kept");
    let snapshots = place.journal().unwrap().snapshots().list().unwrap();
    assert_eq!(snapshots.len(), 2);
}

#[test]
fn a_snapshot_that_a_term_does_not_finish_is_due_in_the_next() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut nodes = [standby(&place), standby(&place)];
    let (node, mut stepped) = lead(&mut nodes[0], 1);
    (0..40).for_each(|_| write_a_kilobyte(&node, &mut stepped));
    go_on(&mut stepped, false);
    drop(stepped);
    let snapshots = place.journal().unwrap().snapshots();
    assert_eq!(snapshots.list().unwrap(), [], "it was begun, and its term is over");
    let (node, mut stepped) = lead(&mut nodes[1], 2);
    write_a_kilobyte(&node, &mut stepped);
    go_on(&mut stepped, true);
    assert_eq!(snapshots.list().unwrap().len(), 1);
}

#[test]
fn a_follower_counts_from_the_snapshot_of_another() {
    let place = MemoryPlace::new(JournalId([5; 16]));
    let mut nodes = [standby(&place), standby(&place)];
    let (node, mut stepped) = lead(&mut nodes[0], 1);
    (0..40).for_each(|_| write_a_kilobyte(&node, &mut stepped));
    go_on(&mut stepped, true);
    nodes[1].read_to_end().unwrap();
    drop(stepped);
    let snapshots = place.journal().unwrap().snapshots();
    let first = snapshots.list().unwrap();
    assert_eq!(first.len(), 1);
    let (node, mut stepped) = lead(&mut nodes[1], 2);
    (0..5).for_each(|_| write_a_kilobyte(&node, &mut stepped));
    go_on(&mut stepped, true);
    assert_eq!(snapshots.list().unwrap(), first, "another would come too early");
}
