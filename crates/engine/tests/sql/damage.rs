//! Rows that are not as they were written are refused by name, and never skipped.

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Appended, Cause, Error, Journal, LogPlace, Logged, Read, Shared};

use super::Database;
use orchestrix_testbed::eventually;

fn ten(database: &Database) -> Box<dyn Journal> {
    let mut journal = database.journal();
    for _ in 0..10 {
        append_one(&mut *journal, 1, 50);
    }
    journal
}

/// It is damage, and the error says where.
fn names(error: &Error, place: &str) {
    assert!(matches!(error.source, Cause::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(place), "{place} is not named: {error}");
}

fn unreadable(journal: &dyn Journal, row: &str) {
    for after in 0..5 {
        let error = journal.read(Position(after), 1 << 20).expect_err("it is noticed");
        names(&error, &format!("/orchestrix_batches/default/{row}"));
    }
}

pub(crate) fn a_rotten_parcel_is_refused_by_name(database: &Database) {
    let journal = ten(database);
    let rotten = database.kind.rotten.replace('#', "parcel");
    database.ask(&format!("UPDATE orchestrix_batches SET parcel = {rotten} WHERE last_position = 5"));
    unreadable(&*journal, "5");
    unreadable(&*database.journal(), "5");
    assert!(matches!(journal.read(Position(5), 1 << 20), Ok(Read::Batches(_))), "what is behind it is good");
}

pub(crate) fn a_rotten_hash_is_refused_by_name(database: &Database) {
    let journal = ten(database);
    let rotten = database.kind.rotten.replace('#', "hash");
    database.ask(&format!("UPDATE orchestrix_batches SET hash = {rotten} WHERE last_position = 5"));
    unreadable(&*journal, "5");
    let error = journal.read(Position(5), 1 << 20).expect_err("what follows it does not fit");
    names(&error, "/orchestrix_batches/default/6");
}

pub(crate) fn a_missing_row_is_refused_by_name(database: &Database) {
    let journal = ten(database);
    database.ask("DELETE FROM orchestrix_batches WHERE last_position = 5");
    unreadable(&*journal, "6");
}

pub(crate) fn rows_that_changed_places_are_refused(database: &Database) {
    let journal = ten(database);
    database.ask(
        "UPDATE orchestrix_batches SET last_position = 100, first_position = 100 WHERE last_position = 5",
    );
    database
        .ask("UPDATE orchestrix_batches SET last_position = 5, first_position = 5 WHERE last_position = 6");
    unreadable(&*journal, "5");
}

pub(crate) fn another_journal_in_its_place_is_refused(database: &Database) {
    let mut journal = ten(database);
    let next = batch_after(journal.end(), 1, 10);
    let rotten = database.kind.rotten.replace('#', "id");
    database.ask(&format!("UPDATE orchestrix_journals SET id = {rotten}"));
    names(&journal.append(&next).expect_err("it is another journal"), "orchestrix_journals");
    names(&journal.read(Position(0), 100).expect_err("it is another journal"), "orchestrix_journals");
    let error = database.journal().read(Position(0), 100).expect_err("its batches are of another");
    names(&error, "/orchestrix_batches/default/1");
    assert_eq!(database.rows(), 10);
}

/// Everything is gone, and somebody has begun anew.
pub(crate) fn a_wiped_server_is_noticed_and_not_forked(database: &Database) {
    let mut journal = ten(database);
    let next = batch_after(journal.end(), 1, 10);
    database.ask(
        "DELETE FROM orchestrix_batches; DELETE FROM orchestrix_journals; DELETE FROM orchestrix_snapshots",
    );
    names(&journal.append(&next).expect_err("the journal is gone"), "orchestrix_journals");
    names(&journal.refresh().expect_err("the journal is gone"), "orchestrix_journals");
    let mut anew = database.journal();
    assert_ne!(anew.id(), journal.id());
    append_one(&mut *anew, 1, 10);
    names(&journal.append(&next).expect_err("it is another journal"), "orchestrix_journals");
    names(&journal.read(Position(10), 100).expect_err("it is another journal"), "orchestrix_journals");
    assert_eq!(database.rows(), 1);
}

/// The same journal, without its last batches, and then with others in their place.
pub(crate) fn a_journal_that_was_set_back_is_noticed_and_not_forked(database: &Database) {
    let mut journal = ten(database);
    let next = batch_after(journal.end(), 1, 10);
    database.ask("DELETE FROM orchestrix_batches WHERE last_position > 7");
    names(&journal.append(&next).expect_err("what it follows is gone"), "orchestrix_journals");
    names(&journal.read(Position(10), 100).expect_err("this is not the end"), "orchestrix_journals");
    names(&journal.refresh().expect_err("what was seen is gone"), "orchestrix_journals");
    let mut other = database.journal();
    for _ in 0..5 {
        let batch = batch_after(other.end(), 1, 99);
        assert!(matches!(other.append(&batch), Ok(Appended::Done(_))));
    }
    names(&journal.append(&next).expect_err("what it follows is another"), "orchestrix_journals");
    assert_eq!(read_all(&*other, Position(0), 1 << 20).len(), 12);
}

pub(crate) fn a_late_write_into_a_raised_floor_is_refused_at_once(database: &Database) {
    let mut journal = ten(database);
    take_snapshot(&*journal, &[b"state"]);
    append_one(&mut *journal, 1, 10);
    take_snapshot(&*journal, &[b"state"]);
    // As after a crash between the two halves of a truncation.
    database.ask("UPDATE orchestrix_journals SET floor_position = 10");
    assert_eq!(journal.read(Position(3), 100).unwrap(), Read::Truncated(Position(10)));
    database.ask("DELETE FROM orchestrix_batches WHERE last_position = 5");
    let mut late = database.journal();
    let hash = database.ask("SELECT COUNT(*) FROM orchestrix_batches WHERE last_position = 4");
    assert_eq!(hash, "1", "what it would follow is there");
    let old = batch_after(batch_four(database), 1, 10);
    assert_eq!(late.append(&old).unwrap(), Appended::Conflict(journal.end()));
    assert_eq!(journal.truncate().unwrap(), Position(10));
    // The batch at the floor stays, so that the newest always does.
    eventually("what is below is deleted", || (database.rows() == 2).then_some(()));
    append_one(&mut *journal, 1, 10);
}

/// The end of the fourth batch of `ten`, which can be computed without reading it.
fn batch_four(database: &Database) -> orchestrix_engine::Link {
    let id = database.journal().id();
    (0..4).fold(orchestrix_engine::Link::default(), |end, _| batch_after(end, 1, 50).link(id))
}

pub(crate) fn a_snapshot_with_a_rotten_or_missing_chunk_is_refused(database: &Database) {
    let journal = ten(database);
    let at = take_snapshot(&*journal, &[b"first chunk", b"second chunk"]).position;
    let rotten = database.kind.rotten.replace('#', "bytes");
    database.ask(&format!("UPDATE orchestrix_chunks SET bytes = {rotten} WHERE number = 1"));
    let mut reader = journal.snapshots().open(at).unwrap();
    assert_eq!(reader.next().unwrap().as_deref(), Some(b"first chunk".as_slice()));
    names(&reader.next().expect_err("it is noticed"), "orchestrix_chunks");
    database.ask("DELETE FROM orchestrix_chunks WHERE number = 1");
    names(&reader.next().expect_err("it is noticed"), "orchestrix_chunks");
    database.ask("UPDATE orchestrix_snapshots SET chunks = 1");
    let opened = journal.snapshots().open(at).map(|_| ());
    names(&opened.expect_err("it is noticed"), "/orchestrix_snapshots/default/10");
    // The same snapshot again takes its place.
    take_snapshot(&*journal, &[b"first chunk", b"second chunk"]);
    let mut reader = journal.snapshots().open(at).unwrap();
    for chunk in [Some(b"first chunk".to_vec()), Some(b"second chunk".to_vec()), None] {
        assert_eq!(reader.next().unwrap(), chunk);
    }
}

pub(crate) fn leftovers_of_a_snapshot_are_removed(database: &Database) {
    let mut journal = ten(database);
    let begun = || database.ask("SELECT COUNT(*) FROM orchestrix_chunks");
    let mut left = journal.snapshots().create(journal.end()).unwrap();
    left.chunk(b"never finished").unwrap();
    let snapshots = journal.snapshots();
    snapshots.prune().unwrap();
    assert_eq!(begun(), "1", "somebody may be writing it");
    for _ in 0..2 {
        append_one(&mut *journal, 1, 10);
        take_snapshot(&*journal, &[b"state"]);
    }
    snapshots.prune().unwrap();
    assert_eq!(begun(), "2");
    left.finish().expect_err("its chunk is gone");
    assert_eq!(snapshots.list().unwrap(), [Position(12), Position(11)]);
    // Newer than what is kept, but nobody has written it since the day before.
    let mut left = journal.snapshots().create(batch_after(journal.end(), 9, 1).link(journal.id())).unwrap();
    left.chunk(b"never finished").unwrap();
    database.ask("UPDATE orchestrix_chunks SET stored_at = '2020-01-01 00:00:00'");
    snapshots.prune().unwrap();
    assert_eq!(begun(), "2");
}

pub(crate) fn a_rotten_log_chunk_is_refused_and_mended(database: &Database) {
    let logs = database.connect().logs();
    let (task, lease) = (TaskId(1), LeaseId(2));
    for (offset, line) in [b"one", b"two", b"six"].into_iter().enumerate() {
        assert_eq!(logs.append(LogPlace::nth(task, lease, offset), line).unwrap(), Logged::Stored);
    }
    let rotten = database.kind.rotten.replace('#', "bytes");
    database.ask(&format!("UPDATE orchestrix_logs SET bytes = {rotten} WHERE line_offset = 1"));
    assert_eq!(logs.read(task, 0, 100).unwrap().len(), 1, "what comes before it is good");
    names(&logs.read(task, 1, 100).expect_err("it is noticed"), "/orchestrix_logs/default/2");
    assert_eq!(logs.read(task, 2, 100).unwrap().len(), 1, "and so is what comes after it");
    assert_eq!(logs.append(LogPlace::nth(task, lease, 1), b"two").unwrap(), Logged::Existed);
    assert_eq!(logs.read(task, 0, 100).unwrap().len(), 3);
}

pub(crate) fn output_of_older_tables_is_read_and_goes_on(database: &Database) {
    let (task, lease) = (TaskId(1), LeaseId(2));
    let logs = database.connect().logs();
    for number in 0..2 {
        assert_eq!(logs.append(LogPlace::nth(task, lease, number), b"old").unwrap(), Logged::Stored);
    }
    drop(logs);
    database.ask(database.kind.without_numbers);
    database.ask("UPDATE orchestrix_schema SET version = version - 1");
    let logs = database.connect().logs();
    assert_eq!(logs.read(task, 0, 100).unwrap().len(), 2);
    assert_eq!(logs.append(LogPlace::nth(task, lease, 1), b"old").unwrap(), Logged::Existed);
    let late = LogPlace { lease: LeaseId(1), ..LogPlace::nth(task, lease, 1) };
    assert_eq!(logs.append(late, b"late").unwrap(), Logged::Conflict, "what has no number counts");
    assert_eq!(logs.append(LogPlace::nth(task, lease, 2), b"new").unwrap(), Logged::Stored);
    // A node of the version before writes without numbers, while it is not replaced yet.
    database.ask(
        "INSERT INTO orchestrix_logs (domain, task, lease, line_offset, crc, bytes)
            SELECT domain, task, lease, 3, crc, bytes FROM orchestrix_logs WHERE line_offset = 2",
    );
    assert_eq!(logs.append(LogPlace::nth(task, lease, 3), b"three").unwrap(), Logged::Existed);
    assert_eq!(logs.append(LogPlace::nth(task, lease, 4), b"four").unwrap(), Logged::Stored);
    let offsets: Vec<_> = logs.read(task, 0, 100).unwrap().iter().map(|chunk| chunk.offset).collect();
    assert_eq!(offsets, [0, 1, 2, 3, 4]);
}
