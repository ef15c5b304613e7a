//! Answers that are lost, and requests that arrive late.

use std::time::Duration;

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{append_one, batch_after, read_all};
use orchestrix_engine::{Appended, Claim, LogPlace, Logged, Read, Register, Set, Shared, Version};

use crate::common::{DURABLE, FORGETFUL, HASTY, PATIENT, Raw, journal, place, redis};
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
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let mut journal = journal(wire.port(), PATIENT);
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
fn a_server_that_forgot_its_scripts_gets_them_again() {
    let server = redis(&FORGETFUL);
    let mut raw = Raw::to(&server);
    let mut journal = journal(server.port(), PATIENT);
    for _ in 0..3 {
        append_one(&mut *journal, 1, 10);
        raw.run("SCRIPT FLUSH");
    }
    assert_eq!(read_all(&*journal, Position(0), 1 << 20).len(), 3);
    assert_eq!(raw.ask::<u64>("XLEN orchestrix:default:journal"), 3);
}

/// How often a command was run.
fn calls(raw: &mut Raw, command: &str) -> u64 {
    let told: String = raw.ask("INFO commandstats");
    let line = told.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn a_lone_writer_needs_no_script() {
    let server = redis(&FORGETFUL);
    let mut raw = Raw::to(&server);
    let (mut one, mut other) = (journal(server.port(), PATIENT), journal(server.port(), PATIENT));
    append_one(&mut *one, 1, 10);
    let scripts = |raw: &mut Raw| calls(raw, "eval") + calls(raw, "evalsha");
    let before = scripts(&mut raw);
    for _ in 0..5 {
        append_one(&mut *one, 2, 100);
    }
    assert_eq!(scripts(&mut raw), before);
    assert_eq!(calls(&mut raw, "exec"), 5);
    // Longer, so that the stream itself would take it.
    let mine = batch_after(one.end(), 3, 10);
    other.refresh().unwrap();
    let (_, end) = append_one(&mut *other, 2, 10);
    assert_eq!(one.append(&mine).unwrap(), Appended::Conflict(end));
    append_one(&mut *one, 1, 10);
    let before = scripts(&mut raw);
    append_one(&mut *one, 1, 10);
    assert_eq!(scripts(&mut raw), before, "the short way is open again");
    assert_eq!(read_all(&*other, Position(0), 1 << 20).len(), 9);
}

#[test]
fn a_watched_append_with_a_lost_answer_is_done_once() {
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let mut raw = Raw::to(&server);
    let mut journal = journal(wire.port(), PATIENT);
    for _ in 0..2 {
        append_one(&mut *journal, 1, 10);
        let batch = batch_after(journal.end(), 1, 10);
        let before = calls(&mut raw, "exec");
        wire.set(Wire::LosesAnswers);
        assert_eq!(journal.append(&batch).unwrap(), Appended::Unknown);
        wire.set(Wire::Good);
        eventually("the transaction is done", || (calls(&mut raw, "exec") > before).then_some(()));
        assert_eq!(journal.append(&batch).unwrap(), Appended::Done(batch.link(journal.id())));
    }
    assert_eq!(read_all(&*journal, Position(0), 1 << 20).len(), 4);
}

#[test]
fn an_append_that_cannot_be_sent_can_be_retried() {
    let mut server = redis(&DURABLE);
    let mut journal = journal(server.port(), PATIENT);
    let batch = batch_after(journal.end(), 1, 10);
    server.kill();
    journal.refresh().expect_err("the connection that was open is broken");
    let error = journal.append(&batch).unwrap_err();
    assert!(error.retryable, "{error}");
    server.launch().unwrap();
    assert_eq!(journal.append(&batch).unwrap(), Appended::Done(batch.link(journal.id())));
    assert_eq!(read_all(&*journal, Position(0), 1 << 20), [batch]);
}

#[test]
fn a_write_with_a_lost_answer_is_unknown_and_done_once() {
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let direct = place(server.port(), PATIENT).register();
    let register = place(wire.port(), PATIENT).register();
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
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let register = place(wire.port(), PATIENT).register();
    done(set(&*place(server.port(), PATIENT).register(), None, "somebody"));
    wire.set(Wire::LosesAnswers);
    assert_eq!(set(&*register, None, "me"), Set::Unknown);
    wire.set(Wire::Good);
    let Set::Conflict(Some(there)) = set(&*register, None, "me") else { panic!("somebody was first") };
    assert_eq!(there.claim, claim("somebody"));
}

#[test]
fn the_same_claim_of_another_is_a_conflict() {
    let server = redis(&FORGETFUL);
    let (first, second) =
        (place(server.port(), PATIENT).register(), place(server.port(), PATIENT).register());
    let version = done(set(&*first, None, "twin"));
    let Set::Conflict(Some(there)) = set(&*second, None, "twin") else { panic!("it is not ours") };
    assert_eq!(there.version, version);
}

#[test]
fn an_append_that_lands_after_it_was_looked_for_is_done_once() {
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let mut stalled = journal(wire.port(), HASTY);
    let direct = journal(server.port(), PATIENT);
    let batch = batch_after(stalled.end(), 2, 50);
    wire.set(Wire::Stalls);
    assert_eq!(stalled.append(&batch).unwrap(), Appended::Unknown);
    assert_eq!(direct.read(Position(0), 1 << 20).unwrap(), Read::End, "it has not arrived");
    wire.set(Wire::Good);
    eventually("the late append lands", || {
        (direct.read(Position(0), 1 << 20).unwrap() != Read::End).then_some(())
    });
    assert_eq!(stalled.append(&batch).unwrap(), Appended::Done(batch.link(stalled.id())));
    assert_eq!(read_all(&*direct, Position(0), 1 << 20), [batch]);
}

#[test]
fn a_stalled_append_is_unknown_and_resolved_later() {
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let mut journal = journal(wire.port(), HASTY);
    let (first, end) = append_one(&mut *journal, 1, 10);
    let batch = batch_after(end, 2, 200_000);
    wire.set(Wire::Stalls);
    for _ in 0..3 {
        assert_eq!(journal.append(&batch).unwrap(), Appended::Unknown);
    }
    journal.read(Position(0), 100).expect_err("nothing comes in time");
    journal.wait(end.position, Duration::from_secs(60)).expect_err("nor here");
    wire.set(Wire::Good);
    assert_eq!(journal.append(&batch).unwrap(), Appended::Done(batch.link(journal.id())));
    assert_eq!(read_all(&*journal, Position(0), 1 << 20), [first, batch]);
}

#[test]
fn a_writing_that_lands_after_it_was_looked_for_is_done_once() {
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let stalled = place(wire.port(), HASTY).register();
    let direct = place(server.port(), PATIENT).register();
    wire.set(Wire::Stalls);
    assert_eq!(set(&*stalled, None, "me"), Set::Unknown);
    assert_eq!(direct.read("leader").unwrap(), None, "it has not arrived");
    wire.set(Wire::Good);
    let landed = eventually("the late writing lands", || direct.read("leader").unwrap());
    assert_eq!(done(set(&*stalled, None, "me")), landed.version);
    assert_eq!(direct.read("leader").unwrap(), Some(landed));
}

#[test]
fn a_writer_frozen_in_an_append_finds_a_conflict() {
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let mut frozen = journal(wire.port(), PATIENT);
    let mut other = journal(server.port(), PATIENT);
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
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let logs = place(wire.port(), PATIENT).logs();
    wire.set(Wire::LosesAnswers);
    let error = logs.append(LogPlace::first(TaskId(1), LeaseId(2)), b"a line").unwrap_err();
    assert!(error.retryable, "{error}");
    wire.set(Wire::Good);
    assert_eq!(logs.append(LogPlace::first(TaskId(1), LeaseId(2)), b"a line").unwrap(), Logged::Existed);
    assert_eq!(logs.read(TaskId(1), 0, 100).unwrap().len(), 1);
}

#[test]
fn a_server_that_was_restarted_is_found_again_by_the_next_call() {
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let shared = place(wire.port(), PATIENT);
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
        assert_eq!(register.read("leader").unwrap(), None, "one failure is enough");
    }
}
