//! What is refused at the start, in words that help, and without a secret.

use std::time::{Duration, Instant};

use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::suite::batch_after;
use orchestrix_engine::{Appended, Cause, Error, Shared};
use orchestrix_testbed::free_port;

use super::{Database, PASSWORD, PASSWORD_ENCODED, SHORT, TIMEOUT};

/// The error of a start that must fail.
fn refused(url: &str) -> Error {
    SqlPlace::connect(url, TIMEOUT).map(|_| ()).expect_err("it is refused")
}

fn has_no_secret(text: &str) {
    for secret in [PASSWORD, PASSWORD_ENCODED, "can@ry", "can%40ry"] {
        assert!(!text.contains(secret), "{secret} is told: {text}");
    }
}

pub(crate) fn secrets_are_never_shown(database: &Database) {
    for sql in database.kind.create_user {
        let sql = sql.replace('#', &database.name);
        database.ask(&sql.replace("SECRET", PASSWORD));
    }
    let (scheme, port, name) = (database.kind.scheme, database.server.port(), &database.name);
    let place =
        SqlPlace::connect(&format!("{scheme}://{name}:{PASSWORD_ENCODED}@127.0.0.1:{port}/{name}"), TIMEOUT)
            .expect("an encoded password is decoded");
    place.journal().unwrap();
    assert_eq!(place.place(), format!("{scheme}://127.0.0.1:{port}/{name}"));
    has_no_secret(&format!("{} {place:?} {:?}", place.place(), place.warnings()));
    let wrong = refused(&format!("{scheme}://{name}:{PASSWORD_ENCODED}x@127.0.0.1:{port}/{name}"));
    assert!(wrong.to_string().contains(&format!("127.0.0.1:{port}")) && !wrong.retryable, "{wrong}");
    let said = wrong.to_string().to_lowercase();
    assert!(said.contains("password") && said.contains(name.as_str()), "{said}");
    let nowhere = refused(&format!("{scheme}://{name}:{PASSWORD_ENCODED}@127.0.0.1:{}/{name}", free_port()));
    let nobody = refused(&format!("{scheme}://{name}:{PASSWORD_ENCODED}@127.0.0.1:{port}/no_such_database"));
    let strange = refused(&format!("{scheme}://{name}:{PASSWORD}@127.0.0.1:{port}/{name}"));
    let unknown = refused(&format!("{scheme}://{name}@127.0.0.1:{port}/{name}?token={PASSWORD_ENCODED}"));
    for error in [&wrong, &nowhere, &nobody, &strange, &unknown] {
        has_no_secret(&format!("{error} {error:?}"));
    }
    assert!(nobody.to_string().contains("no_such_database"), "{nobody}");
}

