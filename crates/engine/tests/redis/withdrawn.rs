//! A right that is withdrawn under a running node costs an error, and nothing else: what was refused has changed nothing,
//! and goes on when the right is back.

use std::collections::BTreeMap;

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Appended, Claim, Error, Journal, LogPlace, Logged, Set, Shared};

use crate::common::{FORGETFUL, PATIENT, Raw, redis, url_of_the_page};
use orchestrix_testbed::Server;

/// Everything that is stored, but for the count of writings, in which a number may be skipped.
fn stored(raw: &mut Raw) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for key in raw.ask::<Vec<String>>("KEYS *") {
        let mut parts: Vec<Vec<u8>> = match raw.ask::<String>(&format!("TYPE {key}")).as_str() {
            // A set has no order of its own.
            "set" => raw.ask(&format!("SMEMBERS {key}")),
            _ => vec![raw.ask(&format!("DUMP {key}"))],
        };
        parts.sort();
        all.insert(key, parts);
    }
    all.remove("orchestrix:default:writings");
    all
}

/// A server with the user of the page, whose rights are taken and given one at a time.
struct Rights {
    server: Server,
    place: RedisPlace,
    raw: Raw,
}

impl Rights {
    fn new() -> Self {
        let server = redis(&FORGETFUL);
        let place = RedisPlace::connect(&url_of_the_page(&server, ""), PATIENT).unwrap();
        let raw = Raw::to(&server);
        Self { place, raw, server }
    }

    fn journal(&self) -> Box<dyn Journal> {
        self.place.journal().unwrap()
    }

    /// Takes one right after the other, each time with all the others there. Answers what is done with all of them.
    fn refused<T>(&mut self, commands: &[&str], mut run: impl FnMut() -> Result<T, Error>) -> T {
        for command in commands {
            self.raw.run(&format!("ACL SETUSER orchestrix -{command}"));
            let before = stored(&mut self.raw);
            // Twice: in full, and by the name that the server has learned meanwhile.
            for _ in 0..2 {
                let refused = run().is_err();
                assert!(refused, "without {command}");
                assert_eq!(stored(&mut self.raw), before, "without {command}");
            }
            self.raw.run(&format!("ACL SETUSER orchestrix +{command}"));
        }
        run().unwrap()
    }
}

#[test]
fn an_append_that_was_refused_goes_on_when_the_right_is_back() {
    for before in [0, 1, 3] {
        let mut rights = Rights::new();
        let (mut writer, mut all) = (rights.journal(), Vec::new());
        for _ in 0..before {
            all.push(append_one(&mut *writer, 2, 10).0);
        }
        let batch = batch_after(writer.end(), 2, 10);
        let done = rights.refused(&["hset", "xadd"], || writer.append(&batch));
        assert_eq!(done, Appended::Done(batch.link(writer.id())), "after {before}");
        all.push(batch);
        all.push(append_one(&mut *writer, 1, 10).0);
        assert_eq!(read_all(&*rights.journal(), Position(0), 1 << 20), all, "after {before}");
    }
}

#[test]
fn a_stream_that_takes_no_entry_leaves_the_note_as_it_was() {
    let mut rights = Rights::new();
    let mut writer = rights.journal();
    append_one(&mut *writer, 2, 10);
    // The server takes no entry below one that it has ever had, though that is gone.
    rights.raw.run("XADD orchestrix:default:journal 9-0 hash x batch y");
    rights.raw.run("XDEL orchestrix:default:journal 9-0");
    let before = stored(&mut rights.raw);
    writer.append(&batch_after(writer.end(), 2, 10)).unwrap_err();
    assert_eq!(stored(&mut rights.raw), before);
    assert_eq!(rights.journal().end(), writer.end());
}

#[test]
fn a_journal_is_made_when_the_right_is_there() {
    let mut rights = Rights::new();
    let url = url_of_the_page(&rights.server, "");
    let place = RedisPlace::connect(&url, PATIENT).unwrap();
    rights.refused(&["hset"], || place.journal().map(drop));
}

