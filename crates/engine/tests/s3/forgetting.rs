//! Stores that were wiped or have forgotten, under handles that have seen more.

use orchestrix_core::Position;
use orchestrix_engine::suite::{append_one, batch_after, read_all};
use orchestrix_engine::{Cause, Error};

use crate::common::{Raw, journal, new_prefix, shared};

fn damaged(error: &Error) -> String {
    assert!(matches!(error.source, Cause::Damaged { .. }) && !error.retryable, "{error:?}");
    error.to_string()
}

#[test]
fn every_handle_notices_a_wiped_store() {
    let prefix = new_prefix();
    let before = shared(&prefix);
    let (mut written, mut empty) = (before.journal().unwrap(), before.journal().unwrap());
    let (_, end) = append_one(&mut *written, 2, 10);
    Raw::of(&prefix).delete("");
    // Somebody new makes a new journal.
    let (batch, _) = append_one(&mut *journal(&prefix), 3, 10);
    for (handle, end) in [(&mut written, end), (&mut empty, Default::default())] {
        for batch in [batch_after(end, 1, 10), batch_after(Default::default(), 2, 10)] {
            let error = damaged(&handle.append(&batch).unwrap_err());
            assert!(error.contains(&format!("{prefix}/journal is damaged")), "{error}");
        }
        damaged(&handle.refresh().unwrap_err());
        damaged(&handle.read(Position(0), 100).unwrap_err());
        damaged(&handle.truncate().unwrap_err());
    }
    damaged(&before.journal().map(|_| ()).unwrap_err());
    assert_eq!(read_all(&*journal(&prefix), Position(0), 100), [batch]);

    Raw::of(&prefix).delete("");
    let error = damaged(&written.append(&batch_after(end, 1, 10)).unwrap_err());
    assert!(error.contains("is gone"), "{error}");
}

#[test]
fn a_journal_whose_head_is_gone_is_not_made_again() {
    let prefix = new_prefix();
    append_one(&mut *journal(&prefix), 2, 10);
    Raw::of(&prefix).delete("journal");
    let error = damaged(&shared(&prefix).journal().map(|_| ()).unwrap_err());
    assert!(error.contains("it is gone, and there are batches"), "{error}");
}

#[test]
fn a_store_that_has_forgotten_the_last_batches_is_noticed() {
    let prefix = new_prefix();
    let raw = Raw::of(&prefix);
    let mut handle = journal(&prefix);
    let mut batches = Vec::new();
    for _ in 0..6 {
        batches.push(append_one(&mut *handle, 2, 10).0);
    }
    for first in [7, 9, 11] {
        raw.delete(&format!("batches/{}/{first:020}", handle.id()));
    }
    let mut other = journal(&prefix);
    assert_eq!(read_all(&*other, Position(0), 1 << 20), batches[..3]);
    let error = damaged(&handle.refresh().unwrap_err());
    assert!(error.contains("ended at 12") && error.contains("has forgotten"), "{error}");
    let error = damaged(&handle.read(Position(6), 100).unwrap_err());
    assert!(error.contains("the batch with 7 is missing"), "{error}");
    // What follows a batch that is gone is never acknowledged.
    let error = damaged(&handle.append(&batch_after(handle.end(), 1, 10)).unwrap_err());
    assert!(error.contains("ended at 12") && error.contains("has forgotten"), "{error}");
    // Somebody else who did not see more goes on, and the two histories are told from each other.
    append_one(&mut *other, 3, 11);
    append_one(&mut *other, 5, 11);
    let error = damaged(&handle.read(Position(6), 1000).unwrap_err());
    assert!(error.contains("ended at 12"), "{error}");
}
