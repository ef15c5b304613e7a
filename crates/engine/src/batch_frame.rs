//! A batch as bytes, for engines that keep one batch in one place: a stream entry, a row, an object.
//!
//! ```text
//! format 1 | journal id 16 | previous position 8 | previous hash 16 | term 8 | count 4 | length 4 | records | crc32c 4
//! ```
//! Numbers are little-endian; the checksum covers everything before it.

use orchestrix_core::{Position, Term};

use crate::{BATCH_BYTES_MAX, Batch, ChainHash, JournalId, Link};

const FORMAT: u8 = 1;
const HEAD: usize = 57;
const SUM: usize = 4;
/// What a frame adds to the records of its batch, in bytes.
pub const BATCH_FRAME_OVERHEAD_BYTES: usize = HEAD + SUM;

/// Why bytes are not a valid frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBatchFrame {
    #[error("{0} bytes is not a valid length for a batch")]
    Length(usize),
    #[error("format {0} is newer than this version; use a newer version")]
    Format(u8),
    #[error("checksum mismatch")]
    Checksum,
    #[error("it belongs to journal {0}")]
    Journal(JournalId),
}

#[must_use]
pub fn pack(journal: JournalId, batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + batch.records.len() + SUM);
    bytes.push(FORMAT);
    bytes.extend(journal.0);
    bytes.extend(batch.previous.position.0.to_le_bytes());
    bytes.extend(batch.previous.hash.0);
    bytes.extend(batch.term.0.to_le_bytes());
    bytes.extend(batch.count.to_le_bytes());
    let length = u32::try_from(batch.records.len()).expect("a batch was checked to be below its limit");
    bytes.extend(length.to_le_bytes());
    bytes.extend(&batch.records);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// # Errors
/// When the bytes are not a whole batch of this journal.
pub fn unpack(journal: JournalId, bytes: &[u8]) -> Result<Batch, BadBatchFrame> {
    let (found, batch) = unpack_any(bytes)?;
    if found != journal {
        return Err(BadBatchFrame::Journal(found));
    }
    Ok(batch)
}

/// Decodes a batch of any journal.
///
/// # Errors
/// When the bytes are not a whole batch.
pub fn unpack_any(bytes: &[u8]) -> Result<(JournalId, Batch), BadBatchFrame> {
    let wrong = || BadBatchFrame::Length(bytes.len());
    let (format, rest) = bytes.split_first().ok_or_else(wrong)?;
    if *format != FORMAT {
        return Err(BadBatchFrame::Format(*format));
    }
    let (body, sum) = bytes.split_last_chunk::<SUM>().ok_or_else(wrong)?;
    let (head, records) = rest.split_first_chunk::<{ HEAD - 1 }>().ok_or_else(wrong)?;
    let records = records.get(..records.len().saturating_sub(SUM)).ok_or_else(wrong)?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err(BadBatchFrame::Checksum);
    }
    let mut at = 0;
    let mut take = |length: usize| {
        at += length;
        &head[at - length..at]
    };
    let id = JournalId(array(take(16)));
    let position = Position(u64::from_le_bytes(array(take(8))));
    let hash = ChainHash(array(take(16)));
    let term = Term(u64::from_le_bytes(array(take(8))));
    let count = u32::from_le_bytes(array(take(4)));
    let length = u32::from_le_bytes(array(take(4))) as usize;
    if length != records.len() || length > BATCH_BYTES_MAX {
        return Err(wrong());
    }
    Ok((id, Batch { previous: Link { position, hash }, term, count, records: records.to_vec() }))
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the slice has exactly N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let previous = Link { position: Position(7), hash: ChainHash([3; 16]) };
        Batch { previous, term: Term(5), count: 2, records: b"some events".to_vec() }
    }

    const ID: JournalId = JournalId([9; 16]);

    #[test]
    fn a_frame_is_unpacked_as_it_was_packed() {
        let bytes = pack(ID, &batch());
        assert_eq!(bytes.len(), batch().records.len() + BATCH_FRAME_OVERHEAD_BYTES);
        assert_eq!(unpack(ID, &bytes), Ok(batch()));
        assert_eq!(unpack(JournalId([1; 16]), &bytes), Err(BadBatchFrame::Journal(ID)));
    }

    #[test]
    fn every_truncation_and_bit_flip_is_detected() {
        let bytes = pack(ID, &batch());
        for end in 0..bytes.len() {
            unpack(ID, &bytes[..end]).expect_err("a truncated frame is refused");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            unpack(ID, &flipped).expect_err("a flipped bit is detected");
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let mut bytes = pack(ID, &batch());
        bytes[0] = 2;
        assert_eq!(unpack(ID, &bytes), Err(BadBatchFrame::Format(2)));
    }
}
