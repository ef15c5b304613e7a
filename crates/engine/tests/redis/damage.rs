//! Stored bytes that are not as they were written are refused, and the refusal names the place.

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Cause, Claim, Error, LogPlace, Logged, Shared};

use crate::common::{FORGETFUL, PATIENT, Raw, journal, place, redis};
use orchestrix_testbed::Server;

type Entry = (String, Vec<Vec<u8>>);
type Damage<'a> = &'a dyn Fn(&mut Vec<Entry>);

fn names(error: &Error, place: &str) {
    assert!(matches!(error.source, Cause::Damaged { .. }) && !error.retryable, "{error:?}");
    assert!(error.to_string().contains(place), "{error} should name {place}");
}

/// A server with a journal of five batches at 2, 4, 6, 8 and 10.
fn written() -> (Server, Raw) {
    let server = redis(&FORGETFUL);
    let mut journal = journal(server.port(), PATIENT);
    for _ in 0..5 {
        append_one(&mut *journal, 2, 40);
    }
    let raw = Raw::to(&server);
    (server, raw)
}

/// Writes the stream anew, with changes.
fn change(raw: &mut Raw, change: impl FnOnce(&mut Vec<Entry>)) {
    let mut entries: Vec<Entry> = raw.ask("XRANGE orchestrix:default:journal - +");
    change(&mut entries);
    raw.run("DEL orchestrix:default:journal");
    for (id, fields) in &entries {
        let mut command: Vec<&[u8]> = vec![b"XADD", b"orchestrix:default:journal", id.as_bytes()];
        command.extend(fields.iter().map(Vec::as_slice));
        let _: redis::Value = raw.ask_with(&command);
    }
}

/// Reads all; where it fails.
fn read(server: &Server) -> Result<usize, Error> {
    let journal = place(server.port(), PATIENT).journal()?;
    let mut after = Position(0);
    let mut count = 0;
    while let orchestrix_engine::Read::Batches(batches) = journal.read(after, 1)? {
        count += batches.len();
        after = batches.last().unwrap().last();
    }
    Ok(count)
}

#[test]
fn every_flipped_bit_of_a_batch_is_refused_by_its_name() {
    let (server, mut raw) = written();
    let length = {
        let entries: Vec<Entry> = raw.ask("XRANGE orchestrix:default:journal - +");
        entries[2].1[3].len()
    };
    for byte in (0..length).step_by(7) {
        let bit = byte % 8;
        change(&mut raw, |entries| entries[2].1[3][byte] ^= 1 << bit);
        names(&read(&server).unwrap_err(), "orchestrix:default:journal/6-0");
        change(&mut raw, |entries| entries[2].1[3][byte] ^= 1 << bit);
    }
    assert_eq!(read(&server).unwrap(), 5);
}

