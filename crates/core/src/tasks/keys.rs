//! Keys of purged tasks. Small: there may be millions of them, of a day or more.
//!
//! What is remembered of a key is a hash of its queue and text, the hash of its request, and what came of its task. Keys
//! stand in the order in which their tasks were purged, and are forgotten in that order; the time that each is
//! remembered until is looked at when it is asked for, so one that stands behind a later one is over in time all the same.

use std::collections::VecDeque;

use minicbor::{Decode, Encode};
use sha2::{Digest, Sha256};

use crate::sorted::{Keyed, Sorted};
use crate::{Key, KeyClaim, Name, TaskId, TaskState, Timestamp};

/// Keys of one piece of memory. Pieces are never moved, and given back one by one.
const PIECE: usize = 512;
/// Bits of the time that a key is remembered until; the state of its task stands above them.
const UNTIL_BITS: u32 = 56;

/// What is left of a task with a key when it was purged.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Remembered {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    name: [u8; 16],
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    request: [u8; 16],
    #[n(2)]
    pub(crate) task: TaskId,
    /// Until when, and the state of the task: two numbers in one, so that a key takes 48 bytes.
    #[n(3)]
    until_and_state: u64,
}

impl Remembered {
    /// Of a task that ended in this state.
    pub(crate) fn new(
        queue: &Name,
        claim: &KeyClaim,
        task: TaskId,
        state: TaskState,
        until: Timestamp,
    ) -> Self {
        let number = match state {
            TaskState::Waiting | TaskState::Leased => unreachable!("only an ended task is purged"),
            TaskState::Completed => 0,
            TaskState::Failed => 1,
            TaskState::Cancelled => 2,
        };
        let until_and_state = until.0.min((1 << UNTIL_BITS) - 1) | number << UNTIL_BITS;
        Self { name: name_hash(queue, &claim.key), request: claim.request, task, until_and_state }
    }

    pub(crate) fn until(&self) -> Timestamp {
        Timestamp(self.until_and_state & ((1 << UNTIL_BITS) - 1))
    }

    pub(crate) fn state(&self) -> TaskState {
        match self.until_and_state >> UNTIL_BITS {
            0 => TaskState::Completed,
            1 => TaskState::Failed,
            _ => TaskState::Cancelled,
        }
    }

    pub(crate) fn is_request(&self, request: [u8; 16]) -> bool {
        self.request == request
    }

    fn prefix(&self) -> u64 {
        prefix(self.name)
    }
}

/// All keys of purged tasks, by the number under which each was added, which grows.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// All but the last are full.
    pieces: VecDeque<Vec<Remembered>>,
    /// How many of the first piece are forgotten.
    gone: usize,
    /// The number of the first that is remembered.
    first: u64,
    by_name: Sorted<Place>,
}

/// Where a key stands: by the first half of its hash. The whole hash is compared where it stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    prefix: u64,
    number: u64,
}

impl Keyed for Place {
    type Key = (u64, u64);
    fn key(&self) -> Self::Key {
        (self.prefix, self.number)
    }
}

impl Keys {
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The number of the first one, and of the one that would be added next.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        (self.first, self.first + self.len() as u64)
    }

    pub(crate) fn add(&mut self, key: Remembered) {
        let (_, number) = self.numbers();
        self.by_name.insert(Place { prefix: key.prefix(), number });
        match self.pieces.back_mut().filter(|piece| piece.len() < PIECE) {
            Some(piece) => piece.push(key),
            None => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(key);
                self.pieces.push_back(piece);
            }
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Remembered> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()? + self.gone;
        self.pieces.get(at / PIECE)?.get(at % PIECE)
    }

    pub(crate) fn first(&self) -> Option<&Remembered> {
        self.get(self.first)
    }

    /// What is remembered of a key, unless its time is over.
    pub(crate) fn find(&self, queue: &Name, key: &Key, now: Timestamp) -> Option<&Remembered> {
        if self.len() == 0 {
            return None;
        }
        let name = name_hash(queue, key);
        let prefix = prefix(name);
        // Of several the last one counts: the others were over when it was submitted.
        let from = prefix.checked_sub(1).map(|before| (before, u64::MAX));
        let near = self.by_name.after(from).take_while(|place| place.prefix == prefix);
        let found = near.filter_map(|place| self.get(place.number)).filter(|found| found.name == name);
        found.last().filter(|found| now < found.until())
    }

    /// Forgets the first one, and gives it back with its number.
    pub(crate) fn forget_first(&mut self) -> Option<(u64, Remembered)> {
        let (number, key) = (self.first, self.first()?.clone());
        self.by_name.remove((key.prefix(), number));
        self.first += 1;
        self.gone += 1;
        if self.gone == self.pieces.front().map_or(0, Vec::len) {
            self.pieces.pop_front();
            self.gone = 0;
        }
        Some((number, key))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Remembered> {
        self.pieces.iter().flatten().skip(self.gone)
    }
}

