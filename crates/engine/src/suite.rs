//! What every engine must do. Each function is one sentence of the contracts in this crate; an engine's
//! tests call [`journal`], [`snapshots`], [`logs`] and [`register`] with a way to make a new, empty one, and those
//! of an engine that several nodes use call [`shared`], too. Those of a bus call [`bus()`].
//!
//! A broken sentence is a panic that says which.

mod bus;
mod logs;
mod register;
mod script;
mod shared;

use orchestrix_core::{Position, Term};

use crate::{Appended, Batch, Journal, JournalId, Link, Read, SNAPSHOT_CHUNK_MAX, Snapshots};

pub use bus::*;
pub use logs::*;
pub use register::*;
pub use script::*;
pub use shared::*;

/// Makes a new, empty journal.
pub type MakeJournal<'a> = &'a mut dyn FnMut() -> Box<dyn Journal>;

/// All sentences about journals.
pub fn journal(make: MakeJournal<'_>) {
    a_new_journal_is_empty(make);
    appends_follow_the_end(make);
    a_batch_that_does_not_follow_the_end_is_refused(make);
    a_repeated_batch_is_done_once(make);
    the_chain_links_every_batch(make);
    reads_give_what_was_appended(make);
    reads_respect_their_limit_but_give_at_least_one(make);
    a_read_inside_a_batch_gives_the_whole_batch(make);
    a_batch_larger_than_usual_is_kept(make);
    an_impossible_batch_is_an_error(make);
    resting_changes_nothing_that_is_read(make);
}

/// All sentences about snapshots and truncation.
pub fn snapshots(make: MakeJournal<'_>) {
    a_snapshot_is_read_as_written(make);
    an_unfinished_snapshot_is_not_seen(make);
    a_snapshot_that_is_not_there_is_an_error(make);
    a_chunk_that_is_too_long_is_an_error(make);
    pruning_keeps_the_two_newest(make);
    nothing_is_dropped_without_two_snapshots(make);
    truncation_keeps_all_after_the_older_snapshot(make);
    appends_go_on_after_truncation(make);
}

/// A batch after `previous`, whose bytes depend on where it stands.
#[must_use]
pub fn batch_after(previous: Link, count: u32, bytes: usize) -> Batch {
    let mark = previous.position.0.wrapping_mul(31).wrapping_add(u64::from(count));
    let records = (0..bytes as u64).map(|at| mark.wrapping_add(at).to_le_bytes()[0]).collect();
    Batch { previous, term: Term(1), count, records }
}

/// Appends a batch that must be accepted, and gives it back with the new end.
///
/// # Panics
/// When it is not accepted.
pub fn append_one(journal: &mut dyn Journal, count: u32, bytes: usize) -> (Batch, Link) {
    let batch = batch_after(journal.end(), count, bytes);
    match journal.append(&batch) {
        Ok(Appended::Done(link)) => (batch, link),
        other => panic!("a batch that follows the end is done, not {other:?}"),
    }
}

/// Reads all batches after a position, `limit` bytes at a time.
///
/// # Panics
/// When something cannot be read, or does not follow what was read before.
#[must_use]
pub fn read_all(journal: &dyn Journal, after: Position, limit: usize) -> Vec<Batch> {
    let mut all: Vec<Batch> = Vec::new();
    loop {
        let from = all.last().map_or(after, Batch::last);
        match journal.read(from, limit).expect("a whole journal is read") {
            Read::Batches(some) => {
                assert!(!some.is_empty(), "a read gives at least one batch or the end");
                all.extend(some);
            }
            Read::End => break,
            Read::Truncated(floor) => panic!("all above {from} is there, but the floor is {floor}"),
        }
    }
    check_chain(journal.id(), &all);
    all
}

