//! The engine on PostgreSQL, with real private servers.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says figures"
)]

use std::process::Command;

use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::suite::{append_one, read_all};
use orchestrix_engine::{BATCH_BYTES_MAX, Shared};
use orchestrix_testbed::{Place, Server, certificates, postgres, postgres_client};

mod sql;
#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
mod support;

use sql::{Common, Kind, TIMEOUT};

static COMMON: Common = Common::new(std::sync::Weak::new());

const KIND: Kind = Kind {
    start,
    scheme: "postgres",
    admin: "postgres",
    client: postgres_client,
    page: include_str!("../../../docs/engines/postgres.md"),
    create_user: &["CREATE ROLE \"#\" LOGIN PASSWORD 'SECRET'", "GRANT ALL ON SCHEMA public TO \"#\""],
    revoke: "REVOKE RIGHT ON ALL TABLES IN SCHEMA public FROM #_node",
    without_numbers: "ALTER TABLE orchestrix_logs DROP COLUMN number",
    rotten: "set_byte(#, 0, 255 - get_byte(#, 0))",
    sleep: "pg_sleep(2)",
    read_only: (
        "ALTER DATABASE # SET default_transaction_read_only = on",
        "SET transaction_read_only = off; ALTER DATABASE # RESET default_transaction_read_only",
    ),
    weak: &[
        ("ALTER DATABASE # SET synchronous_commit = off", "synchronous_commit"),
        ("ALTER SYSTEM SET fsync = off", "fsync"),
        ("ALTER SYSTEM SET full_page_writes = off", "full_page_writes"),
        ("SELECT pg_reload_conf()", "fsync"),
    ],
    strong: &[
        "ALTER DATABASE # RESET synchronous_commit",
        "ALTER SYSTEM RESET ALL",
        "SELECT pg_reload_conf()",
    ],
};

fn start() -> Server {
    let recipe = postgres(&["ssl=on"]).prepared(|folder| certificates(folder, "postgres"));
    let tls = |place: &Place, command: &mut Command| {
        for (setting, file) in [("ssl_cert_file", "server.crt"), ("ssl_key_file", "server.key")] {
            command.args(["-c", &format!("{setting}={}", place.folder.join(file).display())]);
        }
    };
    Server::start(recipe.with(tls)).unwrap()
}

every_sentence!(KIND, &COMMON);

#[test]
fn the_largest_batch_is_kept() {
    let database = sql::database(KIND, &COMMON);
    let mut journal = database.journal();
    append_one(&mut *journal, 1, 10);
    append_one(&mut *journal, 1, BATCH_BYTES_MAX);
    let read = read_all(&*database.journal(), orchestrix_core::Position(1), 1);
    assert_eq!(read.iter().map(|batch| batch.records.len()).collect::<Vec<_>>(), [BATCH_BYTES_MAX]);
}

#[test]
fn an_append_finds_the_batch_before_it_in_any_plan() {
    let database = sql::database(KIND, &COMMON);
    database.connect().journal().unwrap();
    // The plan that a session keeps is made when the journal is young.
    let plan = database.ask(
        "SET plan_cache_mode = force_generic_plan;
        PREPARE look (TEXT, BIGINT, BYTEA) AS SELECT 1 FROM orchestrix_journals j WHERE j.domain = $1 AND EXISTS
            (SELECT 1 FROM orchestrix_batches p
            WHERE p.domain = j.domain AND p.last_position = $2 AND p.hash = $3) FOR SHARE OF j;
        EXPLAIN EXECUTE look ('default', 1, '');
        PREPARE more (TEXT, BIGINT) AS
            SELECT last_position FROM orchestrix_batches WHERE domain = $1 AND last_position > $2 LIMIT 1;
        EXPLAIN EXECUTE more ('default', 1)",
    );
    let filtered = plan.lines().any(|line| line.contains("Filter:") && line.contains("last_position"));
    assert!(!filtered, "{plan}");
}

/// The columns of the second index of batches, in their order.
const SECOND_INDEX: &str = "SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid IN (
    SELECT indexrelid FROM pg_index WHERE indrelid = 'orchestrix_batches'::regclass AND indisunique AND NOT indisprimary)";

#[test]
fn tables_of_the_first_version_are_upgraded_in_place() {
    let database = sql::database(KIND, &COMMON);
    let mut journal = database.journal();
    let written: Vec<_> = (0..20).map(|_| append_one(&mut *journal, 2, 100).0).collect();
    drop(journal);
    // As they were made first.
    database
        .ask("ALTER TABLE orchestrix_batches DROP CONSTRAINT orchestrix_batches_first_position_domain_key");
    database.ask("ALTER TABLE orchestrix_batches ADD UNIQUE (domain, first_position)");
    database.ask("UPDATE orchestrix_schema SET version = 1");
    assert_eq!(database.ask(SECOND_INDEX), "domain first_position");
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| database.connect())));
    });
    assert_eq!(database.ask(SECOND_INDEX), "first_position domain");
    assert_eq!(database.ask("SELECT version FROM orchestrix_schema"), "4");
    let mut journal = database.journal();
    assert_eq!(read_all(&*journal, orchestrix_core::Position(0), 1 << 20), written);
    append_one(&mut *journal, 1, 10);
    // Tables of the first version that have the index already are left as they are.
    database.ask("UPDATE orchestrix_schema SET version = 1");
    database.connect();
    assert_eq!(database.ask(SECOND_INDEX), "first_position domain");
}

