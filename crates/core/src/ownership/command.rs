//! Commands about nodes and owners.

use super::event::NodeLeftReason;
use crate::command::{at_most, fits};
use crate::limits::{NAME_BYTES_MAX, NODE_ADDRESS_BYTES_MAX, OWNED_LEASES_MAX};
use crate::{LeaseId, OwnerToken, Refusal};

/// What may be asked about nodes and owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnershipCommand {
    /// A process of a node is there. It replaces an earlier one of that name.
    Join { node: String, incarnation: String, address: String },
    /// A process is gone.
    Leave { node: OwnerToken, reason: NodeLeftReason },
    /// A process takes no more.
    Drain { node: OwnerToken },
    /// A node takes leases. All of them, or it is refused; what it owns already is left out.
    Own { node: OwnerToken, claims: Vec<Claim> },
    /// A node gives leases away to any other. All of them, or it is refused; what nobody owns is left out.
    Release { node: OwnerToken, leases: Vec<LeaseId> },
}

/// A lease that a node wants to own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub lease: LeaseId,
    /// Who owns it, as far as the node knows. A lease that nobody owns may be taken in any case.
    pub previous: Option<OwnerToken>,
}

impl OwnershipCommand {
    pub(super) fn validate(&self) -> Result<(), Refusal> {
        match self {
            Self::Join { node, incarnation, address } => {
                fits("node", node.len(), NAME_BYTES_MAX)?;
                fits("incarnation", incarnation.len(), NAME_BYTES_MAX)?;
                fits("address", address.len(), NODE_ADDRESS_BYTES_MAX)
            }
            Self::Leave { .. } | Self::Drain { .. } => Ok(()),
            Self::Own { claims, .. } => at_most("claims", claims.len(), OWNED_LEASES_MAX),
            Self::Release { leases, .. } => at_most("leases", leases.len(), OWNED_LEASES_MAX),
        }
    }
}
