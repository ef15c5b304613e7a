//! Lost answers, late requests, and writers that sleep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Appended, Batch, Cause, Claim, Journal, Link, LogPlace, Logged, Set, Shared};

use super::{Database, SHORT};
use crate::support::proxy::{Proxy, Wire};
use orchestrix_testbed::eventually;

/// A journal behind a wire, with some batches, so that all its statements have been prepared.
fn behind(database: &Database) -> (Proxy, Box<dyn Journal>) {
    let proxy = Proxy::to(database.server.port());
    let mut journal = database.journal_at(proxy.port());
    for _ in 0..3 {
        append_one(&mut *journal, 1, 10);
    }
    (proxy, journal)
}

fn next_batch(journal: &dyn Journal) -> Batch {
    batch_after(journal.end(), 2, 100)
}

/// Sends the same until it is known what became of it.
pub(crate) fn settle(journal: &mut dyn Journal, batch: &Batch) -> Appended {
    eventually("it is known what became of a batch", || match journal.append(batch).unwrap() {
        Appended::Unknown => None,
        known @ (Appended::Done(_) | Appended::Conflict(_)) => Some(known),
    })
}

pub(crate) fn a_lost_answer_to_an_append_is_unknown_and_nothing_is_doubled(database: &Database) {
    let (proxy, mut journal) = behind(database);
    let batch = next_batch(&*journal);
    let end = batch.link(journal.id());
    proxy.set(Wire::LosesAnswers);
    assert_eq!(journal.append(&batch).unwrap(), Appended::Unknown);
    assert_eq!(journal.append(&batch).unwrap(), Appended::Unknown, "nobody answers");
    eventually("it was written", || (database.journal().end() == end).then_some(()));
    proxy.set(Wire::Good);
    assert_eq!(settle(&mut *journal, &batch), Appended::Done(end));
    assert_eq!(database.rows(), 4);
    append_one(&mut *journal, 1, 10);
    assert_eq!(read_all(&*database.journal(), Position(0), 1 << 20).len(), 5);
}

pub(crate) fn a_lost_answer_is_a_conflict_after_a_foreign_write(database: &Database) {
    let (proxy, mut journal) = behind(database);
    let batch = next_batch(&*journal);
    proxy.set(Wire::LosesAnswers);
    assert_eq!(journal.append(&batch).unwrap(), Appended::Unknown);
    let mut other = database.journal();
    eventually("it was written", || (other.refresh().unwrap() == batch.link(other.id())).then_some(()));
    let (_, end) = append_one(&mut *other, 1, 10);
    proxy.set(Wire::Good);
    assert_eq!(settle(&mut *journal, &batch), Appended::Conflict(end), "it is there, but it is not the end");
    assert_eq!(database.rows(), 5);
}

pub(crate) fn an_append_may_land_after_it_was_looked_for_in_vain(database: &Database) {
    let (proxy, mut journal) = behind(database);
    let batch = next_batch(&*journal);
    proxy.set(Wire::Stalls);
    let began = Instant::now();
    assert_eq!(journal.append(&batch).unwrap(), Appended::Unknown);
    assert!(began.elapsed() < SHORT * 4, "a call has a timeout, and this took {:?}", began.elapsed());
    let mut other = database.journal();
    assert_eq!(other.refresh().unwrap(), batch.previous, "it is not there");
    proxy.set(Wire::Good);
    let end = batch.link(journal.id());
    eventually("what was stalled has landed", || (other.refresh().unwrap() == end).then_some(()));
    assert_eq!(journal.append(&batch).unwrap(), Appended::Done(end));
    assert_eq!(database.rows(), 4);
}

