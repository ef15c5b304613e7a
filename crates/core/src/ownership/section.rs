//! The section of nodes and owners in a snapshot: nodes that are there, nodes that are gone and still have leases, then leases
//! in their order.

use minicbor::{Decode, Encode};

use super::state::{LiveNode, NOBODY, Owned, Ownership, Share};
use crate::entity::Moment;
use crate::snapshot::{Header, Room, Section, SnapshotError, Step, encode_item};
use crate::{LeaseId, OwnerToken, Timestamp};

/// What stands for this section in snapshots.
const TAG: u8 = 1;

/// One item of the section.
#[derive(Debug, Encode, Decode)]
pub(super) enum Item {
    #[n(0)]
    Node {
        #[n(0)]
        token: OwnerToken,
        #[n(1)]
        name: String,
        #[n(2)]
        incarnation: String,
        #[n(3)]
        address: String,
        #[n(4)]
        draining: bool,
    },
    #[n(1)]
    Gone {
        #[n(0)]
        token: OwnerToken,
        #[n(1)]
        at: Timestamp,
    },
    #[n(2)]
    Lease {
        #[n(0)]
        lease: LeaseId,
        #[n(1)]
        owner: OwnerToken,
        #[n(2)]
        since: Timestamp,
    },
}

impl Item {
    pub(super) fn of(Owned { lease, owner, since }: Owned) -> Self {
        Self::Lease { lease, owner, since }
    }
}

/// Writes down all nodes, those that are gone last.
pub(super) fn items_of_nodes(ownership: &Ownership, write: &mut dyn FnMut(&[u8])) {
    let nodes = ownership.nodes.iter().map(|(token, node)| {
        let LiveNode { name, incarnation, address, draining } = node.clone();
        Item::Node { token: *token, name, incarnation, address, draining }
    });
    let gone = ownership.shares.iter().filter_map(|(token, share)| Some((*token, share.gone_at?)));
    let gone = gone.map(|(token, at)| Item::Gone { token, at });
    let mut bytes = Vec::new();
    for item in nodes.chain(gone) {
        bytes.clear();
        encode_item(item, &mut bytes);
        write(&bytes);
    }
}

impl Section for Ownership {
    fn announce(&self, header: &mut Header) {
        let gone = self.shares.len() - self.nodes.len();
        header.announce(TAG, self.nodes.len() + gone + self.leases.len());
    }

    fn expect(&mut self, header: &mut Header) -> Option<usize> {
        Some(header.take(TAG))
    }

    fn load(&mut self, item: &[u8], here: Moment) -> Result<(), SnapshotError> {
        let flaw = match minicbor::decode(item)? {
            Item::Node { token, name, incarnation, address, draining } => {
                self.add_node(token, LiveNode { name, incarnation, address, draining }, here)
            }
            Item::Gone { token, at } => self.add_gone(token, at, here),
            Item::Lease { lease, owner, since } => self.add(Owned { lease, owner, since }, here),
        };
        flaw.map_or(Ok(()), |why| Err(SnapshotError::ImpossibleOwner(why)))
    }

    fn finish(&mut self) -> Result<(), SnapshotError> {
        let idle = self.shares.values().any(|share| share.gone_at.is_some() && share.leases.len() == 0);
        if idle { Err(SnapshotError::ImpossibleOwner("a node that is gone owns nothing")) } else { Ok(()) }
    }

    fn each_item(&self, write: &mut dyn FnMut(&[u8])) {
        items_of_nodes(self, write);
        let mut bytes = Vec::new();
        for entry in self.leases.after(None) {
            bytes.clear();
            encode_item(Item::of(*entry), &mut bytes);
            write(&bytes);
        }
    }

    fn begin_capture(&mut self, here: Moment) {
        self.capture = Some(self.capture_from(here));
    }

    fn step_capture(&mut self, room: Room, chunk: &mut Vec<u8>) -> Step {
        self.capture_some(room, chunk)
    }

    fn end_capture(&mut self) {
        self.capture = None;
    }
}

impl Ownership {
    /// Whether this section belongs to tasks with these leases of the bus.
    pub(crate) fn has_just(&self, mut leases: impl Iterator<Item = LeaseId>) -> bool {
        self.leases.after(None).map(|entry| entry.lease).eq(&mut leases)
    }

    /// Adds a node; answers what is wrong with it, if anything.
    fn add_node(&mut self, token: OwnerToken, node: LiveNode, here: Moment) -> Option<&'static str> {
        if token == NOBODY || token.0 > here.position.0 || self.shares.contains_key(&token) {
            return Some("a node has no token of its own");
        }
        if self.names.insert(node.name.clone(), token).is_some() {
            return Some("two nodes have one name");
        }
        self.nodes.insert(token, node);
        self.shares.insert(token, Share::default());
        None
    }

    fn add_gone(&mut self, token: OwnerToken, at: Timestamp, here: Moment) -> Option<&'static str> {
        if token == NOBODY || token.0 > here.position.0 || self.shares.contains_key(&token) {
            return Some("a node that is gone has no token of its own");
        }
        if at > here.at {
            return Some("a node will be gone");
        }
        self.shares.insert(token, Share { gone_at: Some(at), ..Share::default() });
        None
    }

    fn add(&mut self, entry: Owned, here: Moment) -> Option<&'static str> {
        let follows = self.leases.after(Some(entry.lease)).next().is_none();
        if !follows || self.leases.get(entry.lease).is_some() || entry.lease.0 > here.position.0 {
            return Some("a lease is out of order");
        }
        if entry.since > here.at {
            return Some("a lease will have an owner");
        }
        if entry.owner != NOBODY && !self.shares.contains_key(&entry.owner) {
            return Some("a lease has an owner that is no node");
        }
        self.leases.insert(entry);
        self.index(entry);
        None
    }
}
