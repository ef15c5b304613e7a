//! The bytes of a journal segment: its header, and the two kinds of frames after it.
//!
//! Numbers are little-endian, everything starts at a multiple of 8 bytes. `docs/journal.md` has the tables
//! and the reasons.
//!
//! **Invariant:** every byte of a frame is under a checksum that starts from the random id of its segment,
//! so neither rot nor bytes of another time or place pass for a frame.

use orchestrix_core::{Position, Term, is_planted};

use crate::{BATCH_BYTES_MAX, BatchRef, ChainHash, JournalId, Link};

/// The newest format of segments and frames that this version knows.
pub(crate) const FORMAT: u8 = 1;

pub(crate) const SEGMENT_HEADER_BYTES: usize = 128;
pub(crate) const BATCH_HEADER_BYTES: usize = 64;
pub(crate) const MARK_BYTES: usize = 40;
/// Frames start at multiples of this.
pub(crate) const ALIGN: usize = 8;

const SEGMENT_MAGIC: [u8; 8] = *b"orxseg\r\n";
const FRAME_MAGIC: [u8; 4] = *b"orxF";
const KIND_BATCH: u8 = 1;
const KIND_MARK: u8 = 2;

/// Why bytes are not what they should be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Damaged(String),
    /// Whole, but in a format that only a newer version knows.
    Newer(u32),
}

/// The first bytes of a segment: which journal it belongs to, and what it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) journal: JournalId,
    pub(crate) segment: [u8; 16],
    /// How long the file is, this header included.
    pub(crate) size: u64,
    /// The end of the segments before. All up to it is durable.
    pub(crate) follows: Link,
}

impl SegmentHeader {
    pub(crate) fn first(&self) -> Position {
        self.follows.position.next()
    }

    /// What the checksums of this segment's frames start from.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.journal.0), &self.segment)
    }

    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&u32::from(FORMAT).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.journal.0);
        bytes[32..48].copy_from_slice(&self.segment);
        bytes[48..56].copy_from_slice(&self.first().0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.size.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.follows.position.0.to_le_bytes());
        bytes[72..88].copy_from_slice(&self.follows.hash.0);
        let sum = crc32c::crc32c(&bytes[..124]);
        bytes[124..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Result<Self, Flaw> {
        if bytes[..8] != SEGMENT_MAGIC {
            return Err(Flaw::Damaged("this is not the header of a journal segment".to_owned()));
        }
        check_sum("segment header", crc32c::crc32c(&bytes[..124]), u32_at(bytes, 124))?;
        let format = u32_at(bytes, 8);
        if format > u32::from(FORMAT) {
            return Err(Flaw::Newer(format));
        }
        let follows = Link { position: Position(u64_at(bytes, 64)), hash: ChainHash(id_at(bytes, 72)) };
        if follows.position.0.checked_add(1) != Some(u64_at(bytes, 48)) {
            let what = format!("it begins at {}, but follows {}", u64_at(bytes, 48), follows.position);
            return Err(Flaw::Damaged(what));
        }
        Ok(Self {
            journal: JournalId(id_at(bytes, 16)),
            segment: id_at(bytes, 32),
            size: u64_at(bytes, 56),
            follows,
        })
    }
}

/// The first bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameHeader {
    Batch(BatchHeader),
    Mark(Link),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) term: Term,
    pub(crate) previous: Link,
    pub(crate) count: u32,
    pub(crate) body: usize,
    /// All up to here was durable when this was written.
    pub(crate) durable: Position,
    sum: u32,
}

impl BatchHeader {
    pub(crate) fn frame_bytes(&self) -> usize {
        frame_bytes(self.body)
    }

    /// The batch in a frame of which this is the header, if its bytes are what was written.
    pub(crate) fn batch<'a>(&self, frame: &'a [u8]) -> Result<BatchRef<'a>, Flaw> {
        let end = frame.len() - 4;
        let sum = crc32c::crc32c_append(self.sum, &frame[BATCH_HEADER_BYTES..end]);
        check_sum("batch body", sum, u32_at(frame, end))?;
        let records = &frame[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + self.body];
        Ok(BatchRef { previous: self.previous, term: self.term, count: self.count, records })
    }
}

