//! What a lock in a database must not do: be stolen while it lives, fail to be given back twice, count its epochs
//! anew, lose fractions of a second, or add numbers to a date.

use std::time::{Duration, Instant};

use orchestrix_engine::{Cell, Claim, Register, Set, Shared, Version};

use super::Database;
use orchestrix_testbed::eventually;

fn claim(owner: &str, epoch: u64, ttl_ms: u64) -> Claim {
    Claim { owner: owner.to_owned(), epoch, ttl_ms, held: true, value: b"a seat".to_vec() }
}

fn done(set: Set) -> Version {
    match set {
        Set::Done(version) => version,
        other @ (Set::Conflict(_) | Set::Unknown) => panic!("it may be written, but {other:?}"),
    }
}

fn set(register: &dyn Register, seen: Option<&Version>, claim: &Claim) -> Set {
    register.compare_and_set("leader", seen, claim).unwrap()
}

pub(crate) fn a_live_lock_is_not_stolen(database: &Database) {
    let (holder, thief) = (database.connect().register(), database.connect().register());
    let version = done(set(&*holder, None, &claim("holder", 1, 60_000)));
    let there = Cell { version: version.clone(), claim: claim("holder", 1, 60_000) };
    // It knows the version, and would set a time far after the one that is there.
    let theft = set(&*thief, Some(&version), &claim("thief", 2, 600_000));
    assert_eq!(theft, Set::Conflict(Some(there)));
    let renewed = done(set(&*holder, Some(&version), &claim("holder", 1, 60_000)));
    assert_ne!(renewed, version);
    // The same name in another life is the same owner.
    let again = database.connect().register();
    done(set(&*again, Some(&renewed), &claim("holder", 2, 60_000)));
}

/// A row that was written after now was written before the clock was set back. How long nobody has renewed it is for the
/// candidate to judge, as on engines without a clock.
pub(crate) fn a_clock_that_was_set_back_keeps_no_lock(database: &Database) {
    let (holder, next) = (database.connect().register(), database.connect().register());
    let version = done(set(&*holder, None, &claim("holder", 1, 60_000)));
    assert!(matches!(set(&*next, Some(&version), &claim("next", 2, 60_000)), Set::Conflict(Some(_))));
    let hour = if database.kind.scheme == "mysql" { "INTERVAL 1 HOUR" } else { "INTERVAL '1 hour'" };
    database.ask(&format!(
        "UPDATE helix_locks SET expires_at = expires_at + {hour}, updated_at = updated_at + {hour}"
    ));
    assert_eq!(next.read("leader").unwrap().unwrap().claim.ttl_ms, 60_000);
    let taken = done(set(&*next, Some(&version), &claim("next", 2, 60_000)));
    // Now its times are of the clock as it is.
    assert!(matches!(set(&*holder, Some(&taken), &claim("holder", 3, 60_000)), Set::Conflict(Some(_))));
}

pub(crate) fn the_holder_of_a_lock_may_transfer_it(database: &Database) {
    let (holder, heir) = (database.connect().register(), database.connect().register());
    let version = done(set(&*holder, None, &claim("holder", 1, 60_000)));
    let passed = done(set(&*holder, Some(&version), &claim("heir", 2, 60_000)));
    done(set(&*heir, Some(&passed), &claim("heir", 3, 60_000)));
}

pub(crate) fn a_lock_can_be_given_back_twice_and_taken_at_once(database: &Database) {
    let (holder, next) = (database.connect().register(), database.connect().register());
    let version = done(set(&*holder, None, &claim("holder", 1, 60_000)));
    let released = Claim { held: false, ..claim("holder", 1, 60_000) };
    let once = done(set(&*holder, Some(&version), &released));
    assert_eq!(set(&*holder, Some(&version), &released), Set::Done(once.clone()), "the same again");
    let twice = done(set(&*holder, Some(&once), &released));
    let taken = done(set(&*next, Some(&twice), &claim("next", 2, 60_000)));
    let released = Claim { held: false, ..claim("next", 2, 60_000) };
    done(set(&*next, Some(&taken), &released));
    assert_eq!(database.ask("SELECT status FROM helix_locks"), "0");
}

