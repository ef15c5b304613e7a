//! Answers that say less, or something else, than what happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Appended, Claim, Journal, LogPlace, Logged, Set, Shared};

use crate::common::{PATIENT, journal, new_prefix, place, shared_store};
use crate::support::http::{Asked, Fate, Front};

fn writes(folder: &'static str) -> impl Fn(&Asked) -> bool + Send + 'static {
    move |asked| asked.method == "PUT" && asked.path.contains(folder)
}

fn sent(front: &Front, folder: &'static str) -> usize {
    let fits = writes(folder);
    front.asked().iter().filter(|asked| fits(asked)).count()
}

fn fronted() -> (Front, String, Box<dyn Journal>) {
    let (front, prefix) = (Front::to(shared_store().s3), new_prefix());
    let journal = place(front.port(), &prefix, PATIENT).journal().unwrap();
    (front, prefix, journal)
}

#[test]
fn an_append_done_despite_an_error_is_unknown_and_done_once() {
    for fate in [Fate::DoThenSay(500), Fate::DoThenSay(503), Fate::DoThenSay(504), Fate::DoThenCut] {
        let (front, prefix, mut handle) = fronted();
        let batch = batch_after(handle.end(), 2, 10);
        front.asked();
        front.once(writes("/batches/"), fate);
        assert_eq!(handle.append(&batch).unwrap(), Appended::Unknown, "{fate:?}");
        assert_eq!(sent(&front, "/batches/"), 1, "nobody but the caller sends it again");
        assert_eq!(handle.append(&batch).unwrap(), Appended::Done(batch.link(handle.id())));
        assert_eq!(read_all(&*journal(&prefix), Position(0), 1 << 20), [batch]);
    }
}

#[test]
fn a_failed_append_is_unknown_and_done_when_sent_again() {
    for status in [408, 429, 500, 503] {
        let (front, _, mut handle) = fronted();
        let batch = batch_after(handle.end(), 2, 10);
        front.once(writes("/batches/"), Fate::Say(status));
        assert_eq!(handle.append(&batch).unwrap(), Appended::Unknown, "{status}");
        assert_eq!(handle.append(&batch).unwrap(), Appended::Done(batch.link(handle.id())));
        append_one(&mut *handle, 1, 1);
    }
}

#[test]
fn a_condition_that_fails_on_our_own_bytes_is_a_success() {
    for fate in [Fate::DoThenSay(412), Fate::DoThenSay(409)] {
        let (front, _, mut handle) = fronted();
        let batch = batch_after(handle.end(), 2, 10);
        front.once(writes("/batches/"), fate);
        assert_eq!(handle.append(&batch).unwrap(), Appended::Done(batch.link(handle.id())), "{fate:?}");
        append_one(&mut *handle, 1, 1);
    }
}

#[test]
fn a_contested_append_is_looked_for_and_sent_again() {
    let (front, _, mut handle) = fronted();
    let batch = batch_after(handle.end(), 2, 10);
    front.asked();
    front.once(writes("/batches/"), Fate::Say(409));
    assert_eq!(handle.append(&batch).unwrap(), Appended::Done(batch.link(handle.id())));
    assert_eq!(sent(&front, "/batches/"), 2);

    let next = batch_after(handle.end(), 1, 10);
    let fits = writes("/batches/");
    front.rule(move |asked| if fits(asked) { Fate::Say(409) } else { Fate::Pass });
    assert_eq!(handle.append(&next).unwrap(), Appended::Unknown, "others are in the way for ever");
    front.rule(|_| Fate::Pass);
    assert_eq!(handle.append(&next).unwrap(), Appended::Done(next.link(handle.id())));
}

#[test]
fn an_append_that_is_not_allowed_is_an_error() {
    let (front, prefix, mut handle) = fronted();
    let batch = batch_after(handle.end(), 2, 10);
    front.once(writes("/batches/"), Fate::Say(403));
    let error = handle.append(&batch).unwrap_err();
    assert!(!error.retryable && error.to_string().contains("403 Said by the test"), "{error}");
    assert_eq!(read_all(&*journal(&prefix), Position(0), 1 << 20), []);
}

#[test]
fn an_append_whose_floor_cannot_be_read_is_unknown() {
    let (front, _, mut handle) = fronted();
    let (_, end) = append_one(&mut *handle, 1, 10);
    let batch = batch_after(end, 2, 10);
    front.rule(|asked| if asked.path.ends_with("/journal") { Fate::Say(500) } else { Fate::Pass });
    assert_eq!(handle.append(&batch).unwrap(), Appended::Unknown);
    assert_eq!(handle.end(), end);
    front.rule(|_| Fate::Pass);
    assert_eq!(handle.append(&batch).unwrap(), Appended::Done(batch.link(handle.id())));
}

#[test]
fn a_writing_survives_every_wrong_answer() {
    for (fate, first) in [
        (Fate::DoThenSay(500), Set::Unknown),
        (Fate::Say(503), Set::Unknown),
        (Fate::DoThenCut, Set::Unknown),
        // These are resolved at once.
        (Fate::DoThenSay(412), Set::Conflict(None)),
        (Fate::DoThenSay(409), Set::Conflict(None)),
        (Fate::Say(409), Set::Conflict(None)),
    ] {
        let (front, prefix) = (Front::to(shared_store().s3), new_prefix());
        let register = place(front.port(), &prefix, PATIENT).register();
        let mut seen = None;
        for epoch in 1..3 {
            let claim = Claim { owner: "me".to_owned(), epoch, ..Claim::default() };
            front.once(writes("/cells/"), fate);
            front.asked();
            let mut answer = register.compare_and_set("leader", seen.as_ref(), &claim).unwrap();
            if first == Set::Unknown {
                assert_eq!(answer, Set::Unknown, "{fate:?}");
                assert_eq!(sent(&front, "/cells/"), 1, "nobody but the caller sends it again");
                answer = register.compare_and_set("leader", seen.as_ref(), &claim).unwrap();
            }
            let Set::Done(version) = answer else { panic!("{fate:?}: {answer:?}") };
            let there = register.read("leader").unwrap().unwrap();
            assert_eq!((&there.version, there.claim.epoch), (&version, epoch));
            seen = Some(version);
        }
    }
}

#[test]
fn a_log_chunk_stored_despite_an_error_is_stored_once() {
    let front = Front::to(shared_store().s3);
    let logs = place(front.port(), &new_prefix(), PATIENT).logs();
    front.once(writes("/logs/"), Fate::DoThenSay(500));
    assert!(logs.append(LogPlace::nth(TaskId(1), LeaseId(2), 0), b"a line").unwrap_err().retryable);
    assert_eq!(logs.append(LogPlace::nth(TaskId(1), LeaseId(2), 0), b"a line").unwrap(), Logged::Existed);
    assert_eq!(logs.append(LogPlace::nth(TaskId(1), LeaseId(2), 1), b"a line").unwrap(), Logged::Stored);
    assert_eq!(logs.read(TaskId(1), 0, 100).unwrap().len(), 2);
}

#[test]
fn reads_are_retried_a_few_times() {
    let (front, _, mut handle) = fronted();
    let (batch, _) = append_one(&mut *handle, 1, 10);
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failures);
    front.rule(move |asked| {
        let fails = asked.path.contains("/batches/") && counted.fetch_add(1, SeqCst) < 2;
        if fails { Fate::Say(503) } else { Fate::Pass }
    });
    assert_eq!(read_all(&*handle, Position(0), 1 << 20), [batch]);
    front.rule(|_| Fate::Say(503));
    front.asked();
    assert!(handle.refresh().unwrap_err().retryable);
    assert_eq!(front.asked().len(), 6, "three times the next batch, three times the floor");
}