pub(crate) fn a_writer_that_was_frozen_inside_an_append_finds_a_conflict(database: &Database) {
    let (proxy, mut frozen) = behind(database);
    let late = next_batch(&*frozen);
    proxy.set(Wire::Stalls);
    assert_eq!(frozen.append(&late).unwrap(), Appended::Unknown);
    let mut other = database.journal();
    let (_, end) = append_one(&mut *other, 5, 10);
    proxy.set(Wire::Good);
    assert_eq!(settle(&mut *frozen, &late), Appended::Conflict(end));
    assert_eq!(frozen.end(), end);
    assert_eq!(read_all(&*other, Position(0), 1 << 20).len(), 4, "what landed late was refused");
}

pub(crate) fn a_cut_wire_is_unknown_for_writers_and_an_error_for_readers(database: &Database) {
    let (proxy, mut journal) = behind(database);
    let batch = next_batch(&*journal);
    proxy.set(Wire::Cut);
    assert_eq!(journal.append(&batch).unwrap(), Appended::Unknown);
    let error = journal.read(Position(0), 100).unwrap_err();
    assert!(error.retryable && matches!(error.source, Cause::Remote { .. }), "{error}");
    let error = journal.wait(journal.end().position, SHORT).unwrap_err();
    assert!(error.retryable, "{error}");
    proxy.set(Wire::Good);
    assert_eq!(settle(&mut *journal, &batch), Appended::Done(batch.link(journal.id())));
    assert_eq!(read_all(&*journal, Position(0), 100).len(), 4);
}

/// Somebody, a backup perhaps, locks the row of the journal. The statement waits in the server when its caller has
/// given up, and may land whenever the lock is gone.
pub(crate) fn an_append_that_waits_for_a_lock_lands_once(database: &Database) {
    let mut journal = database.journal_at(database.server.port());
    append_one(&mut *journal, 1, 10);
    let lock = format!(
        "BEGIN; SELECT id FROM orchestrix_journals WHERE domain = 'default' FOR UPDATE; SELECT {}; COMMIT",
        database.kind.sleep
    );
    let mut locker = (database.kind.client)(database.server.port(), &database.name, &lock);
    let mut locker = locker.stdout(std::process::Stdio::null()).spawn().unwrap();
    let batch = eventually("an append has to wait", || {
        let batch = batch_after(journal.end(), 1, 10);
        (journal.append(&batch).unwrap() == Appended::Unknown).then_some(batch)
    });
    assert_eq!(settle(&mut *journal, &batch), Appended::Done(batch.link(journal.id())));
    assert!(locker.wait().unwrap().success());
    let (_, end) = append_one(&mut *journal, 1, 10);
    assert_eq!(read_all(&*database.journal(), Position(0), 1 << 20).len(), database.rows());
    assert_eq!(database.rows() as u64, end.position.0);
}

/// Somebody, a backup perhaps, who has locked what a `SELECT … FOR UPDATE` finds, and keeps it for a while.
fn locked(database: &Database, rows: &str) -> std::process::Child {
    let lock = format!("BEGIN; {rows}; SELECT {}; COMMIT", database.kind.sleep);
    let mut locker = (database.kind.client)(database.server.port(), &database.name, &lock);
    let locker = locker.stdout(std::process::Stdio::null()).spawn().unwrap();
    let looks = format!("{rows} SKIP LOCKED");
    eventually("it is locked", || database.ask(&looks).is_empty().then_some(()));
    locker
}

/// One task whose output takes longer than a statement may does not keep that of the others.
pub(crate) fn output_that_cannot_be_deleted_in_time_keeps_no_other(database: &Database) {
    let logs = database.connect_at(database.server.port()).logs();
    for task in 1..=3 {
        logs.append(LogPlace::first(TaskId(task), LeaseId(1)), b"a line").unwrap();
    }
    let of_third = "SELECT place FROM orchestrix_logs WHERE domain = 'default' AND task = 3 FOR UPDATE";
    let mut locker = locked(database, of_third);
    // Whether the lock is gone before the third had its time is not what this is about.
    let _ = logs.delete(&[1, 2, 3].map(TaskId));
    let left = database.ask("SELECT COUNT(*) FROM orchestrix_logs WHERE task < 3");
    assert_eq!(left, "0");
    assert!(locker.wait().unwrap().success());
}

