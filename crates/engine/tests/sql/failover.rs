//! A replica that takes over between two statements of one call, and lacks what the first of them saw.

use orchestrix_core::Position;
use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::suite::{append_one, take_snapshot};
use orchestrix_engine::{Journal, Shared};

use super::{Database, TIMEOUT};
use crate::support::proxy::{Proxy, Wire};
use orchestrix_testbed::eventually;

/// A journal behind a wire, with batches and snapshots at 1, 2 and 3.
fn three(database: &Database) -> (Proxy, Box<dyn Journal>) {
    let proxy = Proxy::to(database.server.port());
    // The wire has to read the statements.
    let plain = match database.kind.scheme {
        "mysql" => "ssl-mode=DISABLED",
        _ => "sslmode=disable",
    };
    let url = format!("{}?{plain}", database.url_at(proxy.port()));
    let mut journal = SqlPlace::connect(&url, TIMEOUT).unwrap().journal().unwrap();
    for _ in 0..3 {
        append_one(&mut *journal, 1, 50);
        take_snapshot(&*journal, &[b"state"]);
    }
    (proxy, journal)
}

/// Runs something, and changes the database before its statement with these words arrives.
fn overtaken<T: Send>(
    proxy: &Proxy,
    words: &str,
    change: impl FnOnce(),
    run: impl FnOnce() -> T + Send,
) -> T {
    proxy.hold_at(words.as_bytes());
    std::thread::scope(|scope| {
        let running = scope.spawn(run);
        proxy.holds();
        change();
        proxy.set(Wire::Good);
        running.join().unwrap()
    })
}

/// The replica has the snapshots, which were written later.
pub(crate) fn snapshots_that_the_journal_does_not_reach_prune_nothing(database: &Database) {
    let (_proxy, journal) = three(database);
    let snapshots = journal.snapshots();
    database.ask("DELETE FROM orchestrix_batches WHERE last_position > 1");
    snapshots.prune().unwrap();
    assert_eq!(snapshots.list().unwrap(), [3, 2, 1].map(Position), "only the oldest can be read with");
}

pub(crate) fn a_snapshot_is_pruned_only_while_the_newer_ones_are_there(database: &Database) {
    let (proxy, journal) = three(database);
    let snapshots = journal.snapshots();
    let replica = || drop(database.ask("DELETE FROM orchestrix_snapshots WHERE at_position > 1"));
    overtaken(&proxy, "DELETE FROM orchestrix_snapshots", replica, move || snapshots.prune().unwrap());
    assert_eq!(journal.snapshots().list().unwrap(), [Position(1)], "it is the only one here");
}

pub(crate) fn a_floor_is_raised_only_while_its_snapshot_is_there(database: &Database) {
    let (proxy, mut journal) = three(database);
    let replica = || drop(database.ask("DELETE FROM orchestrix_snapshots WHERE at_position > 1"));
    let floor = overtaken(&proxy, "SET floor_position", replica, || journal.truncate().unwrap());
    assert_eq!(floor, Position(0));
    assert_eq!(database.rows(), 3);
    take_snapshot(&*journal, &[b"state"]);
    assert_eq!(journal.truncate().unwrap(), Position(1), "this one is there");
}

pub(crate) fn batches_below_a_floor_that_is_not_known_stay(database: &Database) {
    let (proxy, mut journal) = three(database);
    let alone = || eventually("only the journal is connected", || (proxy.connections() == 1).then_some(()));
    alone();
    let replica = || drop(database.ask("UPDATE orchestrix_journals SET floor_position = 0"));
    let floor = overtaken(&proxy, "DELETE FROM orchestrix_batches", replica, || journal.truncate().unwrap());
    assert_eq!(floor, Position(2));
    alone();
    assert_eq!(database.rows(), 3, "they are needed here");
    assert_eq!(journal.truncate().unwrap(), Position(2));
    eventually("now they are not", || (database.rows() == 2).then_some(()));
}
