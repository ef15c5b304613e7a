//! Answers that are lost, and requests that arrive late.

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{append_one, batch_after, read_all};
use orchestrix_engine::{Appended, Claim, LogPlace, Logged, Read, Register, Set, Shared, Version};

use crate::common::{HASTY, PATIENT, journal, new_prefix, place, shared, shared_store};
use crate::support::proxy::{Proxy, Wire};
use orchestrix_testbed::eventually;

fn claim(owner: &str) -> Claim {
    Claim { owner: owner.to_owned(), epoch: 1, ttl_ms: 1000, held: true, value: b"where".to_vec() }
}

fn set(register: &dyn Register, seen: Option<&Version>, owner: &str) -> Set {
    register.compare_and_set("leader", seen, &claim(owner)).unwrap()
}

fn done(set: Set) -> Version {
    match set {
        Set::Done(version) => version,
        other @ (Set::Conflict(_) | Set::Unknown) => panic!("done, not {other:?}"),
    }
}

#[test]
fn an_append_with_a_lost_answer_is_unknown_and_done_once() {
    let wire = Proxy::to(shared_store().s3);
    let mut journal = place(wire.port(), &new_prefix(), PATIENT).journal().unwrap();
    let (first, end) = append_one(&mut *journal, 2, 100);
    let second = batch_after(end, 3, 100);
    wire.set(Wire::LosesAnswers);
    assert_eq!(journal.append(&second).unwrap(), Appended::Unknown);
    assert_eq!(
        journal.append(&second).unwrap(),
        Appended::Unknown,
        "the answer to a repeat can be lost, too"
    );
    wire.set(Wire::Cut);
    assert_eq!(journal.append(&second).unwrap(), Appended::Unknown, "that nobody hears us now is no proof");
    assert_eq!(journal.end(), end, "nobody has heard of a new end");
    wire.set(Wire::Good);
    assert_eq!(journal.append(&second).unwrap(), Appended::Done(second.link(journal.id())));
    assert_eq!(read_all(&*journal, Position(0), 1 << 20), [first, second]);
    append_one(&mut *journal, 1, 10);
}

#[test]
fn an_append_that_cannot_be_sent_is_an_error() {
    let wire = Proxy::to(shared_store().s3);
    let prefix = new_prefix();
    let mut handle = place(wire.port(), &prefix, PATIENT).journal().unwrap();
    let batch = batch_after(handle.end(), 1, 10);
    drop(wire);
    handle.refresh().expect_err("the connection that was open is broken");
    let error = handle.append(&batch).unwrap_err();
    assert!(error.retryable && error.to_string().contains("Connection refused"), "{error}");
    assert_eq!(read_all(&*journal(&prefix), Position(0), 1 << 20), []);
}

#[test]
fn a_write_with_a_lost_answer_is_unknown_and_done_once() {
    let wire = Proxy::to(shared_store().s3);
    let prefix = new_prefix();
    let direct = shared(&prefix).register();
    let register = place(wire.port(), &prefix, PATIENT).register();
    for owner in ["first", "second"] {
        let seen = direct.read("leader").unwrap().map(|cell| cell.version);
        wire.set(Wire::LosesAnswers);
        assert_eq!(set(&*register, seen.as_ref(), owner), Set::Unknown);
        let written = direct.read("leader").unwrap().unwrap();
        assert_eq!(written.claim, claim(owner));
        assert_eq!(set(&*register, seen.as_ref(), owner), Set::Unknown);
        wire.set(Wire::Cut);
        assert_eq!(set(&*register, seen.as_ref(), owner), Set::Unknown, "that nobody hears us is no proof");
        wire.set(Wire::Good);
        assert_eq!(done(set(&*register, seen.as_ref(), owner)), written.version, "it was written once");
        assert_eq!(direct.read("leader").unwrap(), Some(written));
    }
}

#[test]
fn a_late_write_without_an_answer_is_a_conflict() {
    let wire = Proxy::to(shared_store().s3);
    let prefix = new_prefix();
    let register = place(wire.port(), &prefix, PATIENT).register();
    done(set(&*shared(&prefix).register(), None, "somebody"));
    wire.set(Wire::LosesAnswers);
    assert_eq!(set(&*register, None, "me"), Set::Unknown);
    wire.set(Wire::Good);
    let Set::Conflict(Some(there)) = set(&*register, None, "me") else { panic!("somebody was first") };
    assert_eq!(there.claim, claim("somebody"));
}

