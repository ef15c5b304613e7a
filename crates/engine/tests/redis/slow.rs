//! The time of the server: answers that come late, and a clock that nobody looks at.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{append_one, batch_after, read_all, take_snapshot};
use orchestrix_engine::{Appended, Claim, LogPlace, Set, Shared};

use crate::common::{FORGETFUL, HASTY, PATIENT, Raw, journal, place, redis};
use orchestrix_testbed::eventually;

#[test]
fn a_slow_servers_late_write_is_unknown_and_done_once() {
    let server = redis(&["--appendonly", "no", "--enable-debug-command", "yes"]);
    for slow in ["CLIENT PAUSE 1500 ALL\r\n", "DEBUG SLEEP 1.5\r\n"] {
        let (mut handle, register) = (journal(server.port(), HASTY), place(server.port(), HASTY).register());
        let before = read_all(&*handle, Position(0), 1 << 20).len();
        let mut raw = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        raw.write_all(slow.as_bytes()).unwrap();
        // What comes to the server before it is slow is done.
        let (mut done, mut batch) = (0, batch_after(handle.end(), 1, 10));
        let began = Instant::now();
        while handle.append(&batch).unwrap() != Appended::Unknown {
            done += 1;
            batch = batch_after(handle.end(), 1, 10);
        }
        assert!(began.elapsed() < Duration::from_millis(1_400), "it is told before the server goes on");
        let claim = Claim { owner: "a".into(), epoch: 1, ttl_ms: 1_000, held: true, value: slow.into() };
        let mut seen = None;
        let version = eventually("the same claim is done once", || {
            match register.compare_and_set("leader", seen.as_ref(), &claim) {
                Ok(Set::Done(version)) => Some(version),
                Ok(Set::Conflict(Some(cell))) => {
                    seen = Some(cell.version);
                    None
                }
                Ok(Set::Conflict(None) | Set::Unknown) | Err(_) => None,
            }
        });
        assert_eq!(register.read("leader").unwrap().unwrap().version, version);
        eventually("the same batch is done once", || match handle.append(&batch) {
            Ok(Appended::Done(_)) => Some(()),
            Ok(Appended::Unknown) | Err(_) => None,
            Ok(Appended::Conflict(end)) => panic!("nobody else writes, but it ends at {}", end.position),
        });
        let after = read_all(&*journal(server.port(), PATIENT), Position(0), 1 << 20).len();
        assert_eq!(after, before + done + 1);
    }
}

/// Redis counts the lives of keys on the date of its machine. What has no life there is not touched by a date that
/// jumps, and a script that does not ask for the date does not depend on it.
#[test]
fn nothing_depends_on_the_date_of_the_server() {
    let server = redis(&FORGETFUL);
    let place = place(server.port(), PATIENT);
    let mut journal = place.journal().unwrap();
    for _ in 0..3 {
        append_one(&mut *journal, 1, 10);
        take_snapshot(&*journal, &[b"state"]);
    }
    journal.truncate().unwrap();
    journal.snapshots().prune().unwrap();
    let claim = Claim { owner: "a".into(), epoch: 1, ttl_ms: 1, held: true, value: Vec::new() };
    for key in ["leader", "nodes/a"] {
        place.register().compare_and_set(key, None, &claim).unwrap();
    }
    place.logs().append(LogPlace::first(TaskId(1), LeaseId(2)), b"line").unwrap();
    let mut raw = Raw::to(&server);
    let keys: Vec<String> = raw.ask("KEYS *");
    assert!(keys.len() >= 8, "{keys:?}");
    for key in &keys {
        assert_eq!(raw.ask::<i64>(&format!("PTTL {key}")), -1, "{key} has no life of its own");
    }
    let used: String = raw.ask("INFO commandstats");
    assert!(used.contains("cmdstat_eval:") && used.contains("cmdstat_xadd:"), "{used}");
    for clock in ["time", "expire", "pexpire", "expireat", "pexpireat", "setex", "psetex", "getex"] {
        assert!(!used.contains(&format!("cmdstat_{clock}:")), "{clock} is used");
    }
    assert_eq!(place.register().read("leader").unwrap().unwrap().claim, claim, "whose time is long over");
}
