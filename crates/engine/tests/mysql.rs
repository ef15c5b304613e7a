//! The engine on MySQL, with real private servers (MariaDB).

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says figures"
)]

use std::process::Command;

use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::suite::{append_one, batch_after, read_all};
use orchestrix_engine::{Appended, BATCH_BYTES_MAX, Shared};
use orchestrix_testbed::{Place, Server, certificates, mariadb, mariadb_client};

mod sql;
#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
mod support;

use sql::{Common, Kind, TIMEOUT};

static COMMON: Common = Common::new(std::sync::Weak::new());

const KIND: Kind = Kind {
    start,
    scheme: "mysql",
    admin: "root",
    client: mariadb_client,
    page: include_str!("../../../docs/engines/mysql.md"),
    create_user: &["CREATE USER '#'@'%' IDENTIFIED BY 'SECRET'", "GRANT ALL ON #.* TO '#'@'%'"],
    revoke: "REVOKE RIGHT ON #.* FROM '#_node'@'%'",
    without_numbers: "ALTER TABLE orchestrix_logs DROP INDEX one_of_each_number, DROP COLUMN number",
    rotten: "CONCAT(CHAR(255 - ASCII(#)), SUBSTR(#, 2))",
    sleep: "SLEEP(2)",
    read_only: ("SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0"),
    weak: &[
        ("SET GLOBAL innodb_flush_log_at_trx_commit = 2", "innodb_flush_log_at_trx_commit"),
        ("SET GLOBAL max_allowed_packet = 16777216", "max_allowed_packet"),
    ],
    strong: &["SET GLOBAL innodb_flush_log_at_trx_commit = 1", "SET GLOBAL max_allowed_packet = 83886080"],
};

fn start() -> Server {
    start_with(&[])
}

fn start_with(settings: &[&str]) -> Server {
    let recipe = mariadb(settings).prepared(|folder| certificates(folder, "mysql"));
    let tls = |place: &Place, command: &mut Command| {
        for (setting, file) in [("cert", "server.crt"), ("key", "server.key")] {
            command.arg(format!("--ssl-{setting}={}", place.folder.join(file).display()));
        }
    };
    Server::start(recipe.with(tls)).unwrap()
}

every_sentence!(KIND, &COMMON);

#[test]
fn a_packet_that_is_too_large_names_its_setting() {
    let database = sql::database(KIND, &COMMON);
    let mut journal = database.journal();
    append_one(&mut *journal, 1, 10);
    append_one(&mut *journal, 1, BATCH_BYTES_MAX);
    let read = read_all(&*journal, orchestrix_core::Position(1), 1);
    assert_eq!(read.iter().map(|batch| batch.records.len()).collect::<Vec<_>>(), [BATCH_BYTES_MAX]);
    drop((journal, database));

    let server = start_with(&["--max-allowed-packet=6M", "--log-bin", "--sync-binlog=0"]);
    sql::ask(KIND, server.port(), "", "CREATE DATABASE small");
    let url = |port| format!("mysql://root@127.0.0.1:{port}/small");
    let place = SqlPlace::connect(&url(server.port()), TIMEOUT).unwrap();
    for word in ["max_allowed_packet", "sync_binlog"] {
        assert!(place.warnings().iter().any(|warning| warning.contains(word)), "{:?}", place.warnings());
    }
    let mut journal = place.journal().unwrap();
    let large = batch_after(journal.end(), 1, 7 << 20);
    let error = journal.append(&large).expect_err("it does not fit");
    assert!(error.to_string().contains("max_allowed_packet") && !error.retryable, "{error}");
    let fits = batch_after(journal.end(), 1, 5 << 20);
    assert!(matches!(journal.append(&fits), Ok(Appended::Done(_))));
    sql::ask(KIND, server.port(), "", "SET GLOBAL max_allowed_packet = 1048576");
    let error = SqlPlace::connect(&url(server.port()), TIMEOUT).map(|_| ()).expect_err("it is too small");
    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
}

#[test]
fn times_are_of_the_database_and_in_utc() {
    let server = start_with(&["--default-time-zone=+05:30"]);
    sql::ask(KIND, server.port(), "", "CREATE DATABASE zones");
    let place =
        SqlPlace::connect(&format!("mysql://root@127.0.0.1:{}/zones", server.port()), TIMEOUT).unwrap();
    let claim = orchestrix_engine::Claim { ttl_ms: 60_000, held: true, ..Default::default() };
    place.register().compare_and_set("leader", None, &claim).unwrap();
    let ahead =
        "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), expires_at) BETWEEN 30 AND 60 FROM helix_locks";
    assert_eq!(sql::ask(KIND, server.port(), "zones", ahead), "1");
}

#[test]
fn a_server_proves_its_identity_on_request() {
    let database = sql::database(KIND, &COMMON);
    let folder = database.server.folder().to_owned();
    let url = |ca: &str| {
        let ca = folder.join(ca);
        format!("{}?ssl-mode=VERIFY_IDENTITY&ssl-ca={}", database.url(), ca.display())
    };
    let place = SqlPlace::connect(&url("ca.crt"), TIMEOUT).unwrap();
    append_one(&mut *place.journal().unwrap(), 1, 10);
    SqlPlace::connect(&url("other.crt"), TIMEOUT).map(|_| ()).expect_err("another authority signed it");
}

#[test]
fn a_user_that_may_not_make_tables_can_use_them() {
    let database = sql::database(KIND, &COMMON);
    let name = &database.name;
    database.ask(&format!("CREATE USER 'low{name}'@'%' IDENTIFIED BY 'x'"));
    database.ask(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO 'low{name}'@'%'"));
    let url = format!("mysql://low{name}:x@127.0.0.1:{}/{name}", database.server.port());
    let error = SqlPlace::connect(&url, TIMEOUT).map(|_| ()).expect_err("there are no tables yet");
    assert!(error.to_string().contains("denied"), "{error}");
    database.connect();
    let place = SqlPlace::connect(&url, TIMEOUT).unwrap();
    append_one(&mut *place.journal().unwrap(), 1, 10);
}
