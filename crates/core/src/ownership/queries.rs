//! Queries about nodes and owners.

use super::decide::{GONE, NOT_OF_BUS};
use super::state::{LiveNode, NOBODY};
use super::{Claim, Ownership};
use crate::limits::OWNED_LEASES_MAX;
use crate::planted::is_planted;
use crate::{LeaseId, OwnerToken, Refusal, State, Timestamp};

/// A node that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedNode<'a> {
    pub token: OwnerToken,
    pub name: &'a str,
    pub incarnation: &'a str,
    pub address: &'a str,
    /// It takes no more.
    pub draining: bool,
    /// Leases that it owns.
    pub owned: usize,
}

/// What comes of a claim that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The node may take the lease.
    Free,
    /// It owns it.
    Already,
}

impl State {
    /// All nodes that are there, in the order in which they joined.
    pub fn nodes(&self) -> impl Iterator<Item = JoinedNode<'_>> {
        self.ownership.nodes.iter().map(|(token, node)| self.ownership.joined(*token, node))
    }

    #[must_use]
    pub fn node(&self, token: OwnerToken) -> Option<JoinedNode<'_>> {
        self.ownership.nodes.get(&token).map(|node| self.ownership.joined(token, node))
    }

    #[must_use]
    pub fn node_named(&self, name: &str) -> Option<JoinedNode<'_>> {
        self.node(*self.ownership.names.get(name)?)
    }

    /// The node that owns a lease, if it is there.
    #[must_use]
    pub fn owner_of(&self, lease: LeaseId) -> Option<JoinedNode<'_>> {
        self.node(self.ownership.leases.get(lease)?.owner)
    }

    /// Who owned a lease that nobody owns, if that node left with it.
    #[must_use]
    pub fn left_by(&self, lease: LeaseId) -> Option<OwnerToken> {
        let owner = self.ownership.leases.get(lease)?.owner;
        (owner != NOBODY && !self.ownership.nodes.contains_key(&owner)).then_some(owner)
    }

    /// What [`OwnershipCommand::Own`](crate::OwnershipCommand::Own) would come to for one lease.
    ///
    /// # Errors
    /// The node may not take it.
    pub fn claim(&self, node: OwnerToken, claim: Claim) -> Result<Claimed, Refusal> {
        self.needs(crate::WITH_BUS)?;
        self.ownership.claim(node, claim)
    }

    /// Whether a node may pass on what the worker of a lease says.
    ///
    /// # Errors
    /// It is not the owner.
    pub fn check_owner(&self, node: OwnerToken, lease: LeaseId) -> Result<(), Refusal> {
        let not_owner = |why| Err(Refusal::NotOwner { lease, why });
        match self.ownership.leases.get(lease) {
            None => not_owner(NOT_OF_BUS),
            Some(_) if !self.ownership.nodes.contains_key(&node) => not_owner(GONE),
            Some(entry) if entry.owner == node => Ok(()),
            Some(_) => not_owner("it is not the node's"),
        }
    }

    /// Leases that a node owns, after a lease and in their order; also what it owned when it left, while nobody has it.
    #[must_use]
    pub fn owned_by(&self, node: OwnerToken, after: Option<LeaseId>, limit: usize) -> Vec<LeaseId> {
        let limit = limit.clamp(1, OWNED_LEASES_MAX);
        let share = self.ownership.shares.get(&node);
        share.map_or_else(Vec::new, |share| share.leases.after(after).take(limit).copied().collect())
    }

    /// Leases of the bus that nobody owns, started or not, each with the time since when: the oldest first, after one of them.
    #[must_use]
    pub fn orphans(&self, after: Option<(Timestamp, LeaseId)>, limit: usize) -> Vec<(Timestamp, LeaseId)> {
        let of_started = is_planted("orphan-only-if-started");
        let counts = |(_, lease): &(Timestamp, LeaseId)| {
            !of_started
                || self
                    .leased(*lease)
                    .and_then(|task| task.lease.as_deref())
                    .is_some_and(|lease| !lease.is_offer())
        };
        self.ownership.orphans(after).filter(counts).take(limit.clamp(1, OWNED_LEASES_MAX)).collect()
    }

    /// How many leases of the bus nobody owns.
    #[must_use]
    pub fn orphan_count(&self) -> usize {
        let gone = self.ownership.shares.values().filter(|share| share.gone_at.is_some());
        self.ownership.unowned.len() + gone.map(|share| share.leases.len()).sum::<usize>()
    }

    /// Since when the oldest of them has no owner.
    #[must_use]
    pub fn orphaned_since(&self) -> Option<Timestamp> {
        self.orphans(None, 1).first().map(|(since, _)| *since)
    }
}

impl Ownership {
    fn joined<'a>(&self, token: OwnerToken, node: &'a LiveNode) -> JoinedNode<'a> {
        let LiveNode { name, incarnation, address, draining } = node;
        let owned = self.shares.get(&token).map_or(0, |share| share.leases.len());
        JoinedNode { token, name, incarnation, address, draining: *draining, owned }
    }
}
