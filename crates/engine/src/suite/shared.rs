//! What every engine that several nodes use must do, when several use it.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use orchestrix_core::{LeaseId, Position, TaskId};

use crate::suite::{append_one, batch_after, read_all, take_snapshot};
use crate::{Appended, Batch, Journal, Link, LogPlace, Logged, Logs, Read, Shared};

/// Connects once more to the same place. The place is new and empty at the first call of a test.
pub type Connect<'a> = &'a dyn Fn() -> Arc<dyn Shared>;

/// Makes a new, empty place.
pub type MakePlace<'a> = &'a mut dyn FnMut() -> Box<dyn Fn() -> Arc<dyn Shared>>;

/// All sentences about engines with several nodes.
pub fn shared(make: MakePlace<'_>) {
    let sentences: [fn(Connect<'_>); 11] = [
        every_handle_is_of_the_same_journal,
        one_handle_reads_appends_of_another,
        one_of_many_that_append_after_the_same_batch_wins,
        a_repeat_by_another_handle_is_done_once,
        a_conflict_names_the_end,
        a_waiting_follower_is_woken_by_an_append,
        a_late_write_below_the_floor_is_refused,
        a_follower_behind_the_floor_gets_an_error,
        snapshots_are_shared,
        logs_are_shared,
        of_two_nodes_that_append_output_one_is_refused,
    ];
    for sentence in sentences {
        sentence(&*make());
    }
}

fn journal(engine: &Arc<dyn Shared>) -> Box<dyn Journal> {
    engine.journal().expect("a journal is opened")
}

pub fn every_handle_is_of_the_same_journal(connect: Connect<'_>) {
    let together = Barrier::new(4);
    let engines: Vec<_> = (0..4).map(|_| connect()).collect();
    let ids: Vec<_> = std::thread::scope(|scope| {
        let open = |engine| {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                journal(engine).id()
            })
        };
        let opening: Vec<_> = engines.iter().map(open).collect();
        opening.into_iter().map(|one| one.join().expect("nobody panics")).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "all of {ids:?} are the same");
}

pub fn one_handle_reads_appends_of_another(connect: Connect<'_>) {
    let (mut first, mut second) = (journal(&connect()), journal(&connect()));
    let (batch, end) = append_one(&mut *first, 3, 100);
    assert_eq!(read_all(&*second, Position(0), 1 << 20), std::slice::from_ref(&batch));
    assert_eq!(second.refresh().expect("the end is asked for"), end);
    let (next, end) = append_one(&mut *second, 1, 10);
    assert_eq!(read_all(&*first, Position(0), 1 << 20), [batch, next]);
    assert_eq!(first.refresh().expect("the end is asked for"), end);
    assert_eq!(journal(&connect()).end(), end, "a new handle begins at the end");
}

pub fn one_of_many_that_append_after_the_same_batch_wins(connect: Connect<'_>) {
    const WRITERS: u32 = 8;
    let engines: Vec<_> = (0..WRITERS).map(|_| connect()).collect();
    let mut end = Link::default();
    for _ in 0..10 {
        let together = Barrier::new(engines.len());
        let answers: Vec<Appended> = std::thread::scope(|scope| {
            let race = |(n, engine)| {
                let together = &together;
                scope.spawn(move || {
                    let mut journal = journal(engine);
                    let batch = batch_after(end, n + 1, 50);
                    together.wait();
                    journal.append(&batch).expect("losing a race is an answer")
                })
            };
            let racing: Vec<_> = (0..WRITERS).zip(&engines).map(race).collect();
            racing.into_iter().map(|one| one.join().expect("nobody panics")).collect()
        });
        let won: Vec<Link> = answers.iter().filter_map(done).collect();
        assert_eq!(won.len(), 1, "{answers:?}");
        let lost = |answer: &&Appended| **answer == Appended::Conflict(won[0]);
        assert_eq!(answers.iter().filter(lost).count(), engines.len() - 1, "{answers:?}");
        end = won[0];
    }
    assert_eq!(read_all(&*journal(&engines[0]), Position(0), 100).len(), 10);
}

fn done(answer: &Appended) -> Option<Link> {
    match answer {
        Appended::Done(link) => Some(*link),
        Appended::Conflict(_) | Appended::Unknown => None,
    }
}

pub fn a_repeat_by_another_handle_is_done_once(connect: Connect<'_>) {
    let (mut first, mut second) = (journal(&connect()), journal(&connect()));
    let (batch, end) = append_one(&mut *first, 2, 10);
    assert_eq!(second.append(&batch).expect("a repeat is answered"), Appended::Done(end));
    assert_eq!(read_all(&*first, Position(0), 1 << 20), [batch]);
}

pub fn a_conflict_names_the_end(connect: Connect<'_>) {
    let (mut first, mut second) = (journal(&connect()), journal(&connect()));
    append_one(&mut *first, 1, 10);
    let (_, end) = append_one(&mut *first, 2, 10);
    let stale = batch_after(Link::default(), 5, 10);
    assert_eq!(second.append(&stale).expect("losing a race is an answer"), Appended::Conflict(end));
    assert_eq!(second.end(), end, "whoever lost knows where the journal ends");
    append_one(&mut *second, 1, 10);
}

