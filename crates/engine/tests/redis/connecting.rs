//! Coming in: wrong addresses, wrong passwords, and what is said about a server.

use std::time::{Duration, Instant};

use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::suite::{append_one, batch_after};
use orchestrix_engine::{Appended, Error, Shared};
use orchestrix_testbed::free_port;

use crate::common::{DURABLE, FORGETFUL, HASTY, PATIENT, Raw, journal, place, redis, url};

fn refused(url: &str) -> Error {
    RedisPlace::connect(url, HASTY).map(|_| ()).unwrap_err()
}

#[test]
fn a_wrong_url_is_refused_with_its_right_form() {
    for url in ["", "localhost", "http://localhost", "redis://", "redis://h:x", "redis://h/name"] {
        let error = refused(url);
        assert!(error.to_string().contains("redis://[user][:password@]host[:port]"), "{url}: {error}");
        assert!(!error.retryable);
    }
    for url in ["rediss://h?insecure=1", "rediss://h?ca=", "rediss://h?ca=a&ca=b", "rediss://h?ca"] {
        assert!(refused(url).to_string().contains("the only parameter of rediss:// is ca=FILE"), "{url}");
    }
    // Which the driver would take for a wish to trust everybody.
    assert!(refused("rediss://h/#insecure").to_string().contains("the URL must be redis://"));
}

#[test]
fn an_unreachable_server_is_an_error_that_names_it() {
    let port = free_port();
    let error = refused(&format!("redis://127.0.0.1:{port}"));
    assert!(error.retryable);
    assert!(
        error.to_string().contains(&format!("redis://127.0.0.1:{port}/0: Connection refused")),
        "{error}"
    );
    refused("redis://no-such-host.invalid");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    let error = refused(&format!("redis://127.0.0.1:{}", silent.local_addr().unwrap().port())).to_string();
    assert!(error.contains("no answer within 300ms"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_replica_is_refused_and_its_primary_warned_about() {
    let (primary, replica) = (redis(&DURABLE), redis(&FORGETFUL));
    Raw::to(&replica).run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let error = refused(&format!("redis://127.0.0.1:{}", replica.port())).to_string();
    assert!(error.contains("it is a replica"), "{error}");
    orchestrix_testbed::eventually("the replica is known", || {
        place(primary.port(), PATIENT).warnings().iter().any(|one| one.contains("replicas")).then_some(())
    });
}

#[test]
fn weak_settings_are_warned_about() {
    let warnings = |settings| place(redis(settings).port(), PATIENT).warnings().join("\n");
    assert_eq!(warnings(&DURABLE), "");
    let none = warnings(&FORGETFUL);
    assert!(none.contains("appendonly no, not yes") && none.contains("appendfsync everysec"), "{none}");
    let second = warnings(&["--appendonly", "yes"]);
    assert!(
        !second.contains("appendonly") && second.contains("appendfsync everysec, not always"),
        "{second}"
    );
    let evicts =
        warnings(&["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "allkeys-lru"]);
    assert!(evicts.contains("maxmemory-policy allkeys-lru, not noeviction"), "{evicts}");
    let rewrites =
        warnings(&["--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes"]);
    assert!(rewrites.contains("no-appendfsync-on-rewrite yes, not no"), "{rewrites}");

    let server = redis(&DURABLE);
    Raw::to(&server).run("ACL SETUSER plain on >pw ~* &* +@all -config -info");
    let plain =
        RedisPlace::connect(&format!("redis://plain:pw@127.0.0.1:{}", server.port()), PATIENT).unwrap();
    let warnings = plain.warnings().join("\n");
    assert!(warnings.contains("appendfsync always"), "{warnings}");
    assert!(warnings.contains("its role"), "{warnings}");
}

#[test]
fn a_password_is_asked_for_where_none_was_given() {
    let server = redis(&["--requirepass", "secret"]);
    let error = refused(&format!("redis://127.0.0.1:{}", server.port())).to_string();
    assert!(error.contains("NOAUTH"), "{error}");
    let with = format!("redis://:secret@127.0.0.1:{}", server.port());
    RedisPlace::connect(&with, PATIENT).unwrap().journal().unwrap();
}

#[test]
fn a_domain_that_cannot_be_part_of_a_key_is_refused() {
    let server = redis(&FORGETFUL);
    let error = place(server.port(), PATIENT).in_domain("a:b").unwrap_err().to_string();
    assert!(error.contains("a domain is named by"), "{error}");
    drop(journal(server.port(), PATIENT));
}

#[test]
fn a_server_without_room_for_a_client_says_so_each_time() {
    let server = redis(&FORGETFUL);
    let mut raw = Raw::to(&server);
    let place = RedisPlace::connect(&url(server.port()), PATIENT).unwrap();
    let (mut journal, register) = (place.journal().unwrap(), place.register());
    append_one(&mut *journal, 1, 10);
    raw.run("CONFIG SET maxclients 1");
    raw.run("CLIENT KILL TYPE normal SKIPME yes");
    // What was open is found to be closed.
    while register.read("leader").is_err_and(|error| !error.to_string().contains("max number of clients")) {}
    for _ in 0..5 {
        let error = register.read("leader").unwrap_err();
        assert!(error.to_string().contains("max number of clients") && error.retryable, "{error}");
        let error = register.list("").unwrap_err();
        assert!(error.to_string().contains("max number of clients") && error.retryable, "{error}");
    }
    raw.run("CONFIG SET maxclients 100");
    register.read("leader").unwrap();
}

#[test]
fn an_append_that_found_no_room_for_a_client_was_not_sent() {
    let server = redis(&FORGETFUL);
    let mut raw = Raw::to(&server);
    let mut journal = RedisPlace::connect(&url(server.port()), PATIENT).unwrap().journal().unwrap();
    raw.run("CONFIG SET maxclients 1");
    raw.run("CLIENT KILL TYPE normal SKIPME yes");
    while journal.refresh().is_err_and(|error| !error.to_string().contains("max number of clients")) {}
    let batch = batch_after(journal.end(), 1, 10);
    for _ in 0..3 {
        let error = journal.append(&batch).unwrap_err();
        assert!(error.to_string().contains("max number of clients") && error.retryable, "{error}");
    }
    raw.run("CONFIG SET maxclients 100");
    assert_eq!(journal.append(&batch).unwrap(), Appended::Done(batch.link(journal.id())));
}