/// What a frame has besides the records of its batch: a header, and a checksum behind them.
pub(crate) const FRAME_EXTRA_BYTES: usize = BATCH_HEADER_BYTES + 4;

/// How long the frame of a batch is.
pub(crate) fn frame_bytes(body: usize) -> usize {
    (FRAME_EXTRA_BYTES + body).next_multiple_of(ALIGN)
}

/// Puts the frame of a batch into `into`, in place of what was there.
pub(crate) fn encode_batch(batch: BatchRef<'_>, durable: Position, seed: u32, into: &mut Vec<u8>) {
    let body = u32::try_from(batch.records.len()).expect("a batch is at most BATCH_BYTES_MAX long");
    into.clear();
    into.extend_from_slice(&FRAME_MAGIC);
    into.extend_from_slice(&[FORMAT, KIND_BATCH, 0, 0]);
    into.extend_from_slice(&body.to_le_bytes());
    into.extend_from_slice(&batch.count.to_le_bytes());
    into.extend_from_slice(&batch.term.0.to_le_bytes());
    into.extend_from_slice(&batch.previous.position.next().0.to_le_bytes());
    into.extend_from_slice(&durable.0.to_le_bytes());
    into.extend_from_slice(&batch.previous.hash.0);
    into.extend_from_slice(&[0; 4]);
    let sum = header_sum(into, seed);
    into.extend_from_slice(&sum.to_le_bytes());
    into.extend_from_slice(batch.records);
    into.resize(frame_bytes(batch.records.len()) - 4, 0);
    let sum = crc32c::crc32c_append(sum, &into[BATCH_HEADER_BYTES..]);
    into.extend_from_slice(&sum.to_le_bytes());
}

/// The checksum of all that comes before it in a frame of a batch.
fn header_sum(bytes: &[u8], seed: u32) -> u32 {
    if is_planted("length-unsummed") {
        return crc32c::crc32c_append(crc32c::crc32c_append(seed, &bytes[..8]), &bytes[12..]);
    }
    crc32c::crc32c_append(seed, bytes)
}

