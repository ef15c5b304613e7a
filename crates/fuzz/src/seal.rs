//! Checksums put right after a file was changed, so that what is behind them is reached too. The forms are those
//! of `docs/journal.md`, written down a second time.

/// Puts the checksums of a file right, by what its name says that it is.
pub(crate) fn seal(name: &str, bytes: &mut [u8]) {
    if name.ends_with(".journal") {
        seal_segment(bytes);
    } else if name.ends_with(".snapshot") {
        seal_snapshot(bytes);
    } else if name.ends_with(".chunks") {
        seal_log(bytes);
    } else if name == "floor" {
        put_sum(bytes, 0, 44, 0);
    }
}

/// A header, then frames one after the other.
fn seal_segment(bytes: &mut [u8]) {
    let size = bytes.len() as u64;
    if bytes.len() < 128 {
        return;
    }
    bytes[56..64].copy_from_slice(&size.to_le_bytes());
    put_sum(bytes, 0, 124, 0);
    let seed = crc32c::crc32c_append(crc32c::crc32c(&bytes[16..32]), &bytes[32..48]);
    let mut at = 128;
    while bytes[at..].starts_with(b"orxF") {
        match bytes.get(at + 5) {
            Some(1) => {
                let Some(sum) = put_sum(bytes, at, 60, seed) else { return };
                let Some(end) = (at + 64 + length(bytes, at + 8) + 4).checked_next_multiple_of(8) else {
                    return;
                };
                if put_sum(bytes, at + 64, end.saturating_sub(at + 68), sum).is_none() {
                    return;
                }
                at = end;
            }
            Some(2) => {
                if put_sum(bytes, at, 36, seed).is_none() {
                    return;
                }
                at += 40;
            }
            Some(_) | None => return,
        }
    }
}

/// A header, chunks, and a trailer that counts and hashes them.
fn seal_snapshot(bytes: &mut [u8]) {
    let Some(_) = put_sum(bytes, 0, 60, 0) else { return };
    let seed = crc32c::crc32c(&bytes[..64]);
    let (mut at, mut chunks, mut total, mut hash) = (64, 0_u64, 0_u64, blake3::Hasher::new());
    loop {
        let sum = crc32c::crc32c_append(seed, &chunks.to_le_bytes());
        let Some(header) = bytes.get(at..at + 8) else { return };
        let sum = crc32c::crc32c_append(sum, &header[..4]);
        if header.starts_with(&[0xff; 4]) {
            let Some(trailer) = bytes.get_mut(at..at + 56) else { return };
            trailer[8..16].copy_from_slice(&chunks.to_le_bytes());
            trailer[16..24].copy_from_slice(&total.to_le_bytes());
            trailer[24..].copy_from_slice(hash.finalize().as_bytes());
            let sum = crc32c::crc32c_append(sum, &trailer[8..]);
            trailer[4..8].copy_from_slice(&sum.to_le_bytes());
            return;
        }
        let length = length(bytes, at);
        let Some(chunk) = bytes.get(at + 8..at + 8 + length) else { return };
        hash.update(chunk);
        let sum = crc32c::crc32c_append(sum, chunk);
        bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        (at, chunks, total) = (at + 8 + length, chunks + 1, total + length as u64);
    }
}

/// A header, then records one after the other.
fn seal_log(bytes: &mut [u8]) {
    let Some(_) = put_sum(bytes, 0, 28, 0) else { return };
    let seed = crc32c::crc32c(&bytes[16..24]);
    let mut at = 32;
    while bytes[at..].starts_with(b"orxL") && bytes.len() >= at + 48 {
        let end = (at + 48 + length(bytes, at + 8)).next_multiple_of(8);
        let Some(body) = bytes.get(at + 48..end) else { return };
        let sum = crc32c::crc32c_append(seed, body);
        bytes[at + 12..at + 16].copy_from_slice(&sum.to_le_bytes());
        put_sum(bytes, at, 44, seed);
        at = end;
    }
}

/// Writes the checksum of `length` bytes behind them; `None` when the file ends before.
fn put_sum(bytes: &mut [u8], at: usize, length: usize, seed: u32) -> Option<u32> {
    let sum = crc32c::crc32c_append(seed, bytes.get(at..at + length)?);
    bytes.get_mut(at + length..at + length + 4)?.copy_from_slice(&sum.to_le_bytes());
    Some(sum)
}

fn length(bytes: &[u8], at: usize) -> usize {
    bytes[at..at + 4].iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::{journal, logs};

    #[test]
    fn files_of_the_engine_are_sealed() {
        let (journal, logs) = (journal::base(), logs::base());
        assert!(journal.files.len() > 5 && logs.files.len() > 2);
        for (name, bytes) in journal.files.iter().chain(&logs.files) {
            let mut sealed = bytes.clone();
            seal(name, &mut sealed);
            assert_eq!(sealed, *bytes, "{name}");
        }
    }

    #[test]
    fn a_change_is_sealed_so_that_only_its_meaning_is_left() {
        let base = journal::base();
        let (name, bytes) = base.files.iter().find(|(name, _)| name.ends_with(".journal")).unwrap();
        let mut changed = bytes.clone();
        changed[128 + 64] ^= 1;
        let broken = changed.clone();
        seal(name, &mut changed);
        assert_ne!(changed, broken);
        assert_eq!(changed.iter().zip(bytes).filter(|(one, other)| one != other).count(), 1 + 4);
    }
}
