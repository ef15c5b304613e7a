//! The state of nodes and owners, and the indexes over it.

use std::collections::BTreeMap;

use super::capture::Capture;
use crate::sorted::{Keyed, Sorted};
use crate::{LeaseId, OwnerToken, Timestamp};

/// All nodes that are there, and all leases of the bus with their owners.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    pub(super) nodes: BTreeMap<OwnerToken, LiveNode>,
    pub(super) names: BTreeMap<String, OwnerToken>,
    pub(super) leases: Sorted<Owned>,
    /// What each node owns; also those that are gone, as long as it is not given to others.
    pub(super) shares: BTreeMap<OwnerToken, Share>,
    /// Leases that were never owned, or were given away; the one that is unowned longest first.
    pub(super) unowned: Sorted<(Timestamp, LeaseId)>,
    /// A snapshot that is being taken.
    pub(super) capture: Option<Capture>,
}

/// A node that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LiveNode {
    pub(super) name: String,
    pub(super) incarnation: String,
    pub(super) address: String,
    pub(super) draining: bool,
}

/// A lease of the bus, in 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) lease: LeaseId,
    /// [`NOBODY`], or a node that may be gone.
    pub(super) owner: OwnerToken,
    /// Since when it is so.
    pub(super) since: Timestamp,
}

/// No event stands there.
pub(super) const NOBODY: OwnerToken = OwnerToken(0);

/// The leases of one node.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) leases: Sorted<LeaseId>,
    /// When the node was gone. Nobody owns the leases since then.
    pub(super) gone_at: Option<Timestamp>,
}

impl Keyed for Owned {
    type Key = LeaseId;
    fn key(&self) -> LeaseId {
        self.lease
    }
}

impl Keyed for (Timestamp, LeaseId) {
    type Key = Self;
    fn key(&self) -> Self {
        *self
    }
}

impl Ownership {
    /// The owner of a lease, if its node is there.
    pub(super) fn live_owner(&self, entry: &Owned) -> Option<OwnerToken> {
        self.nodes.contains_key(&entry.owner).then_some(entry.owner)
    }

    /// Puts a lease into the index of its owner, or into that of those that have none.
    pub(super) fn index(&mut self, entry: Owned) {
        if entry.owner == NOBODY {
            self.unowned.insert((entry.since, entry.lease));
        } else {
            let share = self.shares.get_mut(&entry.owner).expect("an owner has a share");
            share.leases.insert(entry.lease);
        }
    }

    pub(super) fn unindex(&mut self, entry: Owned) {
        if entry.owner == NOBODY {
            self.unowned.remove((entry.since, entry.lease));
            return;
        }
        let share = self.shares.get_mut(&entry.owner).expect("an owner has a share");
        share.leases.remove(entry.lease);
        if share.gone_at.is_some() && share.leases.len() == 0 {
            self.shares.remove(&entry.owner);
        }
    }

    /// Leases that nobody owns, each with the time since when, the oldest first.
    pub(super) fn orphans(
        &self,
        after: Option<(Timestamp, LeaseId)>,
    ) -> impl Iterator<Item = (Timestamp, LeaseId)> {
        let mut gone: Vec<_> = self.gone(after).collect();
        let mut unowned = self.unowned.after(after).copied().peekable();
        // Few nodes are gone and still have leases.
        std::iter::from_fn(move || {
            let firsts = gone.iter_mut().enumerate();
            let first = firsts.filter_map(|(n, leases)| Some((*leases.peek()?, n))).min();
            match (first, unowned.peek()) {
                (Some((orphan, n)), next) if next.is_none_or(|next| orphan < *next) => gone[n].next(),
                (Some(_) | None, _) => unowned.next(),
            }
        })
    }

    /// The leases of each node that is gone, from a place on.
    fn gone(
        &self,
        after: Option<(Timestamp, LeaseId)>,
    ) -> impl Iterator<Item = std::iter::Peekable<impl Iterator<Item = (Timestamp, LeaseId)>>> {
        self.shares.values().filter_map(move |share| {
            let at = share.gone_at?;
            let from = match after {
                Some((until, _)) if at < until => return None,
                Some((until, lease)) if at == until => Some(lease),
                Some(_) | None => None,
            };
            Some(share.leases.after(from).map(move |lease| (at, *lease)).peekable())
        })
    }
}
