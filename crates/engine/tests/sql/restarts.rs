//! Servers that are killed, and servers that come back as they were before.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use orchestrix_core::Position;
use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::suite::{append_one, batch_after, read_all};
use orchestrix_engine::{Appended, Cause, Journal, Link, Shared};

use super::faults::settle;
use super::{Kind, SHORT, TIMEOUT, ask};
use orchestrix_testbed::{Server, eventually};

const ROUNDS: u64 = 5;

fn url(kind: Kind, server: &Server) -> String {
    format!("{}://{}@127.0.0.1:{}/orchestrix", kind.scheme, kind.admin, server.port())
}

/// Kills the server, and waits until everything that belonged to it is gone.
fn kill(server: &mut Server) {
    let pid = server.pid().unwrap().as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    server.kill();
    for child in children.split_whitespace() {
        eventually("what a server started ends", || {
            (!std::path::Path::new(&format!("/proc/{child}")).exists()).then_some(())
        });
    }
}

/// One who appends until told to stop, and remembers what was acknowledged.
fn work(mut journal: Box<dyn Journal>, stop: &AtomicBool) -> (Vec<Link>, usize) {
    let (mut acknowledged, mut unknown) = (Vec::new(), 0);
    while !stop.load(SeqCst) {
        let batch = batch_after(journal.end(), 1, 200);
        eventually("a batch is appended", || match journal.append(&batch).unwrap() {
            Appended::Done(link) => {
                acknowledged.push(link);
                Some(())
            }
            Appended::Unknown => {
                unknown += 1;
                None
            }
            Appended::Conflict(end) => panic!("there is one writer, but the end is {end:?}"),
        });
    }
    (acknowledged, unknown)
}

pub(crate) fn nothing_acknowledged_is_lost_when_the_server_is_killed(kind: Kind) {
    let mut server = (kind.start)();
    ask(kind, server.port(), "", "CREATE DATABASE orchestrix");
    let place = SqlPlace::connect(&url(kind, &server), SHORT).unwrap();
    let journal = place.journal().unwrap();
    let stop = AtomicBool::new(false);
    let (acknowledged, unknown) = std::thread::scope(|scope| {
        let working = scope.spawn(|| work(journal, &stop));
        let watcher =
            |server: &Server| SqlPlace::connect(&url(kind, server), TIMEOUT).unwrap().journal().unwrap();
        for _ in 0..ROUNDS {
            let mut watching = watcher(&server);
            let from = watching.end().position.0;
            eventually("work goes on", || (watching.refresh().unwrap().position.0 > from + 20).then_some(()));
            drop(watching);
            kill(&mut server);
            server.launch().unwrap();
        }
        let mut watching = watcher(&server);
        let from = watching.end().position.0;
        eventually("work goes on", || (watching.refresh().unwrap().position.0 > from + 20).then_some(()));
        stop.store(true, SeqCst);
        working.join().unwrap()
    });
    let after = SqlPlace::connect(&url(kind, &server), TIMEOUT).unwrap().journal().unwrap();
    let batches = read_all(&*after, Position(0), 1 << 20);
    let stored: Vec<Link> = batches.iter().map(|batch| batch.link(after.id())).collect();
    assert_eq!(stored, acknowledged, "each batch was acknowledged once, and is there once");
    println!(
        "{ROUNDS} kills: {} batches acknowledged, all there, {unknown} answers unknown",
        acknowledged.len()
    );
}

pub(crate) fn a_server_restored_from_a_backup_is_not_forked(kind: Kind) {
    let mut server = (kind.start)();
    ask(kind, server.port(), "", "CREATE DATABASE orchestrix");
    let place = SqlPlace::connect(&url(kind, &server), TIMEOUT).unwrap();
    let mut journal = place.journal().unwrap();
    for _ in 0..5 {
        append_one(&mut *journal, 1, 10);
    }
    kill(&mut server);
    copy(&server, "data", "backup");
    server.launch().unwrap();
    for _ in 0..5 {
        let batch = batch_after(journal.end(), 1, 10);
        assert!(matches!(settle(&mut *journal, &batch), Appended::Done(_)));
    }
    let next = batch_after(journal.end(), 1, 10);
    kill(&mut server);
    std::fs::remove_dir_all(server.folder().join("data")).unwrap();
    copy(&server, "backup", "data");
    server.launch().unwrap();
    let error = eventually("the server answers", || match journal.append(&next) {
        Ok(Appended::Unknown) => None,
        other => Some(other.expect_err("what it follows is gone")),
    });
    assert!(matches!(error.source, Cause::Damaged { .. }), "{error}");
    journal.refresh().expect_err("what was seen is gone");
    let fresh = SqlPlace::connect(&url(kind, &server), TIMEOUT).unwrap().journal().unwrap();
    assert_eq!(fresh.end().position, Position(5), "nothing was written");
}

fn copy(server: &Server, from: &str, to: &str) {
    let folder = server.folder();
    let copied = Command::new("cp").arg("-a").arg(folder.join(from)).arg(folder.join(to)).status();
    assert!(copied.unwrap().success());
}