pub fn a_waiting_follower_is_woken_by_an_append(connect: Connect<'_>) {
    let (mut first, second) = (journal(&connect()), journal(&connect()));
    append_one(&mut *first, 1, 10);
    second.wait(Position(0), Duration::from_secs(60)).expect("what is there needs no waiting");
    let began = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            while second.read(Position(1), 100).expect("a journal is read") == Read::End {
                second.wait(Position(1), Duration::from_secs(60)).expect("waiting is answered");
            }
        });
        append_one(&mut *first, 1, 10);
        waiting.join().expect("nobody panics");
    });
    assert!(began.elapsed() < Duration::from_secs(30), "nobody waits to the end when there is more");
    first.wait(Position(2), Duration::from_millis(50)).expect("nothing came in time");
}

/// A journal with a floor above 0, and the batches that were ever in it.
fn truncated(connect: Connect<'_>) -> (Box<dyn Journal>, Vec<Batch>, Position) {
    let mut writer = journal(&connect());
    let mut batches = Vec::new();
    for number in 0..60 {
        batches.push(append_one(&mut *writer, 1, 500).0);
        if number == 29 || number == 39 {
            take_snapshot(&*writer, &[b"state"]);
        }
    }
    let floor = writer.truncate().expect("truncating is answered");
    assert!(floor > Position(0) && floor <= Position(30), "the floor is {floor}");
    (writer, batches, floor)
}

pub fn a_late_write_below_the_floor_is_refused(connect: Connect<'_>) {
    let mut late = journal(&connect());
    let (writer, batches, floor) = truncated(connect);
    let end = writer.end();
    // Sent long ago and delivered now: another batch, and one that was there.
    let other = batch_after(batches[3].previous, 7, 20);
    for batch in [&other, &batches[0], &batches[3]] {
        assert_eq!(late.append(batch).expect("it is answered"), Appended::Conflict(end));
    }
    assert_eq!(read_all(&*writer, floor, 1 << 20).last(), batches.last());
}

pub fn a_follower_behind_the_floor_gets_an_error(connect: Connect<'_>) {
    let follower = journal(&connect());
    let (writer, batches, floor) = truncated(connect);
    assert_eq!(follower.read(Position(0), 100).expect("reading is answered"), Read::Truncated(floor));
    assert_eq!(
        journal(&connect()).read(Position(floor.0 - 1), 100).expect("it is answered"),
        Read::Truncated(floor)
    );
    let newest = follower.snapshots().list().expect("snapshots are listed")[0];
    assert_eq!(newest, Position(40));
    let rest = read_all(&*follower, newest, 1 << 20);
    assert_eq!(rest, batches[40..]);
    assert_eq!(rest.last().map(Batch::last), Some(writer.end().position));
}

pub fn snapshots_are_shared(connect: Connect<'_>) {
    let (mut writer, reader) = (journal(&connect()), journal(&connect()));
    append_one(&mut *writer, 1, 10);
    let large = vec![5; 3 << 20];
    let at = take_snapshot(&*writer, &[b"one", &large]);
    let snapshots = reader.snapshots();
    assert_eq!(snapshots.list().expect("snapshots are listed"), [at.position]);
    let mut opened = snapshots.open(at.position).expect("a snapshot is opened");
    assert_eq!(opened.link(), at);
    assert_eq!(opened.next().expect("a chunk is read").as_deref(), Some(b"one".as_slice()));
    assert_eq!(opened.next().expect("a chunk is read"), Some(large));
    assert_eq!(opened.next().expect("it ends"), None);
}

pub fn logs_are_shared(connect: Connect<'_>) {
    let (first, second) = (connect().logs(), connect().logs());
    let (task, lease) = (TaskId(1), LeaseId(2));
    let at = LogPlace::first(task, lease);
    assert_eq!(first.append(at, b"a line").expect("a chunk is stored"), Logged::Stored);
    assert_eq!(second.append(at, b"a line").expect("a repeat is answered"), Logged::Existed);
    let read = second.read(task, 0, 100).expect("a log is read");
    assert_eq!(read.iter().map(|chunk| chunk.bytes.as_slice()).collect::<Vec<_>>(), [b"a line".as_slice()]);
    second.delete(&[task]).expect("a log is deleted");
    assert_eq!(first.read(task, 0, 100).expect("a log is read"), []);
}

pub fn of_two_nodes_that_append_output_one_is_refused(connect: Connect<'_>) {
    let (first, second) = (connect().logs(), connect().logs());
    let task = TaskId(9);
    let mut expected = Vec::new();
    for number in 0..20 {
        let append = |logs: &dyn Logs, lease: u64| {
            let at = LogPlace { task, number, lease: LeaseId(lease), offset: number as u64 };
            (logs.append(at, b"line").expect("it is answered"), lease)
        };
        let answers = std::thread::scope(|scope| {
            let racing = scope.spawn(|| append(&*second, 6));
            [append(&*first, 5), racing.join().expect("nobody panics")]
        });
        let stored: Vec<u64> =
            answers.iter().filter(|(logged, _)| *logged == Logged::Stored).map(|(_, lease)| *lease).collect();
        assert_eq!(stored.len(), 1, "one of {answers:?} is stored");
        assert!(
            answers.iter().any(|(logged, _)| *logged == Logged::Conflict),
            "and one refused: {answers:?}"
        );
        expected.extend(stored);
        // What was counted stands where it was counted, for both.
        for logs in [&first, &second] {
            let read = logs.read(task, 0, 1 << 20).expect("a log is read");
            assert_eq!(read.iter().map(|chunk| chunk.lease.0).collect::<Vec<_>>(), expected);
        }
    }
}
