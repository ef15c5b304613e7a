//! Stored bytes that changed: each is noticed and named, and nothing is made of it.

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Cause, Claim, Error, LogPlace, Logged, Set};

use crate::common::{Raw, journal, new_prefix, shared};

fn names(error: &Error, object: &str) {
    assert!(matches!(error.source, Cause::Damaged { .. }) && !error.retryable, "{error:?}");
    assert!(error.to_string().contains(object), "{error} names {object}");
}

#[test]
fn a_damaged_batch_is_named_and_nothing_is_made_of_it() {
    let prefix = new_prefix();
    let raw = Raw::of(&prefix);
    let mut handle = journal(&prefix);
    let batches: Vec<_> = (0..4).map(|_| append_one(&mut *handle, 2, 100).0).collect();
    let name = |first: u64| format!("batches/{}/{first:020}", handle.id());
    let good = raw.get(&name(3)).unwrap();
    for byte in [0, 1, 20, 30, 60, good.len() - 1] {
        raw.damage(&name(3), byte);
        names(&handle.read(Position(2), 1 << 20).unwrap_err(), &name(3));
        names(&handle.read(Position(0), 1 << 20).unwrap_err(), &name(3));
        raw.put(&name(3), &good);
    }
    raw.put(&name(3), &good[..good.len() - 1]);
    names(&handle.read(Position(2), 1 << 20).unwrap_err(), &name(3));
    // A batch at the place of another.
    raw.put(&name(3), &raw.get(&name(5)).unwrap());
    names(&handle.read(Position(2), 1 << 20).unwrap_err(), &name(3));
    raw.put(&name(3), &good);
    assert_eq!(read_all(&*handle, Position(0), 1 << 20), batches);
    raw.delete(&name(3));
    names(&handle.read(Position(2), 1 << 20).unwrap_err(), &format!("batches/{}", handle.id()));
}

#[test]
fn another_batch_at_the_end_is_noticed() {
    let prefix = new_prefix();
    let mut handle = journal(&prefix);
    append_one(&mut *handle, 2, 100);
    let other = orchestrix_engine::batch_frame::pack(handle.id(), &batch_after(Default::default(), 2, 101));
    Raw::of(&prefix).put(&format!("batches/{}/{:020}", handle.id(), 1), &other);
    names(&handle.read(Position(0), 1 << 20).unwrap_err(), "/00000000000000000001");
    append_one(&mut *handle, 1, 10);
    names(&handle.read(Position(0), 1 << 20).unwrap_err(), "/00000000000000000003");
}

#[test]
fn a_damaged_head_stops_everything() {
    let prefix = new_prefix();
    let raw = Raw::of(&prefix);
    let mut handle = journal(&prefix);
    append_one(&mut *handle, 2, 100);
    for byte in [0, 5, 20, 60] {
        raw.damage("journal", byte);
        names(&handle.refresh().unwrap_err(), "journal");
        names(&handle.append(&batch_after(handle.end(), 1, 1)).unwrap_err(), "journal");
        names(&shared(&prefix).journal().map(|_| ()).unwrap_err(), "journal");
        raw.damage("journal", byte);
    }
}

#[test]
fn a_damaged_snapshot_is_named_and_the_others_are_kept() {
    let prefix = new_prefix();
    let raw = Raw::of(&prefix);
    let mut handle = journal(&prefix);
    for _ in 0..3 {
        append_one(&mut *handle, 1, 100);
        take_snapshot(&*handle, &[b"state", b"more"]);
    }
    let snapshots = handle.snapshots();
    let manifest = format!("snapshots/{:020}", 3);
    raw.damage(&manifest, 30);
    names(&snapshots.open(Position(3)).map(|_| ()).unwrap_err(), &manifest);
    let folder = raw.list("chunks").into_iter().find(|name| name.starts_with(&format!("{:020}", 2))).unwrap();
    let chunk = format!("chunks/{folder}/{:08}", 1);
    raw.damage(&chunk, 6);
    let mut reader = snapshots.open(Position(2)).unwrap();
    assert_eq!(reader.next().unwrap().as_deref(), Some(b"state".as_slice()));
    names(&reader.next().unwrap_err(), &chunk);
    snapshots.prune().unwrap();
    assert_eq!(snapshots.list().unwrap(), [Position(3), Position(2), Position(1)], "only two may be good");
    assert_eq!(handle.truncate().unwrap(), Position(1));
}

#[test]
fn a_damaged_cell_is_named() {
    let prefix = new_prefix();
    let raw = Raw::of(&prefix);
    let register = shared(&prefix).register();
    let claim = Claim { owner: "me".to_owned(), ..Claim::default() };
    let Set::Done(version) = register.compare_and_set("nodes/a", None, &claim).unwrap() else {
        panic!("alone")
    };
    raw.damage("cells/nodes!2fa", 20);
    names(&register.read("nodes/a").unwrap_err(), "cells/nodes!2fa");
    names(&register.list("").unwrap_err(), "cells/nodes!2fa");
    names(&register.compare_and_set("nodes/a", Some(&version), &claim).unwrap_err(), "cells/nodes!2fa");
    raw.damage("cells/nodes!2fa", 20);
    raw.put("cells/nodes!2fb", &raw.get("cells/nodes!2fa").unwrap());
    names(&register.read("nodes/b").unwrap_err(), "cells/nodes!2fb");
}

#[test]
fn a_damaged_log_chunk_is_named_passed_by_and_mended() {
    let prefix = new_prefix();
    let raw = Raw::of(&prefix);
    let logs = shared(&prefix).logs();
    for offset in 0..3 {
        logs.append(LogPlace::nth(TaskId(7), LeaseId(1), offset), b"a line").unwrap();
    }
    let name = format!("logs/{:020}/{:08}", 7, 1);
    raw.damage(&name, 22);
    let fresh = shared(&prefix).logs();
    assert_eq!(fresh.read(TaskId(7), 0, 1000).unwrap().len(), 1, "what comes before it is good");
    names(&fresh.read(TaskId(7), 1, 1000).unwrap_err(), &name);
    assert_eq!(fresh.read(TaskId(7), 2, 1000).unwrap().len(), 1);
    assert_eq!(fresh.append(LogPlace::nth(TaskId(7), LeaseId(1), 1), b"mended").unwrap(), Logged::Existed);
    assert_eq!(logs.read(TaskId(7), 0, 1000).unwrap()[1].bytes, b"mended");
    assert_eq!(fresh.append(LogPlace::nth(TaskId(7), LeaseId(1), 1), b"again").unwrap(), Logged::Existed);
    assert_eq!(logs.read(TaskId(7), 0, 1000).unwrap()[1].bytes, b"mended");
}
