//! The form of a snapshot: a header, then services in the order of their names, then tasks in the order of their ids.
//! The indexes over them are made anew.
//!
//! The first chunk is the header: CBOR. Every other chunk is a sequence of `length u32` (little-endian) and
//! that many bytes of CBOR, one per service or task, which never cross a chunk.

use minicbor::{Decode, Encode};
use sha2::{Digest, Sha256};

use crate::event::FORMAT;
use crate::limits::{ATTEMPTS_MAX, ID_MAX, LEASE_MS_MAX, PRIORITY_MAX};
use crate::shards::{Service, Stored};
use crate::{Name, Position, State, Task, TaskId, TaskState, Term, Timestamp};

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
    /// How many services come before the tasks.
    #[n(6)]
    services: Option<usize>,
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
            services: (!state.services.is_empty()).then_some(state.services.len()),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing to memory cannot fail")
    }
}

pub(crate) fn encode_task(task: &Task, out: &mut Vec<u8>) {
    encode_item(task, out);
}

pub(crate) fn encode_service(name: &Name, service: &Service) -> Vec<u8> {
    let mut out = Vec::new();
    encode_item(Stored::of(name, service), &mut out);
    out
}

fn encode_item(item: impl Encode<()>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    minicbor::encode(item, &mut *out).expect("writing to memory cannot fail");
    let length = u32::try_from(out.len() - start - 4).expect("an item is far smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Builds a state from the chunks of a snapshot.
#[derive(Debug, Default)]
pub struct SnapshotLoader {
    state: Option<State>,
    /// Services that are still to come.
    services: usize,
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
            let header: Header = minicbor::decode(chunk)?;
            self.services = header.services.unwrap_or(0);
            self.state = Some(state_of(header)?);
            return Ok(());
        };
        let mut rest = chunk;
        while !rest.is_empty() {
            let (length, after) = rest.split_at_checked(4).ok_or(SnapshotError::Short)?;
            let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
            let length = usize::try_from(length).expect("an address has at least 32 bits");
            let (body, after) = after.split_at_checked(length).ok_or(SnapshotError::Short)?;
            if self.services > 0 {
                self.services -= 1;
                add_service(state, minicbor::decode(body)?)?;
            } else {
                add(state, minicbor::decode(body)?)?;
            }
            rest = after;
        }
        Ok(())
    }

    /// The whole state.
    ///
    /// # Errors
    /// When there was not even a header.
    pub fn finish(self) -> Result<State, SnapshotError> {
        self.state.filter(|_| self.services == 0).ok_or(SnapshotError::Short)
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
    #[error("the snapshot is at position {0} of epoch {1}, after which nothing can follow")]
    Last(Position, u64),
    #[error("the snapshot has task {0}, which cannot be: {1}")]
    Impossible(TaskId, &'static str),
    #[error("the snapshot has a service that cannot be: {0}")]
    ImpossibleService(&'static str),
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
        for (name, service) in &self.services {
            digest.update(encode_service(name, service));
        }
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
    if position.0 > ID_MAX || epoch == u64::MAX {
        return Err(SnapshotError::Last(position, epoch));
    }
    Ok(State { position, at, term, epoch, format, ..State::default() })
}

fn add_service(state: &mut State, stored: Stored) -> Result<(), SnapshotError> {
    let (name, service) = stored.service(state.position).map_err(SnapshotError::ImpossibleService)?;
    if state.services.last_key_value().is_some_and(|(last, _)| *last >= name) {
        return Err(SnapshotError::ImpossibleService("it is out of order"));
    }
    state.services.insert(name, service);
    Ok(())
}

fn add(state: &mut State, mut task: Task) -> Result<(), SnapshotError> {
    let id = task.id;
    if id.0 > state.position.0
        || state.tasks.after(Some(id)).next().is_some()
        || state.tasks.get(id).is_some()
    {
        return Err(SnapshotError::Order);
    }
    if let Some(why) = flaw(state, &task) {
        return Err(SnapshotError::Impossible(id, why));
    }
    task.queue = state.shared_queue(&task.queue);
    if let Some(lease) = &mut task.lease {
        lease.worker = state.shared_worker(&lease.worker);
    }
    state.tasks.insert(task);
    state.index(id);
    Ok(())
}

/// What the rules rely on and this task does not keep, if anything. Whoever reads a snapshot has checked that its
/// bytes are those that were written; this keeps a state that never was from stopping a node later.
fn flaw(state: &State, task: &Task) -> Option<&'static str> {
    let leased = task.state == TaskState::Leased;
    if leased != task.lease.is_some() {
        return Some("it is leased without a lease, or the other way round");
    }
    if let Some(lease) = &task.lease {
        if lease.id.0 > state.position.0 || state.leases.get(lease.id).is_some() {
            return Some("its lease is of another task, or of later");
        }
        if lease.length_ms > LEASE_MS_MAX {
            return Some("its lease is longer than leases are");
        }
    }
    if task.priority.unsigned_abs() > PRIORITY_MAX.unsigned_abs() {
        return Some("its priority is out of bounds");
    }
    if task.charged > task.max_attempts || task.max_attempts > ATTEMPTS_MAX {
        return Some("it had more attempts than there are");
    }
    if task.purged && !task.state.is_terminal() {
        return Some("it was purged before it ended");
    }
    if task.state.is_terminal() && !task.purged && task.ending().is_none() {
        return Some("it ended without an ending");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Json, LeaseId, LiveLease, Name};

    fn task(id: u64) -> Task {
        Task {
            id: TaskId(id),
            queue: Name::new("mail").unwrap(),
            payload: Json::null(),
            created_at: Timestamp(1),
            not_before: Timestamp(1),
            priority: 0,
            max_attempts: 3,
            charged: 0,
            state: TaskState::Waiting,
            purged: false,
            lease: None,
            terms: None,
            past: None,
        }
    }

    fn lease(id: u64) -> Option<Box<LiveLease>> {
        Some(Box::new(LiveLease {
            id: LeaseId(id),
            worker: Name::new("worker").unwrap(),
            attempt: 1,
            granted_at: Timestamp(1),
            length_ms: 1_000,
            expires_at: Timestamp(2),
            timeout_at: None,
            cancel_at: None,
            prolonged: false,
            request_id: None,
            progress: None,
            note: None,
        }))
    }

    fn load(header: &Header, tasks: &[Task]) -> Result<State, SnapshotError> {
        let mut loader = SnapshotLoader::new();
        loader.load(&header.encode())?;
        let mut chunk = Vec::new();
        tasks.iter().for_each(|task| encode_task(task, &mut chunk));
        loader.load(&chunk)?;
        loader.finish()
    }

    fn header() -> Header {
        Header { position: Position(9), ..Header::of(&State::new()) }
    }

    #[test]
    fn tasks_that_cannot_be_are_refused_and_stop_nobody() {
        let leased = |task: Task, id| Task { state: TaskState::Leased, lease: lease(id), ..task };
        assert!(load(&header(), &[task(1), leased(task(2), 3)]).is_ok());
        let impossible = [
            vec![Task { state: TaskState::Leased, ..task(1) }],
            vec![Task { lease: lease(2), ..task(1) }],
            vec![leased(task(1), 3), leased(task(2), 3)],
            vec![leased(task(1), 10)],
            vec![Task { priority: i32::MIN, ..task(1) }],
            vec![Task { charged: u32::MAX, ..task(1) }],
            vec![Task { state: TaskState::Completed, ..task(1) }],
            vec![Task { purged: true, ..task(1) }],
            vec![task(2), task(1)],
            vec![task(10)],
        ];
        for tasks in impossible {
            assert!(load(&header(), &tasks).is_err(), "{tasks:?}");
        }
    }

    #[test]
    fn a_header_after_which_nothing_can_follow_is_refused() {
        assert!(load(&Header { position: Position(u64::MAX), ..header() }, &[]).is_err());
        assert!(load(&Header { epoch: u64::MAX, ..header() }, &[]).is_err());
    }
}
