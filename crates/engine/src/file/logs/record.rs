//! The bytes of a log file: a header, then records. `docs/journal.md` has the tables.
//!
//! **Invariant:** every byte of a record is under a checksum that starts from the random id of its file.

use orchestrix_core::{LeaseId, TaskId};

use crate::file::layout::{ALIGN, FORMAT, Flaw, check_sum, u32_at, u64_at};

/// The largest chunk, in bytes. Bounds what a reader must hold in memory for one.
pub(crate) const CHUNK_BYTES_MAX: usize = 4 << 20;
/// So many tasks are deleted by one record.
pub(super) const TOMBSTONE_TASKS_MAX: usize = 4096;

pub(super) const FILE_HEADER_BYTES: usize = 32;
pub(super) const RECORD_HEADER_BYTES: usize = 48;
const FILE_MAGIC: [u8; 8] = *b"orxlog\r\n";
const RECORD_MAGIC: [u8; 4] = *b"orxL";
const KIND_CHUNK: u8 = 1;
const KIND_TOMBSTONE: u8 = 2;

/// What is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Record<'a> {
    Chunk {
        task: TaskId,
        lease: LeaseId,
        offset: u64,
        bytes: &'a [u8],
    },
    /// The tasks in the body have no chunks before this.
    Tombstone {
        body: &'a [u8],
    },
}

impl<'a> Record<'a> {
    pub(super) fn frame_bytes(&self) -> usize {
        frame_bytes(self.body().len())
    }

    fn body(&self) -> &'a [u8] {
        match self {
            Self::Chunk { bytes, .. } => bytes,
            Self::Tombstone { body } => body,
        }
    }

    /// Puts the record into `into`, in place of what was there.
    pub(super) fn encode(&self, seed: u32, into: &mut Vec<u8>) {
        let (kind, task, lease, offset) = match self {
            Self::Chunk { task, lease, offset, .. } => (KIND_CHUNK, task.0, lease.0, *offset),
            Self::Tombstone { .. } => (KIND_TOMBSTONE, 0, 0, 0),
        };
        let body = self.body();
        let len = u32::try_from(body.len()).expect("a body is at most CHUNK_BYTES_MAX long");
        into.clear();
        into.resize(RECORD_HEADER_BYTES, 0);
        into.extend_from_slice(body);
        into.resize(frame_bytes(body.len()), 0);
        let sum = crc32c::crc32c_append(seed, &into[RECORD_HEADER_BYTES..]);
        into[..4].copy_from_slice(&RECORD_MAGIC);
        into[4..6].copy_from_slice(&[FORMAT, kind]);
        into[8..12].copy_from_slice(&len.to_le_bytes());
        into[12..16].copy_from_slice(&sum.to_le_bytes());
        into[16..24].copy_from_slice(&task.to_le_bytes());
        into[24..32].copy_from_slice(&lease.to_le_bytes());
        into[32..40].copy_from_slice(&offset.to_le_bytes());
        let sum = crc32c::crc32c_append(seed, &into[..44]);
        into[44..48].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The first bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) len: usize,
    sum: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chunk { task: TaskId, lease: LeaseId, offset: u64 },
    Tombstone,
}

impl Header {
    pub(super) fn frame_bytes(&self) -> usize {
        frame_bytes(self.len)
    }

    /// The body of the record that begins with these bytes, if it is what was written.
    pub(super) fn body<'a>(&self, bytes: &'a [u8], seed: u32) -> Result<&'a [u8], Flaw> {
        let framed = bytes.get(RECORD_HEADER_BYTES..self.frame_bytes());
        let framed = framed.ok_or_else(|| Flaw::Damaged("the record is longer than expected".to_owned()))?;
        check_sum("log record", crc32c::crc32c_append(seed, framed), self.sum)?;
        Ok(&framed[..self.len])
    }
}

/// Reads the header of the record that begins with these bytes.
pub(super) fn decode(bytes: &[u8], seed: u32) -> Result<Header, Flaw> {
    if bytes.len() < RECORD_HEADER_BYTES || bytes[..4] != RECORD_MAGIC {
        return Err(Flaw::Damaged("no record begins here".to_owned()));
    }
    check_sum("log record header", crc32c::crc32c_append(seed, &bytes[..44]), u32_at(bytes, 44))?;
    if bytes[4] > FORMAT {
        return Err(Flaw::Newer(u32::from(bytes[4])));
    }
    let kind = match bytes[5] {
        KIND_CHUNK => Kind::Chunk {
            task: TaskId(u64_at(bytes, 16)),
            lease: LeaseId(u64_at(bytes, 24)),
            offset: u64_at(bytes, 32),
        },
        KIND_TOMBSTONE => Kind::Tombstone,
        kind => return Err(Flaw::Damaged(format!("expected a chunk or a tombstone, found kind {kind}"))),
    };
    let len = u32_at(bytes, 8) as usize;
    if len > CHUNK_BYTES_MAX {
        return Err(Flaw::Damaged(format!("record of {len} bytes exceeds the limit of {CHUNK_BYTES_MAX}")));
    }
    Ok(Header { kind, len, sum: u32_at(bytes, 12) })
}

/// How long a record with a body of this length is.
pub(super) fn frame_bytes(body: usize) -> usize {
    (RECORD_HEADER_BYTES + body).next_multiple_of(ALIGN)
}

pub(super) fn tombstone_body(tasks: &[TaskId]) -> Vec<u8> {
    tasks.iter().flat_map(|task| task.0.to_le_bytes()).collect()
}

pub(super) fn tombstone_tasks(body: &[u8]) -> Vec<TaskId> {
    body.chunks_exact(8).map(|bytes| TaskId(u64_at(bytes, 0))).collect()
}

pub(super) fn encode_file_header(id: [u8; 8]) -> [u8; FILE_HEADER_BYTES] {
    let mut bytes = [0; FILE_HEADER_BYTES];
    bytes[..8].copy_from_slice(&FILE_MAGIC);
    bytes[8..12].copy_from_slice(&u32::from(FORMAT).to_le_bytes());
    bytes[16..24].copy_from_slice(&id);
    let sum = crc32c::crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// What the checksums of a file with this header start from.
pub(super) fn decode_file_header(bytes: &[u8; FILE_HEADER_BYTES]) -> Result<u32, Flaw> {
    if bytes[..8] != FILE_MAGIC {
        return Err(Flaw::Damaged("this is not a file of task logs".to_owned()));
    }
    check_sum("log file header", crc32c::crc32c(&bytes[..28]), u32_at(bytes, 28))?;
    let format = u32_at(bytes, 8);
    if format > u32::from(FORMAT) {
        return Err(Flaw::Newer(format));
    }
    Ok(seed(&bytes[16..24]))
}

pub(super) fn seed(id: &[u8]) -> u32 {
    crc32c::crc32c(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_record_is_noticed() {
        let mut whole = Vec::new();
        let record = Record::Chunk { task: TaskId(1), lease: LeaseId(2), offset: 3, bytes: b"hello" };
        record.encode(77, &mut whole);
        let read =
            |bytes: &[u8]| decode(bytes, 77).and_then(|header| header.body(bytes, 77).map(<[u8]>::len));
        assert_eq!(read(&whole), Ok(5));
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes).is_err(), "bit {bit}");
        }
    }
}
