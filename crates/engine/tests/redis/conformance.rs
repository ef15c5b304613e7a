//! Everything that every engine must do.

use std::cell::Cell;
use std::sync::Arc;

use orchestrix_core::TaskId;
use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::{Bookmark, Error, Journal, LogChunk, LogPlace, Logged, Logs, Shared, suite};

use crate::common::{DURABLE, FORGETFUL, PATIENT, Raw, place, redis, shared, url, url_of_the_page};

/// As the user of the page, with these rights more or less.
fn does_what_every_engine_must_do(settings: &'static [&'static str], changed: &str) {
    let server = redis(settings);
    let url = url_of_the_page(&server, changed);
    let shared = move |domain: &str| -> Arc<dyn Shared> {
        Arc::new(RedisPlace::connect(&url, PATIENT).unwrap().in_domain(domain).unwrap())
    };
    // A new domain is a new, empty place.
    let domains = Cell::new(0);
    let next = || {
        domains.set(domains.get() + 1);
        format!("domain-{}", domains.get())
    };
    let mut make = || -> Box<dyn Journal> { shared(&next()).journal().unwrap() };
    suite::journal(&mut make);
    suite::snapshots(&mut make);
    suite::a_snapshot_that_stands_on_no_batch_is_refused(&mut make);
    suite::register(&mut |handles| {
        let domain = next();
        (0..handles).map(|_| shared(&domain).register()).collect()
    });
    suite::shared(&mut || {
        let (domain, shared) = (next(), shared.clone());
        Box::new(move || shared(&domain))
    });
    suite::logs(&mut || {
        let logs = shared(&next()).logs();
        Box::new(Through(logs))
    });
    let mut raw = Raw::to(&server);
    let keys: Vec<String> = raw.ask("KEYS *");
    assert!(keys.len() > 100, "{} keys", keys.len());
    for key in keys {
        let left: i64 = raw.ask_with(&[b"TTL", key.as_bytes()]);
        assert_eq!(left, -1, "{key} has a time to live");
    }
}

/// Simulations have a model of this server; both say the same.
#[test]
fn the_script_is_answered_as_written() {
    let server = redis(&DURABLE);
    let port = server.port();
    assert_eq!(suite::transcript(&|| shared(port, "script")), suite::REDIS_ANSWERS);
}

/// The suite wants a box.
struct Through(Arc<dyn Logs>);

impl Logs for Through {
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error> {
        self.0.append(at, bytes)
    }

    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error> {
        self.0.read(task, skip, limit_bytes)
    }

    fn some_tasks(&self, from: Bookmark, about: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error> {
        self.0.some_tasks(from, about)
    }

    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error> {
        self.0.delete(tasks)
    }
}

#[test]
fn a_server_without_a_disk_does_what_every_engine_must_do() {
    does_what_every_engine_must_do(&FORGETFUL, "");
}

#[test]
fn a_server_that_syncs_always_does_what_every_engine_must_do() {
    does_what_every_engine_must_do(&DURABLE, "");
}

#[test]
fn a_user_without_transactions_does_what_every_engine_must_do() {
    does_what_every_engine_must_do(&FORGETFUL, "-@transaction");
}

#[test]
fn the_default_domain_passes_the_journal_suite() {
    let server = redis(&FORGETFUL);
    let mut raw = Raw::to(&server);
    let mut make = || -> Box<dyn Journal> {
        raw.run("FLUSHALL");
        place(server.port(), PATIENT).journal().unwrap()
    };
    suite::journal(&mut make);
    suite::snapshots(&mut make);
    suite::a_snapshot_that_stands_on_no_batch_is_refused(&mut make);
}

#[test]
fn databases_and_domains_do_not_see_each_other() {
    let server = redis(&FORGETFUL);
    let other_database = RedisPlace::connect(&format!("{}/3", url(server.port())), PATIENT).unwrap();
    assert!(other_database.place().ends_with("/3, domain default"), "{}", other_database.place());
    let places: [Arc<dyn Shared>; 3] =
        [shared(server.port(), "default"), shared(server.port(), "other"), Arc::new(other_database)];
    let ids: Vec<_> = places.iter().map(|place| place.journal().unwrap().id()).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
}