#[test]
fn the_same_claim_of_another_is_a_conflict() {
    let prefix = new_prefix();
    let (first, second) = (shared(&prefix).register(), shared(&prefix).register());
    let version = done(set(&*first, None, "twin"));
    let Set::Conflict(Some(there)) = set(&*second, None, "twin") else { panic!("it is not ours") };
    assert_eq!(there.version, version);
}

#[test]
fn an_append_that_lands_after_it_was_looked_for_is_done_once() {
    let wire = Proxy::to(shared_store().s3);
    let prefix = new_prefix();
    // Connected patiently: only the journal is in a hurry.
    let stalling = place(wire.port(), &prefix, HASTY);
    let mut stalled = eventually("the journal is opened in a hurry", || stalling.journal().ok());
    let direct = journal(&prefix);
    let batch = batch_after(stalled.end(), 2, 50);
    wire.set(Wire::Stalls);
    assert_eq!(stalled.append(&batch).unwrap(), Appended::Unknown);
    assert_eq!(direct.read(Position(0), 1 << 20).unwrap(), Read::End, "it has not arrived");
    wire.set(Wire::Good);
    eventually("the late append lands", || {
        (direct.read(Position(0), 1 << 20).unwrap() != Read::End).then_some(())
    });
    let answer = eventually("the store answers in time", || {
        Some(stalled.append(&batch).unwrap()).filter(|answer| *answer != Appended::Unknown)
    });
    assert_eq!(answer, Appended::Done(batch.link(direct.id())));
    assert_eq!(read_all(&*direct, Position(0), 1 << 20), [batch]);
}

#[test]
fn a_writer_frozen_in_an_append_finds_a_conflict() {
    let wire = Proxy::to(shared_store().s3);
    let prefix = new_prefix();
    let mut frozen = place(wire.port(), &prefix, PATIENT).journal().unwrap();
    let mut other = journal(&prefix);
    let late = batch_after(frozen.end(), 5, 100);
    wire.set(Wire::Stalls);
    let (batch, end) = std::thread::scope(|scope| {
        let appending = scope.spawn(|| frozen.append(&late).unwrap());
        eventually("the append is on its way", || (wire.held() > 0).then_some(()));
        let (batch, end) = append_one(&mut *other, 2, 10);
        wire.set(Wire::Good);
        assert_eq!(appending.join().unwrap(), Appended::Conflict(end));
        (batch, end)
    });
    assert_eq!(frozen.end(), end);
    assert_eq!(read_all(&*frozen, Position(0), 1 << 20), [batch]);
}

#[test]
fn a_log_chunk_whose_answer_was_lost_is_stored_once() {
    let wire = Proxy::to(shared_store().s3);
    let logs = place(wire.port(), &new_prefix(), PATIENT).logs();
    assert_eq!(logs.append(LogPlace::first(TaskId(1), LeaseId(2)), b"a line").unwrap(), Logged::Stored);
    wire.set(Wire::LosesAnswers);
    let error = logs.append(LogPlace::nth(TaskId(1), LeaseId(2), 1), b"another").unwrap_err();
    assert!(error.retryable, "{error}");
    wire.set(Wire::Good);
    assert_eq!(logs.append(LogPlace::nth(TaskId(1), LeaseId(2), 1), b"another").unwrap(), Logged::Existed);
    assert_eq!(logs.read(TaskId(1), 0, 100).unwrap().len(), 2);
}

#[test]
fn a_store_that_was_away_is_found_again_by_the_next_call() {
    let wire = Proxy::to(shared_store().s3);
    let shared = place(wire.port(), &new_prefix(), PATIENT);
    let (register, logs) = (shared.register(), shared.logs());
    // Several connections, which all break.
    std::thread::scope(|scope| {
        for task in 1..8 {
            let logs = &logs;
            scope.spawn(move || logs.append(LogPlace::first(TaskId(task), LeaseId(1)), b"a line").unwrap());
        }
    });
    wire.set(Wire::Cut);
    register.read("leader").unwrap_err();
    wire.set(Wire::Good);
    for _ in 0..9 {
        assert_eq!(register.read("leader").unwrap(), None, "what only reads is asked again");
    }
}