/// Writes a whole snapshot of the end of the journal.
///
/// # Panics
/// When it cannot be written.
pub fn take_snapshot(journal: &dyn Journal, chunks: &[&[u8]]) -> Link {
    let at = journal.end();
    let mut writer = journal.snapshots().create(at).expect("a snapshot of the end is begun");
    for chunk in chunks {
        writer.chunk(chunk).expect("a chunk is written");
    }
    writer.finish().expect("a snapshot is finished");
    at
}

fn check_chain(id: JournalId, batches: &[Batch]) {
    for pair in batches.windows(2) {
        assert_eq!(pair[1].previous, pair[0].link(id), "every batch follows the one before it");
    }
}

pub fn a_new_journal_is_empty(make: MakeJournal<'_>) {
    let journal = make();
    assert_eq!(journal.end(), Link::default());
    assert_eq!(journal.read(Position(0), 1 << 20).expect("an empty journal is read"), Read::End);
}

pub fn appends_follow_the_end(make: MakeJournal<'_>) {
    let mut journal = make();
    for (count, bytes) in [(1, 10), (3, 0), (1, 5000), (7, 100)] {
        let before = journal.end();
        let (batch, link) = append_one(&mut *journal, count, bytes);
        assert_eq!(link.position.0, before.position.0 + u64::from(count));
        assert_eq!(link, batch.link(journal.id()));
        assert_eq!(journal.end(), link);
    }
}

pub fn a_batch_that_does_not_follow_the_end_is_refused(make: MakeJournal<'_>) {
    let mut journal = make();
    let (first, link) = append_one(&mut *journal, 2, 10);
    let other_hash = Link { position: link.position, hash: first.previous.hash };
    let ahead = Link { position: link.position.next(), hash: link.hash };
    for previous in [Link::default(), other_hash, ahead] {
        let answer = journal.append(&batch_after(previous, 5, 10)).expect("losing a race is an answer");
        assert_eq!(answer, Appended::Conflict(link));
        assert_eq!(journal.end(), link);
    }
    assert_eq!(read_all(&*journal, Position(0), 1 << 20), [first]);
}

pub fn a_repeated_batch_is_done_once(make: MakeJournal<'_>) {
    let mut journal = make();
    append_one(&mut *journal, 1, 10);
    let (batch, link) = append_one(&mut *journal, 2, 20);
    assert_eq!(journal.append(&batch).expect("a repeat is answered"), Appended::Done(link));
    assert_eq!(read_all(&*journal, Position(0), 1 << 20).len(), 2);
    append_one(&mut *journal, 1, 1);
    let end = journal.end();
    assert_eq!(journal.append(&batch).expect("a late repeat is answered"), Appended::Conflict(end));
}

pub fn the_chain_links_every_batch(make: MakeJournal<'_>) {
    let mut journal = make();
    let mut links = vec![Link::default()];
    for bytes in 0..20 {
        links.push(append_one(&mut *journal, 1, bytes).1);
    }
    let batches = read_all(&*journal, Position(0), 1 << 20);
    let previous: Vec<_> = batches.iter().map(|batch| batch.previous).collect();
    assert_eq!(previous, links[..20]);
}

pub fn reads_give_what_was_appended(make: MakeJournal<'_>) {
    let mut journal = make();
    let written: Vec<_> =
        (0..60).map(|number| append_one(&mut *journal, 1 + number % 4, number as usize * 37).0).collect();
    for limit in [0, 1000, 1 << 20] {
        assert_eq!(read_all(&*journal, Position(0), limit), written);
    }
    let middle = written[30].last();
    assert_eq!(read_all(&*journal, middle, 500), written[31..]);
    assert_eq!(journal.read(journal.end().position, 500).expect("the end is read"), Read::End);
}