/// Another node has counted as many chunks, and written the next one, when this one counts; neither sees the other.
pub(crate) fn output_under_a_number_that_is_being_written_is_refused(database: &Database) {
    let (logs, task) = (database.connect().logs(), TaskId(1));
    logs.append(LogPlace::first(task, LeaseId(1)), b"a line").unwrap();
    let write = format!(
        "BEGIN;
        INSERT INTO orchestrix_logs (domain, task, number, lease, line_offset, crc, bytes)
            SELECT domain, task, 1, 2, line_offset, crc, bytes FROM orchestrix_logs;
        SELECT {};
        COMMIT",
        database.kind.sleep
    );
    let mut writer = (database.kind.client)(database.server.port(), &database.name, &write);
    let mut writer = writer.stdout(std::process::Stdio::null()).spawn().unwrap();
    let sleeps = match database.kind.scheme {
        "mysql" => {
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND state = 'User sleep'"
        }
        _ => {
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
        }
    };
    eventually("it is written, and not committed", || (database.ask(sleeps) == "1").then_some(()));
    let late = LogPlace { task, number: 1, lease: LeaseId(3), offset: 0 };
    assert_eq!(logs.append(late, b"late").unwrap(), Logged::Conflict);
    assert!(writer.wait().unwrap().success());
    assert_eq!(database.ask("SELECT COUNT(*) FROM orchestrix_logs"), "2");
}

pub(crate) fn no_call_waits_for_the_deletion_of_batches(database: &Database) {
    let mut journal = database.journal_at(database.server.port());
    for _ in 0..2 {
        append_one(&mut *journal, 1, 10);
        append_one(&mut *journal, 1, 10);
        take_snapshot(&*journal, &[b"state"]);
    }
    let first = "SELECT LENGTH(hash) FROM orchestrix_batches WHERE domain = 'default' AND last_position = 1 FOR UPDATE";
    let mut locker = locked(database, first);
    assert_eq!(journal.truncate().unwrap(), Position(2));
    append_one(&mut *journal, 1, 10);
    assert!(locker.wait().unwrap().success());
    eventually("they are deleted", || {
        assert_eq!(journal.truncate().unwrap(), Position(2));
        (database.rows() == 4).then_some(())
    });
}

fn claim(owner: &str, epoch: u64, ttl_ms: u64) -> Claim {
    Claim { owner: owner.to_owned(), epoch, ttl_ms, held: true, value: owner.as_bytes().to_vec() }
}

pub(crate) fn a_claim_with_a_lost_answer_is_unknown_and_done_once(database: &Database) {
    let proxy = Proxy::to(database.server.port());
    let register = database.connect_at(proxy.port()).register();
    let direct = database.connect().register();
    let mut seen = None;
    // The second round replaces a cell, and its statement is then prepared for the third.
    for epoch in 1..=3 {
        let mine = claim("me", epoch, 60_000);
        if epoch == 2 {
            let Set::Done(version) = register.compare_and_set("leader", seen.as_ref(), &mine).unwrap() else {
                panic!("nobody else writes");
            };
            seen = Some(version);
            continue;
        }
        if epoch == 1 {
            // Prepares the statement that makes a cell.
            register.compare_and_set("another", None, &mine).unwrap();
        }
        proxy.set(Wire::LosesAnswers);
        assert_eq!(register.compare_and_set("leader", seen.as_ref(), &mine).unwrap(), Set::Unknown);
        let there = eventually("it was written", || {
            direct.read("leader").unwrap().filter(|cell| cell.claim.epoch == epoch)
        });
        proxy.set(Wire::Good);
        let again = eventually("the same again is answered", || {
            let answer = register.compare_and_set("leader", seen.as_ref(), &mine).unwrap();
            (answer != Set::Unknown).then_some(answer)
        });
        assert_eq!(again, Set::Done(there.version.clone()));
        assert_eq!(direct.read("leader").unwrap(), Some(there.clone()), "it was written once");
        seen = Some(there.version);
    }
    assert_eq!(database.ask("SELECT COUNT(*) FROM helix_locks"), "2");
}

