//! What is kept where, what is removed, and what a full server does.

use std::time::{Duration, Instant};

use orchestrix_core::Position;
use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Appended, Cause, Claim, Read, Set, Shared};

use crate::common::{FORGETFUL, PATIENT, Raw, journal, place, redis};

#[test]
fn the_leader_is_where_people_look_for_it() {
    let server = redis(&FORGETFUL);
    let register = place(server.port(), PATIENT).register();
    let claim = |owner: &str| Claim { owner: owner.to_owned(), epoch: 4, ..Claim::default() };
    register.compare_and_set("leader", None, &claim("node-1")).unwrap();
    register.compare_and_set("nodes/a", None, &claim("node-a")).unwrap();
    let mut raw = Raw::to(&server);
    assert_eq!(raw.ask::<String>("HGET orchestrix:coordinator:leader owner"), "node-1");
    assert_eq!(raw.ask::<String>("HGET orchestrix:coordinator:leader epoch"), "4");
    assert_eq!(raw.ask::<String>("HGET orchestrix:register:nodes/a owner"), "node-a");
    assert_eq!(register.poll_interval(), Duration::from_millis(50));
}

#[test]
fn the_floor_is_raised_before_anything_is_removed() {
    let server = redis(&FORGETFUL);
    let mut raw = Raw::to(&server);
    raw.run("ACL SETUSER careful on >pw ~* &* +@all");
    let careful = format!("redis://careful:pw@127.0.0.1:{}", server.port());
    let mut handle = RedisPlace::connect(&careful, PATIENT).unwrap().journal().unwrap();
    let mut batches = Vec::new();
    for number in 0..400 {
        batches.push(append_one(&mut *handle, 1, 500).0);
        if [299, 349].contains(&number) {
            take_snapshot(&*handle, &[b"state"]);
        }
    }
    raw.run("ACL SETUSER careful -xtrim");
    handle.truncate().expect_err("it may not remove anything");
    assert_eq!(raw.ask::<usize>("XLEN orchestrix:default:journal"), 400);
    assert_eq!(handle.read(Position(0), 100).unwrap(), Read::Truncated(Position(300)));
    assert_eq!(read_all(&*handle, Position(300), 1 << 20), batches[300..]);

    let mut other = journal(server.port(), PATIENT);
    assert_eq!(other.truncate().unwrap(), Position(300));
    let left: usize = raw.ask("XLEN orchestrix:default:journal");
    assert!((100..200).contains(&left), "{left} entries are left");
    assert_eq!(read_all(&*other, Position(300), 1 << 20), batches[300..]);
}

#[test]
fn the_last_batch_stays_when_the_floor_is_at_the_end() {
    let server = redis(&FORGETFUL);
    let mut handle = journal(server.port(), PATIENT);
    for _ in 0..3 {
        append_one(&mut *handle, 1, 5000);
    }
    take_snapshot(&*handle, &[b"state"]);
    append_one(&mut *handle, 1, 5000);
    take_snapshot(&*handle, &[b"state"]);
    Raw::to(&server).run("HDEL orchestrix:default:snapshots 3");
    let link = handle.end();
    append_one(&mut *handle, 1, 5000);
    take_snapshot(&*handle, &[b"state"]);
    assert_eq!(handle.truncate().unwrap(), link.position);
    assert_eq!(read_all(&*handle, link.position, 1).len(), 1);
    append_one(&mut *handle, 1, 10);
    assert_eq!(read_all(&*journal(server.port(), PATIENT), link.position, 1).len(), 2);
}

