//! Snapshots, floors, and how long anybody waits.

use std::time::{Duration, Instant};

use orchestrix_core::Position;
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Appended, Batch, Journal, Read, Shared};

use crate::common::{PATIENT, Raw, journal, new_prefix, place, shared_store};
use crate::support::http::{Fate, Front};

/// Batches of one event, with snapshots after some of them.
fn filled(journal: &mut dyn Journal, count: u64, snapshots: &[u64]) -> Vec<Batch> {
    (1..=count)
        .map(|number| {
            let (batch, _) = append_one(journal, 1, 100);
            if snapshots.contains(&number) {
                take_snapshot(journal, &[b"state"]);
            }
            batch
        })
        .collect()
}

fn names(raw: &Raw, journal: &dyn Journal) -> Vec<u64> {
    raw.list(&format!("batches/{}", journal.id())).iter().map(|name| name.parse().unwrap()).collect()
}

#[test]
fn a_write_that_is_delivered_after_truncation_is_not_history() {
    let prefix = new_prefix();
    let raw = Raw::of(&prefix);
    let (mut late, mut later, mut same) = (journal(&prefix), journal(&prefix), journal(&prefix));
    let mut writer = journal(&prefix);
    let batches = filled(&mut *writer, 12, &[8, 10]);
    assert_eq!(writer.truncate().unwrap(), Position(8));
    assert_eq!(names(&raw, &*writer), [9, 10, 11, 12]);
    // The names are free again. One is taken by another batch, which is told that it lost.
    let other = batch_after(Default::default(), 30, 20);
    assert_eq!(late.append(&other).unwrap(), Appended::Conflict(writer.end()));
    assert_eq!(names(&raw, &*writer), [1, 9, 10, 11, 12], "the store has taken it");
    // Whoever sends the same finds its own bytes there, and they are no history either, though they seem to end later.
    assert_eq!(same.append(&other).unwrap(), Appended::Conflict(writer.end()));
    // And one by a batch that was history, and is again said to be.
    assert_eq!(later.append(&batches[0]).unwrap(), Appended::Conflict(writer.end()));
    for reader in [&late, &later, &same, &journal(&prefix)] {
        assert_eq!(reader.end(), writer.end());
        assert_eq!(reader.read(Position(0), 1000).unwrap(), Read::Truncated(Position(8)));
        assert_eq!(read_all(&**reader, Position(8), 1 << 20), batches[8..]);
    }
    append_one(&mut *late, 1, 1);
    assert_eq!(writer.truncate().unwrap(), Position(8));
    assert_eq!(names(&raw, &*writer), [9, 10, 11, 12, 13], "what came late is removed");
}

#[test]
fn the_floor_rises_before_anything_is_deleted() {
    let (front, prefix) = (Front::to(shared_store().s3), new_prefix());
    let raw = Raw::of(&prefix);
    let mut handle = place(front.port(), &prefix, PATIENT).journal().unwrap();
    let batches = filled(&mut *handle, 12, &[8, 10]);
    let deletes = |asked: &crate::support::http::Asked| ["POST", "DELETE"].contains(&asked.method.as_str());
    front.rule(move |asked| if deletes(asked) { Fate::Say(403) } else { Fate::Pass });
    handle.truncate().expect_err("it may not remove anything");
    assert_eq!(names(&raw, &*handle).len(), 12);
    assert_eq!(handle.read(Position(0), 100).unwrap(), Read::Truncated(Position(8)));
    assert_eq!(read_all(&*handle, Position(8), 1 << 20), batches[8..]);
    assert_eq!(journal(&prefix).truncate().unwrap(), Position(8));
    assert_eq!(names(&raw, &*handle), [9, 10, 11, 12]);
    front.rule(move |asked| {
        let raises = asked.method == "PUT" && asked.path.ends_with("/journal");
        if raises { Fate::Say(403) } else { Fate::Pass }
    });
    filled(&mut *handle, 2, &[1, 2]);
    handle.truncate().expect_err("it may not raise the floor");
    assert_eq!(names(&raw, &*handle).len(), 6, "so nothing is deleted");
}

#[test]
fn a_floor_whose_raising_was_not_heard_of_is_found() {
    for fate in [Fate::DoThenSay(500), Fate::DoThenSay(412), Fate::Say(409), Fate::Say(500)] {
        let (front, prefix) = (Front::to(shared_store().s3), new_prefix());
        let mut handle = place(front.port(), &prefix, PATIENT).journal().unwrap();
        filled(&mut *handle, 4, &[2, 3]);
        front.once(|asked| asked.method == "PUT" && asked.path.ends_with("/journal"), fate);
        assert_eq!(handle.truncate().unwrap(), Position(2), "{fate:?}");
        assert_eq!(names(&Raw::of(&prefix), &*handle), [3, 4]);
    }
}