pub fn reads_respect_their_limit_but_give_at_least_one(make: MakeJournal<'_>) {
    let mut journal = make();
    for _ in 0..5 {
        append_one(&mut *journal, 1, 1000);
    }
    for (limit, expected) in [(0, 1), (1000, 1), (2999, 2), (3000, 3), (1 << 20, 5)] {
        match journal.read(Position(0), limit).expect("a journal is read") {
            Read::Batches(batches) => assert_eq!(batches.len(), expected, "with a limit of {limit}"),
            other @ (Read::End | Read::Truncated(_)) => panic!("batches, not {other:?}"),
        }
    }
}

pub fn a_read_inside_a_batch_gives_the_whole_batch(make: MakeJournal<'_>) {
    let mut journal = make();
    append_one(&mut *journal, 3, 10);
    let (batch, _) = append_one(&mut *journal, 4, 10);
    assert_eq!(read_all(&*journal, Position(5), 1 << 20), [batch]);
}

pub fn a_batch_larger_than_usual_is_kept(make: MakeJournal<'_>) {
    let mut journal = make();
    append_one(&mut *journal, 1, 10);
    let (large, _) = append_one(&mut *journal, 1, 300_000);
    let (after, _) = append_one(&mut *journal, 1, 10);
    assert_eq!(read_all(&*journal, Position(1), 1 << 20), [large, after]);
}

pub fn an_impossible_batch_is_an_error(make: MakeJournal<'_>) {
    let mut journal = make();
    let empty = Batch { previous: Link::default(), term: Term(1), count: 0, records: Vec::new() };
    journal.append(&empty).expect_err("a batch without events");
    append_one(&mut *journal, 1, 1);
}

pub fn resting_changes_nothing_that_is_read(make: MakeJournal<'_>) {
    let mut journal = make();
    let mut written = Vec::new();
    for _ in 0..3 {
        journal.rest().expect("a journal rests");
        journal.rest().expect("a journal rests twice");
        written.push(append_one(&mut *journal, 1, 100).0);
    }
    journal.rest().expect("a journal rests");
    assert_eq!(read_all(&*journal, Position(0), 1 << 20), written);
}

pub fn a_snapshot_is_read_as_written(make: MakeJournal<'_>) {
    let mut journal = make();
    append_one(&mut *journal, 3, 10);
    let large = vec![7; SNAPSHOT_CHUNK_MAX];
    let chunks: [&[u8]; 4] = [b"one", b"", &large, b"four"];
    let at = take_snapshot(&*journal, &chunks);
    let mut reader = journal.snapshots().open(at.position).expect("a snapshot is opened");
    assert_eq!(reader.link(), at);
    for chunk in chunks {
        assert_eq!(reader.next().expect("a chunk is read").as_deref(), Some(chunk));
    }
    assert_eq!(reader.next().expect("a snapshot ends"), None);
    assert_eq!(reader.next().expect("and stays so"), None);
}

pub fn an_unfinished_snapshot_is_not_seen(make: MakeJournal<'_>) {
    let mut journal = make();
    append_one(&mut *journal, 1, 10);
    let snapshots = journal.snapshots();
    let mut writer = snapshots.create(journal.end()).expect("a snapshot is begun");
    writer.chunk(b"never finished").expect("a chunk is written");
    assert_eq!(snapshots.list().expect("snapshots are listed"), []);
    drop(writer);
    assert_eq!(snapshots.list().expect("snapshots are listed"), []);
    snapshots.open(Position(1)).map(|_| ()).expect_err("it was never finished");
    snapshots.prune().expect("what is left of it is removed");
}

/// Holds for servers whose replica may take over without the newest batches.
///
/// # Panics
/// When a snapshot is taken that the journal does not reach, or that stands on another batch.
pub fn a_snapshot_that_stands_on_no_batch_is_refused(make: MakeJournal<'_>) {
    let mut journal = make();
    append_one(&mut *journal, 3, 10);
    let taken = take_snapshot(&*journal, &[b"state"]);
    let (_, end) = append_one(&mut *journal, 2, 10);
    let snapshots = journal.snapshots();
    let foreign = Link { hash: taken.hash, ..end };
    for at in
        [batch_after(end, 1, 10).link(journal.id()), batch_after(end, 7, 10).link(journal.id()), foreign]
    {
        let mut writer = snapshots.create(at).expect("a snapshot is begun");
        writer.chunk(b"state").expect("a chunk is written");
        writer.finish().expect_err("it stands on no batch");
        snapshots.prune().expect("what is left of it is removed");
        assert_eq!(snapshots.list().expect("snapshots are listed"), [taken.position]);
    }
}