/// A frame that says: all up to `durable` is durable.
pub(crate) fn encode_mark(durable: Link, seed: u32) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    bytes[..4].copy_from_slice(&FRAME_MAGIC);
    bytes[4..6].copy_from_slice(&[FORMAT, KIND_MARK]);
    bytes[8..16].copy_from_slice(&durable.position.0.to_le_bytes());
    bytes[16..32].copy_from_slice(&durable.hash.0);
    let sum = crc32c::crc32c_append(seed, &bytes[..36]);
    bytes[36..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Whether a frame may begin with these bytes; cheap, for a search.
pub(crate) fn may_be_frame(bytes: &[u8]) -> bool {
    bytes.starts_with(&FRAME_MAGIC)
}

/// Reads the header of the frame that begins with these bytes. A batch needs [`BATCH_HEADER_BYTES`] of
/// them, a mark [`MARK_BYTES`].
pub(crate) fn decode_frame(bytes: &[u8], seed: u32) -> Result<FrameHeader, Flaw> {
    if bytes.len() < MARK_BYTES || !may_be_frame(bytes) {
        return Err(Flaw::Damaged("no frame begins here".to_owned()));
    }
    match bytes[5] {
        KIND_BATCH if bytes.len() >= BATCH_HEADER_BYTES => decode_batch(bytes, seed),
        KIND_MARK => decode_mark(bytes, seed),
        kind => Err(Flaw::Damaged(format!("expected a batch or a mark, found a frame of kind {kind}"))),
    }
}

fn decode_batch(bytes: &[u8], seed: u32) -> Result<FrameHeader, Flaw> {
    let sum = u32_at(bytes, 60);
    check_sum("batch header", header_sum(&bytes[..60], seed), sum)?;
    check_format(bytes[4])?;
    let (body, count, first) = (u32_at(bytes, 8) as usize, u32_at(bytes, 12), u64_at(bytes, 24));
    if body > BATCH_BYTES_MAX || count == 0 || first == 0 || first.checked_add(u64::from(count)).is_none() {
        let what = format!("{count} events in {body} bytes from position {first} are impossible");
        return Err(Flaw::Damaged(what));
    }
    Ok(FrameHeader::Batch(BatchHeader {
        term: Term(u64_at(bytes, 16)),
        previous: Link { position: Position(first - 1), hash: ChainHash(id_at(bytes, 40)) },
        count,
        body,
        durable: Position(u64_at(bytes, 32)),
        sum,
    }))
}

fn decode_mark(bytes: &[u8], seed: u32) -> Result<FrameHeader, Flaw> {
    check_sum("mark", crc32c::crc32c_append(seed, &bytes[..36]), u32_at(bytes, 36))?;
    check_format(bytes[4])?;
    Ok(FrameHeader::Mark(Link { position: Position(u64_at(bytes, 8)), hash: ChainHash(id_at(bytes, 16)) }))
}

fn check_format(format: u8) -> Result<(), Flaw> {
    if format > FORMAT { Err(Flaw::Newer(u32::from(format))) } else { Ok(()) }
}

/// Checks a checksum; the flaw names both.
pub(crate) fn check_sum(of: &str, computed: u32, stored: u32) -> Result<(), Flaw> {
    if computed == stored {
        return Ok(());
    }
    Err(Flaw::Damaged(format!("the {of} has checksum {computed:08x}, expected {stored:08x}")))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn id_at(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes[at..at + 16].try_into().expect("sixteen bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader {
        journal: JournalId([1; 16]),
        segment: [2; 16],
        size: 4096,
        follows: Link { position: Position(41), hash: ChainHash([3; 16]) },
    };

    fn frame() -> Vec<u8> {
        let mut bytes = Vec::new();
        let batch = BatchRef { previous: HEADER.follows, term: Term(7), count: 2, records: b"hello" };
        encode_batch(batch, Position(40), HEADER.seed(), &mut bytes);
        bytes
    }

    fn read(bytes: &[u8], seed: u32) -> Result<Vec<u8>, Flaw> {
        match decode_frame(bytes, seed)? {
            FrameHeader::Batch(header) => Ok(header.batch(bytes)?.records.to_vec()),
            FrameHeader::Mark(_) => Ok(Vec::new()),
        }
    }

    #[test]
    fn written_headers_and_frames_are_read() {
        assert_eq!(SegmentHeader::decode(&HEADER.encode()), Ok(HEADER));
        let frame = frame();
        assert_eq!(frame.len() % ALIGN, 0);
        assert_eq!(read(&frame, HEADER.seed()), Ok(b"hello".to_vec()));
        let mark = encode_mark(HEADER.follows, HEADER.seed());
        assert_eq!(decode_frame(&mark, HEADER.seed()), Ok(FrameHeader::Mark(HEADER.follows)));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut bytes = HEADER.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bytes).is_err(), "bit {bit}");
        }
        for whole in [frame(), encode_mark(HEADER.follows, HEADER.seed()).to_vec()] {
            for bit in 0..whole.len() * 8 {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&bytes, HEADER.seed()).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_frame_of_another_segment_is_no_frame() {
        let other = SegmentHeader { segment: [9; 16], ..HEADER };
        assert!(read(&frame(), other.seed()).is_err());
    }

    #[test]
    fn a_newer_format_is_not_reported_as_damage() {
        let mut bytes = HEADER.encode();
        bytes[8] = FORMAT + 1;
        let sum = crc32c::crc32c(&bytes[..124]);
        bytes[124..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Err(Flaw::Newer(u32::from(FORMAT) + 1)));
    }
}
