//! The engine on PostgreSQL, with real private servers.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says figures"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::suite::{append_one, read_all};
use orchestrix_engine::{BATCH_BYTES_MAX, Shared};
use support::Server;

mod sql;
#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
mod support;

use sql::{Common, Kind, TIMEOUT};

static COMMON: Common = Common::new(std::sync::Weak::new());

const KIND: Kind = Kind {
    start,
    scheme: "postgres",
    admin: "postgres",
    client,
    create_user: &["CREATE ROLE \"#\" LOGIN PASSWORD 'SECRET'", "GRANT ALL ON SCHEMA public TO \"#\""],
    rotten: "'~'::bytea || substr(#, 2)",
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

/// Everybody is trusted but those who were given a password.
const ACCESS: &str = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

fn as_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where Debian has the programs of the newest version.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).max();
    newest.unwrap_or_else(|| panic!("there is no PostgreSQL here; `make test` installs what the tests need"))
}

/// A server refuses to run as root.
fn server_command(folder: &Path, program: &str) -> Command {
    let program = programs().join(program);
    let mut command = if as_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.arg("-D").arg(folder.join("data"));
    command
}

fn start() -> Server {
    let folder = tempfile::tempdir().unwrap();
    if as_root() {
        assert!(Command::new("chown").arg("postgres").arg(folder.path()).status().unwrap().success());
    }
    let mut init = server_command(folder.path(), "initdb");
    init.args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]);
    let made = init.current_dir("/").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::write(folder.path().join("data/pg_hba.conf"), ACCESS).unwrap();
    sql::tls::certificates(folder.path(), "postgres");
    let command = |folder: &Path, port: u16| {
        let mut command = server_command(folder, "postgres");
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "max_connections=300"]);
        for (setting, file) in [("ssl_cert_file", "server.crt"), ("ssl_key_file", "server.key")] {
            command.args(["-c", &format!("{setting}={}", folder.join(file).display())]);
        }
        command.args(["-c", "ssl=on", "-k"]).arg(folder).current_dir("/");
        command
    };
    let ready = |port| {
        support::listens(port)
            && client(port, "", "SELECT 1").output().is_ok_and(|output| output.status.success())
    };
    Server::start(folder, command, ready)
}

fn client(port: u16, database: &str, sql: &str) -> Command {
    let database = if database.is_empty() { "postgres" } else { database };
    let mut command = Command::new("psql");
    command.args([
        "-X",
        "-q",
        "-t",
        "-A",
        "-F\t",
        "-v",
        "ON_ERROR_STOP=1",
        "-h",
        "127.0.0.1",
        "-U",
        "postgres",
    ]);
    command.args(["-p", &port.to_string(), "-d", database, "-c", sql]);
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
fn the_largest_batch_is_kept() {
    let database = sql::database(KIND, &COMMON);
    let mut journal = database.journal();
    append_one(&mut *journal, 1, 10);
    append_one(&mut *journal, 1, BATCH_BYTES_MAX);
    let read = read_all(&*database.journal(), orchestrix_core::Position(1), 1);
    assert_eq!(read.iter().map(|batch| batch.records.len()).collect::<Vec<_>>(), [BATCH_BYTES_MAX]);
}

#[test]
fn a_server_proves_who_it_is_if_that_is_asked() {
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