fn prefix(name: [u8; 16]) -> u64 {
    u64::from_le_bytes(name[..8].try_into().expect("eight bytes"))
}

/// A queue and a key in 16 bytes. An attacker who wants two equal ones has to try 2^64 of them, and only in queues where it may
/// submit; to hit a given one, 2^128.
fn name_hash(queue: &Name, key: &Key) -> [u8; 16] {
    let mut digest = Sha256::new();
    digest.update(queue.as_str());
    // Which no name has in it.
    digest.update([0]);
    digest.update(key.as_str());
    let mut hash = [0; 16];
    hash.copy_from_slice(&digest.finalize()[..16]);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(key: &str, task: u64, until: u64) -> Remembered {
        let claim = KeyClaim { key: Key::new(key).unwrap(), request: [7; 16] };
        Remembered::new(&name("mail"), &claim, TaskId(task), TaskState::Failed, Timestamp(until))
    }

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn task(keys: &Keys, key: &str, now: u64) -> Option<u64> {
        keys.find(&name("mail"), &Key::new(key).unwrap(), Timestamp(now)).map(|found| found.task.0)
    }

    #[test]
    fn a_key_is_found_until_its_time_is_over() {
        let mut keys = Keys::default();
        keys.add(remembered("a", 1, 100));
        assert_eq!((task(&keys, "a", 99), task(&keys, "a", 100), task(&keys, "b", 0)), (Some(1), None, None));
        let other = keys.find(&name("other"), &Key::new("a").unwrap(), Timestamp(0));
        assert_eq!(other, None, "a key is a key of its queue");
        let found = keys.first().unwrap();
        assert_eq!((found.state(), found.until()), (TaskState::Failed, Timestamp(100)));
        assert!(found.is_request([7; 16]) && !found.is_request([8; 16]));
    }

    #[test]
    fn of_two_with_one_name_the_later_counts() {
        let mut keys = Keys::default();
        keys.add(remembered("a", 1, 100));
        keys.add(remembered("a", 2, 300));
        assert_eq!((task(&keys, "a", 200), task(&keys, "a", 300)), (Some(2), None));
        assert_eq!(keys.forget_first().unwrap().1.task, TaskId(1));
        assert_eq!(task(&keys, "a", 200), Some(2));
    }

    #[test]
    fn the_first_that_came_is_the_first_that_goes() {
        let mut keys = Keys::default();
        let count = 3 * PIECE as u64 + 7;
        (0..count).for_each(|n| keys.add(remembered(&n.to_string(), n, 9)));
        for n in 0..count {
            assert_eq!(keys.len() as u64, count - n);
            assert_eq!(keys.iter().count() as u64, count - n);
            assert_eq!(task(&keys, &n.to_string(), 0), Some(n));
            assert_eq!(keys.get(count - 1).unwrap().task, TaskId(count - 1));
            let (number, key) = keys.forget_first().unwrap();
            assert_eq!((number, key.task), (n, TaskId(n)));
            assert_eq!((task(&keys, &n.to_string(), 0), keys.get(n)), (None, None));
        }
        assert_eq!((keys.forget_first(), keys.numbers()), (None, (count, count)));
        keys.add(remembered("again", 1, 9));
        assert_eq!(task(&keys, "again", 0), Some(1));
    }

    #[test]
    fn a_time_that_never_comes_leaves_the_state_alone() {
        let mut last = remembered("a", 1, u64::MAX);
        assert_eq!(last.state(), TaskState::Failed);
        last.until_and_state = u64::MAX;
        assert_eq!(last.state(), TaskState::Cancelled);
    }
}
