//! The encoding of events in batches.
//!
//! A record is `length u32 | kind u8 | format u8 | at u64`, little-endian, then `length` bytes: the body of the event.
//! A reader that meets a kind or format it does not know stops; it never skips.

use crate::event::format_of;
use crate::{Event, FORMAT, Timestamp};

/// Bytes before the body of a record.
const HEADER_BYTES: usize = 14;

/// Appends the record of an event to `out`, in a [format](crate::State::format_of) that the readers of the journal know.
///
/// # Panics
/// When a record is larger than 4 GiB, which the limits on requests exclude, or its kind is newer than the format.
pub fn encode_record(format: u8, at: Timestamp, event: &Event, out: &mut Vec<u8>) {
    let (start, kind) = (out.len(), event.kind());
    assert!(format >= format_of(kind), "{} is not written in format {format}", event.name());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[kind, format]);
    out.extend_from_slice(&at.0.to_le_bytes());
    event.encode_body(out);
    let length = u32::try_from(out.len() - start - HEADER_BYTES).expect("a record is far smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Walks over the events of a batch.
#[derive(Debug)]
pub struct Records<'a>(Undecoded<'a>);

impl<'a> Records<'a> {
    #[must_use]
    pub fn new(batch: &'a [u8]) -> Self {
        Self(Undecoded::new(batch))
    }

    /// Reads as a version does whose newest format is this.
    #[must_use]
    pub fn up_to(format: u8, batch: &'a [u8]) -> Self {
        Self(Undecoded { rest: batch, newest: format })
    }
}

impl Iterator for Records<'_> {
    type Item = Result<(Timestamp, Event), RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let decoded = self.0.next()?.and_then(|record| Ok((record.at, record.event()?)));
        if decoded.is_err() {
            self.0.rest = &[];
        }
        Some(decoded)
    }
}

/// Iterates over the records of a batch, for callers that need only some of the events.
#[derive(Debug)]
pub struct Undecoded<'a> {
    rest: &'a [u8],
    /// The newest format that is read.
    newest: u8,
}

/// One record as it stands in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    pub kind: u8,
    pub at: Timestamp,
    body: &'a [u8],
}

impl Record<'_> {
    /// How many bytes of the batch it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// # Errors
    /// When its kind is not known, or its body is not what the kind says.
    pub fn event(&self) -> Result<Event, RecordError> {
        Event::decode_body(self.kind, self.body)
    }
}

impl<'a> Undecoded<'a> {
    #[must_use]
    pub fn new(batch: &'a [u8]) -> Self {
        Self { rest: batch, newest: FORMAT }
    }

    fn take(&mut self) -> Result<Record<'a>, RecordError> {
        let (header, rest) = self.rest.split_at_checked(HEADER_BYTES).ok_or(RecordError::Short)?;
        let length = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        let length = usize::try_from(length).expect("an address has at least 32 bits");
        let (kind, format) = (header[4], header[5]);
        if format > self.newest {
            return Err(RecordError::UnknownFormat { found: format, newest: self.newest });
        }
        let at = Timestamp(u64::from_le_bytes(header[6..].try_into().expect("eight bytes")));
        let (body, rest) = rest.split_at_checked(length).ok_or(RecordError::Short)?;
        self.rest = rest;
        Ok(Record { kind, at, body })
    }
}

impl<'a> Iterator for Undecoded<'a> {
    type Item = Result<Record<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_err() {
            self.rest = &[];
        }
        Some(taken)
    }
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("the batch ends inside a record")]
    Short,
    #[error("a record has format {found}, this version reads up to {newest}; use a newer version")]
    UnknownFormat { found: u8, newest: u8 },
    #[error("a record has kind {0}, which this version does not know; use a newer version")]
    UnknownKind(u8),
    #[error("the body of a record does not match its kind: {0}")]
    Body(#[from] minicbor::decode::Error),
}
