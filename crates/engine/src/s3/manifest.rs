//! The manifest of a snapshot, which makes it visible, and the checksums of its chunks.
//!
//! ```text
//! manifest: format 1 | journal id 16 | position 8 | hash 16 | nonce 16 | chunks 4 | crc32c 4
//! chunk:    crc32c 4, of nonce, number and bytes | bytes
//! ```
//! Numbers are little-endian.

use orchestrix_core::Position;

use super::keys::Nonce;
use crate::{ChainHash, JournalId, Link};

const FORMAT: u8 = 1;
const BODY: usize = 61;

/// The manifest of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) link: Link,
    /// Tells this snapshot from others of the same position.
    pub(super) nonce: Nonce,
    pub(super) chunks: u32,
}

impl Manifest {
    pub(super) fn encode(&self, journal: JournalId) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend(journal.0);
        bytes.extend(self.link.position.0.to_le_bytes());
        bytes.extend(self.link.hash.0);
        bytes.extend(self.nonce.0);
        bytes.extend(self.chunks.to_le_bytes());
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    pub(super) fn decode(journal: JournalId, at: Position, bytes: &[u8]) -> Result<Self, String> {
        if let Some(format) = bytes.first().filter(|format| **format != FORMAT) {
            return Err(format!("format {format} is newer than this version; use a newer version"));
        }
        let whole = bytes
            .split_last_chunk::<4>()
            .filter(|(body, sum)| body.len() == BODY && crc32c::crc32c(body) == u32::from_le_bytes(**sum));
        let Some((body, _)) = whole else { return Err("checksum mismatch".to_owned()) };
        let (found, position) = (JournalId(part(body, 1)), Position(u64::from_le_bytes(part(body, 17))));
        if found != journal {
            return Err(format!("it belongs to journal {found}"));
        }
        if position != at {
            return Err(format!("it is the manifest of {position}"));
        }
        let link = Link { position, hash: ChainHash(part(body, 25)) };
        Ok(Self { link, nonce: Nonce(part(body, 41)), chunks: u32::from_le_bytes(part(body, 57)) })
    }

    /// A chunk as it is stored.
    pub(super) fn wrap(&self, number: u32, bytes: &[u8]) -> Vec<u8> {
        [&self.sum(number, bytes).to_le_bytes(), bytes].concat()
    }

    /// A chunk as it was given; `None` if it is not this one.
    pub(super) fn unwrap_chunk(&self, number: u32, stored: &[u8]) -> Option<Vec<u8>> {
        let (sum, bytes) = stored.split_first_chunk::<4>()?;
        (u32::from_le_bytes(*sum) == self.sum(number, bytes)).then(|| bytes.to_vec())
    }

    fn sum(&self, number: u32, bytes: &[u8]) -> u32 {
        let start = crc32c::crc32c_append(crc32c::crc32c(&self.nonce.0), &number.to_le_bytes());
        crc32c::crc32c_append(start, bytes)
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has exactly N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let link = Link { position: Position(7), hash: ChainHash([3; 16]) };
        let manifest = Manifest { link, nonce: Nonce([5; 16]), chunks: 9 };
        let journal = JournalId([1; 16]);
        let bytes = manifest.encode(journal);
        assert_eq!(Manifest::decode(journal, Position(7), &bytes), Ok(manifest));
        Manifest::decode(JournalId([2; 16]), Position(7), &bytes).unwrap_err();
        Manifest::decode(journal, Position(8), &bytes).unwrap_err();
        for end in 0..bytes.len() {
            Manifest::decode(journal, Position(7), &bytes[..end]).unwrap_err();
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            Manifest::decode(journal, Position(7), &flipped).unwrap_err();
        }
        let chunk = manifest.wrap(2, b"state");
        assert_eq!(manifest.unwrap_chunk(2, &chunk).as_deref(), Some(b"state".as_slice()));
        assert_eq!(manifest.unwrap_chunk(3, &chunk), None);
        assert_eq!(manifest.unwrap_chunk(2, &chunk[..3]), None);
    }
}
