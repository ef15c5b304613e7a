//! Applies events to nodes and owners. It has many assertions, also in release builds.

use super::event::{NodeDraining, NodeJoined, NodeLeft, OwnersAssigned, OwnersReleased, OwnershipEvent};
use super::state::{LiveNode, NOBODY, Owned, Ownership, Share};
use crate::entity::Moment;
use crate::tasks::BusChange;
use crate::{LeaseId, OwnerToken, Timestamp};

impl Ownership {
    pub(super) fn fold(&mut self, event: OwnershipEvent, here: Moment) {
        match event {
            OwnershipEvent::NodeJoined(event) => self.node_joined(event, here),
            OwnershipEvent::NodeLeft(NodeLeft { node, reason: _ }) => {
                let left = self.depart(node, here.at);
                self.names.remove(&left.name);
            }
            OwnershipEvent::NodeDraining(NodeDraining { node }) => {
                let live = self.nodes.get_mut(&node).expect("a node that drains is there");
                assert!(!live.draining, "a node begins to drain once");
                live.draining = true;
            }
            OwnershipEvent::OwnersAssigned(event) => self.owners_assigned(&event, here.at),
            OwnershipEvent::OwnersReleased(event) => self.owners_released(&event, here.at),
        }
    }

    /// A lease of the bus came or went.
    pub(crate) fn follow(&mut self, change: BusChange, at: Timestamp) {
        match change {
            BusChange::Offered(lease) => {
                let entry = Owned { lease, owner: NOBODY, since: at };
                self.leases.insert(entry);
                self.index(entry);
            }
            BusChange::Ended(lease) => {
                self.save_for_capture(lease);
                let entry = self.leases.remove(lease).expect("a lease of the bus has an entry");
                self.unindex(entry);
            }
        }
    }

    fn node_joined(&mut self, event: NodeJoined, here: Moment) {
        let NodeJoined { node: name, incarnation, address } = event;
        let token = OwnerToken(here.position.0);
        if let Some(earlier) = self.names.insert(name.clone(), token) {
            self.depart(earlier, here.at);
        }
        self.nodes.insert(token, LiveNode { name, incarnation, address, draining: false });
        self.shares.insert(token, Share::default());
    }

    /// A node is gone; however much it owns, this is done at once.
    fn depart(&mut self, node: OwnerToken, at: Timestamp) -> LiveNode {
        let left = self.nodes.remove(&node).expect("a node that leaves is there");
        let share = self.shares.get_mut(&node).expect("a node has a share");
        if share.leases.len() == 0 {
            self.shares.remove(&node);
        } else {
            share.gone_at = Some(at);
        }
        left
    }

    fn owners_assigned(&mut self, event: &OwnersAssigned, at: Timestamp) {
        let live = self.nodes.get(&event.node).expect("an owner is there");
        assert!(!live.draining, "a node that drains takes no lease");
        for lease in &event.leases {
            let before = self.pass(*lease, event.node, at);
            assert_ne!(before, event.node, "a node takes what it does not own");
        }
    }

    fn owners_released(&mut self, event: &OwnersReleased, at: Timestamp) {
        assert!(self.nodes.contains_key(&event.node), "an owner is there");
        for lease in &event.leases {
            let before = self.pass(*lease, NOBODY, at);
            assert_eq!(before, event.node, "a node gives away what it owns");
        }
    }

    /// Gives a lease to another owner, or to none. Answers who had it.
    fn pass(&mut self, lease: LeaseId, owner: OwnerToken, at: Timestamp) -> OwnerToken {
        self.save_for_capture(lease);
        let entry = self.leases.get_mut(lease).expect("only a live lease of the bus has an owner");
        let before = *entry;
        (entry.owner, entry.since) = (owner, at);
        let now = *entry;
        self.unindex(before);
        self.index(now);
        before.owner
    }
}
