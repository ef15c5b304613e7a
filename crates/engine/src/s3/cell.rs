//! A cell as the bytes of its object.
//!
//! ```text
//! format 1 | nonce 16 | epoch 8 | ttl_ms 8 | held 1 | owner length 4 | owner | value | crc32c 4, of key and all before
//! ```
//! Numbers are little-endian. The nonce gives every writing another ETag, which stores make from the bytes.

use super::keys::Nonce;
use crate::Claim;

const FORMAT: u8 = 1;
const HEAD: usize = 38;

/// What one writing of a cell says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) nonce: Nonce,
    pub(super) claim: Claim,
}

impl Written {
    pub(super) fn encode(&self, key: &str) -> Vec<u8> {
        let Claim { owner, epoch, ttl_ms, held, value } = &self.claim;
        let mut bytes = Vec::with_capacity(HEAD + owner.len() + value.len() + 4);
        bytes.push(FORMAT);
        bytes.extend(self.nonce.0);
        bytes.extend(epoch.to_le_bytes());
        bytes.extend(ttl_ms.to_le_bytes());
        bytes.push(u8::from(*held));
        let length = u32::try_from(owner.len()).expect("a name is shorter than 4 GB");
        bytes.extend(length.to_le_bytes());
        bytes.extend(owner.as_bytes());
        bytes.extend(value);
        bytes.extend(sum(key, &bytes).to_le_bytes());
        bytes
    }

    pub(super) fn decode(key: &str, bytes: &[u8]) -> Result<Self, String> {
        if let Some(format) = bytes.first().filter(|format| **format != FORMAT) {
            return Err(format!("format {format} is newer than this version; use a newer version"));
        }
        let whole = bytes
            .split_last_chunk::<4>()
            .filter(|(body, found)| sum(key, body) == u32::from_le_bytes(**found));
        whole.and_then(|(body, _)| parts(body)).ok_or_else(|| "checksum mismatch".to_owned())
    }
}

fn parts(body: &[u8]) -> Option<Written> {
    let (head, rest) = body.split_first_chunk::<HEAD>()?;
    let (nonce, numbers) = head[1..].split_first_chunk::<16>()?;
    let (epoch, numbers) = numbers.split_first_chunk::<8>()?;
    let (ttl_ms, numbers) = numbers.split_first_chunk::<8>()?;
    let (held, length) = numbers.split_first()?;
    let (owner, value) = rest.split_at_checked(u32::from_le_bytes(length.try_into().ok()?) as usize)?;
    let claim = Claim {
        owner: String::from_utf8(owner.to_vec()).ok()?,
        epoch: u64::from_le_bytes(*epoch),
        ttl_ms: u64::from_le_bytes(*ttl_ms),
        held: *held == 1,
        value: value.to_vec(),
    };
    Some(Written { nonce: Nonce(*nonce), claim })
}

/// Covers the key, too: a cell that was moved is not taken for another.
fn sum(key: &str, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key.as_bytes()), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_and_every_flipped_bit_of_a_cell_is_noticed() {
        let claim =
            Claim { owner: "ä".to_owned(), epoch: 3, ttl_ms: 9, held: true, value: b"where".to_vec() };
        let written = Written { nonce: Nonce([7; 16]), claim };
        let bytes = written.encode("leader");
        assert_eq!(Written::decode("leader", &bytes), Ok(written));
        Written::decode("other", &bytes).unwrap_err();
        for end in 0..bytes.len() {
            Written::decode("leader", &bytes[..end]).unwrap_err();
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            Written::decode("leader", &flipped).unwrap_err();
        }
    }
}