#[test]
fn an_unfinished_snapshot_is_pruned_and_cannot_be_finished() {
    let server = redis(&FORGETFUL);
    let mut raw = Raw::to(&server);
    let mut handle = journal(server.port(), PATIENT);
    append_one(&mut *handle, 1, 10);
    let snapshots = handle.snapshots();
    let mut late = snapshots.create(handle.end()).unwrap();
    let mut later = snapshots.create(handle.end()).unwrap();
    late.chunk(b"state").unwrap();
    later.chunk(b"state").unwrap();
    assert_eq!(raw.ask::<Vec<String>>("KEYS orchestrix:default:snapshot:*").len(), 2);
    snapshots.prune().unwrap();
    assert_eq!(raw.ask::<Vec<String>>("KEYS orchestrix:default:snapshot*").len(), 0);
    late.chunk(b"more").unwrap_err();
    later.finish().unwrap_err();
    assert_eq!(snapshots.list().unwrap(), []);
    assert_eq!(raw.ask::<Vec<String>>("KEYS orchestrix:default:snapshot*").len(), 0);
}

#[test]
fn a_snapshot_of_the_same_position_takes_the_place_of_the_first() {
    let server = redis(&FORGETFUL);
    let mut raw = Raw::to(&server);
    let mut handle = journal(server.port(), PATIENT);
    append_one(&mut *handle, 1, 10);
    let at = take_snapshot(&*handle, &[b"first", b"more"]).position;
    let mut first = handle.snapshots().open(at).unwrap();
    take_snapshot(&*handle, &[b"second"]);
    assert_eq!(first.next().unwrap().as_deref(), Some(b"first".as_slice()), "whoever reads it goes on");
    let mut second = handle.snapshots().open(at).unwrap();
    assert_eq!(second.next().unwrap().as_deref(), Some(b"second".as_slice()));
    handle.snapshots().prune().unwrap();
    assert_eq!(raw.ask::<Vec<String>>("KEYS orchestrix:default:snapshot:*").len(), 1);
    first.next().unwrap_err();
}

#[test]
fn a_full_server_refuses_and_has_written_nothing() {
    let server = redis(&FORGETFUL);
    let mut raw = Raw::to(&server);
    let shared = place(server.port(), PATIENT);
    let (mut handle, register) = (shared.journal().unwrap(), shared.register());
    let (first, end) = append_one(&mut *handle, 1, 10);
    raw.run("CONFIG SET maxmemory 1");
    let batch = batch_after(end, 1, 100);
    let claim = Claim { owner: "a".to_owned(), ..Claim::default() };
    for error in
        [handle.append(&batch).unwrap_err(), register.compare_and_set("leader", None, &claim).unwrap_err()]
    {
        assert!(error.retryable && matches!(error.source, Cause::Full { .. }), "{error:?}");
    }
    assert_eq!(read_all(&*handle, Position(0), 1 << 20), [first], "what is there can be read");
    assert_eq!(register.read("leader").unwrap(), None);
    raw.run("CONFIG SET maxmemory 0");
    assert_eq!(handle.append(&batch).unwrap(), Appended::Done(batch.link(handle.id())));
    assert!(matches!(register.compare_and_set("leader", None, &claim).unwrap(), Set::Done(_)));
}

#[test]
fn a_waiter_is_woken_at_once_and_never_too_late() {
    let server = redis(&FORGETFUL);
    let mut handle = journal(server.port(), PATIENT);
    let mut waiting = journal(server.port(), PATIENT);
    let began = Instant::now();
    waiting.wait(Position(0), Duration::from_millis(120)).unwrap();
    assert!((100..20_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let mut delays = Vec::new();
    for round in 0..50 {
        std::thread::scope(|scope| {
            let (started, start) = std::sync::mpsc::channel();
            let waiting = &mut waiting;
            let woken = scope.spawn(move || {
                started.send(()).unwrap();
                waiting.wait(Position(round), PATIENT).unwrap();
                Instant::now()
            });
            start.recv().unwrap();
            let appending = Instant::now();
            append_one(&mut *handle, 1, 10);
            delays.push(woken.join().unwrap().saturating_duration_since(appending));
        });
    }
    delays.sort();
    println!("woken after an append was sent: median {:?}, longest {:?}", delays[25], delays[49]);
    assert!(delays[25] < Duration::from_millis(50), "{delays:?}");
}
