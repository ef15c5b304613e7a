//! What is tried on every kind of database server. Each kind says how to start a private one, and how to talk to it
//! behind the back of the engine.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::{Journal, Shared};

use orchestrix_testbed::{Server, eventually};

pub(crate) mod conformance;
pub(crate) mod damage;
pub(crate) mod election;
pub(crate) mod failover;
pub(crate) mod faults;
pub(crate) mod locks;
pub(crate) mod refusals;
pub(crate) mod restarts;

/// Longer than a statement takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Short enough to wait for.
pub(crate) const SHORT: Duration = Duration::from_millis(700);

/// The password of the user `app`, as it is and in a URL.
pub(crate) const PASSWORD: &str = "can@ry/7:x";
pub(crate) const PASSWORD_ENCODED: &str = "can%40ry%2F7%3Ax";

/// One kind of server, and how to use it from outside.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Starts a server on which what was acknowledged survives a kill.
    pub(crate) start: fn() -> Server,
    pub(crate) scheme: &'static str,
    /// The superuser.
    pub(crate) admin: &'static str,
    /// Runs SQL as the superuser, in a database if one is named; gives the fields, separated by tabs.
    pub(crate) client: fn(port: u16, database: &str, sql: &str) -> Command,
    /// The page for operators, which has the rights of the users.
    pub(crate) page: &'static str,
    pub(crate) create_user: &'static [&'static str],
    /// Takes a right to all tables from the user that only uses them.
    pub(crate) revoke: &'static str,
    /// Takes the numbers of chunks of output away, as they were not there in the version before.
    pub(crate) without_numbers: &'static str,
    /// Bytes that are not those that were stored, as an expression.
    pub(crate) rotten: &'static str,
    /// An expression that takes two seconds.
    pub(crate) sleep: &'static str,
    /// Makes a server, or one database of it, only read.
    pub(crate) read_only: (&'static str, &'static str),
    /// Settings that lose what was acknowledged, with the word that a warning about each has.
    pub(crate) weak: &'static [(&'static str, &'static str)],
    pub(crate) strong: &'static [&'static str],
}

/// A server that several tests use.
pub(crate) type Common = Mutex<Weak<Server>>;

/// A database on a server.
pub(crate) struct Database {
    pub(crate) kind: Kind,
    pub(crate) server: Arc<Server>,
    pub(crate) name: String,
    /// The URL of the user that only uses the tables, once it is made.
    node: OnceLock<String>,
}

static NAMES: AtomicU32 = AtomicU32::new(0);

/// A name that no other test of this process has.
pub(crate) fn new_name() -> String {
    format!("t{}", NAMES.fetch_add(1, SeqCst))
}

/// An empty database, on the server that other tests use now, or a new one.
pub(crate) fn database(kind: Kind, common: &Common) -> Database {
    let server = {
        // One server that does not start is not the failure of every test.
        let mut common = common.lock().unwrap_or_else(PoisonError::into_inner);
        common.upgrade().unwrap_or_else(|| {
            let server = Arc::new((kind.start)());
            *common = Arc::downgrade(&server);
            server
        })
    };
    let name = new_name();
    ask(kind, server.port(), "", &format!("CREATE DATABASE {name}"));
    let database = Database { kind, server, name, node: OnceLock::new() };
    database.make_user(0);
    database
}

/// What the page for operators has in its n-th block of SQL.
fn statements_of_the_page(page: &str, block: usize) -> impl Iterator<Item = &str> {
    let text = page.split("```sql\n").nth(block + 1).and_then(|rest| rest.split("```").next());
    text.expect("the page has the rights of the users").split_terminator(";\n")
}

