//! Decides commands about nodes and owners. Changes nothing.

use super::event::{NodeDraining, NodeJoined, NodeLeft, OwnersAssigned, OwnersReleased};
use super::state::Ownership;
use super::{Claim, Claimed, OwnershipCommand};
use crate::command::invalid;
use crate::limits::NODES_MAX;
use crate::planted::is_planted;
use crate::{Decision, Event, LeaseId, OwnerToken, Refusal};

impl Ownership {
    pub(super) fn judge(&self, command: &OwnershipCommand) -> Result<Decision, Refusal> {
        match command {
            OwnershipCommand::Join { node, incarnation, address } => self.join(node, incarnation, address),
            OwnershipCommand::Leave { node, reason } => {
                Ok(self.if_live(*node, NodeLeft { node: *node, reason: *reason }))
            }
            OwnershipCommand::Drain { node } => {
                let drains = self.nodes.get(node).is_some_and(|live| live.draining);
                Ok(if drains { Decision::Nothing } else { self.if_live(*node, NodeDraining { node: *node }) })
            }
            OwnershipCommand::Own { node, claims } => self.own(*node, claims),
            OwnershipCommand::Release { node, leases } => self.release(*node, leases),
        }
    }

    fn if_live(&self, node: OwnerToken, event: impl Into<Event>) -> Decision {
        if self.nodes.contains_key(&node) { Decision::Event(event.into()) } else { Decision::Nothing }
    }

    fn join(&self, node: &str, incarnation: &str, address: &str) -> Result<Decision, Refusal> {
        let known = self.names.get(node).and_then(|token| self.nodes.get(token));
        if known.is_some_and(|known| known.incarnation == incarnation && known.address == address) {
            return Ok(Decision::Nothing);
        }
        if known.is_none() && self.nodes.len() >= NODES_MAX {
            return Err(invalid("node", format!("there are {NODES_MAX} nodes already")));
        }
        let (node, incarnation, address) = (node.to_owned(), incarnation.to_owned(), address.to_owned());
        Ok(Decision::Event(NodeJoined { node, incarnation, address }.into()))
    }

    fn own(&self, node: OwnerToken, claims: &[Claim]) -> Result<Decision, Refusal> {
        let mut leases = Vec::with_capacity(claims.len());
        for claim in claims {
            match self.claim(node, *claim)? {
                Claimed::Free => leases.push(claim.lease),
                Claimed::Already => {}
            }
        }
        leases.sort();
        leases.dedup();
        if leases.is_empty() {
            return Ok(Decision::Nothing);
        }
        Ok(Decision::Event(OwnersAssigned { node, leases }.into()))
    }

    /// Whether a node may take a lease.
    pub(super) fn claim(&self, node: OwnerToken, claim: Claim) -> Result<Claimed, Refusal> {
        let not_owner = |why| Refusal::NotOwner { lease: claim.lease, why };
        let entry = self.leases.get(claim.lease).ok_or_else(|| not_owner(NOT_OF_BUS))?;
        let claims = self.nodes.get(&node).ok_or_else(|| not_owner(GONE))?;
        let owner = self.live_owner(entry);
        if owner == Some(node) {
            return Ok(Claimed::Already);
        }
        if claims.draining {
            return Err(not_owner("a node that drains takes none"));
        }
        if owner.is_some() && owner != claim.previous && !is_planted("own-without-condition") {
            return Err(not_owner("another node owns it"));
        }
        Ok(Claimed::Free)
    }

    fn release(&self, node: OwnerToken, leases: &[LeaseId]) -> Result<Decision, Refusal> {
        let mut released = Vec::with_capacity(leases.len());
        for lease in leases {
            let Some(entry) = self.leases.get(*lease) else { continue };
            match self.live_owner(entry) {
                Some(owner) if owner == node => released.push(*lease),
                Some(_) => return Err(Refusal::NotOwner { lease: *lease, why: "another node owns it" }),
                None => {}
            }
        }
        released.sort();
        released.dedup();
        if released.is_empty() {
            return Ok(Decision::Nothing);
        }
        Ok(Decision::Event(OwnersReleased { node, leases: released }.into()))
    }
}

pub(super) const NOT_OF_BUS: &str = "it has ended, or is not of the bus";
pub(super) const GONE: &str = "the node has left, or another process has its name";