#[test]
fn a_journal_without_batches_above_its_floor_goes_on() {
    let prefix = new_prefix();
    let mut handle = journal(&prefix);
    filled(&mut *handle, 3, &[2, 3]);
    Raw::of(&prefix).delete(&format!("snapshots/{:020}", 2));
    let at = handle.end();
    filled(&mut *handle, 1, &[1]);
    assert_eq!(handle.truncate().unwrap(), at.position);
    // As if the last batch had been taken back before anybody but the floor heard of it.
    Raw::of(&prefix).delete(&format!("batches/{}/{:020}", handle.id(), 4));
    let mut fresh = journal(&prefix);
    assert_eq!(fresh.end(), at, "the floor knows its own link");
    assert_eq!(fresh.read(at.position, 100).unwrap(), Read::End);
    append_one(&mut *fresh, 1, 10);
    assert_eq!(read_all(&*journal(&prefix), at.position, 100).len(), 1);
}

#[test]
fn a_snapshot_of_the_same_position_takes_the_place_of_the_first() {
    let prefix = new_prefix();
    let raw = Raw::of(&prefix);
    let mut handle = journal(&prefix);
    append_one(&mut *handle, 1, 10);
    let at = take_snapshot(&*handle, &[b"first", b"more"]).position;
    let mut first = handle.snapshots().open(at).unwrap();
    take_snapshot(&*handle, &[b"second"]);
    assert_eq!(first.next().unwrap().as_deref(), Some(b"first".as_slice()), "whoever reads it goes on");
    let mut second = handle.snapshots().open(at).unwrap();
    assert_eq!(second.next().unwrap().as_deref(), Some(b"second".as_slice()));
    filled(&mut *handle, 2, &[1, 2]);
    handle.snapshots().prune().unwrap();
    assert_eq!(handle.snapshots().list().unwrap(), [Position(3), Position(2)]);
    let with_chunks =
        raw.list("chunks").into_iter().filter(|one| !raw.list(&format!("chunks/{one}")).is_empty());
    assert_eq!(with_chunks.count(), 2, "both of the first position are gone");
    first.next().unwrap_err();
}

#[test]
fn a_snapshot_being_written_is_not_pruned() {
    let prefix = new_prefix();
    let mut handle = journal(&prefix);
    append_one(&mut *handle, 1, 10);
    let snapshots = handle.snapshots();
    let mut current = snapshots.create(handle.end()).unwrap();
    let mut old = snapshots.create(handle.end()).unwrap();
    current.chunk(b"state").unwrap();
    old.chunk(b"state").unwrap();
    journal(&prefix).snapshots().prune().unwrap();
    current.finish().unwrap();
    filled(&mut *handle, 2, &[1, 2]);
    snapshots.prune().unwrap();
    old.finish().expect_err("two newer ones are there, so nobody needs it");
    assert_eq!(snapshots.list().unwrap(), [Position(3), Position(2)]);
}

#[test]
fn a_snapshot_with_a_missing_chunk_is_no_reason_to_forget() {
    let prefix = new_prefix();
    let raw = Raw::of(&prefix);
    let mut handle = journal(&prefix);
    filled(&mut *handle, 4, &[2, 3]);
    let folder = raw.list("chunks").into_iter().find(|name| name.starts_with(&format!("{:020}", 2))).unwrap();
    raw.delete(&format!("chunks/{folder}/{:08}", 0));
    assert_eq!(handle.truncate().unwrap(), Position(0));
    filled(&mut *handle, 1, &[1]);
    assert_eq!(handle.truncate().unwrap(), Position(3));
}

#[test]
fn a_wait_polls_less_and_less_often_until_its_deadline() {
    let (front, prefix) = (Front::to(shared_store().s3), new_prefix());
    let waiting = place(front.port(), &prefix, PATIENT).journal().unwrap();
    front.asked();
    let began = Instant::now();
    // In short parts, as somebody does who has other things to do.
    while began.elapsed() < Duration::from_millis(1700) {
        waiting.wait(Position(0), Duration::from_millis(20)).unwrap();
    }
    // After 50, 150, 350, 750 and 1,550 ms.
    let looks = front.asked().len();
    assert!((2..=5).contains(&looks), "{looks} looks");
    let began = Instant::now();
    waiting.wait(Position(0), Duration::from_millis(10)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(20));

    let mut writer = journal(&prefix);
    let mut delays = Vec::new();
    for round in 0..10 {
        append_one(&mut *writer, 1, 10);
        let began = Instant::now();
        waiting.wait(Position(round), PATIENT).unwrap();
        delays.push(began.elapsed());
        assert!(matches!(waiting.read(Position(round), 100).unwrap(), Read::Batches(_)));
    }
    delays.sort();
    println!("woken after an append: median {:?}, longest {:?}", delays[5], delays[9]);
    assert!(delays[5] < Duration::from_secs(1), "{delays:?}");
    assert_eq!(waiting.linger(), Duration::from_millis(50));
}
