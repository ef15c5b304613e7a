//! A chunk of output as the bytes of its object.
//!
//! ```text
//! lease 8 | offset 8 | crc32c 4, of task, lease and offset | bytes | crc32c 4, of task and all before
//! ```
//! Numbers are little-endian. The first checksum lets a chunk be found and mended whose bytes are damaged.

use orchestrix_core::{LeaseId, TaskId};

use crate::LogChunk;

const HEAD: usize = 20;
/// What a record adds to its bytes.
pub(super) const RECORD_BYTES_MORE: usize = HEAD + 4;

pub(super) fn encode(task: TaskId, lease: LeaseId, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(bytes.len() + RECORD_BYTES_MORE);
    record.extend(lease.0.to_le_bytes());
    record.extend(offset.to_le_bytes());
    record.extend(sum(task, &record).to_le_bytes());
    record.extend(bytes);
    record.extend(sum(task, &record).to_le_bytes());
    record
}

/// Where a chunk belongs, if that much of it can be read.
pub(super) fn place(task: TaskId, record: &[u8]) -> Option<(LeaseId, u64)> {
    let (place, found) = record.get(..HEAD)?.split_last_chunk::<4>()?;
    if sum(task, place) != u32::from_le_bytes(*found) {
        return None;
    }
    let (lease, offset) = place.split_first_chunk::<8>()?;
    Some((LeaseId(u64::from_le_bytes(*lease)), u64::from_le_bytes(offset.try_into().ok()?)))
}

pub(super) fn decode(task: TaskId, record: &[u8]) -> Option<LogChunk> {
    let (body, found) = record.split_last_chunk::<4>()?;
    if sum(task, body) != u32::from_le_bytes(*found) {
        return None;
    }
    let (lease, offset) = place(task, body)?;
    Some(LogChunk { lease, offset, bytes: body.get(HEAD..)?.to_vec() })
}

fn sum(task: TaskId, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&task.0.to_le_bytes()), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_task_or_with_a_flipped_bit_is_noticed() {
        let record = encode(TaskId(1), LeaseId(2), 3, b"a line");
        let chunk = LogChunk { lease: LeaseId(2), offset: 3, bytes: b"a line".to_vec() };
        assert_eq!(record.len(), 6 + RECORD_BYTES_MORE);
        assert_eq!(decode(TaskId(1), &record), Some(chunk));
        assert_eq!(decode(TaskId(2), &record), None);
        for end in 0..record.len() {
            assert_eq!(decode(TaskId(1), &record[..end]), None);
        }
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(TaskId(1), &flipped), None);
            let kept = place(TaskId(1), &flipped);
            assert_eq!(
                kept.is_some(),
                bit / 8 >= HEAD,
                "the place is known unless its own bytes are damaged"
            );
        }
    }
}