pub(crate) fn a_server_that_is_not_there_is_a_clear_error(database: &Database) {
    let port = free_port();
    let error = refused(&database.url_at(port));
    assert!(error.retryable && error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    // Somebody listens, but never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    let error = SqlPlace::connect(&database.url_at(silent.local_addr().unwrap().port()), SHORT).map(|_| ());
    let error = error.expect_err("nobody answers");
    assert!(error.to_string().contains("no answer within"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10));
    for url in ["", "not a url", "ftp://host/db", "mysql://", "postgres://host", "mysql://host:port/db"] {
        refused(url);
    }
}

pub(crate) fn a_server_that_only_reads_is_refused(database: &Database) {
    let (on, off) = database.kind.read_only;
    database.connect();
    database.ask(&on.replace('#', &database.name));
    let error = refused(&database.url());
    database.ask(&off.replace('#', &database.name));
    assert!(error.to_string().contains("only reads"), "{error}");
    database.connect();
}

pub(crate) fn tables_of_a_newer_version_are_refused_by_name(database: &Database) {
    database.connect();
    let newest: u32 = database.ask("SELECT version FROM orchestrix_schema").parse().unwrap();
    for newer in [newest + 1, 99] {
        database.ask(&format!("UPDATE orchestrix_schema SET version = {newer}"));
        let error = refused(&database.url());
        let Cause::UnknownFormat { found, known, .. } = error.source else { panic!("{error}") };
        assert_eq!((found, known), (newer, newest));
        assert!(error.to_string().contains("orchestrix_schema") && !error.retryable, "{error}");
    }
    assert_eq!(database.ask("SELECT version FROM orchestrix_schema"), "99", "nothing is changed");
}

pub(crate) fn tables_that_were_half_made_are_finished(database: &Database) {
    let id = database.journal().id();
    database.ask("DELETE FROM orchestrix_schema");
    database.ask("DROP TABLE helix_locks");
    database.ask("DROP TABLE orchestrix_logs");
    let place = database.connect();
    assert_eq!(place.journal().unwrap().id(), id, "what was there stays");
    place.register().list("").unwrap();
    assert!(place.logs().tasks().unwrap().is_empty());
    assert_eq!(database.ask("SELECT COUNT(*) FROM orchestrix_schema"), "1");
}

pub(crate) fn first_starts_that_race_are_fine(database: &Database) {
    let together = std::sync::Barrier::new(8);
    let ids: Vec<_> = std::thread::scope(|scope| {
        let start = |_| {
            scope.spawn(|| {
                together.wait();
                database.connect().journal().unwrap().id()
            })
        };
        let starting: Vec<_> = (0..8).map(start).collect();
        starting.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(database.ask("SELECT COUNT(*) FROM orchestrix_journals"), "1");
}

pub(crate) fn settings_that_lose_what_was_acknowledged_are_warned_of(database: &Database) {
    let name = |sql: &str| sql.replace('#', &database.name);
    for (sql, _) in database.kind.weak {
        database.ask(&name(sql));
    }
    let warnings = database.connect().warnings();
    for sql in database.kind.strong {
        database.ask(&name(sql));
    }
    for (_, word) in database.kind.weak {
        assert!(warnings.iter().any(|warning| warning.contains(word)), "{word} is not in {warnings:?}");
    }
    let after = database.connect().warnings();
    for (_, word) in database.kind.weak {
        assert!(!after.iter().any(|warning| warning.contains(word)), "{word} is still in {after:?}");
    }
}

pub(crate) fn a_domain_has_a_plain_name(database: &Database) {
    for domain in ["", "A", "a/b", "a b", &"a".repeat(65)] {
        let place = SqlPlace::connect_to(&database.url(), domain, TIMEOUT).map(|_| ());
        place.expect_err("it is refused");
    }
}

pub(crate) fn a_place_may_be_let_go_inside_a_runtime(database: &Database) {
    let place = SqlPlace::connect(&database.url(), TIMEOUT).unwrap();
    let journal = place.journal().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move { drop((journal, place)) });
}

/// Every right, with the tables that need it.
const RIGHTS: [(&str, &[&str]); 4] = [
    (
        "SELECT",
        &[
            "orchestrix_schema",
            "orchestrix_journals",
            "orchestrix_batches",
            "orchestrix_snapshots",
            "orchestrix_chunks",
            "orchestrix_logs",
            "helix_locks",
        ],
    ),
    (
        "INSERT",
        &[
            "orchestrix_journals",
            "orchestrix_batches",
            "orchestrix_snapshots",
            "orchestrix_chunks",
            "orchestrix_logs",
            "helix_locks",
        ],
    ),
    ("UPDATE", &["orchestrix_journals", "orchestrix_snapshots", "orchestrix_logs", "helix_locks"]),
    (
        "DELETE",
        &[
            "orchestrix_batches",
            "orchestrix_snapshots",
            "orchestrix_chunks",
            "orchestrix_logs",
            "helix_locks",
        ],
    ),
];

fn revoke(database: &Database, right: &str) {
    database.ask(&database.kind.revoke.replace('#', &database.name).replace("RIGHT", right));
}

fn grant(database: &Database, right: &str) {
    let sql = database.kind.revoke.replace('#', &database.name).replace("RIGHT", right);
    database.ask(&sql.replace("REVOKE", "GRANT").replace(" FROM ", " TO "));
}

pub(crate) fn a_right_that_is_missing_is_named_at_the_start(database: &Database) {
    let url = database.node_url();
    let page = if database.kind.scheme == "mysql" { "mysql.md" } else { "postgres.md" };
    for (right, tables) in RIGHTS {
        revoke(database, right);
        let error = refused(&url);
        assert!(!error.retryable, "{error}");
        let said = error.to_string();
        let named = format!("the user lacks {right} on {}", tables.join(", "));
        assert!(said.contains(&named), "{named} is not in: {said}");
        assert!(said.contains(&format!("docs/engines/{page} has all rights")), "{said}");
        grant(database, right);
        SqlPlace::connect(&url, TIMEOUT).unwrap();
    }
    let kept = "SELECT (SELECT COUNT(*) FROM orchestrix_journals) + (SELECT COUNT(*) FROM helix_locks)";
    assert_eq!(database.ask(kept), "0", "trying leaves nothing");
    revoke(database, "INSERT, DELETE");
    let said = refused(&url).to_string();
    assert!(said.contains("lacks INSERT on ") && said.contains("; DELETE on "), "{said}");
}

pub(crate) fn a_right_that_is_withdrawn_later_may_come_back(database: &Database) {
    let place = SqlPlace::connect(&database.node_url(), TIMEOUT).unwrap();
    let batch = batch_after(place.journal().unwrap().end(), 1, 10);
    revoke(database, "INSERT");
    // On a connection of its own: some servers let an open one go on.
    let mut journal = place.journal().unwrap();
    let error = journal.append(&batch).expect_err("the right is gone");
    assert!(error.may_pass(), "{error}");
    grant(database, "INSERT");
    assert!(matches!(journal.append(&batch), Ok(Appended::Done(_))), "the same handle goes on");
}

pub(crate) fn a_user_without_rights_learns_where_they_are_listed(database: &Database) {
    database.node_url();
    database.ask("DROP TABLE orchestrix_schema");
    let said = refused(&database.node_url()).to_string();
    assert!(said.contains("CREATE") || said.contains("permission denied for schema"), "{said}");
    assert!(said.contains("has all rights"), "{said}");
}
