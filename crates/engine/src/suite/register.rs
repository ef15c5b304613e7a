//! What every register must do.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};

use crate::{Cell, Claim, Register, Set, Version};

/// Makes a new, empty register, and so many handles of it.
pub type MakeRegister<'a> = &'a mut dyn FnMut(usize) -> Vec<Arc<dyn Register>>;

/// All sentences about registers.
pub fn register(make: MakeRegister<'_>) {
    a_cell_that_was_never_written_is_not_there(make);
    a_cell_is_read_as_it_was_written_by_every_handle(make);
    a_cell_changes_only_from_the_version_that_was_seen(make);
    no_two_writings_have_the_same_version(make);
    cells_do_not_see_each_other_and_are_listed_by_key(make);
    one_of_many_wins(make);
    epochs_only_grow(make, steps());
    a_value_may_be_any_bytes(make);
    a_cell_is_removed_only_as_it_was_seen(make);
}

fn claim(owner: &str, epoch: u64) -> Claim {
    // Over at once, so that an engine with a clock of its own lets others take it.
    Claim { owner: owner.to_owned(), epoch, ttl_ms: 0, held: true, value: owner.as_bytes().to_vec() }
}

fn set(register: &dyn Register, key: &str, seen: Option<&Version>, claim: &Claim) -> Set {
    register.compare_and_set(key, seen, claim).expect("a register answers")
}

fn read(register: &dyn Register, key: &str) -> Option<Cell> {
    register.read(key).expect("a register is read")
}

fn done(set: Set) -> Version {
    match set {
        Set::Done(version) => version,
        other @ (Set::Conflict(_) | Set::Unknown) => panic!("nobody else writes, but {other:?}"),
    }
}

pub fn a_cell_that_was_never_written_is_not_there(make: MakeRegister<'_>) {
    let handles = make(2);
    assert_eq!(read(&*handles[0], "leader"), None);
    assert_eq!(handles[0].list("").expect("a register is listed"), []);
    let seen = Version("1".to_owned());
    assert_eq!(set(&*handles[0], "leader", Some(&seen), &claim("a", 1)), Set::Conflict(None));
    assert_eq!(read(&*handles[0], "leader"), None);
}

pub fn a_cell_is_read_as_it_was_written_by_every_handle(make: MakeRegister<'_>) {
    let handles = make(2);
    let mut written = claim("a", 7);
    (written.ttl_ms, written.held) = (30_000, false);
    let version = done(set(&*handles[0], "leader", None, &written));
    for handle in &handles {
        let cell = read(&**handle, "leader").expect("it was written");
        assert_eq!((&cell.version, &cell.claim), (&version, &written));
    }
}

pub fn a_cell_changes_only_from_the_version_that_was_seen(make: MakeRegister<'_>) {
    let handles = make(2);
    let first = done(set(&*handles[0], "leader", None, &claim("a", 1)));
    let there = Cell { version: first.clone(), claim: claim("a", 1) };
    assert_eq!(set(&*handles[1], "leader", None, &claim("b", 1)), Set::Conflict(Some(there)));
    let second = done(set(&*handles[1], "leader", Some(&first), &claim("b", 2)));
    let there = Cell { version: second, claim: claim("b", 2) };
    assert_eq!(set(&*handles[0], "leader", Some(&first), &claim("a", 3)), Set::Conflict(Some(there.clone())));
    assert_eq!(read(&*handles[0], "leader"), Some(there));
}

pub fn a_cell_is_removed_only_as_it_was_seen(make: MakeRegister<'_>) {
    let handles = make(2);
    let remove = |version: &Version| handles[1].remove("nodes/a", version).expect("a cell is removed");
    let first = done(set(&*handles[0], "nodes/a", None, &claim("a", 1)));
    let second = done(set(&*handles[0], "nodes/a", Some(&first), &claim("a", 1)));
    let other = done(set(&*handles[0], "nodes/b", None, &claim("b", 1)));
    remove(&first);
    remove(&Version("of nobody".to_owned()));
    assert_eq!(read(&*handles[0], "nodes/a").map(|cell| cell.version), Some(second.clone()));
    remove(&second);
    remove(&second);
    assert_eq!(read(&*handles[0], "nodes/a"), None);
    let listed = handles[0].list("nodes/").expect("a register is listed");
    assert_eq!(listed.into_iter().map(|(_, cell)| cell.version).collect::<Vec<_>>(), [other]);
    // Who comes back finds nothing, and writes anew.
    assert_eq!(set(&*handles[0], "nodes/a", Some(&second), &claim("a", 1)), Set::Conflict(None));
    done(set(&*handles[0], "nodes/a", None, &claim("a", 1)));
}

pub fn no_two_writings_have_the_same_version(make: MakeRegister<'_>) {
    let handles = make(2);
    let mut versions = vec![done(set(&*handles[0], "leader", None, &claim("a", 1)))];
    for n in 0..20 {
        // The same claim again and again: what was written says nothing about when.
        let last = versions.last().expect("there is one");
        let next = done(set(&*handles[n % 2], "leader", Some(last), &claim("a", 1)));
        versions.push(next);
    }
    let different: BTreeSet<&Version> = versions.iter().collect();
    assert_eq!(different.len(), versions.len());
}

