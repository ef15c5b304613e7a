//! What a node tells the others of itself in its presence cell.

use orchestrix_core::{FIRST_FORMAT, FORMAT, is_planted};
use orchestrix_leadership::Peer;
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::runner::Input;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Note {
    pub(super) position: u64,
    pub(super) load: u64,
    /// It takes no more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) drains: bool,
    /// The newest format of the journal that it reads. The first version with notes does not say it.
    pub(super) format: u8,
}

impl Default for Note {
    fn default() -> Self {
        Self { position: 0, load: 0, drains: false, format: FIRST_FORMAT }
    }
}

impl Note {
    /// What cannot be read says nothing.
    pub(super) fn of(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// The format of the journal up to which every present node reads, this one included; `present` are their names. A node of
/// which no note was seen may be of any version.
#[must_use]
pub fn readable(present: &[String], peers: &[Peer]) -> u8 {
    if is_planted("format-raised-unasked") {
        return FORMAT;
    }
    let note = |name: &String| {
        let peer = peers.iter().find(|peer| peer.candidate.name == *name && peer.present)?;
        Some(Note::of(&peer.note).format)
    };
    present.iter().map(|name| note(name).unwrap_or(FIRST_FORMAT)).min().unwrap_or(FIRST_FORMAT)
}

impl Node {
    /// Raises the format of the journal to one that every present node reads, unless it is as high.
    pub fn raise_format(&self, format: u8) {
        if u64::from(format) > self.stats.format.get() {
            // If the loop has too much to do, it is asked again.
            let _ = self.inputs.put(Input::Raise(format));
        }
    }
}

/// The note of a node that has read so far and reads this format, for simulations.
#[must_use]
pub fn presence_note(position: u64, format: u8) -> String {
    let note = Note { position, format, ..Note::default() };
    serde_json::to_string(&note).expect("a note is plain JSON")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use orchestrix_leadership::Candidate;

    use super::*;

    fn peer(name: &str, note: &str, present: bool) -> Peer {
        let candidate =
            Candidate { name: name.to_owned(), incarnation: String::new(), address: String::new() };
        Peer { candidate, note: note.to_owned(), present, seen: Duration::ZERO }
    }

    fn read(present: &[&str], peers: &[Peer]) -> u8 {
        readable(&present.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), peers)
    }

    #[test]
    fn all_present_nodes_read_what_the_oldest_reads() {
        let new = presence_note(7, 2);
        let (a, b) = (peer("a", &new, true), peer("b", &new, true));
        assert_eq!(read(&["a", "b"], &[a.clone(), b.clone()]), 2);
        assert_eq!(read(&["a", "b"], &[a.clone(), peer("b", &presence_note(7, 3), true)]), 2);
        for old in [r#"{"position":9,"load":0}"#, "", "?", r#"{"format":1}"#] {
            assert_eq!(read(&["a", "b"], &[a.clone(), peer("b", old, true)]), 1, "{old:?}");
        }
        assert_eq!(read(&["a"], &[a.clone(), peer("b", "", false)]), 2, "b is gone");
    }

    #[test]
    fn a_node_whose_note_was_not_seen_may_be_of_any_version() {
        let a = peer("a", &presence_note(7, 2), true);
        assert_eq!(read(&["a"], &[]), 1, "not even its own cell was seen");
        assert_eq!(read(&["a", "b"], &[a]), 1);
        assert_eq!(read(&[], &[]), 1);
    }

    #[test]
    fn earlier_versions_read_a_note_with_a_format() {
        assert_eq!(presence_note(7, 2), r#"{"position":7,"load":0,"format":2}"#);
    }
}