pub(crate) fn an_epoch_never_begins_anew(database: &Database) {
    let register = database.connect().register();
    let mut seen = None;
    for epoch in 1..=5 {
        let version = done(set(&*register, seen.as_ref(), &claim("a", epoch, 60_000)));
        let released = Claim { held: false, ..claim("a", epoch, 60_000) };
        seen = Some(done(set(&*register, Some(&version), &released)));
        let cell = database.connect().register().read("leader").unwrap().unwrap();
        assert_eq!((cell.claim.epoch, cell.claim.held), (epoch, false), "a row that was given back stays");
    }
    assert_eq!(database.ask("SELECT COUNT(*), MAX(epoch) FROM helix_locks").replace('\t', "|"), "1|5");
}

pub(crate) fn fractions_of_a_second_are_kept(database: &Database) {
    const TTL_MS: u64 = 730;
    let (holder, next) = (database.connect().register(), database.connect().register());
    // Counted from before it was asked: the database cannot have written it earlier.
    let began = Instant::now();
    let version = done(set(&*holder, None, &claim("holder", 1, TTL_MS)));
    assert_eq!(next.read("leader").unwrap().unwrap().claim.ttl_ms, TTL_MS);
    let mut refused = 0;
    let taken = eventually("the time of a claim is over", || {
        match set(&*next, Some(&version), &claim("next", 2, TTL_MS)) {
            Set::Done(_) => Some(began.elapsed()),
            Set::Conflict(_) => {
                refused += 1;
                None
            }
            Set::Unknown => panic!("nothing goes wrong here"),
        }
    });
    assert!(refused > 0 && taken > Duration::from_millis(TTL_MS), "taken after {taken:?}");
    println!("a claim of {TTL_MS} ms was refused to another {refused} times, and taken after {taken:?}");
}

pub(crate) fn times_are_added_as_times(database: &Database) {
    let register = database.connect().register();
    let mut seen = None;
    // Adding 90 to a date as a number would give a date that does not exist, or another one.
    for ttl_ms in [1, 999, 1_000, 59_999, 60_000, 61_000, 90_000, 3_600_000, 86_400_000, 31_536_000_000] {
        let version = done(set(&*register, seen.as_ref(), &claim("a", 1, ttl_ms)));
        let cell = register.read("leader").unwrap().unwrap();
        assert_eq!((cell.claim.ttl_ms, &cell.version), (ttl_ms, &version));
        seen = Some(version);
    }
    let ahead = "SELECT COUNT(*) FROM helix_locks WHERE expires_at > updated_at AND updated_at >= created_at";
    assert_eq!(database.ask(ahead), "1");
}

pub(crate) fn the_row_of_the_leader_has_its_name(database: &Database) {
    let register = database.connect().register();
    done(set(&*register, None, &claim("a", 7, 60_000)));
    let row = database.ask("SELECT lock_key, owner_id, epoch, status FROM helix_locks");
    assert_eq!(row.replace('\t', "|"), "coordinator_lock|a|7|1");
    let listed = register.list("lead").unwrap();
    assert_eq!(listed.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["leader"]);
    // Another domain has a leader of its own.
    let other =
        orchestrix_engine::sql::SqlPlace::connect_to(&database.url(), "other", super::TIMEOUT).unwrap();
    assert_eq!(other.register().read("leader").unwrap(), None);
    assert_eq!(other.register().list("").unwrap(), []);
}

pub(crate) fn a_key_that_a_server_would_confuse_is_refused(database: &Database) {
    let register = database.connect().register();
    for key in ["a ", "with\0zero", &"k".repeat(256)] {
        register.compare_and_set(key, None, &claim("a", 1, 1)).expect_err("it is refused");
    }
    register.compare_and_set("k", None, &claim("a", u64::MAX, 1)).expect_err("it does not fit");
    register.compare_and_set("k", None, &claim("a", 1, u64::MAX)).expect_err("it does not fit");
    for key in ["Key", "key", "k%", "k_", "k!"] {
        done(register.compare_and_set(key, None, &claim("a", 1, 1)).unwrap());
    }
    let keys =
        |prefix: &str| register.list(prefix).unwrap().into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys("k"), ["k!", "k%", "k_", "key"]);
    assert_eq!(keys("k%"), ["k%"]);
    assert_eq!(keys("k_"), ["k_"]);
    assert_eq!(keys("k!"), ["k!"]);
}
