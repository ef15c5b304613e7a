//! A replica that takes over before everything has reached it.

use orchestrix_core::Position;
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Appended, Cause, Error, Journal};

use crate::common::{DURABLE, FORGETFUL, PATIENT, Raw, journal, redis};
use crate::support::proxy::{Proxy, Wire};
use orchestrix_testbed::{Server, eventually};

const ENDING: &str = include_str!("../../src/redis/scripts/ending.lua");
const TRIM: &str = include_str!("../../src/redis/scripts/trim.lua");
const RAISE: &str = include_str!("../../src/redis/scripts/raise.lua");
const DROP: &str = include_str!("../../src/redis/scripts/drop.lua");

const META: &str = "orchestrix:default:meta";
const JOURNAL: &str = "orchestrix:default:journal";
const SNAPSHOTS: &str = "orchestrix:default:snapshots";

fn damaged(error: &Error) -> String {
    assert!(matches!(error.source, Cause::Damaged { .. }) && !error.retryable, "{error}");
    error.to_string()
}

#[test]
fn a_replica_promoted_without_the_tail_is_not_forked() {
    let (mut primary, replica) = (redis(&DURABLE), redis(&DURABLE));
    let address = Proxy::to(primary.port());
    let (mut leader, mut follower) = (journal(address.port(), PATIENT), journal(address.port(), PATIENT));
    let mut batches: Vec<_> = (0..3).map(|_| append_one(&mut *leader, 1, 10).0).collect();
    let mut second = Raw::to(&replica);
    second.run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    eventually("the replica has all batches", || {
        (second.ask::<usize>("XLEN orchestrix:default:journal") == 3).then_some(())
    });
    // The replica is promoted, and the primary goes on for a moment: what it acknowledges now is lost with it.
    second.run("REPLICAOF NO ONE");
    batches.extend((0..2).map(|_| append_one(&mut *leader, 1, 10).0));
    let end = leader.end();
    assert_eq!(follower.refresh().unwrap(), end);
    primary.kill();
    address.lead_to(replica.port());

    let next = batch_after(end, 1, 10);
    assert_eq!(leader.append(&next).unwrap(), Appended::Unknown, "the connection broke");
    for _ in 0..2 {
        let told = damaged(&leader.append(&next).unwrap_err());
        assert!(told.contains("ended at 5") && told.contains("ends at 3"), "{told}");
    }
    eventually("whoever follows notices it, too", || {
        let error = follower.refresh().unwrap_err();
        (!error.retryable).then(|| damaged(&error))
    });
    let newcomer = journal(address.port(), PATIENT);
    assert_eq!(read_all(&*newcomer, Position(0), 1 << 20), batches[..3], "and nothing was written");
}

/// A journal behind a wire, with batches and snapshots at 1, 2 and 3.
fn three(server: &Server) -> (Proxy, Box<dyn Journal>) {
    let proxy = Proxy::to(server.port());
    let mut journal = journal(proxy.port(), PATIENT);
    for _ in 0..3 {
        append_one(&mut *journal, 1, 50);
        take_snapshot(&*journal, &[b"state"]);
    }
    (proxy, journal)
}

/// Runs something. Before its first call of a script arrives, the server is as a replica that lacks the newer two
/// snapshots.
fn overtaken<T: Send>(server: &Server, proxy: &Proxy, script: &str, run: impl FnOnce() -> T + Send) -> T {
    // A script is sent in full once.
    proxy.hold_at(script.as_bytes());
    std::thread::scope(|scope| {
        let running = scope.spawn(run);
        proxy.holds();
        Raw::to(server).run(&format!("HDEL {SNAPSHOTS} 2 3"));
        proxy.set(Wire::Good);
        running.join().unwrap()
    })
}

#[test]
fn a_snapshot_is_pruned_only_while_a_newer_one_is_there() {
    let server = redis(&FORGETFUL);
    let (proxy, journal) = three(&server);
    let snapshots = journal.snapshots();
    overtaken(&server, &proxy, DROP, move || snapshots.prune().unwrap());
    assert_eq!(journal.snapshots().list().unwrap(), [Position(1)], "it is the only one here");
}

#[test]
fn a_floor_is_raised_only_while_its_snapshot_is_there() {
    let server = redis(&FORGETFUL);
    let (proxy, mut journal) = three(&server);
    let script = format!("{ENDING}{RAISE}");
    let floor = overtaken(&server, &proxy, &script, || journal.truncate().unwrap());
    assert_eq!(floor, Position(0));
    take_snapshot(&*journal, &[b"state"]);
    assert_eq!(journal.truncate().unwrap(), Position(1), "this one is there");
}

#[test]
fn a_floor_is_not_raised_above_the_end_of_the_journal() {
    let server = redis(&FORGETFUL);
    let mut handle = journal(server.port(), PATIENT);
    append_one(&mut *handle, 1, 10);
    let (mut raw, id) = (Raw::to(&server), handle.id().to_string());
    // The replica has the snapshots, and not the batches that they stand on.
    raw.run(&format!("HSET {SNAPSHOTS} 1 x 2 x"));
    let script = format!("{ENDING}{RAISE}");
    for (to, floor) in [("2", "0"), ("1", "1")] {
        let words = ["EVAL", &script, "3", META, JOURNAL, SNAPSHOTS, &id, to].map(str::as_bytes);
        let _: redis::Value = raw.ask_with(&words);
        assert_eq!(raw.ask::<String>(&format!("HGET {META} floor")), floor, "to {to}");
    }
}

/// The floor was raised on another server, which this one has taken over from without hearing of it.
#[test]
fn a_server_that_does_not_know_the_floor_trims_nothing_below_it() {
    let server = redis(&FORGETFUL);
    let mut handle = journal(server.port(), PATIENT);
    // Redis trims whole blocks of entries.
    for _ in 0..300 {
        append_one(&mut *handle, 1, 10);
    }
    let (mut raw, id) = (Raw::to(&server), handle.id().to_string());
    let mut trim = |id: &str, floor: &str| -> usize {
        let script = format!("{ENDING}{TRIM}");
        raw.ask_with(&["EVAL", &script, "2", META, JOURNAL, id, floor, "1000"].map(str::as_bytes))
    };
    assert_eq!(trim(&id, "250"), 0, "the floor is not known here");
    Raw::to(&server).run(&format!("HSET {META} floor 249"));
    assert_eq!(trim(&id, "250"), 0, "an older floor is known here");
    Raw::to(&server).run(&format!("HSET {META} floor 250"));
    assert_eq!(trim("another", "250"), 0, "another journal is here");
    assert_eq!(Raw::to(&server).ask::<usize>(&format!("XLEN {JOURNAL}")), 300);
    assert!(trim(&id, "250") > 0, "now it may go");
}