pub fn a_snapshot_that_is_not_there_is_an_error(make: MakeJournal<'_>) {
    make().snapshots().open(Position(3)).map(|_| ()).expect_err("there is none");
}

pub fn a_chunk_that_is_too_long_is_an_error(make: MakeJournal<'_>) {
    let mut journal = make();
    append_one(&mut *journal, 1, 10);
    let mut writer = journal.snapshots().create(journal.end()).expect("a snapshot is begun");
    writer.chunk(&vec![0; SNAPSHOT_CHUNK_MAX + 1]).expect_err("the chunk is too long");
}

pub fn pruning_keeps_the_two_newest(make: MakeJournal<'_>) {
    let mut journal = make();
    let mut taken = Vec::new();
    for _ in 0..4 {
        append_one(&mut *journal, 1, 10);
        taken.insert(0, take_snapshot(&*journal, &[b"state"]).position);
    }
    let snapshots: Box<dyn Snapshots> = journal.snapshots();
    assert_eq!(snapshots.list().expect("snapshots are listed"), taken);
    snapshots.prune().expect("snapshots are pruned");
    assert_eq!(snapshots.list().expect("snapshots are listed"), taken[..2]);
}

pub fn nothing_is_dropped_without_two_snapshots(make: MakeJournal<'_>) {
    let mut journal = make();
    for _ in 0..50 {
        append_one(&mut *journal, 1, 500);
    }
    assert_eq!(journal.truncate().expect("truncating is answered"), Position(0));
    take_snapshot(&*journal, &[b"state"]);
    assert_eq!(journal.truncate().expect("truncating is answered"), Position(0));
    assert_eq!(read_all(&*journal, Position(0), 1 << 20).len(), 50);
}

pub fn truncation_keeps_all_after_the_older_snapshot(make: MakeJournal<'_>) {
    let mut journal = make();
    let mut older = Position(0);
    let mut written = Vec::new();
    for number in 0..100 {
        written.push(append_one(&mut *journal, 1, 500).0);
        if number == 59 || number == 79 {
            let at = take_snapshot(&*journal, &[b"state"]);
            older = if number == 59 { at.position } else { older };
        }
    }
    let floor = journal.truncate().expect("truncating is answered");
    assert!(floor <= older, "the older snapshot at {older} needs all after it, but the floor is {floor}");
    assert_eq!(read_all(&*journal, older, 1 << 20), written[60..]);
    if floor > Position(0) {
        let below = journal.read(Position(floor.0 - 1), 1 << 20).expect("reading below is answered");
        assert_eq!(below, Read::Truncated(floor));
        let above = read_all(&*journal, floor, 1 << 20);
        assert_eq!(above.last(), written.last());
    }
    assert_eq!(journal.truncate().expect("truncating twice is answered"), floor);
}

pub fn appends_go_on_after_truncation(make: MakeJournal<'_>) {
    let mut journal = make();
    for _ in 0..6 {
        for _ in 0..20 {
            append_one(&mut *journal, 2, 400);
        }
        take_snapshot(&*journal, &[b"state"]);
        let floor = journal.truncate().expect("truncating is answered");
        journal.snapshots().prune().expect("snapshots are pruned");
        assert_eq!(read_all(&*journal, floor, 2000).last().map(Batch::last), Some(journal.end().position));
    }
    assert_eq!(journal.end().position, Position(240));
}
