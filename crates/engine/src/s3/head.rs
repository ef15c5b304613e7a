//! The object with the id of the journal and its first position.
//!
//! ```text
//! format 1 | journal id 16 | floor position 8 | floor hash 16 | nonce 16 | crc32c 4
//! ```
//! Numbers are little-endian; the checksum covers everything before it.
//!
//! **Invariant:** the floor only rises, and is the end of a batch. Batches at or below it are deleted only after it was
//! raised; so a batch above a floor that was read later was there first, and was never deleted.

use orchestrix_core::Position;

use super::keys::{Keys, Nonce};
use super::store::{Failure, Store};
use crate::{ChainHash, Error, JournalId, Link};

const FORMAT: u8 = 1;
const BODY: usize = 57;

/// How often raising the floor is tried when others change it at the same time.
const TRIES: usize = 3;

/// The journal and its floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) id: JournalId,
    /// Nothing at or below it can be read any more.
    pub(super) floor: Link,
    /// Gives every writing another ETag.
    nonce: Nonce,
}

impl Head {
    pub(super) fn read(store: &Store, keys: &Keys, doing: &str) -> Result<Option<Self>, Error> {
        Ok(read(store, keys, doing)?.map(|(head, _)| head))
    }

    /// The same, and whether there is some other object.
    pub(super) fn read_beside(
        store: &Store,
        keys: &Keys,
        doing: &str,
        other: &str,
    ) -> Result<(Option<Self>, bool), Error> {
        let name = keys.journal();
        let (object, there) =
            store.get_beside(&name, other).map_err(|failure| store.error(doing, failure))?;
        let head = object.map(|object| Self::decode(&object.bytes)).transpose();
        Ok((head.map_err(|what| store.damaged(doing, &name, what))?, there))
    }

    /// Makes a journal, unless another node just did.
    pub(super) fn make(store: &Store, keys: &Keys, doing: &str) -> Result<(), Error> {
        let head = Self { id: JournalId(Nonce::draw()?.0), floor: Link::default(), nonce: Nonce::draw()? };
        match store.create(&keys.journal(), &head.encode()) {
            Ok(_) | Err(Failure::Unmet | Failure::Contested) => Ok(()),
            Err(failure @ (Failure::Unsent(_) | Failure::Refused(_) | Failure::Lost(_))) => {
                Err(store.error(doing, failure))
            }
        }
    }

    /// Raises the floor of a journal, if it is lower.
    pub(super) fn raise(
        store: &Store,
        keys: &Keys,
        doing: &str,
        id: JournalId,
        floor: Link,
    ) -> Result<(), Error> {
        let mut failure = Failure::Contested;
        for _ in 0..TRIES {
            let Some((head, etag)) = read(store, keys, doing)?.filter(|(head, _)| head.id == id) else {
                return Ok(());
            };
            if head.floor.position >= floor.position {
                return Ok(());
            }
            let raised = Self { floor, nonce: Nonce::draw()?, ..head };
            match store.replace(&keys.journal(), &etag, &raised.encode()) {
                Ok(_) => return Ok(()),
                // Its outcome does not matter: the stored object decides.
                Err(Failure::Unmet | Failure::Contested) => {}
                Err(other @ Failure::Lost(_)) => failure = other,
                Err(other @ (Failure::Unsent(_) | Failure::Refused(_))) => {
                    return Err(store.error(doing, other));
                }
            }
        }
        Err(store.error(doing, failure))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.id.0);
        bytes.extend(self.floor.position.0.to_le_bytes());
        bytes.extend(self.floor.hash.0);
        bytes.extend(self.nonce.0);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        if let Some(format) = bytes.first().filter(|format| **format != FORMAT) {
            return Err(format!("format {format} is newer than this version; use a newer version"));
        }
        let whole = bytes
            .split_last_chunk::<4>()
            .filter(|(body, sum)| body.len() == BODY && crc32c::crc32c(body) == u32::from_le_bytes(**sum));
        let Some((body, _)) = whole else { return Err("checksum mismatch".to_owned()) };
        let position = Position(u64::from_le_bytes(part(body, 17)));
        let floor = Link { position, hash: ChainHash(part(body, 25)) };
        Ok(Self { id: JournalId(part(body, 1)), floor, nonce: Nonce(part(body, 41)) })
    }
}

/// The object, and its tag.
fn read(store: &Store, keys: &Keys, doing: &str) -> Result<Option<(Head, String)>, Error> {
    let name = keys.journal();
    let Some(object) = store.get(&name).map_err(|failure| store.error(doing, failure))? else {
        return Ok(None);
    };
    let head = Head::decode(&object.bytes).map_err(|what| store.damaged(doing, &name, what))?;
    Ok(Some((head, object.etag)))
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has exactly N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_and_every_flipped_bit_of_a_head_is_noticed() {
        let floor = Link { position: Position(7), hash: ChainHash([3; 16]) };
        let head = Head { id: JournalId([9; 16]), floor, nonce: Nonce([5; 16]) };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Ok(head));
        for end in 0..bytes.len() {
            Head::decode(&bytes[..end]).unwrap_err();
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            Head::decode(&flipped).unwrap_err();
        }
    }
}