#[test]
fn missing_exchanged_and_foreign_batches_are_refused_by_name() {
    let stream = "orchestrix:default:journal";
    let cases: [(Damage<'_>, &str); 7] = [
        (&|entries| drop(entries.remove(0)), "/4-0"),
        (&|entries| drop(entries.remove(2)), "/8-0"),
        (&|entries| drop(entries.remove(4)), stream),
        (&|entries| entries[1].1[1][0] ^= 1, "/4-0"),
        (&|entries| entries[4].1[1][0] ^= 1, stream),
        (
            &|entries| {
                let fields = entries[1].1.clone();
                entries[2].1 = fields;
            },
            "/6-0",
        ),
        (&|entries| entries[3].1.truncate(2), "/8-0"),
    ];
    for (damage, place) in cases {
        let (server, mut raw) = written();
        change(&mut raw, damage);
        names(&read(&server).unwrap_err(), place);
    }
}

#[test]
fn an_end_that_is_noted_otherwise_than_it_is_stops_everything() {
    for (field, value) in [("position", "8"), ("position", "12"), ("hash", &"7".repeat(32)), ("floor", "x")] {
        let (server, mut raw) = written();
        let mut handle = journal(server.port(), PATIENT);
        raw.run(&format!("HSET orchestrix:default:meta {field} {value}"));
        let batch = batch_after(handle.end(), 1, 10);
        if field != "floor" {
            names(&handle.append(&batch).unwrap_err(), "orchestrix:default:journal");
        }
        names(&handle.refresh().unwrap_err(), "orchestrix:default:");
        names(&read(&server).unwrap_err(), "orchestrix:default:");
        raw.run("DEL orchestrix:default:meta");
        names(&read(&server).unwrap_err(), "orchestrix:default:meta");
        names(&handle.append(&batch).unwrap_err(), "orchestrix:default:meta");
    }
}

#[test]
fn a_stream_with_foreign_entries_is_not_appended_to() {
    for damage in [
        "DEL orchestrix:default:journal",
        "XDEL orchestrix:default:journal 11-0",
        "XTRIM orchestrix:default:journal MAXLEN 0",
        "XADD orchestrix:default:journal 12-0 hash x batch y",
        "XADD orchestrix:default:journal 13-0 hash x batch y",
        "FLUSHALL",
    ] {
        let (server, mut raw) = written();
        let mut new = journal(server.port(), PATIENT);
        let mut writer = journal(server.port(), PATIENT);
        // Goes the short way from now on.
        append_one(&mut *writer, 1, 10);
        new.refresh().unwrap();
        raw.run(damage);
        let before: Vec<Entry> = raw.ask("XRANGE orchestrix:default:journal - +");
        for handle in [&mut writer, &mut new] {
            let batch = batch_after(handle.end(), 1, 10);
            names(&handle.append(&batch).unwrap_err(), "orchestrix:default:");
            assert_eq!(raw.ask::<Vec<Entry>>("XRANGE orchestrix:default:journal - +"), before, "{damage}");
        }
        names(&writer.refresh().unwrap_err(), "orchestrix:default:");
    }
}

#[test]
fn a_damaged_snapshot_is_refused_by_name_and_holds_no_floor() {
    let (server, mut raw) = written();
    let mut handle = journal(server.port(), PATIENT);
    let older = take_snapshot(&*handle, &[b"one", b"two"]).position;
    append_one(&mut *handle, 1, 10);
    let newer = take_snapshot(&*handle, &[b"three", b"four"]).position;
    let key = raw.ask::<Vec<String>>("KEYS orchestrix:default:snapshot:11:*").remove(0);
    let snapshots = handle.snapshots();

    let mut chunk: Vec<u8> = raw.ask(&format!("HGET {key} 1"));
    chunk[5] ^= 1;
    let _: i64 = raw.ask_with(&[b"HSET", key.as_bytes(), b"1", &chunk]);
    let mut reader = snapshots.open(newer).unwrap();
    assert_eq!(reader.next().unwrap().as_deref(), Some(b"three".as_slice()));
    names(&reader.next().unwrap_err(), &format!("{key}/1"));

    let _: i64 = raw.ask(&format!("HDEL {key} 1"));
    names(&reader.next().unwrap_err(), &format!("{key}/1"));
    assert_eq!(handle.truncate().unwrap(), Position(0), "one whole snapshot is not enough");

    let _: i64 = raw.ask("HSET orchestrix:default:snapshots 11 nonsense");
    names(&snapshots.open(newer).map(|_| ()).unwrap_err(), "orchestrix:default:snapshots/11");
    assert_eq!(snapshots.list().unwrap(), [newer, older]);
    assert_eq!(handle.truncate().unwrap(), Position(0));
    snapshots.prune().unwrap();
    assert_eq!(snapshots.list().unwrap(), [newer, older], "the only good one stays");
    assert_eq!(read_all(&*handle, Position(0), 1 << 20).len(), 6);
}

#[test]
fn a_damaged_cell_is_refused_by_name() {
    let leader = "orchestrix:coordinator:leader";
    for (field, value) in
        [("owner", "b"), ("epoch", "8"), ("ttl_ms", "6"), ("held", "0"), ("held", "2"), ("value", "w")]
    {
        let server = redis(&FORGETFUL);
        let register = place(server.port(), PATIENT).register();
        let claim = Claim { owner: "a".to_owned(), epoch: 7, ttl_ms: 5, held: true, value: b"v".to_vec() };
        register.compare_and_set("leader", None, &claim).unwrap();
        let mut raw = Raw::to(&server);
        raw.run(&format!("HSET {leader} {field} {value}"));
        names(&register.read("leader").unwrap_err(), leader);
        names(&register.list("").unwrap_err(), leader);
        names(&register.compare_and_set("leader", None, &claim).unwrap_err(), leader);
        raw.run(&format!("DEL {leader}"));
        names(&register.read("leader").unwrap_err(), leader);
        names(&register.list("lead").unwrap_err(), leader);
        names(&register.compare_and_set("leader", None, &claim).unwrap_err(), leader);
    }
}

#[test]
fn a_damaged_log_chunk_is_named_and_repaired_by_its_lines() {
    let server = redis(&FORGETFUL);
    let logs = place(server.port(), PATIENT).logs();
    let append = |number| logs.append(LogPlace::nth(TaskId(1), LeaseId(3), number), b"a line").unwrap();
    for offset in 0..3 {
        append(offset);
    }
    let mut raw = Raw::to(&server);
    for damage in ["HSET orchestrix:default:log:1 1 nonsense", "HDEL orchestrix:default:log:1 1"] {
        raw.run(damage);
        if damage.starts_with("HDEL") {
            // Keeps the count: what is missing is the chunk, not its place.
            raw.run("HSET orchestrix:default:log:1 filler x");
        }
        assert_eq!(logs.read(TaskId(1), 0, 100).unwrap().len(), 1, "none from the damaged one on");
        names(&logs.read(TaskId(1), 1, 100).unwrap_err(), "orchestrix:default:log:1/1");
        assert_eq!(logs.read(TaskId(1), 2, 100).unwrap().len(), 1, "the next one can be asked for");
        assert_eq!(append(1), Logged::Existed);
        raw.run("HDEL orchestrix:default:log:1 filler");
        assert_eq!(logs.read(TaskId(1), 0, 100).unwrap().len(), 3);
    }
}
