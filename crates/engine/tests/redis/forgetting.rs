//! Servers that were wiped or rolled back, under handles that have seen more.

use orchestrix_core::Position;
use orchestrix_engine::suite::{append_one, batch_after, read_all};
use orchestrix_engine::{Appended, Cause, Error, Shared};

use crate::common::{FORGETFUL, PATIENT, Raw, journal, place, redis};

fn damaged(error: &Error) -> String {
    assert!(matches!(error.source, Cause::Damaged { .. }) && !error.retryable, "{error:?}");
    error.to_string()
}

#[test]
fn a_wiped_server_is_noticed_by_every_handle() {
    let server = redis(&FORGETFUL);
    let before = place(server.port(), PATIENT);
    let (mut written, mut empty) = (before.journal().unwrap(), before.journal().unwrap());
    let (_, end) = append_one(&mut *written, 2, 10);
    Raw::to(&server).run("FLUSHALL");
    for wiped in 0..2 {
        for (handle, end) in [(&mut written, end), (&mut empty, Default::default())] {
            for batch in [batch_after(end, 1, 10), batch_after(Default::default(), 2, 10)] {
                let error = damaged(&handle.append(&batch).unwrap_err());
                assert!(error.contains("orchestrix:default:meta"), "{error}");
            }
            damaged(&handle.refresh().unwrap_err());
            damaged(&handle.read(Position(0), 100).unwrap_err());
            damaged(&handle.truncate().unwrap_err());
        }
        damaged(&before.journal().map(|_| ()).unwrap_err());
        if wiped == 0 {
            // Somebody new makes a new journal; the old handles have no part in it.
            append_one(&mut *journal(server.port(), PATIENT), 3, 10);
        }
    }
    assert_eq!(read_all(&*journal(server.port(), PATIENT), Position(0), 100).len(), 1);
}

#[test]
fn a_server_that_was_rolled_back_is_noticed_and_not_forked() {
    let mut server = redis(&FORGETFUL);
    let mut handle = journal(server.port(), PATIENT);
    let mut batches = Vec::new();
    for _ in 0..3 {
        batches.push(append_one(&mut *handle, 2, 10).0);
    }
    let back = handle.end();
    Raw::to(&server).run("SAVE");
    for _ in 0..3 {
        batches.push(append_one(&mut *handle, 2, 10).0);
    }
    let end = handle.end();
    server.kill();
    server.launch().unwrap();
    // The first call finds the connection broken; what it was meant to write is not known.
    let next = batch_after(end, 1, 10);
    assert_eq!(handle.append(&next).unwrap(), Appended::Unknown);
    for batch in [&next, &batch_after(back, 1, 10), &batches[3], &batches[2]] {
        let error = damaged(&handle.append(batch).unwrap_err());
        assert!(error.contains("ended at 12") && error.contains("ends at 6"), "{error}");
    }
    damaged(&handle.refresh().unwrap_err());
    damaged(&handle.read(end.position, 100).unwrap_err());
    let mut other = journal(server.port(), PATIENT);
    assert_eq!(read_all(&*other, Position(0), 1 << 20), batches[..3], "nothing was written");

    // Somebody else who did not see more goes on, past where this handle was.
    for _ in 0..4 {
        append_one(&mut *other, 2, 11);
    }
    assert_eq!(handle.append(&next).unwrap(), Appended::Conflict(other.end()));
    let error = damaged(&handle.read(end.position, 1000).unwrap_err());
    assert!(error.contains("orchestrix:default:journal/14-0"), "{error}");
    let error = damaged(&handle.read(back.position, 1000).unwrap_err());
    assert!(error.contains("orchestrix:default:journal/12-0"), "{error}");
    assert_eq!(other.refresh().unwrap().position, Position(14));
}

#[test]
fn another_history_of_the_same_length_is_noticed() {
    let mut server = redis(&FORGETFUL);
    let mut handle = journal(server.port(), PATIENT);
    Raw::to(&server).run("SAVE");
    let (_, end) = append_one(&mut *handle, 2, 10);
    server.kill();
    server.launch().unwrap();
    append_one(&mut *journal(server.port(), PATIENT), 2, 11);
    let next = batch_after(end, 1, 10);
    // Unknown, if the connection broke under the batch.
    let first = handle.append(&next);
    let error = first.and_then(|_| handle.append(&next)).unwrap_err();
    assert!(damaged(&error).contains("another history"), "{error}");
}