#[test]
fn a_snapshot_that_was_refused_is_written_later() {
    let mut rights = Rights::new();
    let mut journal = rights.journal();
    for _ in 0..2 {
        append_one(&mut *journal, 1, 10);
        // The second of the same position takes the place of the first.
        for _ in 0..2 {
            let snapshots = journal.snapshots();
            let mut writer = rights.refused(&["sadd"], || snapshots.create(journal.end()));
            rights.refused(&["hset"], || writer.chunk(b"a chunk"));
            for command in ["sadd", "srem", "hset"] {
                let mut other = snapshots.create(journal.end()).unwrap();
                other.chunk(b"a chunk").unwrap();
                rights.raw.run(&format!("ACL SETUSER orchestrix -{command}"));
                let before = stored(&mut rights.raw);
                other.finish().unwrap_err();
                assert_eq!(stored(&mut rights.raw), before, "without {command}");
                rights.raw.run(&format!("ACL SETUSER orchestrix +{command}"));
            }
            writer.finish().unwrap();
        }
        assert_eq!(journal.snapshots().list().unwrap()[0], journal.end().position);
    }
    rights.refused(&["hset"], || journal.truncate());
    rights.refused(&["xtrim"], || journal.truncate());
}

#[test]
fn pruning_that_was_refused_is_done_later() {
    let mut rights = Rights::new();
    let mut journal = rights.journal();
    for _ in 0..3 {
        append_one(&mut *journal, 1, 10);
        take_snapshot(&*journal, &[b"one", b"two"]);
    }
    let snapshots = journal.snapshots();
    rights.refused(&["sadd", "hdel"], || snapshots.prune());
    assert_eq!(snapshots.list().unwrap(), [Position(3), Position(2)]);
    snapshots.create(journal.end()).unwrap().chunk(b"unfinished").unwrap();
    rights.refused(&["srem", "unlink"], || snapshots.prune());
    assert_eq!(rights.raw.ask::<Vec<String>>("KEYS orchestrix:default:snapshot:*").len(), 2);
    assert_eq!(snapshots.open(Position(3)).unwrap().next().unwrap().as_deref(), Some(b"one".as_slice()));
}

#[test]
fn a_cell_that_was_refused_is_written_later() {
    let mut rights = Rights::new();
    let register = rights.place.register();
    let claim = |epoch| Claim { owner: "a".to_owned(), epoch, ttl_ms: 5, held: true, value: b"v".to_vec() };
    for key in ["leader", "nodes/a"] {
        let mut seen = None;
        for epoch in 1..3 {
            let set = rights.refused(&["hset", "incr", "zadd"], || {
                register.compare_and_set(key, seen.as_ref(), &claim(epoch))
            });
            let Set::Done(version) = set else { panic!("it was not written: {set:?}") };
            seen = Some(version);
            assert_eq!(register.read(key).unwrap().unwrap().claim, claim(epoch));
        }
        let seen = seen.unwrap();
        rights.refused(&["zrem", "unlink"], || register.remove(key, &seen));
        assert_eq!(register.read(key).unwrap(), None);
        assert!(register.list("").unwrap().is_empty());
    }
}

#[test]
fn output_that_was_refused_is_kept_later() {
    let mut rights = Rights::new();
    let logs = rights.place.logs();
    let append = |task, number| logs.append(LogPlace::nth(TaskId(task), LeaseId(3), number), b"a line");
    for task in 1..4 {
        assert_eq!(rights.refused(&["hset", "sadd"], || append(task, 0)), Logged::Stored);
        assert_eq!(rights.refused(&["hset"], || append(task, 1)), Logged::Stored);
    }
    rights.raw.run("HSET orchestrix:default:log:1 1 nonsense");
    rights.refused(&["hset"], || append(1, 1));
    assert_eq!(logs.read(TaskId(1), 0, 100).unwrap().len(), 2);
    rights.refused(&["unlink", "srem"], || logs.delete(&[TaskId(1), TaskId(2)]));
    assert_eq!(rights.raw.ask::<Vec<String>>("KEYS orchestrix:default:log:*"), ["orchestrix:default:log:3"]);
    assert_eq!(rights.raw.ask::<Vec<String>>("SMEMBERS orchestrix:default:logs"), ["3"]);
}

#[test]
fn a_user_without_exec_is_asked_for_it_once() {
    let server = redis(&FORGETFUL);
    let url = url_of_the_page(&server, "-exec");
    let mut journal = RedisPlace::connect(&url, PATIENT).unwrap().journal().unwrap();
    (0..5).for_each(|_| drop(append_one(&mut *journal, 1, 10)));
    let stats: String = Raw::to(&server).ask("INFO commandstats");
    let line = stats.lines().find(|line| line.starts_with("cmdstat_exec:")).unwrap();
    assert!(line.contains("rejected_calls=1,"), "{line}");
}
