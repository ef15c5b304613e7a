//! Names of things. A right is named by the journal position that granted it, so these are also the
//! fencing tokens that user code compares: unique, growing, never reused.

use std::fmt;

use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

macro_rules! position_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize,
        )]
        #[cbor(transparent)]
        #[serde(transparent)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

position_newtype!(
    /// A place in the journal; the first event stands at 1.
    Position
);
position_newtype!(
    /// The position of a task's `TaskCreated`.
    TaskId
);
position_newtype!(
    /// The position of a `LeaseGranted` or `LeaseOffered`: the fencing token of the attempt.
    LeaseId
);
position_newtype!(
    /// The position of a `NodeJoined`: one process of a node, as an owner of leases of the bus.
    OwnerToken
);
position_newtype!(
    /// One leadership: the position of its `TermStarted`.
    Term
);

impl Position {
    /// The place after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A moment, in milliseconds since the Unix epoch, on the journal's own time line (it never goes back).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize,
)]
#[cbor(transparent)]
#[serde(transparent)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The end of time: for rights without a limit.
    pub const NEVER: Self = Self(u64::MAX);

    /// This moment plus a number of milliseconds, at most [`Timestamp::NEVER`].
    #[must_use]
    pub fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Milliseconds from `earlier` to this moment; 0 when it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