/// Runs SQL behind the back of the engine.
pub(crate) fn ask(kind: Kind, port: u16, database: &str, sql: &str) -> String {
    let output = (kind.client)(port, database, sql).output().unwrap_or_else(|error| {
        panic!("cannot run a client of the server: {error}; `make test` installs what the tests need")
    });
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{sql}: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Database {
    pub(crate) fn url(&self) -> String {
        self.url_at(self.server.port())
    }

    pub(crate) fn url_at(&self, port: u16) -> String {
        format!("{}://{}_owner:pw@127.0.0.1:{port}/{}", self.kind.scheme, self.name, self.name)
    }

    /// As a user that may do no more than use the tables, which are there.
    pub(crate) fn node_url(&self) -> String {
        let made = self.node.get_or_init(|| {
            self.connect();
            self.make_user(1);
            self.url().replacen("_owner:", "_node:", 1)
        });
        made.clone()
    }

    fn make_user(&self, block: usize) {
        for statement in statements_of_the_page(self.kind.page, block) {
            if !statement.starts_with("CREATE DATABASE") {
                self.ask(&statement.replace("orchestrix", &self.name).replace("'PASSWORD'", "'pw'"));
            }
        }
    }

    pub(crate) fn ask(&self, sql: &str) -> String {
        ask(self.kind, self.server.port(), &self.name, sql)
    }

    pub(crate) fn connect(&self) -> SqlPlace {
        SqlPlace::connect(&self.url(), TIMEOUT).unwrap()
    }

    /// Through another port, with little patience; but whoever makes the tables and the journal has time.
    pub(crate) fn connect_at(&self, port: u16) -> SqlPlace {
        drop(self.journal());
        eventually("the server answers soon", || SqlPlace::connect(&self.url_at(port), SHORT).ok())
    }

    /// A journal with little patience, opened with as many tries as a busy machine needs.
    pub(crate) fn journal_at(&self, port: u16) -> Box<dyn Journal> {
        let place = self.connect_at(port);
        eventually("the journal is opened soon", || place.journal().ok())
    }

    pub(crate) fn journal(&self) -> Box<dyn Journal> {
        self.connect().journal().unwrap()
    }

    /// How many batches the server has, whatever the engine says.
    pub(crate) fn rows(&self) -> usize {
        self.ask("SELECT COUNT(*) FROM orchestrix_batches").parse().unwrap()
    }
}

/// Makes a test of each sentence.
#[macro_export]
macro_rules! sentences {
    ($kind:expr, $common:expr, $($module:ident :: { $($name:ident),* $(,)? }),* $(,)?) => {
        $($(
            #[test]
            fn $name() {
                $crate::sql::$module::$name(&$crate::sql::database($kind, $common));
            }
        )*)*
    };
}

/// All tests that every database passes.
#[macro_export]
macro_rules! every_sentence {
    ($kind:expr, $common:expr) => {
        $crate::sentences!($kind, $common,
            conformance::{
                the_journal_keeps_its_contract, snapshots_keep_their_contract, logs_keep_their_contract,
                the_register_keeps_its_contract, several_nodes_keep_the_contract, the_script_is_answered_as_written,
            },
            faults::{
                a_lost_answer_to_an_append_is_unknown_and_nothing_is_doubled,
                a_lost_answer_is_a_conflict_after_a_foreign_write,
                an_append_may_land_after_it_was_looked_for_in_vain,
                a_writer_that_was_frozen_inside_an_append_finds_a_conflict,
                a_cut_wire_is_unknown_for_writers_and_an_error_for_readers,
                an_append_that_waits_for_a_lock_lands_once,
                a_claim_with_a_lost_answer_is_unknown_and_done_once,
                a_claim_that_lands_late_does_not_undo_another,
                output_that_cannot_be_deleted_in_time_keeps_no_other,
                output_under_a_number_that_is_being_written_is_refused,
                no_call_waits_for_the_deletion_of_batches,
                a_waiter_is_woken_while_others_sleep,
                fifty_writers_on_fifty_connections_agree,
            },
            locks::{
                a_live_lock_is_not_stolen, a_clock_that_was_set_back_keeps_no_lock, the_holder_of_a_lock_may_transfer_it,
                a_lock_can_be_given_back_twice_and_taken_at_once, an_epoch_never_begins_anew,
                fractions_of_a_second_are_kept, times_are_added_as_times, the_row_of_the_leader_has_its_name,
                a_key_that_a_server_would_confuse_is_refused,
            },
            damage::{
                a_rotten_parcel_is_refused_by_name, a_rotten_hash_is_refused_by_name, a_missing_row_is_refused_by_name,
                rows_that_changed_places_are_refused, another_journal_in_its_place_is_refused,
                a_wiped_server_is_noticed_and_not_forked, a_journal_that_was_set_back_is_noticed_and_not_forked,
                a_late_write_into_a_raised_floor_is_refused_at_once,
                a_snapshot_with_a_rotten_or_missing_chunk_is_refused, leftovers_of_a_snapshot_are_removed,
                a_rotten_log_chunk_is_refused_and_mended, output_of_older_tables_is_read_and_goes_on,
            },
            failover::{
                snapshots_that_the_journal_does_not_reach_prune_nothing,
                a_snapshot_is_pruned_only_while_the_newer_ones_are_there,
                a_floor_is_raised_only_while_its_snapshot_is_there,
                batches_below_a_floor_that_is_not_known_stay,
            },
            refusals::{
                secrets_are_never_shown, a_server_that_is_not_there_is_a_clear_error,
                tables_of_a_newer_version_are_refused_by_name, first_starts_that_race_are_fine, a_domain_has_a_plain_name,
                tables_that_were_half_made_are_finished,
                a_place_may_be_let_go_inside_a_runtime,
                a_right_that_is_missing_is_named_at_the_start, a_right_that_is_withdrawn_later_may_come_back,
                a_user_without_rights_learns_where_they_are_listed,
            },
            election::{ one_candidate_leads_at_a_time_and_another_takes_over },
        );

        /// A server of its own, since its settings change for all.
        fn alone(sentence: fn(&$crate::sql::Database)) {
            sentence(&$crate::sql::database($kind, &$crate::sql::Common::default()));
        }

        #[test]
        fn a_server_that_only_reads_is_refused() {
            alone($crate::sql::refusals::a_server_that_only_reads_is_refused);
        }

        #[test]
        fn settings_that_lose_what_was_acknowledged_are_warned_of() {
            alone($crate::sql::refusals::settings_that_lose_what_was_acknowledged_are_warned_of);
        }

        #[test]
        fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
            $crate::sql::restarts::nothing_acknowledged_is_lost_when_the_server_is_killed($kind);
        }

        #[test]
        fn a_server_restored_from_a_backup_is_not_forked() {
            $crate::sql::restarts::a_server_restored_from_a_backup_is_not_forked($kind);
        }
    };
}
