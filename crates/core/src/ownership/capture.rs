//! Nodes and owners in a snapshot that is taken while they go on changing: as tasks are, see `tasks/capture.rs`.

use std::collections::BTreeMap;

use super::section::{Item, items_of_nodes};
use super::state::{Owned, Ownership};
use crate::LeaseId;
use crate::entity::Moment;
use crate::snapshot::{Room, Step, Written, encode_item};

/// A capture under way.
#[derive(Debug)]
pub(super) struct Capture {
    nodes: Written,
    /// Leases up to this one belong to the snapshot.
    last: LeaseId,
    /// Leases up to this one are written out.
    reached: Option<LeaseId>,
    /// Leases that changed before their turn, as they were.
    saved: BTreeMap<LeaseId, Owned>,
}

impl Ownership {
    pub(super) fn capture_from(&self, here: Moment) -> Capture {
        let mut nodes = Vec::new();
        items_of_nodes(self, &mut |item| nodes.push(item.to_vec()));
        let (last, saved) = (LeaseId(here.position.0), BTreeMap::new());
        Capture { nodes: Written::of(nodes), last, reached: None, saved }
    }

    /// Writes some more nodes or leases.
    pub(super) fn capture_some(&mut self, room: Room, chunk: &mut Vec<u8>) -> Step {
        let Some(capture) = &mut self.capture else { return Step::Done };
        if capture.nodes.step(room, chunk) == Step::Full {
            return Step::Full;
        }
        let mut current =
            self.leases.after(capture.reached).take_while(|entry| entry.lease <= capture.last).peekable();
        for _ in 0..room.items {
            if chunk.len() >= room.bytes {
                return Step::Full;
            }
            let next = current.peek().map(|entry| entry.lease);
            let saved = capture.saved.first_key_value().map(|(lease, _)| *lease);
            let Some(lease) = next.into_iter().chain(saved).min() else { return Step::Done };
            let now = if next == Some(lease) { current.next().copied() } else { None };
            let entry = capture.saved.remove(&lease).or(now).expect("the lease came from one of the two");
            encode_item(Item::of(entry), chunk);
            capture.reached = Some(lease);
        }
        Step::Full
    }

    /// Called before the entry of a lease changes or goes.
    pub(super) fn save_for_capture(&mut self, lease: LeaseId) {
        let Some(capture) = &mut self.capture else { return };
        let written = capture.reached.is_some_and(|reached| lease <= reached);
        if written || lease > capture.last || capture.saved.contains_key(&lease) {
            return;
        }
        let entry = *self.leases.get(lease).expect("an entry that changes is there");
        capture.saved.insert(lease, entry);
    }
}
