//! The handshake: the protocol, its versions, and the limits that each end accepts.

use crate::link::codec::{decoded, encoded, numbered};
use crate::link::frame::{self, Broken, Frame, Kind};
use crate::link::{ASKS_MAX, VERSIONS, WINDOW_BYTES};

/// The first bytes of a first frame.
const MAGIC: [u8; 8] = *b"orxlink\n";
/// Bytes of the name of a node.
const NODE_NAME_BYTES_MAX: usize = 1 << 10;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The lowest and the highest version that it speaks.
    pub versions: (u32, u32),
    pub node: String,
    /// The hash of its tokens file, if it has one. A difference means that the nodes know different callers.
    pub tokens: Option<[u8; 32]>,
    /// Bytes of asks that it takes before its loop has taken any.
    pub window_bytes: usize,
    /// Asks without an answer that it takes.
    pub asks_max: usize,
}

numbered! {
    Hello { 0 versions, 1 node, 2 tokens, 3 window_bytes, 4 asks_max }
}

impl Hello {
    #[must_use]
    pub fn new(node: &str, tokens: Option<[u8; 32]>) -> Self {
        let node = node.chars().take(NODE_NAME_BYTES_MAX / 4).collect();
        Self { versions: VERSIONS, node, tokens, window_bytes: WINDOW_BYTES, asks_max: ASKS_MAX }
    }

    /// Whether two nodes know the same tokens, as far as both say.
    #[must_use]
    pub fn knows_other_tokens(&self, other: &Self) -> bool {
        self.tokens != other.tokens
    }

    /// Whether this node may ask another in the name of callers: if that one has tokens, this one must check them.
    #[must_use]
    pub fn may_vouch_to(&self, leader: &Self) -> bool {
        self.tokens.is_some() || leader.tokens.is_none()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut payload = MAGIC.to_vec();
        payload.extend(encoded(self));
        frame::write(out, Kind::Hello, true, 0, &payload);
    }

    /// What the other end says, if the two can speak with each other.
    pub(super) fn read(&self, frame: &Frame<'_>) -> Result<Self, Broken> {
        if frame.kind != Kind::Hello {
            return Err(Broken::NotALink);
        }
        let rest = frame.payload.strip_prefix(&MAGIC).ok_or(Broken::NotALink)?;
        let theirs: Self = decoded(rest).map_err(|_| Broken::NotALink)?;
        if theirs.node.len() > NODE_NAME_BYTES_MAX {
            return Err(Broken::TooLarge { what: "a node's name", max: NODE_NAME_BYTES_MAX });
        }
        let (lowest, highest) =
            (self.versions.0.max(theirs.versions.0), self.versions.1.min(theirs.versions.1));
        if lowest > highest {
            return Err(Broken::Version { ours: self.versions, theirs: theirs.versions });
        }
        Ok(theirs)
    }
}
