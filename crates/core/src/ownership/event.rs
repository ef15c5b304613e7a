//! Events of nodes and owners.

use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::event::events;
use crate::{LeaseId, OwnerToken};

events! {
    /// What happens to nodes, and to owners of leases of the bus.
    OwnershipEvent of Ownership;

    /// A process of a node is there. Its owner token is the position of this event. An earlier one of that name is gone.
    23 NodeJoined {
        #[n(0)] pub node: String,
        #[n(1)] pub incarnation: String,
        #[n(2)] pub address: String,
    }

    /// A process is gone. Nobody owns what it owned.
    24 NodeLeft {
        #[n(0)] pub node: OwnerToken,
        #[n(1)] pub reason: NodeLeftReason,
    }

    /// A process takes no more, and gives away what it owns.
    25 NodeDraining {
        #[n(0)] pub node: OwnerToken,
    }

    /// A node owns these leases from here on.
    26 OwnersAssigned {
        #[n(0)] pub node: OwnerToken,
        #[n(1)] pub leases: Vec<LeaseId>,
    }

    /// A node has given these leases away, and nobody owns them yet.
    27 OwnersReleased {
        #[n(0)] pub node: OwnerToken,
        #[n(1)] pub leases: Vec<LeaseId>,
    }
}

/// Why a process of a node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "snake_case")]
pub enum NodeLeftReason {
    /// It has stopped.
    #[n(0)]
    Stopped,
    /// Nothing was heard of it for too long.
    #[n(1)]
    Silent,
    /// Another process has its name.
    #[n(2)]
    Replaced,
}