pub fn cells_do_not_see_each_other_and_are_listed_by_key(make: MakeRegister<'_>) {
    let handles = make(2);
    for key in ["nodes/b", "nodes/a", "leader", "nodes_c"] {
        done(set(&*handles[0], key, None, &claim(key, 1)));
    }
    let keys = |prefix: &str| -> Vec<String> {
        let listed = handles[1].list(prefix).expect("a register is listed");
        assert!(listed.iter().all(|(key, cell)| cell.claim.owner == *key));
        listed.into_iter().map(|(key, _)| key).collect()
    };
    assert_eq!(keys("nodes/"), ["nodes/a", "nodes/b"]);
    assert_eq!(keys(""), ["leader", "nodes/a", "nodes/b", "nodes_c"]);
    assert_eq!(keys("x"), Vec::<String>::new());
}

/// Candidates that race for one cell.
const CANDIDATES: usize = 50;
/// The handles that they share.
const HANDLES: usize = 10;

pub fn one_of_many_wins(make: MakeRegister<'_>) {
    let handles = make(HANDLES);
    let mut seen = None;
    for round in 0..3 {
        let together = Barrier::new(CANDIDATES);
        let winners: Vec<Version> = std::thread::scope(|scope| {
            let race = |n: usize| {
                let (handle, seen, together) =
                    (Arc::clone(&handles[n % handles.len()]), seen.as_ref(), &together);
                let mine = claim(&format!("{round}-{n}"), round);
                scope.spawn(move || {
                    together.wait();
                    match set(&*handle, "leader", seen, &mine) {
                        Set::Done(version) => Some(version),
                        Set::Conflict(_) => None,
                        Set::Unknown => panic!("nothing goes wrong here"),
                    }
                })
            };
            let racing: Vec<_> = (0..CANDIDATES).map(race).collect();
            racing.into_iter().filter_map(|one| one.join().expect("nobody panics")).collect()
        });
        assert_eq!(winners.len(), 1, "one of {CANDIDATES} wins");
        assert_eq!(read(&*handles[0], "leader").map(|cell| cell.version), winners.first().cloned());
        seen = winners.into_iter().next();
    }
}

/// How many steps candidates take; the variable asks for more than there is time for in every run.
fn steps() -> u64 {
    std::env::var("ORCHESTRIX_EPOCH_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// Candidates acquire, renew, release and lose the leader lease, in random order and often with an old view.
pub fn epochs_only_grow(make: MakeRegister<'_>, steps: u64) {
    let handles = make(3);
    let mut views: [Option<Cell>; 3] = [None, None, None];
    let (mut highest, mut granted, mut draw) = (0, 0, 0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..steps {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        let candidate = usize::try_from(draw % 3).expect("a small number");
        let (handle, view) = (&*handles[candidate], &mut views[candidate]);
        if draw / 3 % 4 == 0 {
            *view = read(handle, "leader");
            continue;
        }
        let name = format!("candidate-{candidate}");
        let own = view.as_ref().filter(|cell| cell.claim.held && cell.claim.owner == name);
        let next = match own {
            // Renewed, or released.
            Some(cell) if draw / 12 % 3 > 0 => Claim { held: draw / 12 % 3 == 1, ..cell.claim.clone() },
            // Acquired, after a release or when the time of another is over.
            Some(_) | None => claim(&name, view.as_ref().map_or(0, |cell| cell.claim.epoch) + 1),
        };
        let acquires = own.is_none_or(|cell| cell.claim.epoch != next.epoch);
        match set(handle, "leader", view.as_ref().map(|cell| &cell.version), &next) {
            Set::Done(version) => {
                assert!(!acquires || next.epoch > highest, "epoch {} after {highest}", next.epoch);
                assert!(acquires || next.epoch == highest, "a renewal keeps its epoch");
                (highest, granted) = (next.epoch, granted + u64::from(acquires));
                *view = Some(Cell { version, claim: next });
            }
            Set::Conflict(there) => *view = there,
            Set::Unknown => panic!("nothing goes wrong here"),
        }
    }
    assert!(granted > steps / 20, "only {granted} of {steps} steps acquired something");
    assert_eq!(read(&*handles[0], "leader").map(|cell| cell.claim.epoch), Some(highest));
}

pub fn a_value_may_be_any_bytes(make: MakeRegister<'_>) {
    let handles = make(2);
    let mut written = claim("näme \"quoted\"", u64::MAX >> 1);
    written.value = (0..=255).cycle().take(10_000).collect();
    done(set(&*handles[0], "nodes/ü'; --", None, &written));
    assert_eq!(read(&*handles[1], "nodes/ü'; --").map(|cell| cell.claim), Some(written));
}
