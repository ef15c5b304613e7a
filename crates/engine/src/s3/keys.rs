//! The names of all objects, and random names.
//!
//! Names sort as the numbers in them do. No name is the folder of another: some stores keep objects in folders.

use std::fs::File;
use std::io::Read as _;

use orchestrix_core::{Position, TaskId};

use crate::fault::invalid;
use crate::{Cause, Error, JournalId};

/// Bounds the length of the last part of a name: some stores keep it as the name of a file.
const CELL_BYTES_MAX: usize = 200;

/// The names below one prefix.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn of(prefix: &str) -> Self {
        Self { prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") } }
    }

    fn name(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// The id of the journal and its floor.
    pub(super) fn journal(&self) -> String {
        self.name("journal")
    }

    /// The batches of all journals that were ever here.
    pub(super) fn histories(&self) -> String {
        self.name("batches")
    }

    /// The batches of one journal. A late write to a wiped journal does not reach the next one.
    pub(super) fn batches(&self, journal: JournalId) -> String {
        self.name(&format!("batches/{journal}"))
    }

    /// A batch by its first position, which follows from the batch before it.
    pub(super) fn batch(&self, journal: JournalId, first: Position) -> String {
        self.name(&format!("batches/{journal}/{:020}", first.0))
    }

    pub(super) fn snapshots(&self) -> String {
        self.name("snapshots")
    }

    /// The manifest of a complete snapshot.
    pub(super) fn snapshot(&self, at: Position) -> String {
        self.name(&format!("snapshots/{:020}", at.0))
    }

    pub(super) fn chunks(&self) -> String {
        self.name("chunks")
    }

    /// The chunks of one writing of a snapshot.
    pub(super) fn chunks_of(&self, at: Position, nonce: &Nonce) -> String {
        self.name(&format!("chunks/{:020}-{}", at.0, nonce.text()))
    }

    pub(super) fn cells(&self) -> String {
        self.name("cells")
    }

    /// A key of a cell may be any text.
    pub(super) fn cell(&self, key: &str) -> Result<String, Error> {
        let encoded = encode(key);
        if encoded.is_empty() || encoded.len() > CELL_BYTES_MAX {
            let why = format!(
                "the key of a cell has 1 to {CELL_BYTES_MAX} bytes, with 3 for all but letters, \
                               digits, '-' and '_'"
            );
            return Err(invalid("name a cell", why));
        }
        Ok(self.name(&format!("cells/{encoded}")))
    }

    pub(super) fn logs(&self) -> String {
        self.name("logs")
    }

    pub(super) fn log(&self, task: TaskId) -> String {
        self.name(&format!("logs/{:020}", task.0))
    }

    /// A chunk of the output of a task, by how many were stored before it.
    pub(super) fn log_chunk(&self, task: TaskId, number: u64) -> String {
        self.name(&format!("logs/{:020}/{number:08}", task.0))
    }

    /// Behind all chunks of a task, and before those of the next.
    pub(super) fn after_log(&self, task: TaskId) -> String {
        self.log_chunk(task, 99_999_999)
    }

    /// An object to try conditions on.
    pub(super) fn probe(&self, nonce: &Nonce) -> String {
        self.name(&format!("probe/{}", nonce.text()))
    }
}

/// The last part of a name.
pub(super) fn last_part(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, last)| last)
}

/// The number that a name ends with.
pub(super) fn number(name: &str) -> Option<u64> {
    last_part(name).parse().ok()
}

/// The key of a cell, as its object is named.
pub(super) fn encode(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("!{byte:02x}"));
        }
    }
    text
}

/// The key of a cell from the name of its object; `None` if it is none of ours.
pub(super) fn decode(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'!' {
            let (two, others) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?);
            rest = others;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok().filter(|key| encode(key) == name)
}

/// Random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nonce(pub(super) [u8; 16]);

impl Nonce {
    pub(super) fn draw() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(|error| {
            Error { operation: "draw random bytes".to_owned(), retryable: false, source: Cause::Io(error) }
        })?;
        Ok(Self(bytes))
    }

    pub(super) fn text(&self) -> String {
        JournalId(self.0).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_cell_is_found_again_in_its_name() {
        for key in ["leader", "nodes/a", "nodes_c", "nodes/ü'; --", "..", "!", "a!2fb"] {
            let name = encode(key);
            assert!(!name.contains(['/', '.']), "{name}");
            assert_eq!(decode(&name).as_deref(), Some(key));
        }
        for name in ["a/b", "!", "!2", "!zz", "!ff", "a.b", "!2F", "!61"] {
            assert_eq!(decode(name), None, "{name} is none of ours");
        }
    }

    #[test]
    fn a_key_without_a_name_is_refused() {
        let keys = Keys::of("");
        keys.cell("").unwrap_err();
        keys.cell(&"x".repeat(201)).unwrap_err();
        assert_eq!(keys.cell("leader").unwrap(), "cells/leader");
        let name = Keys::of("a/b").batch(JournalId([0xab; 16]), Position(7));
        assert_eq!(name, format!("a/b/batches/{}/00000000000000000007", "ab".repeat(16)));
        assert_eq!(number(&name), Some(7));
    }
}