#[test]
fn an_upgrade_that_cannot_lock_a_table_changes_nothing() {
    let database = sql::database(KIND, &COMMON);
    database.journal();
    database.ask("UPDATE orchestrix_schema SET version = 1");
    while_read(&database, "orchestrix_batches", || {
        let error = SqlPlace::connect(&database.url(), TIMEOUT).map(|_| ()).unwrap_err();
        assert!(error.retryable && error.to_string().contains("prepare the tables"), "{error}");
    });
    assert_eq!(database.ask("SELECT version FROM orchestrix_schema"), "1");
    database.connect();
    assert_eq!(database.ask("SELECT version FROM orchestrix_schema"), "4");
}

/// Somebody reads a table for long, as a backup does.
fn while_read(database: &sql::Database, table: &str, run: impl FnOnce()) {
    let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS SHARE MODE; SELECT pg_sleep(60)");
    let mut reader = postgres_client(database.server.port(), &database.name, &lock);
    let mut reader = reader.stdout(std::process::Stdio::null()).spawn().unwrap();
    let held = format!("SELECT COUNT(*) FROM pg_locks WHERE relation = '{table}'::regclass");
    while database.ask(&held) == "0" {}
    run();
    let sleeps = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE query LIKE 'BEGIN; LOCK%' AND datname = current_database()";
    database.ask(sleeps);
    reader.wait().unwrap();
}

#[test]
fn an_upgrade_locks_no_table_that_it_does_not_change() {
    let database = sql::database(KIND, &COMMON);
    let mut journal = database.journal();
    append_one(&mut *journal, 1, 10);
    database.ask(KIND.without_numbers);
    database.ask("UPDATE orchestrix_schema SET version = 3");
    while_read(&database, "orchestrix_batches", || drop(database.connect()));
    assert_eq!(database.ask("SELECT version FROM orchestrix_schema"), "4");
    append_one(&mut *journal, 1, 10);
}

#[test]
fn no_step_of_an_upgrade_keeps_the_locks_of_the_one_before() {
    let database = sql::database(KIND, &COMMON);
    let mut journal = database.journal();
    database.ask("UPDATE orchestrix_schema SET version = 1");
    while_read(&database, "orchestrix_logs", || {
        std::thread::scope(|scope| {
            let upgrade = scope.spawn(|| SqlPlace::connect(&database.url(), TIMEOUT).map(|_| ()));
            // It waits for the output by now, and the batches are nobody's business any more.
            orchestrix_testbed::eventually("the last step waits", || {
                let waits = "SELECT COUNT(*) FROM pg_locks
                    WHERE relation = 'orchestrix_logs'::regclass AND NOT granted";
                (database.ask(waits) == "1").then_some(())
            });
            let locked = "SELECT COUNT(*) FROM pg_locks
                WHERE relation = 'orchestrix_batches'::regclass AND mode = 'AccessExclusiveLock'";
            assert_eq!(database.ask(locked), "0");
            append_one(&mut *journal, 1, 10);
            assert!(upgrade.join().unwrap().unwrap_err().retryable);
        });
    });
    assert_eq!(database.ask("SELECT version FROM orchestrix_schema"), "3", "what was done is noted");
    database.connect();
    assert_eq!(database.ask("SELECT version FROM orchestrix_schema"), "4");
}

#[test]
fn batches_and_snapshots_are_not_compressed() {
    let database = sql::database(KIND, &COMMON);
    let (mut journal, stored) = (database.journal(), |what: &str| database.ask(&format!("SELECT {what}")));
    let (_, link) = append_one(&mut *journal, 1, 20_000);
    assert_eq!(stored("pg_column_size(parcel) >= OCTET_LENGTH(parcel) FROM orchestrix_batches"), "t");
    let write_snapshot = || journal.snapshots().create(link).unwrap().chunk(&[7; 20_000]).unwrap();
    write_snapshot();
    assert_eq!(stored("MIN(pg_column_size(bytes)) >= 20000 FROM orchestrix_chunks"), "t");
    // As tables of the second version were.
    database.ask("ALTER TABLE orchestrix_chunks ALTER COLUMN bytes SET STORAGE EXTENDED");
    database.ask("UPDATE orchestrix_schema SET version = 2");
    write_snapshot();
    assert_eq!(stored("MIN(pg_column_size(bytes)) < 20000 FROM orchestrix_chunks"), "t");
    database.connect();
    database.ask("DELETE FROM orchestrix_chunks");
    write_snapshot();
    assert_eq!(stored("MIN(pg_column_size(bytes)) >= 20000 FROM orchestrix_chunks"), "t");
}

#[test]
fn a_server_proves_its_identity_on_request() {
    let database = sql::database(KIND, &COMMON);
    let folder = database.server.folder().to_owned();
    let url = |ca: &str| {
        let ca = folder.join(ca);
        format!("{}?sslmode=verify-full&sslrootcert={}", database.url(), ca.display())
    };
    let place = SqlPlace::connect(&url("ca.crt"), TIMEOUT).unwrap();
    append_one(&mut *place.journal().unwrap(), 1, 10);
    SqlPlace::connect(&url("other.crt"), TIMEOUT).map(|_| ()).expect_err("another authority signed it");
}

#[test]
fn a_user_that_may_not_number_output_is_refused_at_the_start() {
    let database = sql::database(KIND, &COMMON);
    let url = database.node_url();
    let name = &database.name;
    database.ask(&format!("REVOKE USAGE ON ALL SEQUENCES IN SCHEMA public FROM {name}_node"));
    let error = SqlPlace::connect(&url, TIMEOUT).map(|_| ()).expect_err("no chunk could be stored");
    assert!(error.to_string().contains("USAGE on orchestrix_logs_place_seq"), "{error}");
    // Either right is enough for the server.
    database.ask(&format!("GRANT UPDATE ON ALL SEQUENCES IN SCHEMA public TO {name}_node"));
    SqlPlace::connect(&url, TIMEOUT).unwrap();
}
