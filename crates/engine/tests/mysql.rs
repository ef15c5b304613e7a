//! The engine on MySQL, with real private servers (MariaDB).

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says figures"
)]

use std::path::Path;
use std::process::Command;

use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::suite::{append_one, batch_after, read_all};
use orchestrix_engine::{Appended, BATCH_BYTES_MAX, Shared};
use support::Server;

mod sql;
#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
mod support;

use sql::{Common, Kind, TIMEOUT};

static COMMON: Common = Common::new(std::sync::Weak::new());

const KIND: Kind = Kind {
    start,
    scheme: "mysql",
    admin: "root",
    client,
    create_user: &["CREATE USER '#'@'%' IDENTIFIED BY 'SECRET'", "GRANT ALL ON #.* TO '#'@'%'"],
    rotten: "CONCAT('~', SUBSTR(#, 2))",
    sleep: "SLEEP(2)",
    read_only: ("SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0"),
    weak: &[
        ("SET GLOBAL innodb_flush_log_at_trx_commit = 2", "innodb_flush_log_at_trx_commit"),
        ("SET GLOBAL max_allowed_packet = 16777216", "max_allowed_packet"),
    ],
    strong: &["SET GLOBAL innodb_flush_log_at_trx_commit = 1", "SET GLOBAL max_allowed_packet = 83886080"],
};

fn as_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A server refuses to run as root.
fn server_command(folder: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--no-defaults", &format!("--datadir={}", folder.join("data").display())]);
    // What the kernel has for this is for all servers of a machine together.
    command.arg("--innodb-use-native-aio=0");
    if as_root() {
        command.arg("--user=mysql");
    }
    command
}

fn start() -> Server {
    start_with(&[])
}

fn start_with(more: &'static [&'static str]) -> Server {
    let folder = tempfile::tempdir().unwrap();
    if as_root() {
        assert!(Command::new("chown").arg("mysql").arg(folder.path()).status().unwrap().success());
    }
    let mut install = server_command(folder.path(), "mariadb-install-db");
    install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    let made = install.output().unwrap_or_else(|error| {
        panic!("cannot run mariadb-install-db: {error}; `make test` installs what the tests need")
    });
    assert!(made.status.success(), "{made:?}");
    let command = move |folder: &Path, port: u16| {
        let mut command = server_command(folder, "mariadbd");
        command.args([
            &format!("--port={port}"),
            &format!("--socket={}", folder.join("socket").display()),
            &format!("--pid-file={}", folder.join("pid").display()),
            "--bind-address=127.0.0.1",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=64M",
            "--innodb-flush-log-at-trx-commit=1",
            "--max-allowed-packet=80M",
            "--max-connections=300",
        ]);
        command.arg(format!("--ssl-cert={}", folder.join("server.crt").display()));
        command.arg(format!("--ssl-key={}", folder.join("server.key").display()));
        command.args(more);
        command
    };
    sql::tls::certificates(folder.path(), "mysql");
    let ready = |port| {
        support::listens(port)
            && client(port, "", "SELECT 1").output().is_ok_and(|output| output.status.success())
    };
    Server::start(folder, command, ready)
}

fn client(port: u16, database: &str, sql: &str) -> Command {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "-h127.0.0.1", "-uroot", "-N", "-B", &format!("-P{port}"), "-e", sql]);
    if !database.is_empty() {
        command.arg(database);
    }
    command
}

sentences!(KIND, &COMMON,
    conformance::{
        the_journal_keeps_its_contract, snapshots_keep_their_contract, logs_keep_their_contract,
        the_register_keeps_its_contract, several_nodes_keep_the_contract,
    },
    faults::{
        a_lost_answer_to_an_append_is_unknown_and_nothing_is_doubled,
        a_lost_answer_is_a_conflict_if_somebody_else_wrote_since,
        an_append_may_land_after_it_was_looked_for_in_vain,
        a_writer_that_was_frozen_inside_an_append_finds_a_conflict,
        a_cut_wire_is_unknown_for_writers_and_an_error_for_readers,
        an_append_that_waits_for_a_lock_lands_once,
        a_lost_answer_to_a_claim_is_unknown_and_the_same_again_is_done,
        a_claim_that_lands_late_does_not_undo_another,
        whoever_waits_is_woken_while_others_sleep,
        fifty_writers_on_fifty_connections_agree,
    },
    locks::{
        a_live_lock_is_not_stolen, whoever_holds_a_lock_may_pass_it_on,
        a_lock_can_be_given_back_twice_and_taken_at_once, an_epoch_never_begins_anew,
        fractions_of_a_second_are_kept, times_are_added_as_times, the_row_of_the_leader_has_its_name,
        a_key_that_a_server_would_confuse_is_refused,
    },
    damage::{
        a_rotten_parcel_is_refused_by_name, a_rotten_hash_is_refused_by_name, a_missing_row_is_refused_by_name,
        rows_that_changed_places_are_refused, another_journal_in_its_place_is_refused,
        a_wiped_server_is_noticed_and_not_forked, a_journal_that_was_set_back_is_noticed_and_not_forked,
        a_late_write_into_a_raised_floor_is_refused_even_before_anything_is_deleted,
        a_snapshot_with_a_rotten_or_missing_chunk_is_refused, what_was_left_of_a_snapshot_is_removed,
        a_rotten_log_chunk_is_refused_and_mended,
    },
    refusals::{
        secrets_are_never_told, a_server_that_is_not_there_is_a_clear_error,
        tables_of_a_newer_version_are_refused_by_name, first_starts_that_race_are_fine, a_domain_has_a_plain_name,
    },
    election::{ one_candidate_leads_at_a_time_and_another_takes_over },
);

/// A server of its own, since its settings change for all.
fn alone(sentence: fn(&sql::Database)) {
    sentence(&sql::database(KIND, &Common::default()));
}

#[test]
fn a_server_that_only_reads_is_refused() {
    alone(sql::refusals::a_server_that_only_reads_is_refused);
}

#[test]
fn settings_that_lose_what_was_acknowledged_are_warned_of() {
    alone(sql::refusals::settings_that_lose_what_was_acknowledged_are_warned_of);
}

#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    sql::restarts::nothing_acknowledged_is_lost_when_the_server_is_killed(KIND);
}

#[test]
fn a_server_that_was_restored_from_a_backup_is_noticed_and_not_forked() {
    sql::restarts::a_server_that_was_restored_from_a_backup_is_noticed_and_not_forked(KIND);
}

#[test]
fn the_largest_batch_is_kept_and_a_packet_that_is_too_large_names_its_setting() {
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
fn a_server_proves_who_it_is_if_that_is_asked() {
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