#[test]
fn listings_that_show_nothing_change_nothing() {
    let (front, prefix, mut handle) = fronted();
    let mut batches = Vec::new();
    for number in 0..20 {
        batches.push(append_one(&mut *handle, 1 + number % 3, 100).0);
    }
    let at = take_snapshot(&*handle, &[b"state"]).position;
    front.rule(|asked| if asked.path.contains("list-type=2") { Fate::SayNothingThere } else { Fate::Pass });
    let mut stale = place(front.port(), &prefix, PATIENT).journal().unwrap();
    assert_eq!(stale.end(), handle.end(), "the end is found without a listing");
    assert_eq!(read_all(&*stale, Position(0), 1 << 20), batches);
    append_one(&mut *stale, 1, 10);
    let end = stale.end();
    assert_eq!(handle.append(&batch_after(batches[3].previous, 1, 1)).unwrap(), Appended::Conflict(end));
    assert_eq!(stale.truncate().unwrap(), Position(0), "what is not listed is no reason to forget");
    stale.snapshots().prune().unwrap();
    front.rule(|_| Fate::Pass);
    assert_eq!(stale.snapshots().list().unwrap(), [at]);
    assert_eq!(stale.snapshots().open(at).unwrap().next().unwrap().as_deref(), Some(b"state".as_slice()));
}