pub(crate) fn a_claim_that_lands_late_does_not_undo_another(database: &Database) {
    let proxy = Proxy::to(database.server.port());
    let register = database.connect_at(proxy.port()).register();
    let direct = database.connect().register();
    let done = |set: Set| match set {
        Set::Done(version) => version,
        other @ (Set::Conflict(_) | Set::Unknown) => panic!("nobody else writes, but {other:?}"),
    };
    let first = done(register.compare_and_set("leader", None, &claim("a", 1, 0)).unwrap());
    let second = done(register.compare_and_set("leader", Some(&first), &claim("a", 1, 0)).unwrap());
    proxy.set(Wire::Stalls);
    let late = claim("a", 2, 60_000);
    assert_eq!(register.compare_and_set("leader", Some(&second), &late).unwrap(), Set::Unknown);
    let third = done(direct.compare_and_set("leader", Some(&second), &claim("b", 2, 60_000)).unwrap());
    proxy.set(Wire::Good);
    let again = eventually("the same again is answered", || {
        let answer = register.compare_and_set("leader", Some(&second), &late).unwrap();
        (answer != Set::Unknown).then_some(answer)
    });
    let there = direct.read("leader").unwrap();
    assert_eq!((again, there.clone().map(|cell| cell.version)), (Set::Conflict(there), Some(third)));
}

pub(crate) fn a_waiter_is_woken_while_others_sleep(database: &Database) {
    let mut writer = database.journal();
    append_one(&mut *writer, 1, 10);
    let mut waiter = database.journal();
    // Once with nothing to come, so that it listens already.
    waiter.wait(Position(1), Duration::from_millis(100)).unwrap();
    let (mut appends, mut wakes) = (Vec::new(), Vec::new());
    for n in 1..=100 {
        let waiting = std::thread::spawn(move || {
            waiter.wait(Position(n), Duration::from_secs(30)).unwrap();
            (waiter, Instant::now())
        });
        let began = Instant::now();
        append_one(&mut *writer, 1, 1000);
        appends.push(began.elapsed());
        let (back, woken) = waiting.join().unwrap();
        waiter = back;
        wakes.push(woken.saturating_duration_since(began));
    }
    appends.sort();
    wakes.sort();
    assert!(wakes[99] < Duration::from_secs(2), "woken after {:?}", wakes[99]);
    println!(
        "100 appends of 1,000 bytes: median {:?}, slowest {:?}; a waiter knew after {:?}, at the latest {:?}",
        appends[50], appends[99], wakes[50], wakes[99]
    );
}

pub(crate) fn fifty_writers_on_fifty_connections_agree(database: &Database) {
    const WRITERS: u32 = 50;
    let places: Vec<Arc<dyn Shared>> =
        (0..WRITERS).map(|_| -> Arc<dyn Shared> { Arc::new(database.connect()) }).collect();
    let mut journals: Vec<_> = places.iter().map(|place| place.journal().unwrap()).collect();
    let mut end = Link::default();
    for _ in 0..3 {
        let together = std::sync::Barrier::new(WRITERS as usize);
        let won: Vec<Link> = std::thread::scope(|scope| {
            let mut racing = Vec::new();
            for (journal, n) in journals.iter_mut().zip(0..WRITERS) {
                let (together, batch) = (&together, batch_after(end, n + 1, 50));
                racing.push(scope.spawn(move || {
                    together.wait();
                    match journal.append(&batch).unwrap() {
                        Appended::Done(link) => Some(link),
                        Appended::Conflict(_) => None,
                        Appended::Unknown => panic!("nothing goes wrong here"),
                    }
                }));
            }
            racing.into_iter().filter_map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(won.len(), 1, "one of {WRITERS} wins");
        end = won[0];
    }
    assert_eq!(database.rows(), 3);
}
