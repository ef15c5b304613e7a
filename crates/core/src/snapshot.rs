//! The form of a snapshot: a header, then tasks in the order of their ids. Only tasks are stored; the indexes
//! over them are made anew.
//!
//! The first chunk is the header: CBOR. Every other chunk is a sequence of `length u32` (little-endian) and
//! that many bytes of CBOR, one per task; a task never crosses a chunk.

use minicbor::{Decode, Encode};
use sha2::{Digest, Sha256};

use crate::event::FORMAT;
use crate::{Position, State, Task, Term, Timestamp};

/// What a state is besides its tasks.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Header {
    /// The format of this snapshot.
    #[n(0)]
    snapshot: u8,
    #[n(1)]
    position: Position,
    #[n(2)]
    at: Timestamp,
    #[n(3)]
    term: Term,
    #[n(4)]
    epoch: u64,
    #[n(5)]
    format: u8,
}

impl Header {
    pub(crate) fn of(state: &State) -> Self {
        Self {
            snapshot: FORMAT,
            position: state.position,
            at: state.at,
            term: state.term,
            epoch: state.epoch,
            format: state.format,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing to memory cannot fail")
    }
}

pub(crate) fn encode_task(task: &Task, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    minicbor::encode(task, &mut *out).expect("writing to memory cannot fail");
    let length = u32::try_from(out.len() - start - 4).expect("a task is far smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Builds a state from the chunks of a snapshot.
#[derive(Debug, Default)]
pub struct SnapshotLoader {
    state: Option<State>,
}

impl SnapshotLoader {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// When it is not a chunk that follows here.
    pub fn load(&mut self, chunk: &[u8]) -> Result<(), SnapshotError> {
        let Some(state) = &mut self.state else {
            self.state = Some(state_of(minicbor::decode(chunk)?)?);
            return Ok(());
        };
        let mut rest = chunk;
        while !rest.is_empty() {
            let (length, after) = rest.split_at_checked(4).ok_or(SnapshotError::Short)?;
            let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
            let length = usize::try_from(length).expect("an address has at least 32 bits");
            let (body, after) = after.split_at_checked(length).ok_or(SnapshotError::Short)?;
            add(state, minicbor::decode(body)?)?;
            rest = after;
        }
        Ok(())
    }

    /// The whole state.
    ///
    /// # Errors
    /// When there was not even a header.
    pub fn finish(self) -> Result<State, SnapshotError> {
        self.state.ok_or(SnapshotError::Short)
    }
}

/// Why a snapshot cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot ends too early")]
    Short,
    #[error("the snapshot has format {0}, this version reads up to {FORMAT}; use a newer version")]
    UnknownFormat(u8),
    #[error("the snapshot has a task out of order")]
    Order,
    #[error("the snapshot is not readable: {0}")]
    Body(#[from] minicbor::decode::Error),
}

impl State {
    /// Sixteen bytes that are equal for equal states.
    ///
    /// # Panics
    /// While a capture is under way.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 16] {
        let mut digest = Sha256::new();
        digest.update(Header::of(self).encode());
        let mut bytes = Vec::new();
        for task in self.tasks.after(None) {
            bytes.clear();
            encode_task(task, &mut bytes);
            digest.update(&bytes);
        }
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&digest.finalize()[..16]);
        fingerprint
    }
}

fn state_of(header: Header) -> Result<State, SnapshotError> {
    let newest = header.snapshot.max(header.format);
    if newest > FORMAT {
        return Err(SnapshotError::UnknownFormat(newest));
    }
    let Header { position, at, term, epoch, format, .. } = header;
    Ok(State { position, at, term, epoch, format, ..State::default() })
}

fn add(state: &mut State, mut task: Task) -> Result<(), SnapshotError> {
    let id = task.id;
    if id.0 > state.position.0 || state.tasks.get(id).is_some() {
        return Err(SnapshotError::Order);
    }
    task.queue = state.shared_queue(&task.queue);
    if let Some(lease) = &mut task.lease {
        lease.worker = state.shared_worker(&lease.worker);
    }
    state.tasks.insert(task);
    state.index(id);
    Ok(())
}
